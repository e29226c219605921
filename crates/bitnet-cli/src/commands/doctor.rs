//! `bitnet doctor`: reports what this machine has, and checks every kernel on it.

use bitnet::kernels::{
    Backend, BackendInfo, Cpu, Footprint, Isa, KvType,
    conformance::{Case, Expected, Failure, cases, check_rounded, cpu_cases},
    gpu::{DeviceInfo, Driver, Gpu, RecordingState, cubins::FILE, tilings},
};
use bitnet::{Device, SystemMemory};
use serde::Serialize;

use super::judge::{self, Batched, Fixture};
use crate::{
    args::{Common, DoctorArgs},
    cpu_facts::CpuFacts,
    error::CliError,
    load::{self, Machine},
    memory, output,
    output_file::save_json,
    progress::Progress,
};

/// Maximum number of failures printed per backend; the rest are only counted.
const SHOWN: usize = 5;

#[derive(Clone, Serialize)]
pub struct Report {
    version: &'static str,
    os: &'static str,
    cpu: CpuFacts,
    isa: &'static str,
    isas: Vec<&'static str>,
    threads: usize,
    kv: &'static str,
    /// Layout that weights would have in memory.
    weight_layout: &'static str,
    memory: SystemMemory,
    memory_bandwidth_gb_s: Option<f64>,
    gpus: Vec<GpuFacts>,
    /// Description of the GPU, or why there is none.
    gpu_note: String,
    pub conformance: Vec<Outcome>,
    pub fixtures: Vec<Fixture>,
    /// Null until it has been checked.
    pub batched: Option<Batched>,
}

#[derive(Clone, Serialize)]
struct GpuFacts {
    name: String,
    compute_capability: String,
    /// Version of CUDA that the driver supports.
    cuda: String,
    memory_bytes: usize,
    processors: u32,
    /// Number of kernels whose machine code came from the file beside the program.
    kernels_shipped: usize,
    /// Number of kernels that the driver compiled.
    kernels_compiled: usize,
    /// Why it did.
    compiled_because: Option<String>,
    /// Number of products that are launched as a tuning run has measured.
    products_tuned: usize,
    /// How launches that come again are recorded: `overlapping`, `in turn` or `never`.
    recorded: &'static str,
    /// The same in words, with what the driver failed at.
    recordings: String,
}

impl GpuFacts {
    fn of(info: &DeviceInfo, recordings: &RecordingState) -> Self {
        GpuFacts {
            name: info.name.clone(),
            compute_capability: format!("{}.{}", info.capability.0, info.capability.1),
            cuda: format!("{}.{}", info.driver / 1000, info.driver % 1000 / 10),
            memory_bytes: info.memory,
            processors: info.processors,
            kernels_shipped: info.code.shipped,
            kernels_compiled: info.code.compiled,
            compiled_because: info.code.reason.clone(),
            products_tuned: info.tilings.len(),
            recorded: recordings.how.name(),
            recordings: recordings.to_string(),
        }
    }

    /// Where the machine code of its kernels came from.
    fn code(&self) -> String {
        let GpuFacts { kernels_shipped: shipped, kernels_compiled: compiled, compiled_because, .. } = self;
        match compiled_because {
            Some(why) => format!("{shipped} kernels from {FILE}, {compiled} compiled by the driver: {why}"),
            None => format!("{shipped} kernels from {FILE}"),
        }
    }

    /// How it is decided which tiles a product has.
    fn tiles(&self) -> String {
        match self.products_tuned {
            0 => format!("estimated, since no {} has any for this GPU", tilings::FILE),
            tuned => format!("measured for {tuned} products ({}), otherwise estimated", tilings::FILE),
        }
    }
}

/// Result of comparing one backend with the reference.
#[derive(Clone, Serialize)]
pub struct Outcome {
    pub backend: String,
    pub isa: &'static str,
    threads: usize,
    pub cases: usize,
    pub passed: usize,
    pub failed: usize,
    failures: Vec<String>,
}

impl Outcome {
    fn of(info: BackendInfo, cases: &[Case], failures: Vec<Failure>) -> Self {
        let BackendInfo { device: backend, isa, threads, .. } = info;
        let (cases, failed) = (cases.len(), failures.len());
        let failures = failures.iter().take(SHOWN).map(Failure::to_string).collect();
        Outcome { backend, isa, threads, cases, passed: cases - failed, failed, failures }
    }
}

pub fn run(common: &Common, args: &DoctorArgs) -> Result<(), CliError> {
    let report = examine_all(&Machine::of(common), args, [&cpu_cases(), &cases()])?;
    if args.json {
        output::json(&report)?
    } else {
        print(&report)?
    }
    verdict(&report)
}

/// Checks kernels against the reference in these cases, on the CPU and on a GPU, models against the oracle, and a batch
/// against its members. Everything is checked, even after a failure.
pub fn examine_all<D: Driver + 'static>(
    machine: &Machine<'_, D>,
    args: &DoctorArgs,
    [on_cpu, on_gpu]: [&[Case]; 2],
) -> Result<Report, CliError> {
    let common = machine.common;
    let cpu = load::cpu(common)?;
    let (info, kv) = (cpu.info(), cpu.kv_type());
    let gpu = match common.device {
        Device::Cpu => Err("not checked (--device cpu)".to_owned()),
        Device::Cuda(index) => Ok((index, machine.gpu(index)?)),
        _ => machine.first_gpu(),
    };
    let isas: Vec<Isa> = Isa::available().collect();
    let gpu_cases = if gpu.is_ok() { on_gpu.len() } else { 0 };
    let bar = Progress::new("checking kernels", on_cpu.len() * isas.len() + gpu_cases);
    let cpus = isas.iter().map(|&isa| Ok(Cpu::new(isa, info.threads)?.keeping(kv)));
    let mut conformance = examine_cpus(cpus.collect::<Result<_, CliError>>()?, kv, on_cpu, &bar);
    // A missing GPU has been reported, and need not be looked for again.
    let device = gpu.as_ref().map_or(Device::Cpu, |(index, _)| Device::Cuda(*index));
    let common = &Common { device, ..common.clone() };
    let machine = &Machine { common, ..*machine };
    let (mut gpus, mut gpu_note) = (Vec::new(), String::new());
    match gpu {
        Ok((_, mut gpu)) => {
            let recordings = gpu.recordings().clone();
            let facts = GpuFacts::of(gpu.driver().info(), &recordings);
            gpu_note = format!(
                "{}, compute capability {}, CUDA {}",
                facts.name, facts.compute_capability, facts.cuda
            );
            gpus.push(facts);
            conformance.push(examine_gpu(&mut gpu, on_gpu, &bar));
        }
        Err(why) => gpu_note.push_str(&why),
    }
    drop(bar);
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        os: std::env::consts::OS,
        cpu: CpuFacts::now(),
        isa: info.isa,
        isas: isas.iter().map(|isa| isa.name()).collect(),
        threads: info.threads,
        kv: info.kv,
        weight_layout: if gpus.is_empty() { Cpu::LAYOUT } else { Gpu::<D>::LAYOUT },
        memory: SystemMemory::now(),
        memory_bandwidth_gb_s: memory::bandwidth(info.threads),
        gpus,
        gpu_note,
        conformance,
        fixtures: Vec::new(),
        batched: None,
    };
    let save = |report: &Report| args.save.as_ref().map_or(Ok(()), |file| save_json(file, report));
    save(&report)?;
    if let Some(folder) = &args.fixtures {
        report.fixtures = judge::fixtures(machine, folder)?;
        save(&report)?;
    }
    report.batched = Some(judge::batched(machine)?);
    save(&report)?;
    Ok(report)
}

/// Returns the first failure as an error.
pub fn verdict(r: &Report) -> Result<(), CliError> {
    if let Some(o) = r.conformance.iter().find(|o| o.failed > 0) {
        return Err(CliError::Wrong {
            what: format!("{} of {} kernel cases differ from the reference", o.failed, o.cases),
            place: format!("{} {}", o.backend, o.isa),
        });
    }
    if let Some(f) = r.fixtures.iter().find(|f| !f.passed) {
        let what = format!(
            "logits differ from the oracle's by {:.1e} in the median, {:.1e} at worst",
            f.median, f.worst
        );
        return Err(CliError::Wrong { what, place: format!("{} on {}", f.name, f.device) });
    }
    match &r.batched {
        Some(Batched { device, requests, equal }) if equal < requests => {
            let what = format!(
                "{} of {requests} requests get different tokens in a batch than alone",
                requests - equal
            );
            Err(CliError::Wrong { what, place: format!("demo on {device}") })
        }
        _ => Ok(()),
    }
}

/// Checks every case on all instruction sets, after one run on the reference.
fn examine_cpus(mut cpus: Vec<Cpu>, kv: KvType, cases: &[Case], bar: &Progress) -> Vec<Outcome> {
    let mut failures = vec![Vec::new(); cpus.len()];
    for &case in cases {
        let expected = Expected::of(case, kv);
        for (cpu, failures) in cpus.iter_mut().zip(&mut failures) {
            failures.extend(expected.check(cpu).err());
            bar.step();
        }
    }
    cpus.iter().zip(failures).map(|(cpu, failures)| Outcome::of(cpu.info(), cases, failures)).collect()
}

fn examine_gpu<D: Driver>(gpu: &mut Gpu<D>, cases: &[Case], bar: &Progress) -> Outcome {
    let check = |&case: &Case| {
        let failure = check_rounded(gpu, case).err();
        bar.step();
        failure
    };
    let failures = cases.iter().filter_map(check).collect();
    Outcome::of(gpu.info(), cases, failures)
}

fn print(r: &Report) -> Result<(), CliError> {
    let gib = |bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
        None => "unknown".into(),
    };
    let mut lines = vec![
        format!("bitnet     {} on {} {}", r.version, r.os, r.cpu.arch),
        format!(
            "cpu        {}, {} cores, {} threads at once",
            r.cpu.name.as_deref().unwrap_or("unknown name"),
            r.cpu.physical_cores.map_or("unknown".into(), |cores| cores.to_string()),
            r.cpu.cores
        ),
        format!("features   {}", r.cpu.features.join(" ")),
        format!("isa        {} of {}, {} threads, kv {}", r.isa, r.isas.join(", "), r.threads, r.kv),
        format!("weights    {}", r.weight_layout),
        format!("memory     {}, {} available", gib(r.memory.total_bytes), gib(r.memory.available_bytes)),
        format!("bandwidth  {}", memory::bandwidth_text(r.memory_bandwidth_gb_s)),
        format!("gpus       {}", r.gpu_note),
    ];
    lines.extend(r.cpu.nodes().map(|nodes| format!("nodes      {nodes}")));
    for gpu in &r.gpus {
        lines.extend([
            format!("gpu code   {}", gpu.code()),
            format!("gpu tiles  {}", gpu.tiles()),
            format!("gpu steps  {}", gpu.recordings),
        ]);
    }
    lines.push("kernels compared with the reference:".into());
    for o in &r.conformance {
        let Outcome { backend, isa, threads, cases, passed, .. } = o;
        lines.push(format!("  {backend} {isa:11} {threads} threads  {passed} of {cases} cases equal"));
        lines.extend(o.failures.iter().map(|f| format!("    {f}")));
    }
    for Fixture { name, device, median, worst, passed } in &r.fixtures {
        let verdict = if *passed { "near" } else { "FAR" };
        lines.push(format!("  {name} on {device}: {verdict}, median {median:.1e}, worst {worst:.1e}"));
    }
    lines.extend(r.batched.iter().map(|Batched { device, requests, equal }| {
        format!("demo on {device}: {equal} of {requests} requests get the same tokens in a batch as alone")
    }));
    output::line(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_tells_where_its_machine_code_came_from_and_why() {
        let facts = |shipped, compiled, why: Option<&str>| GpuFacts {
            name: "gpu".into(),
            compute_capability: "9.0".into(),
            cuda: "12.4".into(),
            memory_bytes: 0,
            processors: 1,
            kernels_shipped: shipped,
            kernels_compiled: compiled,
            compiled_because: why.map(str::to_owned),
            products_tuned: compiled,
            recorded: "never",
            recordings: String::new(),
        };
        assert_eq!(facts(38, 0, None).code(), "38 kernels from bitnet.cubins");
        let some = facts(37, 1, Some("bitnet.cubins is damaged")).code();
        assert_eq!(facts(38, 0, None).tiles(), "estimated, since no bitnet.tiles has any for this GPU");
        assert_eq!(facts(37, 1, None).tiles(), "measured for 1 products (bitnet.tiles), otherwise estimated");
        assert_eq!(some, "37 kernels from bitnet.cubins, 1 compiled by the driver: bitnet.cubins is damaged");
    }
}
