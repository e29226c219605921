//! Chooses the instruction set at run time. An [`Isa`] is proof that this CPU has its instructions, so calls of its
//! kernels are sound.

use std::fmt;

use crate::{
    KernelError,
    cpu::{generic::KernelSet, scalar},
};

/// An instruction set that this CPU has; having a value of this type proves it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(&'static Level);

/// An instruction set: its name, how to detect it, and its kernels.
pub(crate) struct Level {
    name: &'static str,
    present: fn() -> bool,
    kernels: &'static KernelSet,
}

#[cfg(test)]
impl Level {
    /// An instruction set whose kernels any machine can run.
    pub(crate) const fn of_arrays(name: &'static str, kernels: &'static KernelSet) -> Level {
        Level { name, present: || true, kernels }
    }
}

impl PartialEq for Level {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Level {}

/// The level of the module with this name.
macro_rules! level {
    ($arch:ident, $name:ident) => {
        Level {
            name: stringify!($name),
            present: crate::cpu::$arch::$name::present,
            kernels: &crate::cpu::$arch::$name::KERNELS,
        }
    };
}

/// All instruction sets of this build, best first.
static LEVELS: &[Level] = &[
    #[cfg(target_arch = "x86_64")]
    level!(x86_64, avx512vnni),
    #[cfg(target_arch = "x86_64")]
    level!(x86_64, avx512),
    #[cfg(target_arch = "x86_64")]
    level!(x86_64, avxvnni),
    #[cfg(target_arch = "x86_64")]
    level!(x86_64, avx2),
    #[cfg(target_arch = "aarch64")]
    level!(aarch64, i8mm),
    #[cfg(target_arch = "aarch64")]
    level!(aarch64, dotprod),
    #[cfg(target_arch = "aarch64")]
    level!(aarch64, neon),
    Level { name: "scalar", present: scalar::present, kernels: &scalar::KERNELS },
];

fn names<'a>(levels: impl Iterator<Item = &'a Level>) -> String {
    levels.map(|l| l.name).collect::<Vec<_>>().join(", ")
}

impl Isa {
    /// All instruction sets that this CPU has, best first; `scalar` is always one of them.
    pub fn available() -> impl Iterator<Item = Isa> {
        LEVELS.iter().filter(|l| (l.present)()).map(Isa)
    }

    /// The best instruction set that this CPU has.
    pub fn best() -> Isa {
        Isa::available().next().expect("scalar is always available")
    }

    /// Returns the instruction set called `name`; `auto` is the best one.
    ///
    /// # Errors
    /// If this build does not know the name, or this CPU does not have the instruction set.
    pub fn named(name: &str) -> Result<Isa, KernelError> {
        if name == "auto" {
            return Ok(Isa::best());
        }
        let level = LEVELS.iter().find(|l| l.name == name).ok_or_else(|| KernelError::UnknownIsa {
            name: name.chars().take(40).collect(),
            known: names(LEVELS.iter()),
        })?;
        if (level.present)() {
            Ok(Isa(level))
        } else {
            let available = names(LEVELS.iter().filter(|l| (l.present)()));
            Err(KernelError::IsaUnavailable { name: level.name, available })
        }
    }

    /// An instruction set for tests.
    #[cfg(test)]
    pub(crate) fn of_arrays(level: &'static Level) -> Isa {
        Isa(level)
    }

    /// Name of the instruction set.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The kernels of this instruction set; `self` proves that they may be called.
    pub(crate) fn kernels(self) -> &'static KernelSet {
        self.0.kernels
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_instruction_set_is_an_error_with_the_known_ones() {
        let err = Isa::named("mmx").unwrap_err().to_string();
        assert!(err.contains("'mmx'") && err.contains("scalar"), "{err}");
    }

    #[test]
    fn every_available_instruction_set_is_found_by_its_name() {
        for isa in Isa::available() {
            assert_eq!(Isa::named(isa.name()).unwrap(), isa);
        }
        assert_eq!(Isa::named("auto").unwrap(), Isa::best());
    }
}
