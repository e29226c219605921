use serde::Serialize;

/// Describes the CPU.
#[derive(Debug, Clone, Serialize)]
pub struct CpuFacts {
    /// Architecture that this program was built for.
    pub arch: &'static str,
    /// Model name, if the system reports it.
    pub name: Option<String>,
    /// Number of threads that can run at once.
    pub cores: usize,
    /// Available instruction set extensions, of those that matter to kernels.
    pub features: Vec<&'static str>,
}

impl CpuFacts {
    /// Queries the CPU and the system.
    pub fn now() -> Self {
        let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name =
            about.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|(_, n)| n.trim()));
        CpuFacts {
            arch: std::env::consts::ARCH,
            name: name.map(str::to_owned),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            features: features(),
        }
    }
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
