//! The functions of the driver's library that we call, looked up by name when a GPU is opened.
//!
//! A driver newer than the bindings may return codes that they do not list, and an enum with an unlisted value is
//! undefined behaviour. Functions therefore return the integer that they return in C. The types of their arguments are
//! those of `cudarc`, and [`agree`] makes the compiler compare every signature with its bindings.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    ptr,
    sync::OnceLock,
};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute,
    CUgraph, CUgraphExec, CUjit_option, CUlaunchConfig, CUmodule, CUresult, CUstream, CUstreamCaptureMode,
};

use crate::gpu::GpuError;

/// Return value of a driver function: 0, or the number of an error.
pub(super) type Code = c_int;

/// The codes that we handle.
pub(super) const OUT_OF_MEMORY: Code = CUresult::CUDA_ERROR_OUT_OF_MEMORY as Code;
pub(super) const NO_DEVICE: Code = CUresult::CUDA_ERROR_NO_DEVICE as Code;
pub(super) const INVALID_DEVICE: Code = CUresult::CUDA_ERROR_INVALID_DEVICE as Code;
pub(super) const NOT_READY: Code = CUresult::CUDA_ERROR_NOT_READY as Code;
pub(super) const UNSUPPORTED_PTX: Code = CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as Code;
pub(super) const NO_COMPILER: Code = CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND as Code;
pub(super) const INVALID_PTX: Code = CUresult::CUDA_ERROR_INVALID_PTX as Code;

/// Codes that mean that the driver cannot compile a kernel, at whatever time it tries.
pub(super) const REFUSALS: [Code; 5] = [
    UNSUPPORTED_PTX,
    NO_COMPILER,
    INVALID_PTX,
    CUresult::CUDA_ERROR_INVALID_IMAGE as Code,
    CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU as Code,
];

/// Names of the driver's library; the first one found is used. `libcuda.so` comes with development packages and may be
/// a stub.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The driver's library, loaded once and kept until the process ends.
fn driver() -> Option<&'static libloading::Library> {
    static LIBRARY: OnceLock<Option<libloading::Library>> = OnceLock::new();
    // SAFETY: the library is NVIDIA's driver, whose initialisers are safe to run.
    LIBRARY
        .get_or_init(|| NAMES.iter().find_map(|name| unsafe { libloading::Library::new(*name) }.ok()))
        .as_ref()
}

/// `functions! { name(argument: type, ..); .. }`
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// Functions of the driver, valid until the process ends: a driver is never unloaded.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> Code,)*
        }

        impl Library {
            /// Loads the library and finds every function.
            pub(super) fn open() -> Result<Self, GpuError> {
                let library = driver().ok_or(GpuError::DriverMissing)?;
                Ok(Library {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the driver's function of this name has this signature (`agree`), with an `int`
                        // for its enum of codes.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($type),*) -> Code>(name) };
                        let missing = |_| GpuError::SymbolMissing { symbol: stringify!($name).to_owned() };
                        *found.map_err(missing)?
                    },)*
                })
            }
        }

        /// Compiles only if every signature here equals that of the bindings, except for the type of the code.
        #[allow(dead_code, reason = "compiling it is its use")]
        fn agree() {
            $(let _: unsafe fn($($type),*) -> CUresult = sys::$name;)*
        }

        /// A driver whose calls all fail with a code that no binding lists.
        #[cfg(test)]
        pub(super) fn broken() -> Library {
            $(
                #[allow(non_snake_case, reason = "the driver's names")]
                unsafe extern "C" fn $name($(_: $type),*) -> Code { 987_654 }
            )*
            Library { $($name,)* }
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxSetCurrent(context: CUcontext);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamQuery(stream: CUstream);
    cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy(exec: CUgraphExec);
    cuGraphDestroy(graph: CUgraph);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery(event: CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    cuEventDestroy_v2(event: CUevent);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost(memory: *mut c_void);
    cuMemsetD8Async(address: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, n: c_uint, options: *mut CUjit_option,
                       values: *mut *mut c_void);
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    cuLaunchKernel(function: CUfunction, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint,
                   threads_z: c_uint, shared: c_uint, stream: CUstream, parameters: *mut *mut c_void,
                   extra: *mut *mut c_void);
}

/// The driver function that launches with attributes; drivers before CUDA 11.8 have none.
pub(super) type LaunchEx =
    unsafe extern "C" fn(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void) -> Code;

/// Looks for the function that launches with attributes.
pub(super) fn launch_ex() -> Option<LaunchEx> {
    // Compiles only if the signature equals that of the bindings, except for the type of the code.
    type Bound = unsafe fn(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void) -> CUresult;
    let _: Bound = sys::cuLaunchKernelEx;
    // SAFETY: the driver's function of this name has this signature, with an `int` for its enum of codes.
    unsafe { driver()?.get::<LaunchEx>(b"cuLaunchKernelEx\0") }.ok().map(|found| *found)
}

/// The driver function that names a code, including codes newer than the bindings.
type ErrorName = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

/// Returns the driver's name for a code, or the number if it has none.
pub(super) fn name_of(code: Code) -> String {
    let number = format!("code {code}");
    // SAFETY: `cuGetErrorName` takes a code and a pointer to a string.
    let function = driver().and_then(|d| unsafe { d.get::<ErrorName>(b"cuGetErrorName\0") }.ok());
    let Some(function) = function else { return number };
    let mut name = ptr::null();
    // SAFETY: the pointer is to a local that lives through the call.
    let found = unsafe { function(code, &mut name) };
    if found != 0 || name.is_null() {
        return number;
    }
    // SAFETY: the driver returned a static string, which ends with a zero byte and is never freed.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
