//! The driver's functions that the program calls.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::{BTreeMap, VecDeque},
    ffi::{CStr, c_char, c_void},
    slice,
    sync::Arc,
};

use bitnet_ptxsim::{Module, Param};

use super::{
    CAPTURE_INVALIDATED, CURRENT, Code, Context, DEVICE_UNAVAILABLE, Done, Event, Function, INVALID_CONTEXT,
    INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, Loaded, NOT_READY, OUT_OF_MEMORY, RECORDED,
    State, call,
    faults::{GPUS, Gpu},
    within,
    work::Work,
    wrong,
};

/// The kind of attribute that lets a kernel begin before the one before it has ended.
const OVERLAPS: u32 = 6;

/// An attribute of a launch.
#[repr(C)]
pub struct Attribute {
    id: u32,
    pad: u32,
    value: [u32; 16],
}

/// A launch with attributes: blocks, threads and shared memory, then the stream.
#[repr(C)]
pub struct Config {
    shape: [u32; 7],
    stream: usize,
    attributes: *const Attribute,
    count: u32,
}

/// Writes a result.
fn give<T>(to: *mut T, value: T) -> Done {
    if to.is_null() || !to.is_aligned() {
        return wrong(INVALID_VALUE, "no place for a result");
    }
    // SAFETY: the caller passes a pointer to a place for the result.
    unsafe { to.write(value) };
    Ok(())
}

/// Removes an entry by its handle.
fn remove<T>(from: &mut BTreeMap<usize, T>, handle: usize, what: &str) -> Done {
    match from.remove(&handle) {
        Some(_) => Ok(()),
        None => wrong(INVALID_HANDLE, format_args!("no such {what}")),
    }
}

/// The GPU with this handle, which is its number.
fn gpu(device: i32) -> Result<&'static Gpu, Code> {
    usize::try_from(device)
        .ok()
        .and_then(|at| GPUS.get(at))
        .map_or_else(|| wrong(INVALID_VALUE, "no such device"), Ok)
}

fn pinned_layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 4096).expect("a valid size")
}

macro_rules! exports {
    ($($wrap:ident $name:ident($($argument:ident: $type:ty),*) |$state:ident| $body:block)*) => {
        $(
            /// The driver's function of this name.
            // SAFETY: no other function of the process has the name, unless the driver itself is loaded too.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $type),*) -> Code {
                $wrap(stringify!($name), |$state| $body)
            }
        )*
    };
}

exports! {
    call cuInit(flags: u32) |s| {
        if flags != 0 {
            return wrong(INVALID_VALUE, "cuInit has no flags");
        }
        s.started = true;
        Ok(())
    }
    call cuDriverGetVersion(version: *mut i32) |_s| { give(version, 12_040) }
    call cuDeviceGetCount(count: *mut i32) |_s| { give(count, GPUS.len() as i32) }
    call cuDeviceGet(device: *mut i32, ordinal: i32) |_s| {
        if (0..GPUS.len() as i32).contains(&ordinal) { give(device, ordinal) } else { Err(101) }
    }
    call cuDeviceGetName(name: *mut c_char, len: i32, device: i32) |_s| {
        gpu(device)?;
        let text = b"stand-in\0";
        if len < text.len() as i32 {
            return wrong(INVALID_VALUE, "no place for a name");
        }
        // SAFETY: the caller passes a buffer of `len` bytes.
        unsafe { slice::from_raw_parts_mut(name.cast::<u8>(), text.len()) }.copy_from_slice(text);
        Ok(())
    }
    call cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) |_s| {
        let (major, minor) = gpu(device)?.capability;
        match attribute {
            75 => give(value, major),
            76 => give(value, minor),
            97 => give(value, 163 << 10),
            81 => give(value, 164 << 10),
            16 => give(value, 4),
            _ => wrong(INVALID_VALUE, format_args!("attribute {attribute} of device {device}")),
        }
    }
    call cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) |_s| { give(bytes, gpu(device)?.memory) }
    call cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) |s| {
        if gpu(device)?.busy {
            return Err(DEVICE_UNAVAILABLE);
        }
        let handle = s.handle();
        let device = device as usize;
        match &mut s.context {
            Context { retained: 0, .. } => s.context = Context { handle, device, retained: 1 },
            known if known.device == device => known.retained += 1,
            _ => return wrong(INVALID_VALUE, "contexts of two devices at a time"),
        }
        give(context, s.context.handle)
    }
    call cuDevicePrimaryCtxRelease_v2(device: i32) |s| {
        if s.context.device != device as usize || s.context.retained == 0 {
            return wrong(INVALID_VALUE, "release of a context that is not retained");
        }
        s.context.retained -= 1;
        if s.context.retained == 0 { s.destroy() } else { Ok(()) }
    }
    call cuCtxSetCurrent(context: usize) |s| {
        if context != s.context.handle || s.context.retained == 0 {
            return wrong(INVALID_CONTEXT, "no such context");
        }
        CURRENT.set(context);
        s.lost.map_or(Ok(()), Err)
    }
    within cuStreamCreate(stream: *mut usize, flags: u32) |s| {
        if flags != 1 {
            return wrong(INVALID_VALUE, "a stream that waits for the default stream: CU_STREAM_NON_BLOCKING is missing");
        }
        let handle = s.handle();
        s.streams.insert(handle, VecDeque::new());
        give(stream, handle)
    }
    within cuStreamDestroy_v2(stream: usize) |s| {
        match s.streams.remove(&stream) {
            Some(queue) if queue.is_empty() => Ok(()),
            Some(_) => wrong(0, "a stream is destroyed while it holds work"),
            None => wrong(INVALID_HANDLE, "no such stream"),
        }
    }
    within cuStreamQuery(stream: usize) |s| {
        s.not_captured("cuStreamQuery")?;
        s.queried()?;
        match s.streams.get(&stream) {
            Some(queue) if queue.is_empty() => Ok(()),
            Some(_) => Err(NOT_READY),
            None => wrong(INVALID_HANDLE, "no such stream"),
        }
    }
    within cuStreamBeginCapture_v2(stream: usize, mode: i32) |s| {
        if mode != 1 || !s.streams.contains_key(&stream) || s.capture.is_some() {
            return wrong(INVALID_VALUE, "a capture that cannot begin");
        }
        s.capture = Some((stream, Some(Vec::new())));
        Ok(())
    }
    within cuStreamEndCapture(stream: usize, graph: *mut usize) |s| {
        match s.capture.take() {
            Some((captured, Some(list))) if captured == stream => {
                s.not_faulty("cuStreamEndCapture", &list)?;
                let handle = s.handle();
                s.graphs.insert(handle, list);
                give(graph, handle)
            }
            Some(_) => {
                give(graph, 0)?;
                Err(CAPTURE_INVALIDATED)
            }
            None => wrong(INVALID_VALUE, "end of a capture that never began"),
        }
    }
    within cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, flags: u64) |s| {
        let Some(list) = s.graphs.get(&graph).cloned() else { return wrong(INVALID_HANDLE, "no such graph") };
        if flags != 0 {
            return wrong(INVALID_VALUE, "flags of a graph");
        }
        s.not_faulty("cuGraphInstantiateWithFlags", &list)?;
        if s.free_memory() < RECORDED * list.len() {
            return Err(OUT_OF_MEMORY);
        }
        let handle = s.handle();
        s.executables.insert(handle, list);
        give(executable, handle)
    }
    within cuGraphLaunch(executable: usize, stream: usize) |s| {
        s.not_captured("cuGraphLaunch")?;
        let Some(list) = s.executables.get(&executable).cloned() else {
            return wrong(INVALID_HANDLE, "no such executable graph");
        };
        s.not_faulty("cuGraphLaunch", &list)?;
        *s.calls.entry("replay").or_default() += 1;
        let late = s.not_faulty("replay", &list).err();
        list.into_iter().chain(late.map(Work::Fail)).try_for_each(|work| s.push(stream, work))
    }
    within cuGraphExecDestroy(executable: usize) |s| {
        remove(&mut s.executables, executable, "executable graph")
    }
    within cuGraphDestroy(graph: usize) |s| {
        remove(&mut s.graphs, graph, "graph")
    }
    within cuEventCreate(event: *mut usize, flags: u32) |s| {
        if !matches!(flags, 0 | 2) {
            return wrong(INVALID_VALUE, "flags of an event");
        }
        let handle = s.handle();
        s.events.insert(handle, Event { timed: flags == 0, ..Event::default() });
        give(event, handle)
    }
    within cuEventRecord(event: usize, stream: usize) |s| {
        let Some(known) = s.events.get_mut(&event) else { return wrong(INVALID_HANDLE, "no such event") };
        known.pending += 1;
        s.push(stream, Work::Record(event))
    }
    within cuEventQuery(event: usize) |s| {
        s.not_captured("cuEventQuery")?;
        s.queried()?;
        match s.events.get(&event) {
            Some(Event { pending: 0, .. }) => Ok(()),
            Some(_) => Err(NOT_READY),
            None => wrong(INVALID_HANDLE, "no such event"),
        }
    }
    within cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) |s| {
        let of = |event| s.events.get(&event).copied();
        match (of(start), of(end)) {
            (Some(a), Some(b)) if a.timed && b.timed => match (a.pending, a.passed, b.pending, b.passed) {
                (0, Some(a), 0, Some(b)) => give(milliseconds, b.duration_since(a).as_secs_f32() * 1e3),
                _ => wrong(NOT_READY, "time between events that the stream has not reached"),
            },
            _ => wrong(INVALID_HANDLE, "time between events without timing"),
        }
    }
    within cuEventDestroy_v2(event: usize) |s| {
        remove(&mut s.events, event, "event")
    }
    within cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |s| {
        give(free, s.free_memory())?;
        give(total, s.gpu().memory)
    }
    within cuMemAlloc_v2(address: *mut u64, bytes: usize) |s| {
        s.not_captured("cuMemAlloc")?;
        if bytes == 0 {
            return wrong(INVALID_VALUE, "an allocation of 0 bytes");
        }
        if bytes > s.free_memory() {
            return Err(OUT_OF_MEMORY);
        }
        let at = s.memory.alloc(bytes);
        s.allocations.insert(at, bytes);
        give(address, at)
    }
    within cuMemFree_v2(address: u64) |s| {
        s.not_captured("cuMemFree")?;
        if s.streams.values().any(|queue| !queue.is_empty()) {
            return wrong(INVALID_VALUE, "device memory is freed while work waits");
        }
        match s.allocations.remove(&address) {
            Some(_) => s.memory.free(address).map_err(|_| INVALID_VALUE),
            None => wrong(INVALID_VALUE, "device memory is freed that is not allocated"),
        }
    }
    within cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: u32) |s| {
        s.not_captured("cuMemHostAlloc")?;
        if bytes == 0 || flags != 0 {
            return wrong(INVALID_VALUE, "pinned memory of 0 bytes, or with flags");
        }
        // SAFETY: the size is not zero.
        let at = unsafe { alloc_zeroed(pinned_layout(bytes)) };
        s.pinned.insert(at as usize, bytes);
        give(memory, at.cast())
    }
    within cuMemFreeHost(memory: *mut c_void) |s| {
        let Some(bytes) = s.pinned.remove(&(memory as usize)) else {
            return wrong(INVALID_VALUE, "pinned memory is freed that is not allocated");
        };
        if s.streams.values().flatten().any(|work| work.uses_pinned(memory as usize, bytes)) {
            return wrong(INVALID_VALUE, "pinned memory is freed while a copy needs it");
        }
        // SAFETY: allocated with this layout, and removed from the list.
        unsafe { dealloc(memory.cast(), pinned_layout(bytes)) };
        Ok(())
    }
    within cuMemsetD8Async(address: u64, byte: u8, bytes: usize, stream: usize) |s| {
        if !s.holds(address, bytes) {
            return wrong(INVALID_VALUE, "device memory is set that is not allocated");
        }
        s.push(stream, Work::Set { address, byte, bytes })
    }
    within cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) |s| {
        if !s.holds(to, bytes) || !s.pins(from as usize, bytes) {
            return wrong(INVALID_VALUE, "a copy from or to memory that is not allocated");
        }
        // SAFETY: these bytes are pinned, as checked above.
        let then = unsafe { slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        s.push(stream, Work::ToDevice { to, from: from as usize, then })
    }
    within cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) |s| {
        if !s.holds(from, bytes) || !s.pins(to as usize, bytes) {
            return wrong(INVALID_VALUE, "a copy from or to memory that is not allocated");
        }
        s.push(stream, Work::ToHost { to: to as usize, from, bytes })
    }
    within cuModuleLoadDataEx(module: *mut usize, image: *const c_void, n: u32, options: *mut i32,
                              values: *mut *mut c_void) |s| {
        s.not_captured("cuModuleLoadDataEx")?;
        // SAFETY: the caller passes PTX, or what the tests use as machine code: both end with a zero byte.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
        // SAFETY: the caller passes `n` options and `n` values.
        let (options, values) =
            unsafe { (slice::from_raw_parts(options, n as usize), slice::from_raw_parts(values, n as usize)) };
        let option = |wanted| options.iter().position(|&o| o == wanted).map_or(0, |at| values[at] as usize);
        load(s, module, &text, (option(5), option(6)))
    }
    within cuModuleUnload(module: usize) |s| {
        s.functions.retain(|_, function| function.module != module);
        remove(&mut s.modules, module, "module")
    }
    within cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) |s| {
        // SAFETY: the caller passes a name that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        match s.modules.get(&module) {
            Some(loaded) if loaded.name == name => {}
            _ => return wrong(500, format_args!("no function {name}")),
        }
        let handle = s.handle();
        s.functions.insert(handle, Function { module, dynamic: 48 << 10 });
        give(function, handle)
    }
    within cuFuncSetAttribute(function: usize, attribute: i32, value: i32) |s| {
        compiled(s, function)?;
        let Some(known) = s.functions.get_mut(&function) else { return wrong(INVALID_HANDLE, "no such function") };
        if attribute != 8 || !(0..=163 << 10).contains(&value) {
            return wrong(INVALID_VALUE, "a function's attribute");
        }
        known.dynamic = value as usize;
        Ok(())
    }
    within cuLaunchKernel(function: usize, x: u32, y: u32, z: u32, threads_x: u32, threads_y: u32, threads_z: u32,
                          shared: u32, stream: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) |s| {
        let shape = [x, y, z, threads_x, threads_y, threads_z, shared];
        launch(s, function, shape, stream, parameters, extra, false)
    }
    within cuLaunchKernelEx(config: *const Config, function: usize, parameters: *mut *mut c_void,
                            extra: *mut *mut c_void) |s| {
        if config.is_null() || !config.is_aligned() {
            return wrong(INVALID_VALUE, "no configuration of a launch");
        }
        // SAFETY: the caller passes a pointer to a configuration.
        let config = unsafe { &*config };
        if config.count != 1 || config.attributes.is_null() || s.gpu().capability.0 < 9 {
            return wrong(INVALID_VALUE, format_args!("{} attributes of a launch", config.count));
        }
        // SAFETY: the caller passes a pointer to as many attributes.
        let attribute = unsafe { &*config.attributes };
        if (attribute.id, attribute.value[0]) != (OVERLAPS, 1) {
            return wrong(INVALID_VALUE, format_args!("attribute {} of a launch", attribute.id));
        }
        launch(s, function, config.shape, config.stream, parameters, extra, true)?;
        let captured = s.capture.as_ref().and_then(|(_, list)| list.clone()).unwrap_or_default();
        s.not_faulty("cuLaunchKernelEx", &captured)
    }
}

/// Gives the name of a code.
// SAFETY: as for the others.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    let text = match code {
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        218 => c"CUDA_ERROR_INVALID_PTX",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        _ => return INVALID_VALUE,
    };
    give(name, text.as_ptr()).err().unwrap_or(0)
}

/// Puts the launch of a kernel into a stream: blocks, threads and bytes of shared memory.
fn launch(
    s: &mut State,
    function: usize,
    shape: [u32; 7],
    stream: usize,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    overlapped: bool,
) -> Done {
    compiled(s, function)?;
    let [x, y, z, threads_x, threads_y, threads_z, shared] = shape;
    let Some(known) = s.functions.get(&function) else { return wrong(INVALID_HANDLE, "no such function") };
    let loaded = &s.modules[&known.module];
    if [x, y, z, threads_x].contains(&0) || [threads_y, threads_z] != [1, 1] || !extra.is_null() {
        return wrong(INVALID_VALUE, format_args!("the shape of a launch of {}", loaded.name));
    }
    if shared as usize > known.dynamic {
        return wrong(INVALID_VALUE, format_args!("{shared} bytes of shared memory for {}", loaded.name));
    }
    let sizes = loaded.module.params(&loaded.name).unwrap_or_default();
    // SAFETY: the caller passes a pointer for each parameter that the PTX declares, to a value of its size.
    let params = unsafe { slice::from_raw_parts(parameters, sizes.len()) };
    let params = params.iter().zip(&sizes).map(|(&at, &size)| {
        // SAFETY: as above.
        let bytes = unsafe { slice::from_raw_parts(at.cast::<u8>(), size) };
        Param::from_bytes(bytes)
    });
    let work = Work::Launch {
        module: Arc::clone(&loaded.module),
        name: loaded.name.clone(),
        grid: [x, y, z],
        block: threads_x,
        dynamic: shared as usize,
        params: params.collect(),
        overlapped,
    };
    s.push(stream, work)
}

fn load(s: &mut State, module: *mut usize, image: &str, log: (usize, usize)) -> Done {
    let code = image.strip_prefix("\x7fELF");
    let text = code.unwrap_or(image);
    let parsed = match Module::parse("driver.ptx", text) {
        Ok(parsed) => parsed,
        Err(e) => {
            write_log(log, &e.to_string());
            return Err(INVALID_PTX);
        }
    };
    let name = parsed.entries().next().unwrap_or_default().to_owned();
    if code.is_some() && std::env::var("STANDIN_REFUSE_CODE").is_ok_and(|refused| refused == name) {
        return Err(INVALID_IMAGE);
    }
    let refused = code.is_none() && std::env::var("STANDIN_REFUSE").is_ok_and(|refused| refused == name);
    if refused && std::env::var_os("STANDIN_LAZY").is_none() {
        write_log(log, "ptxas error : line 7");
        return Err(INVALID_PTX);
    }
    let handle = s.handle();
    s.modules.insert(handle, Loaded { module: Arc::new(parsed), name, log, refused });
    give(module, handle)
}

/// Fails if lazy loading delayed a refusal to the first use of the function.
fn compiled(s: &State, function: usize) -> Done {
    match s.functions.get(&function).and_then(|function| s.modules.get(&function.module)) {
        Some(Loaded { refused: true, log, .. }) => {
            write_log(*log, "ptxas error : line 7");
            Err(INVALID_PTX)
        }
        _ => Ok(()),
    }
}

fn write_log((at, bytes): (usize, usize), text: &str) {
    if at != 0 && bytes > text.len() {
        // SAFETY: the caller passed a buffer of this size that lives as long as the module.
        let log = unsafe { slice::from_raw_parts_mut(at as *mut u8, text.len() + 1) };
        log[..text.len()].copy_from_slice(text.as_bytes());
        log[text.len()] = 0;
    }
}
