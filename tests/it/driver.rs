//! The binary with the stand-in for the NVIDIA driver, loaded as the driver is.
#![cfg(target_os = "linux")]

use std::{
    io::{BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::LazyLock,
    time::Duration,
};

use bitnet_kernels::gpu::{
    cubins,
    table::{KERNELS, Kernel},
    tilings,
};
use bitnet_tests::{binary, served_at, standin};

/// A folder beside the stand-in that holds it under the driver's name.
fn folder() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let library = standin();
        let folder = library.with_file_name("standin");
        std::fs::create_dir_all(&folder).unwrap();
        match std::os::unix::fs::symlink(&library, folder.join("libcuda.so.1")) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => panic!("{e}"),
            _ => folder,
        }
    });
    &FOLDER
}

/// The known answers take longest of all that a program does here. They are computed where an environment says so.
const CHECKED: (&str, &str) = ("BITNET_GPU", "");

/// The program's environment: the stand-in as the driver, and `given`.
fn environment(bitnet: &mut Command, given: &[(&str, &str)]) {
    bitnet.env("LD_LIBRARY_PATH", folder()).env("BITNET_GPU", "unchecked").envs(given.iter().copied());
}

/// Generates enough tokens for recordings to be used.
fn run(given: &[(&str, &str)], flags: &[&str]) -> Output {
    let mut bitnet = Command::new(binary());
    bitnet.args(["run", "synthetic:tiny", "--ids", "1,2,3,4,5", "-n", "8", "--threads", "1"]);
    if !flags.contains(&"--device") {
        bitnet.args(["--device", "cuda"]);
    }
    environment(bitnet.args(flags), given);
    bitnet.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Output of a run that must succeed and must not misuse the driver.
fn printed(environment: &[(&str, &str)], flags: &[&str]) -> String {
    let output = run(environment, flags);
    let report = stderr(&output);
    assert!(output.status.success() && !report.contains("standin:"), "{environment:?}: {report}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_forward_pass_misuses_no_driver_call_with_recordings_or_without() {
    let greedy = ["--temperature", "0"];
    let tokens = printed(&[CHECKED], &greedy);
    assert_eq!(tokens.trim().split([',', ' ']).filter(|token| !token.is_empty()).count(), 8, "{tokens}");
    assert_eq!(printed(&[("BITNET_GPU", "sync,patience=600")], &greedy), tokens);
    // Where launches do not overlap, other texts compute the same.
    assert_eq!(printed(&[CHECKED, ("STANDIN_GPUS", "8.0")], &greedy), tokens);
    for apart in [("STANDIN_GPUS", "8.0"), ("BITNET_GPU", "no-overlap,unchecked")] {
        let failed = stderr(&run(&[apart, ("STANDIN_FAIL", "cuLaunchKernel:2:700")], &greedy));
        assert!(failed.contains("restart the process"), "{apart:?}: {failed}");
    }
    let drawn = ["--temperature", "1.5", "--seed", "5"];
    assert_eq!(printed(&[("BITNET_GPU", "no-recordings,unchecked")], &drawn), printed(&[], &drawn));
}

#[test]
fn keys_and_values_in_int8_misuse_no_driver_call_and_other_types_are_refused_by_name() {
    let int8 = ["--temperature", "0", "--kv", "int8"];
    let tokens = printed(&[], &int8);
    assert_eq!(tokens.trim().split([',', ' ']).filter(|token| !token.is_empty()).count(), 8, "{tokens}");
    for apart in [("STANDIN_GPUS", "8.0"), ("BITNET_GPU", "no-recordings,unchecked")] {
        assert_eq!(printed(&[apart], &int8), tokens, "{apart:?}");
    }
    let refused = stderr(&run(&[], &["--kv", "f16"]));
    assert!(refused.contains("in bf16 or int8, not in f16") && refused.contains("--kv"), "{refused}");
}

/// What fails, and the note that the user gets. The tokens are always the same.
#[test]
fn a_driver_that_fails_at_recordings_at_once_or_late_costs_neither_tokens_nor_the_gpu() {
    let greedy = ["--temperature", "0"];
    let tokens = printed(&[], &greedy);
    for (fault, note) in [
        ("cuStreamBeginCapture_v2:1:900", "are not recorded"),
        ("cuGraphInstantiateWithFlags:1:801", "are not recorded"),
        ("cuGraphLaunch:1:400", "are not recorded"),
        ("replay:1:719", "are not recorded"),
        ("cuLaunchKernelEx:1:400:overlap", "are recorded without overlap"),
        ("cuGraphInstantiateWithFlags:1:801:overlap", "are recorded without overlap"),
        ("cuGraphLaunch:1:400:overlap", "are recorded without overlap"),
        ("replay:1:719:overlap", "are recorded without overlap"),
        // The driver is then of no use until its context is made anew.
        ("cuStreamEndCapture:1:901:poison", "are not recorded"),
        ("cuStreamEndCapture:1:901:overlap:poison", "are recorded without overlap"),
    ] {
        let output = run(&[("STANDIN_FAIL", fault)], &greedy);
        let report = stderr(&output);
        assert!(output.status.success() && !report.contains("standin:"), "{fault}: {report}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), tokens, "{fault}");
        let code = fault.split(':').nth(2).unwrap();
        assert!(report.contains(note) && report.contains(code), "{fault}: {report}");
    }
    // After the trial, a replay that fails late leaves nobody to redo the step.
    let output = run(&[("STANDIN_FAIL", "replay:3:719")], &greedy);
    assert!(stderr(&output).contains("restart the process"), "{}", stderr(&output));
    // A replay that is refused is redone, however late that comes.
    assert_eq!(printed(&[("STANDIN_FAIL", "cuGraphLaunch:4:400")], &greedy), tokens);
}

#[test]
fn a_server_whose_driver_begins_to_refuse_replays_goes_on_logs_it_and_counts_it() {
    let mut serve = Command::new(binary());
    serve.args(["serve", "synthetic:tiny", "--port", "0", "--device", "cuda", "--threads", "1"]);
    environment(&mut serve, &[("STANDIN_FAIL", "cuGraphLaunch:4:400")]);
    let mut serving = serve.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(serving.stderr.take().unwrap());
    let address = served_at(&mut log).unwrap();
    let ask = |method: &str, path: &str, body: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let head = format!("{method} {path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json");
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let body = r#"{"prompt": [1, 2, 3, 4, 5], "max_tokens": 12, "temperature": 0}"#;
    let answers = [0; 2].map(|_| ask("POST", "/v1/completions", body));
    let metrics = ask("GET", "/metrics", "");
    // The server looks at its device five times a second, if it is not kept waiting.
    std::thread::sleep(Duration::from_secs(3));
    serving.kill().unwrap();
    serving.wait().unwrap();
    let mut logged = String::new();
    log.read_to_string(&mut logged).unwrap();
    for answer in answers {
        assert!(
            answer.starts_with("HTTP/1.0 200") && answer.contains("\"completion_tokens\":12"),
            "{answer}"
        );
    }
    assert!(logged.contains("launches are now recorded never"), "{logged}");
    let failures = metrics.lines().find(|line| line.starts_with("bitnet_gpu_recording_failures_total{"));
    assert!(failures.is_some_and(|line| line.ends_with(" 2")), "{metrics}");
}

#[test]
fn the_first_gpu_that_is_neither_too_old_nor_busy_nor_full_computes() {
    let auto = ["--temperature", "0", "--device", "auto"];
    let tokens = printed(&[], &["--temperature", "0"]);
    let output = run(&[("STANDIN_GPUS", "7.5,9.0-busy,9.0-full,8.0,9.0")], &auto);
    let report = stderr(&output);
    assert!(output.status.success() && !report.contains("standin:"), "{report}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), tokens);
    assert!(report.contains("computing on GPU 3: GPU 0: "), "{report}");
    assert!(report.contains("GPU 1: stand-in is busy (cuDevicePrimaryCtxRetain: code 46)"), "{report}");
    assert!(report.contains("GPU 2: no GPU memory for "), "{report}");
    // One that was asked for is not replaced, and the error does not ask for a new process.
    let report = stderr(&run(&[("STANDIN_GPUS", "9.0-busy,9.0")], &["--temperature", "0"]));
    assert!(report.contains("is busy") && report.contains("--device cuda:N"), "{report}");
    assert!(!report.contains("restart"), "{report}");
}

#[test]
fn a_failed_driver_call_ends_the_program_with_an_error_and_no_further_misuse() {
    let calls = [
        ("cuInit", "3"),
        ("cuDeviceGet", "101"),
        ("cuDevicePrimaryCtxRetain", "2"),
        ("cuStreamCreate", "2"),
        ("cuEventCreate", "2"),
        ("cuMemHostAlloc", "2"),
        ("cuMemAlloc_v2", "2"),
        ("cuMemsetD8Async", "700"),
        ("cuModuleLoadDataEx", "2"),
        ("cuModuleGetFunction", "500"),
        ("cuLaunchKernelEx", "700"),
        ("cuMemcpyHtoDAsync_v2", "700"),
        ("cuMemcpyDtoHAsync_v2", "700"),
        ("cuEventRecord", "700"),
        ("cuStreamQuery", "700"),
    ];
    for (call, code) in calls {
        let output = run(&[("STANDIN_FAIL", &format!("{call}:1:{code}"))], &[]);
        let report = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{call}: {report}");
        assert!(report.contains("error: ") && !report.contains("standin:"), "{call}: {report}");
        assert!(code != "700" || report.contains("restart the process"), "{call}: {report}");
    }
}

#[test]
fn a_refused_kernel_is_reported_by_name_with_its_log_even_when_loaded_lazily() {
    let refuse = ("STANDIN_REFUSE", "sm80_embed_bf16");
    for environment in [&[refuse][..], &[refuse, ("STANDIN_LAZY", "1")]] {
        let report = stderr(&run(environment, &[]));
        assert!(report.contains("refused kernel sm80_embed_bf16") && report.contains("line 7"), "{report}");
    }
}

/// A copy of the program in a folder of its own, beside which machine code can be.
struct Program(tempfile::TempDir);

impl Program {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(binary(), folder.path().join("bitnet")).unwrap();
        Program(folder)
    }

    /// Puts machine code of every kernel beside the program, made of the text that `assemble` returns.
    fn ship(&self, assemble: impl Fn(&Kernel, &str) -> String) {
        let made: Vec<(u32, String, String)> = cubins::texts()
            .into_iter()
            .map(|(architecture, kernel, text)| {
                let code = format!("\x7fELF{}\0", assemble(kernel, &text));
                (architecture, text, code)
            })
            .collect();
        let parts = made.iter().map(|(architecture, text, code)| (*architecture, &**text, code.as_bytes()));
        std::fs::write(self.0.path().join(cubins::FILE), cubins::pack(parts)).unwrap();
    }

    /// What `run` prints, and the report on stderr.
    fn run(&self, given: &[(&str, &str)]) -> (String, String) {
        let mut bitnet = Command::new(self.0.path().join("bitnet"));
        bitnet.args(["run", "synthetic:tiny", "--ids", "1,2,3,4,5", "-n", "8", "--device", "cuda"]);
        bitnet.args(["--threads", "1", "--temperature", "0"]);
        environment(&mut bitnet, given);
        let output = bitnet.output().unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output))
    }
}

#[test]
fn shipped_machine_code_is_used_for_its_own_text_only_and_everything_else_is_compiled() {
    let tokens = printed(&[], &["--temperature", "0"]);
    let program = Program::new();
    program.ship(|_, text| text.to_owned());
    let broken = ("STANDIN_REFUSE", KERNELS[0].name);
    let after_all_kernels = format!("cuModuleLoadDataEx:{}:218", KERNELS.len() + 1);
    // The stand-in cannot compile this kernel, but takes its code.
    for environment in [&[][..], &[("STANDIN_GPUS", "8.0")], &[("STANDIN_FAIL", &after_all_kernels)]] {
        assert_eq!(program.run(environment).0, tokens, "{environment:?}");
    }
    // Code that the driver refuses is compiled instead.
    let refused = ("STANDIN_REFUSE_CODE", KERNELS[0].name);
    assert_eq!(program.run(&[refused]).0, tokens);
    let report = program.run(&[refused, broken]).1;
    assert!(report.contains("refused kernel"), "{report}");
    let report = program.run(&[("BITNET_GPU", "compile,unchecked"), broken]).1;
    assert!(report.contains("refused kernel"), "{report}");
}

#[test]
fn shipped_machine_code_with_wrong_results_is_refused_by_the_name_of_its_kernel() {
    let program = Program::new();
    let wrong = "sm80_argmax_f32";
    program.ship(|kernel, text| {
        if kernel.name == wrong {
            text.replacen("redux.sync.max", "redux.sync.min", 1)
        } else {
            text.to_owned()
        }
    });
    let report = program.run(&[CHECKED]).1;
    assert!(report.contains(wrong) && report.contains("wrong results"), "{report}");
    assert!(report.contains("bitnet.cubins, which BITNET_GPU=compile ignores"), "{report}");
    assert!(!program.run(&[("BITNET_GPU", "compile")]).0.is_empty());
}

#[test]
fn measured_launches_beside_the_program_are_used_and_a_line_that_is_none_is_refused() {
    let program = Program::new();
    let with = |lines: &str| {
        std::fs::write(program.0.path().join(tilings::FILE), lines).unwrap();
        program.run(&[])
    };
    let tokens = printed(&[], &["--temperature", "0"]);
    assert_eq!(with("# a comment\nrow 128 128 8 8 1 stand-in\nrow 9 9 9 9 9 another GPU\n").0, tokens);
    let impossible = with("row 128 128 8 9 1 stand-in\n").1;
    assert!(impossible.contains("cannot launch \"row 128 128 8 9 1\""), "{impossible}");
    let unreadable = with("row 128 128 8 stand-in\n").1;
    assert!(unreadable.contains("cannot read \"row 128 128 8 stand-in\""), "{unreadable}");
}

#[test]
fn an_unknown_switch_is_refused_with_the_list_of_switches() {
    let report = stderr(&run(&[("BITNET_GPU", "fast")], &[]));
    assert!(report.contains("\"fast\"") && report.contains("no-recordings"), "{report}");
}
