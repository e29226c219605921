//! The NVIDIA driver, found at run time: nothing of CUDA is needed to build, and its absence is an error like
//! another.
//!
//! `cudarc` panics where the library or a function of it is missing, so the library is looked for first and every
//! call goes through [`call`].

use std::{
    ffi::{CString, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use cudarc::driver::{
    result,
    sys::{self, CUdevice_attribute as Attribute, CUresult},
};

use super::{Arg, DeviceInfo, Driver, GpuError, Grid, table::Kernel};

/// A GPU behind the NVIDIA driver.
pub struct Cuda {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    info: DeviceInfo,
    allocations: Vec<u64>,
    modules: Vec<sys::CUmodule>,
}

/// A loaded kernel; it lives as long as its [`Cuda`].
pub struct Function {
    handle: sys::CUfunction,
    /// Types of the parameters, as the text declares them.
    parameters: Vec<&'static str>,
}

// SAFETY: driver handles belong to the process, not to a thread; `Cuda` makes its context the thread's own before it
// uses them, and takes `&mut self` for whatever changes.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Send for Function {}

/// Calls the driver; a function that it lacks is an error, not a panic.
fn call(name: &'static str, f: impl FnOnce() -> CUresult) -> Result<(), GpuError> {
    let code =
        catch_unwind(AssertUnwindSafe(f)).map_err(|_| GpuError::SymbolMissing { symbol: name.to_owned() })?;
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(failure(name, code)),
    }
}

/// A call that failed.
fn failure(during: &'static str, code: CUresult) -> GpuError {
    GpuError::Failed { during, reason: format!("{code:?}") }
}

/// What a failure means while GPU number `index` of `count` is being opened.
fn absence(error: GpuError, index: usize, count: usize) -> GpuError {
    match error {
        GpuError::Failed { reason, .. }
            if ["CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE"].contains(&&*reason) =>
        {
            GpuError::NoDevice { index, count }
        }
        other => other,
    }
}

/// What it means that a kernel was refused: `driver` is the version of CUDA that the driver supports.
fn refusal(kernel: &'static str, code: CUresult, log: &[u8], driver: i32) -> GpuError {
    match code {
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => return GpuError::DriverTooOld { version: driver },
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => return GpuError::NoRoomForKernel { kernel },
        CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => return GpuError::CompilerMissing,
        _ => {}
    }
    let text = String::from_utf8_lossy(log);
    let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    let log = if text.is_empty() { format!("{code:?}") } else { format!("{code:?}: {text}") };
    GpuError::ModuleRefused { kernel, log }
}

impl Cuda {
    /// Opens GPU number `index`.
    ///
    /// # Errors
    /// If there is no driver or no such GPU, or the driver does not start.
    pub fn open(index: usize) -> Result<Self, GpuError> {
        // SAFETY: looks for a library by its name, and calls nothing in it.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::DriverMissing);
        }
        // SAFETY: the first call, as the manual asks; 0 is its only flag.
        match call("cuInit", || unsafe { sys::cuInit(0) }).map_err(|e| absence(e, index, 0)) {
            Err(GpuError::Failed { during, reason }) => {
                return Err(GpuError::Unavailable { reason: format!("{during}: {reason}") });
            }
            other => other?,
        }
        let mut driver = 0;
        // SAFETY: the pointer is to a local that lives through the call.
        call("cuDriverGetVersion", || unsafe { sys::cuDriverGetVersion(&mut driver) })?;
        let mut count = 0;
        // SAFETY: the pointer is to a local that lives through the call.
        call("cuDeviceGetCount", || unsafe { sys::cuDeviceGetCount(&mut count) })?;
        let gpus = usize::try_from(count).unwrap_or(0);
        let ordinal = c_int::try_from(index).ok().filter(|&i| i < count);
        let ordinal = ordinal.ok_or(GpuError::NoDevice { index, count: gpus })?;
        let mut device = 0;
        // SAFETY: the pointer is to a local that lives through the call.
        call("cuDeviceGet", || unsafe { sys::cuDeviceGet(&mut device, ordinal) })
            .map_err(|e| absence(e, index, gpus))?;
        let info = DeviceInfo { driver, ..describe(device)? };
        let mut context = ptr::null_mut();
        // SAFETY: the device is one of the driver's; the pointer is to a local that lives through the call.
        call("cuDevicePrimaryCtxRetain", || unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        // From here on `drop` gives back what was taken.
        let mut cuda = Cuda {
            device,
            context,
            stream: ptr::null_mut(),
            info,
            allocations: Vec::new(),
            modules: Vec::new(),
        };
        cuda.bind()?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let stream = &mut cuda.stream;
        // SAFETY: the context is current; the pointer is to a field that lives through the call.
        call("cuStreamCreate", || unsafe { sys::cuStreamCreate(stream, flags) })?;
        Ok(cuda)
    }

    /// Makes the context this thread's own.
    fn bind(&self) -> Result<(), GpuError> {
        // SAFETY: the context was retained when this was opened.
        call("cuCtxSetCurrent", || unsafe { sys::cuCtxSetCurrent(self.context) })
    }
}

fn describe(device: sys::CUdevice) -> Result<DeviceInfo, GpuError> {
    let attribute = |what: Attribute| {
        let mut value = 0;
        // SAFETY: `device` is one of the driver's, `value` lives through the call.
        call("cuDeviceGetAttribute", || unsafe { sys::cuDeviceGetAttribute(&mut value, what, device) })?;
        Ok::<u32, GpuError>(value.max(0) as u32)
    };
    let mut memory = 0;
    // SAFETY: as above.
    call("cuDeviceTotalMem", || unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) })?;
    let name = catch_unwind(|| result::device::get_name(device)).ok().and_then(Result::ok);
    Ok(DeviceInfo {
        name: name.unwrap_or_else(|| "the GPU".to_owned()),
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        driver: 0,
        memory,
        shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
    })
}

impl Driver for Cuda {
    type Function = Function;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_memory(&self) -> Result<usize, GpuError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both live through the call.
        call("cuMemGetInfo", || unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free)
    }

    fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<u64, GpuError> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: `address` lives through the call.
        let taken = call("cuMemAlloc", || unsafe { sys::cuMemAlloc_v2(&mut address, bytes) });
        if let Err(GpuError::Failed { reason, .. }) = &taken
            && reason == "CUDA_ERROR_OUT_OF_MEMORY"
        {
            return Err(GpuError::OutOfMemory { what, bytes, free: self.free_memory().unwrap_or(0) });
        }
        taken?;
        self.allocations.push(address);
        // SAFETY: `address` is the start of `bytes` bytes just taken.
        call("cuMemsetD8Async", || unsafe { sys::cuMemsetD8Async(address, 0, bytes, self.stream) })?;
        Ok(address)
    }

    fn free(&mut self, address: u64) {
        let Some(at) = self.allocations.iter().position(|&a| a == address) else { return };
        self.allocations.swap_remove(at);
        // Kernels in the queue may still use it. A device that is lost has nothing to wait for and nothing to give back.
        let _ = self.synchronize();
        // SAFETY: the address was taken by `alloc` and is forgotten here.
        let _ = call("cuMemFree", || unsafe { sys::cuMemFree_v2(address) });
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: `bytes` lives until the copy is done, which is waited for before this returns: that the driver has
        // staged pageable memory when its call returns is a habit, and not so where a device reads the host's pages.
        call("cuMemcpyHtoDAsync", || unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), self.stream)
        })?;
        self.synchronize()
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: `bytes` lives until the copy is done, which is waited for before this returns.
        call("cuMemcpyDtoHAsync", || unsafe {
            sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), address, bytes.len(), self.stream)
        })?;
        self.synchronize()
    }

    fn load(&mut self, kernel: &'static Kernel) -> Result<Function, GpuError> {
        self.bind()?;
        let refused = |code, log: &[u8]| refusal(kernel.name, code, log, self.info.driver);
        let Ok(text) = CString::new(kernel.text) else {
            return Err(refused(CUresult::CUDA_ERROR_INVALID_PTX, b"the text holds a zero byte"));
        };
        let mut log = [0u8; 4096];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The size is passed in the place of a pointer.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(log.len())];
        let mut module = ptr::null_mut();
        let mut code = CUresult::CUDA_SUCCESS;
        call("cuModuleLoadDataEx", || {
            // SAFETY: the text ends with a zero byte; options and values are two each, and `log`, which they name,
            // lives through the call.
            code = unsafe {
                sys::cuModuleLoadDataEx(
                    &mut module,
                    text.as_ptr().cast(),
                    options.len() as u32,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                )
            };
            CUresult::CUDA_SUCCESS
        })?;
        if code != CUresult::CUDA_SUCCESS {
            return Err(refused(code, &log));
        }
        self.modules.push(module);
        let name = CString::new(kernel.name).unwrap_or_default();
        let mut function = ptr::null_mut();
        // SAFETY: the module was just loaded; the name ends with a zero byte.
        call("cuModuleGetFunction", || unsafe {
            sys::cuModuleGetFunction(&mut function, module, name.as_ptr())
        })?;
        let dynamic = self.info.shared.saturating_sub(kernel.shared) as c_int;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is the module's.
        call("cuFuncSetAttribute", || unsafe { sys::cuFuncSetAttribute(function, attribute, dynamic) })?;
        Ok(Function { handle: function, parameters: kernel.parameters() })
    }

    fn launch(
        &mut self,
        kernel: &'static Kernel,
        function: &Function,
        grid: Grid,
        args: &[Arg],
    ) -> Result<(), GpuError> {
        assert!(
            args.iter().map(|arg| arg.declared()).eq(function.parameters.iter().copied()),
            "{} takes {:?}, not {args:?}",
            kernel.name,
            function.parameters
        );
        self.bind()?;
        let mut values: Vec<u64> = args
            .iter()
            .map(|&arg| match arg {
                Arg::U32(x) => u64::from(x),
                Arg::U64(x) => x,
                Arg::F32(x) => u64::from(x.to_bits()),
                Arg::F64(x) => x.to_bits(),
            })
            .collect();
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| ptr::from_mut(v).cast()).collect();
        let [x, y, z] = grid.blocks;
        // SAFETY: the function's module is loaded. The driver reads a pointer for each parameter that the text
        // declares: there are as many, which was asserted, each to 8 bytes, little-endian, no fewer than any type has,
        // and they are read before the call returns. What the kernel does with addresses stays on the device.
        call(kernel.name, || unsafe {
            sys::cuLaunchKernel(
                function.handle,
                x,
                y,
                z,
                kernel.block,
                1,
                1,
                grid.shared,
                self.stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    fn synchronize(&mut self) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the stream is this one's own.
        call("cuStreamSynchronize", || unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

impl Drop for Cuda {
    /// Whatever fails here was lost before.
    fn drop(&mut self) {
        let _ = self.synchronize();
        for &address in &self.allocations {
            // SAFETY: taken by `alloc`, and not yet freed.
            let _ = call("cuMemFree", || unsafe { sys::cuMemFree_v2(address) });
        }
        for &module in &self.modules {
            // SAFETY: loaded by `load`; no function of it can be launched without this driver.
            let _ = call("cuModuleUnload", || unsafe { sys::cuModuleUnload(module) });
        }
        if !self.stream.is_null() {
            // SAFETY: created when this was opened.
            let _ = call("cuStreamDestroy", || unsafe { sys::cuStreamDestroy_v2(self.stream) });
        }
        // SAFETY: retained when this was opened.
        let _ =
            call("cuDevicePrimaryCtxRelease", || unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_driver_become_errors_with_a_cure() {
        let lost = failure("cuStreamSynchronize", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert!(
            matches!(&lost, GpuError::Failed { during: "cuStreamSynchronize", reason } if reason.contains("ILLEGAL_ADDRESS"))
        );
        assert!(lost.to_string().contains("load the model anew"));
        let gone = absence(failure("cuDeviceGet", CUresult::CUDA_ERROR_INVALID_DEVICE), 3, 2);
        assert_eq!(gone, GpuError::NoDevice { index: 3, count: 2 });
        let none = absence(failure("cuInit", CUresult::CUDA_ERROR_NO_DEVICE), 3, 0);
        assert_eq!(none, GpuError::NoDevice { index: 3, count: 0 });
        let full = refusal("k", CUresult::CUDA_ERROR_OUT_OF_MEMORY, b"", 12_040);
        assert!(full.to_string().contains("no GPU memory to load kernel k: lower --memory"), "{full}");
        let bare = refusal("k", CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND, b"", 12_040);
        assert!(bare.to_string().contains("libnvidia-ptxjitcompiler"), "{bare}");
        let old = refusal("k", CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, b"", 11_020);
        assert!(old.to_string().contains("supports CUDA 11.2, the kernels need 11.4"), "{old}");
        let refused = refusal("k", CUresult::CUDA_ERROR_INVALID_PTX, b"ptxas error : line 7\n\0\0", 12_040);
        assert!(
            refused.to_string().contains("kernel k: CUDA_ERROR_INVALID_PTX: ptxas error : line 7;"),
            "{refused}"
        );
    }

    #[test]
    fn a_function_that_the_driver_lacks_is_an_error_and_no_panic() {
        let missing = call("cuNew", || panic!("Missing symbol cuNew"));
        assert_eq!(missing, Err(GpuError::SymbolMissing { symbol: "cuNew".into() }));
    }
}
