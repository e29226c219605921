//! What this machine says about its processor: name, cores, instruction sets.

use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub struct CpuFacts {
    /// Architecture that this program was built for.
    pub arch: &'static str,
    /// Model name, if the CPU tells it to programs.
    pub name: Option<String>,
    /// Number of threads that can run at once.
    pub cores: usize,
    /// Number of physical cores that this process may use, if the system tells.
    pub physical_cores: Option<usize>,
    /// How many of the threads that can run at once belong to each memory node; empty if the system does not tell.
    pub memory_nodes: Vec<usize>,
    /// Available instruction set extensions, of those that matter to kernels.
    pub features: Vec<&'static str>,
}

impl CpuFacts {
    /// Queries the CPU and the system.
    pub fn now() -> Self {
        CpuFacts {
            arch: std::env::consts::ARCH,
            name: name(),
            physical_cores: bitnet::physical_cores(),
            memory_nodes: bitnet::kernels::memory_nodes().iter().map(|node| node.cpus.len()).collect(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            features: features(),
        }
    }

    /// A line about the memory nodes, if there are several.
    pub fn nodes(&self) -> Option<String> {
        let threads: Vec<_> = self.memory_nodes.iter().map(usize::to_string).collect();
        (threads.len() > 1)
            .then(|| format!("{} of memory, with {} threads at once", threads.len(), threads.join(" + ")))
    }
}

/// The name in the CPU's registers, so that it is known on every system.
#[cfg(target_arch = "x86_64")]
fn name() -> Option<String> {
    use std::arch::x86_64::__cpuid;
    let parts = 0x8000_0002..=0x8000_0004;
    if __cpuid(0x8000_0000).eax < *parts.end() {
        return None;
    }
    let registers = parts.map(__cpuid).flat_map(|part| [part.eax, part.ebx, part.ecx, part.edx]);
    let bytes: Vec<u8> = registers.flat_map(u32::to_le_bytes).take_while(|&byte| byte != 0).collect();
    let name = String::from_utf8_lossy(&bytes).trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

/// Linux knows the names of a few other CPUs.
#[cfg(not(target_arch = "x86_64"))]
fn name() -> Option<String> {
    let about = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?.1;
    Some(name.trim().to_owned())
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => {
            [$(($name, is_x86_feature_detected!($name))),*]
        };
    }
    let all = present!(
        "sse4.2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "bmi2",
        "avxvnni",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512vbmi",
        "avx512vnni",
        "avx512bf16",
        "avx512fp16"
    );
    all.into_iter().filter_map(|(name, present)| present.then_some(name)).collect()
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => {
            [$(($name, std::arch::is_aarch64_feature_detected!($name))),*]
        };
    }
    let all = present!("neon", "dotprod", "i8mm", "fp16", "bf16", "sve", "sve2");
    all.into_iter().filter_map(|(name, present)| present.then_some(name)).collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_memory_nodes_are_shown() {
        let nodes = |threads: &[usize]| CpuFacts { memory_nodes: threads.into(), ..CpuFacts::now() }.nodes();
        assert_eq!(nodes(&[32, 32]).as_deref(), Some("2 of memory, with 32 + 32 threads at once"));
        assert_eq!((nodes(&[64]), nodes(&[])), (None, None));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_cpu_has_the_name_that_linux_knows() {
        let name = name().expect("every CPU since 2003 has a name");
        assert!(name.len() > 3 && name.is_ascii() && !name.contains('\0'), "{name:?}");
        if let Ok(about) = std::fs::read_to_string("/proc/cpuinfo") {
            assert!(about.contains(&name), "{name:?}");
        }
    }
}
