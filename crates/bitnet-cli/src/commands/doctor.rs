use bitnet_kernels::{
    Backend, Cpu, Isa,
    conformance::{Case, cases, check},
};
use serde::Serialize;

use crate::{
    args::{Common, DoctorArgs},
    bandwidth,
    cpu_facts::CpuFacts,
    error::CliError,
    load,
    memory::SystemMemory,
    output,
    progress::Progress,
};

/// Failures of a backend that are printed; the rest are counted.
const SHOWN: usize = 5;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    os: &'static str,
    cpu: CpuFacts,
    isa: &'static str,
    isas: Vec<&'static str>,
    threads: usize,
    memory: SystemMemory,
    memory_bandwidth_gb_s: Option<f64>,
    /// Devices that this build can compute on, beside the CPU.
    gpus: [(); 0],
    gpu_note: &'static str,
    conformance: Vec<Outcome>,
}

/// How one backend did against the reference.
#[derive(Serialize)]
struct Outcome {
    backend: String,
    isa: &'static str,
    threads: usize,
    cases: usize,
    passed: usize,
    failed: usize,
    /// The first of them.
    failures: Vec<String>,
}

/// `bitnet doctor`.
pub fn run(common: &Common, args: &DoctorArgs) -> Result<(), CliError> {
    let asked = load::backend(common)?.info();
    let cases = cases();
    let isas: Vec<Isa> = Isa::available().collect();
    let bar = Progress::new("checking kernels", cases.len() * isas.len());
    let mut conformance = Vec::new();
    for &isa in &isas {
        conformance.push(examine(Cpu::new(isa, asked.threads)?, &cases, &bar));
    }
    drop(bar);
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        os: std::env::consts::OS,
        cpu: CpuFacts::now(),
        isa: asked.isa,
        isas: isas.iter().map(|isa| isa.name()).collect(),
        threads: asked.threads,
        memory: SystemMemory::now(),
        memory_bandwidth_gb_s: bandwidth::measure(asked.threads),
        gpus: [],
        gpu_note: "no command computes on a GPU yet",
        conformance,
    };
    if args.json {
        output::json(&report)?
    } else {
        print(&report)?
    }
    match report.conformance.iter().find(|o| o.failed > 0) {
        None => Ok(()),
        Some(o) => Err(CliError::Wrong {
            what: format!("{} of {} kernel cases differ from the reference", o.failed, o.cases),
            place: format!("{} {}", o.backend, o.isa),
        }),
    }
}

fn examine(mut backend: impl Backend, cases: &[Case], bar: &Progress) -> Outcome {
    let info = backend.info();
    let mut failures = Vec::new();
    for &case in cases {
        failures.extend(check(&mut backend, case).err().map(|f| f.to_string()));
        bar.step();
    }
    let failed = failures.len();
    failures.truncate(SHOWN);
    Outcome {
        backend: info.device,
        isa: info.isa,
        threads: info.threads,
        cases: cases.len(),
        passed: cases.len() - failed,
        failed,
        failures,
    }
}

fn print(r: &Report) -> Result<(), CliError> {
    let gib = |bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
        None => "unknown".into(),
    };
    let mut lines = vec![
        format!("bitnet     {} on {} {}", r.version, r.os, r.cpu.arch),
        format!(
            "cpu        {}, {} threads at once",
            r.cpu.name.as_deref().unwrap_or("unknown name"),
            r.cpu.cores
        ),
        format!("features   {}", r.cpu.features.join(" ")),
        format!("isa        {} of {}, {} threads", r.isa, r.isas.join(", "), r.threads),
        format!("memory     {}, {} available", gib(r.memory.total_bytes), gib(r.memory.available_bytes)),
        format!("bandwidth  {}", bandwidth::told(r.memory_bandwidth_gb_s)),
        format!("gpus       {}", r.gpu_note),
        "kernels against the reference, bit for bit:".into(),
    ];
    for o in &r.conformance {
        let Outcome { backend, isa, threads, cases, passed, .. } = o;
        lines.push(format!("  {backend} {isa:11} {threads} threads  {passed} of {cases} cases equal"));
        lines.extend(o.failures.iter().map(|f| format!("    {f}")));
    }
    output::line(lines.join("\n"))
}
