//! The GPUs and faults that the environment asks for.

use std::{env, sync::LazyLock};

use bitnet_ptxsim::MatrixUnit;

use super::{
    Code,
    work::{Work, overlaps},
};

/// A GPU of the machine.
pub(super) struct Gpu {
    /// Compute capability.
    pub(super) capability: (i32, i32),
    /// Whether another program holds it.
    pub(super) busy: bool,
    /// Bytes of device memory.
    pub(super) memory: usize,
}

impl Gpu {
    /// How it rounds sums of bf16 products.
    pub(super) fn matrix_unit(&self) -> MatrixUnit {
        MatrixUnit::of((self.capability.0 as u32, self.capability.1 as u32))
    }
}

/// The GPUs in `STANDIN_GPUS`, like `7.5,9.0-busy,9.0`.
pub(super) static GPUS: LazyLock<Vec<Gpu>> = LazyLock::new(|| {
    let list = env::var("STANDIN_GPUS").unwrap_or_else(|_| "9.0".into());
    let gpu = |text: &str| {
        let (capability, state) = text.split_once('-').unwrap_or((text, ""));
        let (major, minor) = capability.split_once('.').expect("a compute capability");
        let number = |digits: &str| digits.parse().expect("a compute capability");
        Gpu {
            capability: (number(major), number(minor)),
            busy: state == "busy",
            memory: if state == "full" { 64 << 10 } else { 4 << 30 },
        }
    };
    list.split(',').map(gpu).collect()
});

/// A function that fails.
pub(super) struct Fault {
    name: String,
    /// Number of its first call to do so.
    first: u64,
    code: Code,
    /// Whether only calls fail that record or replay a launch that overlaps.
    overlap: bool,
    /// Whether every later call in the context fails too.
    poison: bool,
}

impl Fault {
    /// The fault in `STANDIN_FAIL`.
    fn asked() -> Option<Fault> {
        let text = env::var("STANDIN_FAIL").ok()?;
        let mut parts = text.split(':');
        let (name, first, code) = (parts.next()?, parts.next()?, parts.next()?);
        let more: Vec<&str> = parts.collect();
        Some(Fault {
            name: name.to_owned(),
            first: first.parse().ok()?,
            code: code.parse().ok()?,
            overlap: more.contains(&"overlap"),
            poison: more.contains(&"poison"),
        })
    }

    /// The code with which call number `count` of a function fails, and whether it spoils the context. `list` is what
    /// the call records or replays.
    pub(super) fn of(name: &str, count: u64, list: &[Work]) -> Option<(Code, bool)> {
        static FAULT: LazyLock<Option<Fault>> = LazyLock::new(Fault::asked);
        let fault = FAULT.as_ref().filter(|fault| fault.name == name && count >= fault.first)?;
        (!fault.overlap || list.iter().any(overlaps)).then_some((fault.code, fault.poison))
    }
}
