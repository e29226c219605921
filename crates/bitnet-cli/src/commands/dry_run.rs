//! Runs what the GPU bundle runs, on the simulator: `bitnet doctor` and `bitnet bench`, unchanged except for the
//! driver. Also shows what happens with a GPU that cannot be used.

use std::path::Path;

use bitnet::{
    kernels::{
        DeltaShape, KvType, conformance,
        gpu::{Gpu, GpuError, table::KERNELS, tilings},
    },
    model::{Checkpoint, Grouped, Hybrid, ModelSpec, Synthetic},
};
use bitnet_tests::{Call, Null, Simulator, Tap, fixture};
use clap::Parser;

use super::{
    bench::{
        self,
        kernels::{self, Bounds, Sizes, TUNED},
    },
    doctor,
};
use crate::{
    args::{BenchArgs, Cli, Command, Common, DoctorArgs},
    error::CliError,
    load::{Loaded, Machine, Want},
    model_arg,
};

fn parsed(line: &str) -> (Common, Command) {
    let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
    (cli.common, cli.command)
}

fn doctor(line: &str) -> (Common, DoctorArgs) {
    match parsed(line) {
        (common, Command::Doctor(args)) => (common, args),
        _ => panic!("{line}"),
    }
}

fn bench(line: &str) -> (Common, BenchArgs) {
    match parsed(line) {
        (common, Command::Bench(args)) => (common, args),
        _ => panic!("{line}"),
    }
}

/// Copies one of the bundle's fixtures into a folder.
fn one_fixture(folder: &Path, name: &str) {
    let (from, to) = (fixture(name), folder.join(name));
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_doctor_judges_a_simulated_gpu_and_each_part_can_fail_it() {
    let folder = tempfile::tempdir().unwrap();
    one_fixture(folder.path(), "bitnet-odd");
    let (place, save) = (folder.path().display(), folder.path().join("doctor.json"));
    let line =
        format!("bitnet doctor --device cuda --threads 1 --fixtures {place} --save {place}/doctor.json");
    let (common, args) = doctor(&line);
    let machine = Machine { common: &common, open: |_| Ok(Simulator::default()) };
    // The tests of the kernels run all of them on the simulator.
    let cases: Vec<_> = conformance::cases().into_iter().step_by(20).collect();
    let report = doctor::examine_all(&machine, &args, [&cases, &cases]).unwrap();
    doctor::verdict(&report).unwrap();

    assert_eq!(std::fs::read_to_string(save).unwrap(), serde_json::to_string(&report).unwrap());
    let of = |isa: &str| {
        let outcome = report.conformance.iter().find(|o| o.backend == "simulator" && o.isa == isa).unwrap();
        (outcome.cases, outcome.passed)
    };
    assert_eq!(of("sm90"), (cases.len(), cases.len()));
    assert!(report.fixtures.len() == 1 && report.fixtures[0].device == "simulator");
    let batched = report.batched.as_ref().unwrap();
    assert!(batched.device == "simulator" && batched.equal == batched.requests);

    let spoil: [fn(&mut doctor::Report); 3] = [
        |report| report.conformance.iter_mut().find(|o| o.isa == "sm90").unwrap().failed = 1,
        |report| report.fixtures[0].passed = false,
        |report| report.batched.as_mut().unwrap().equal -= 1,
    ];
    let message = spoil.map(|spoil| {
        let mut wrong = report.clone();
        spoil(&mut wrong);
        doctor::verdict(&wrong).unwrap_err().to_string()
    });
    let parts = ["simulator sm90", "bitnet-odd on simulator", "demo on simulator"];
    assert!(message.iter().zip(parts).all(|(message, part)| message.contains(part)), "{message:?}");
}

#[test]
fn a_bench_of_a_simulated_gpu_gives_every_row_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let save = folder.path().join("bench.json");
    let line = format!(
        "bitnet bench synthetic:tiny --device cuda -b 1,2 -d 16,62 -n 4 -p 8,66 --step 32 --kernels --save {}",
        save.display()
    );
    let (common, args) = bench(&line);
    let machine = Machine { common: &common, open: |_| Ok(Simulator::default()) };
    let report = bench::measure(&machine, &args).unwrap();
    assert_eq!(std::fs::read_to_string(save).unwrap(), serde_json::to_string(&report).unwrap());
    let report = serde_json::to_value(report).unwrap();

    let rows = |part: &str| report[part].as_array().unwrap().clone();
    let pairs = |part: &str, a: &str, b: &str| -> Vec<(u64, u64)> {
        rows(part).iter().map(|row| (row[a].as_u64().unwrap(), row[b].as_u64().unwrap())).collect()
    };
    assert_eq!(report["device"], "simulator");
    assert_eq!(pairs("decode", "depth", "batch"), [(16, 1), (16, 2), (62, 1), (62, 2)]);
    assert_eq!(
        rows("prefill").iter().map(|row| row["tokens"].as_u64().unwrap()).collect::<Vec<_>>(),
        [8, 66]
    );
    for row in rows("prefill") {
        assert!(row["first_token_ms"].as_f64().unwrap() > 0.0, "{row}");
    }
    let gpu = &report["gpu"];
    for count in ["replays", "drawn", "copy_gb_s", "int8_tops", "bf16_tflops"] {
        assert!(gpu[count].as_f64().unwrap() > 0.0, "{count}: {gpu}");
    }
    // Four projections, two other quantisations and the embedding for 1, 2 and 32 tokens; the last norm, four heads and
    // five draws for 1 and 2; two projections with their norms for 1; attention for both at both depths, and of a prompt.
    assert_eq!(rows("kernels").len(), 7 * 3 + 10 * 2 + 2 + 4 + 1);
    for kernel in rows("kernels") {
        let numbers = ["microseconds", "gb_s", "tera_ops_s", "of_bandwidth", "of_peak"];
        assert!(numbers.iter().all(|n| kernel[n].as_f64().is_some_and(|x| x > 0.0)), "{kernel}");
    }
}

/// Measures the operations of a model on a GPU that does nothing, with the product's tile for each number of tokens,
/// and returns each row's operation and kernels. Its blocks have `shared` bytes of shared memory; its cache has this type.
fn operations(spec: ModelSpec, shared: u32, kv: KvType) -> Vec<(&'static str, Vec<&'static str>)> {
    let null = Null::with(|info| (info.tiles_by_size, info.shared) = (true, shared));
    let mut gpu = Gpu::new(null).unwrap().keeping(kv);
    let checkpoint = Checkpoint::synthetic("tiny", Synthetic::of(spec));
    let sizes = Sizes {
        tuned: &[],
        steps: &[1, 8, 16, 32, 64, 128],
        batches: &[1, 9, 32, 33],
        contexts: &[4000],
        prompt: 100,
    };
    let mut rows = Vec::new();
    kernels::measure(&mut gpu, &checkpoint, &sizes, Bounds::default(), &mut |row| {
        rows.push((row.operation, row.kernels));
        Ok(())
    })
    .unwrap();
    rows
}

#[test]
fn a_bench_measures_every_kernel_and_the_products_with_every_tile() {
    let named = |name| Synthetic::named(name).unwrap().spec().clone();
    let wide = |spec: ModelSpec| {
        let hybrid = spec.hybrid.clone().map(|hybrid| {
            let delta = DeltaShape { head_dim: 128, key_heads: 1, value_heads: 2, ..hybrid.delta };
            Hybrid { delta, ..hybrid }
        });
        ModelSpec { head_dim: 256, hybrid, ..spec }
    };
    let rows_scaled = ["gate and up", "q, k, v", "down", "output"];
    let apart = ["gate or up", "q", "k or v", "down", "output"];
    let recurrent = ["gate and up", "q, k, v", "down", "output", "delta's input", "delta's output"];
    let models = [
        (named("tiny"), "bitlinear", &rows_scaled[..]),
        // Its gate is another one, and its heads have norms.
        (ModelSpec { grouped: Grouped::default(), ..named("bonsai-tiny") }, "bitlinear", &rows_scaled),
        (named("bonsai-tiny"), "grouped", &rows_scaled),
        (ModelSpec { head_norms: false, ..named("bonsai-tiny") }, "grouped", &rows_scaled),
        (named("embedding-tiny"), "bitlinear", &apart),
        (named("hybrid-tiny-rotated"), "grouped", &recurrent),
        (wide(named("hybrid-tiny")), "grouped", &recurrent),
    ];
    let mut measured = operations(named("tiny"), 99 << 10, KvType::Bf16);
    for spec in [
        named("maple-tiny"),
        named("embedding-gemma-tiny"),
        ModelSpec { draft_head: true, ..named("hybrid-tiny") },
    ] {
        measured.extend(operations(spec, 227 << 10, KvType::Bf16));
    }
    for spec in [named("tiny"), wide(named("hybrid-tiny"))] {
        measured.extend(operations(spec, 227 << 10, KvType::Int8));
    }
    for (spec, product, operations_of_it) in models {
        let rows = operations(spec, 227 << 10, KvType::Bf16);
        for tile in ["t1", "t8", "t16", "t32", "t64", "t128"] {
            let kernel = format!("sm80_{product}_{tile}_w2a8");
            for operation in operations_of_it {
                let takes = |row: &(&str, Vec<&str>)| row.0 == *operation && row.1.contains(&&*kernel);
                assert!(rows.iter().any(takes), "{operation} by {kernel}: {rows:?}");
            }
        }
        assert!(rows.iter().all(|(_, kernels)| !kernels.is_empty()), "{rows:?}");
        measured.extend(rows);
    }
    // These give the limits beside which the others are shown.
    let limits = ["sm80_copy_block", "sm80_peak_w2a8", "sm80_peak_bf16"];
    for kernel in KERNELS.iter().map(|kernel| kernel.name).filter(|name| !limits.contains(name)) {
        assert!(measured.iter().any(|(_, kernels)| kernels.contains(&kernel)), "no row measures {kernel}");
    }
}

#[test]
fn a_bench_writes_how_each_product_is_best_launched_and_a_gpu_does_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bitnet.tiles");
    let of_another = "row 128 128 8 8 1 another GPU";
    std::fs::write(&file, of_another).unwrap();
    let line = format!(
        "bitnet bench synthetic:tiny --device cuda -b 1 -n 4 -p 8 --kernels --tune {}",
        file.display()
    );
    let (common, args) = bench(&line);
    bench::measure(&Machine { common: &common, open: |_| Ok(Null::default()) }, &args).unwrap();

    let mut lines = tilings::parse(&std::fs::read_to_string(&file).unwrap()).map_err(str::to_owned).unwrap();
    assert_eq!(lines.remove(0).to_string(), of_another);
    // Four products, each for all numbers of tokens.
    assert_eq!(lines.len(), 4 * TUNED.len());
    assert!(lines.iter().all(|line| line.gpu == "null"));
    let measured: Vec<_> = lines.into_iter().map(|line| line.tiling).collect();
    Gpu::new(Null::with(|info| info.tilings = measured)).unwrap();

    let (common, args) = bench(&line.replace("cuda", "cpu"));
    let error =
        bench::measure(&Machine { common: &common, open: |_| Ok(Null::default()) }, &args).err().unwrap();
    assert!(error.to_string().contains("--tune"), "{error}");
}

const WANT: Want = Want { step: 16, ..Want::sequences(1, 32) };

/// Loads the tiny model with a GPU that `open` opens.
fn load(device: &str, open: fn(usize) -> Result<Tap, GpuError>) -> Result<Loaded, CliError> {
    let (common, _) = doctor(&format!("bitnet doctor --device {device} --threads 1"));
    Machine { common: &common, open }.load(&model_arg::open("synthetic:tiny").unwrap(), WANT)
}

fn failing(call: Call, error: GpuError) -> Tap {
    let (tap, handle) = Tap::of(Simulator::default());
    handle.fail(call, error);
    tap
}

type Open = fn(usize) -> Result<Tap, GpuError>;

/// The only GPU of a machine.
fn only(index: usize, tap: Tap) -> Result<Tap, GpuError> {
    if index == 0 { Ok(tap) } else { Err(GpuError::NoDevice { index, count: 1 }) }
}

/// GPUs that cannot be used, and part of the message for each.
const REFUSED: [(Open, &str); 6] = [
    (|_| Err(GpuError::DriverMissing), "no NVIDIA driver"),
    (|i| only(i, Tap::of(Simulator::with(|info| info.capability = (7, 5))).0), "compute capability 7.5"),
    (|_| Ok(Tap::of(Simulator::with(|info| info.driver = 11_020)).0), "supports CUDA 11.2"),
    (
        |_| {
            let log = "ptxas error\n  line 7\n".to_owned();
            Ok(failing(Call::Load, GpuError::ModuleRefused { kernel: "sm80_embed_bf16", log }))
        },
        "refused kernel sm80_embed_bf16: ptxas error line 7",
    ),
    (
        |i| only(i, failing(Call::Alloc, GpuError::OutOfMemory { what: "weights", bytes: 2, free: 1 })),
        "no GPU memory for weights (2 bytes, 1 free)",
    ),
    (
        |_| Ok(failing(Call::Write, GpuError::Failed { during: "cuMemcpyHtoD", reason: "gone".into() })),
        "the GPU failed in cuMemcpyHtoD: gone",
    ),
];

#[test]
fn a_gpu_that_cannot_be_used_leaves_the_work_to_the_cpu_with_one_line_of_reasons() {
    for (open, why) in REFUSED {
        let loaded = load("auto", open).unwrap();
        assert!(loaded.model.device().is_none() && loaded.model.backend().device == "cpu", "{why}");
        let message = loaded.refusal().expect("the CPU was not asked for");
        assert!(message.contains(why) && message.contains(": ") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn a_gpu_that_was_asked_for_and_is_refused_is_an_error_and_never_the_cpu() {
    for (open, why) in REFUSED {
        let error = load("cuda", open).expect_err("it cannot be used");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn a_gpu_that_can_be_used_is_used_where_no_device_is_named() {
    let loaded = load("auto", |_| Ok(Tap::of(Simulator::default()).0)).unwrap();
    assert!(loaded.refusal().is_none() && loaded.model.device().is_some());
    assert_eq!(loaded.model.backend().device, "simulator");
}

/// The last GPU of `several` can be used.
fn several(index: usize) -> Result<Tap, GpuError> {
    let busy = || GpuError::Busy { name: "simulator".into(), reason: "exclusive".into() };
    match index {
        0 => Ok(Tap::of(Simulator::with(|info| info.capability = (7, 5))).0),
        1 => Err(busy()),
        2 => Ok(failing(Call::Alloc, GpuError::OutOfMemory { what: "weights", bytes: 2, free: 1 })),
        3 => Ok(Tap::of(Simulator::with(|info| info.memory = 4 << 20)).0),
        4 => Ok(Tap::of(Simulator::default()).0),
        _ => panic!("a GPU was found"),
    }
}

#[test]
fn a_gpu_that_is_too_old_busy_or_full_is_passed_over_for_the_next_and_a_note_says_so() {
    let machine = bitnet::load::Machine { threads: Some(1), ..Default::default() };
    let checkpoint = model_arg::open("synthetic:tiny").unwrap();
    let load = |open: Open| {
        let draft = bitnet::OpenDraft::default();
        bitnet::load::load_by(&machine, open, &checkpoint, &draft, WANT, &mut |_, _| {}).unwrap()
    };
    let loaded = load(several);
    assert_eq!((loaded.gpu.as_ref().unwrap().index, loaded.refusal()), (4, None));
    let notes = loaded.notes();
    let [note] = &notes[..] else { panic!("{notes:?}") };
    for part in
        ["computing on GPU 4: GPU 0: ", "7.5", "; GPU 1: ", "is busy (exclusive)", "; GPU 3: the model needs"]
    {
        assert!(note.contains(part), "{note}");
    }
    // Any other failure would come again, or says that something is wrong with the machine.
    let loaded = load(|index| if index == 0 { (REFUSED[5].0)(0) } else { several(4) });
    assert!(loaded.gpu.is_none() && loaded.notes()[0].starts_with("computing on the CPU: the GPU failed"));
    // With no other GPU, each says why.
    let loaded =
        load(|index| if index < 2 { several(index) } else { Err(GpuError::NoDevice { index, count: 2 }) });
    let why = loaded.refusal().unwrap();
    assert!(why.contains("GPU 0: ") && why.contains("; GPU 1: ") && loaded.model.device().is_none(), "{why}");
}

/// The speed of the CPU is not mistaken for a GPU's: the report names the device and the reason.
#[test]
fn a_bench_without_its_gpu_says_that_it_measured_the_cpu() {
    let (common, args) = bench("bitnet bench synthetic:tiny --threads 1 -b 1 -n 2 -p 4 --kernels");
    let machine = Machine { common: &common, open: REFUSED[1].0 };
    let report = serde_json::to_value(bench::measure(&machine, &args).unwrap()).unwrap();
    assert!(report["device"] == "cpu" && report["gpu"].is_null(), "{report}");
    assert!(report["gpu_refused"].as_str().unwrap().contains("compute capability 7.5"), "{report}");
    // Bytes and operations of `synthetic:tiny`: two bits per trit; the gated values leave as int8; the residual is read
    // and written; the head's copy has a byte per weight and three floats per row; f32 between operations; a product
    // counts as two operations.
    let attended = 17;
    let expected = [
        ("gate and up", 1, 1536 * 256 / 4 + 256 + 768, 2 * 1536 * 256),
        ("down", 4, 256 * 768 / 4 + 4 * 768 + 2 * 4 * 4 * 256, 2 * 4 * 256 * 768),
        ("head, choice", 1, 512 * (256 + 12) + 4 * 256 + 2 * 4 * 512, 2 * 512 * 256),
        ("attention", 1, 4 * 2 * 128 * attended + 2 * 4 * 256, 4 * 256 * attended),
    ];
    for (operation, tokens, bytes, operations) in expected {
        let kernels = report["kernels"].as_array().unwrap().iter();
        let mut rows = kernels.filter(|k| k["operation"] == operation && k["tokens"] == tokens);
        let row = rows.next().unwrap();
        let number = |key: &str| row[key].as_f64().unwrap();
        let nanoseconds = 1e3 * number("microseconds");
        assert!((number("gb_s") * nanoseconds - f64::from(bytes)).abs() < 1.0, "{bytes}: {row}");
        assert!((1e3 * number("tera_ops_s") * nanoseconds - f64::from(operations)).abs() < 1.0, "{row}");
        let parts = [
            ("of_bandwidth", "gb_s", "memory_bandwidth_gb_s"),
            ("of_peak", "tera_ops_s", "integer_peak_tops"),
        ];
        for (part, of, limit) in parts.into_iter().filter(|(part, ..)| !row[part].is_null()) {
            let all = report[limit].as_f64().unwrap();
            assert!((number(part) * all / number(of) - 1.0).abs() < 1e-9, "{part}: {row}");
        }
        assert_eq!(row["of_peak"].is_null(), ["head, choice", "attention"].contains(&operation), "{row}");
        assert!(rows.next().is_none());
    }
}

#[test]
fn a_bench_of_recurrent_layers_counts_their_states_and_transforms() {
    let (common, args) =
        bench("bitnet bench synthetic:hybrid-tiny-rotated --device cpu --threads 1 -b 1 -n 2 -p 4 --kernels");
    let machine = Machine { common: &common, open: |_| Ok(Simulator::default()) };
    let report = serde_json::to_value(bench::measure(&machine, &args).unwrap()).unwrap();
    // 3 layers of 4 key heads and 8 value heads of 32: 512 channels under a convolution of 4 taps, 8 states of 32 x 32.
    let (state, columns, values) = (8 * 32 * 32 + 3 * 512, 512 + 256 + 16, 256);
    let expected = [
        ("delta rule", "8x32^2", 1, 8 * state + 4 * (columns + values), 7 * values * 32),
        ("prompt's delta rule", "8x32^2", 4, 8 * state + 4 * 4 * (columns + values), 4 * 7 * values * 32),
        ("delta's input", "768x256", 1, 768 * (256 / 4 + 4) + 256 + 4 * 768, 2 * 768 * 256),
        ("delta's output", "256x256", 4, 256 * (256 / 4 + 4) + 4 * 256 + 2 * 4 * 4 * 256, 2 * 4 * 256 * 256),
        ("q, k, v", "768x256", 1, 768 * (256 / 4 + 4) + 256 + 4 * 768, 2 * 768 * 256),
        ("transform", "256/256", 1, 256 * 5, 256 * 8),
        ("transform", "512/256", 4, 4 * 512 * 5, 4 * 512 * 8),
    ];
    for (operation, shape, tokens, bytes, operations) in expected {
        let kernels = report["kernels"].as_array().unwrap().iter();
        let mut rows = kernels
            .filter(|row| row["operation"] == operation && row["shape"] == shape && row["tokens"] == tokens);
        let row = rows.next().unwrap_or_else(|| panic!("no {operation} of {tokens}: {report}"));
        let number = |key: &str| row[key].as_f64().unwrap();
        let nanoseconds = 1e3 * number("microseconds");
        assert!((number("gb_s") * nanoseconds - f64::from(bytes)).abs() < 1.0, "{bytes}: {row}");
        assert!((1e3 * number("tera_ops_s") * nanoseconds - f64::from(operations)).abs() < 1.0, "{row}");
        assert!(rows.next().is_none(), "{operation} of {tokens} once");
    }
}
