//! The binary under test.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// Prefix of the note that a run uses the CPU because it found no usable GPU.
pub const ON_CPU: &str = "computing on the CPU: ";

/// Result of a run of the binary.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code.
    pub code: i32,
    /// Text on stdout.
    pub out: String,
    /// Text on stderr.
    pub err: String,
}

impl Outcome {
    /// stdout of a run that succeeded.
    pub fn success(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// stdout of a run that succeeded, as JSON.
    pub fn json(self) -> Value {
        let out = self.success();
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
    }

    /// The one line of a run that failed with `code`: what, where and cure, with nothing on stdout. Notes about the
    /// device and the memory of a loaded model may come before it, and hints after it.
    pub fn failure(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        let about_loading =
            |line: &&str| [ON_CPU, "memory: ", "tip: "].iter().any(|start| line.starts_with(start));
        let told: Vec<&str> = self.err.lines().filter(|line| !about_loading(line)).collect();
        let [error] = told[..] else { panic!("{self:?}") };
        assert!(error.starts_with("error: ") && error.contains("): "), "{self:?}");
        assert!(!error.contains("internal fault"), "{self:?}");
        error.to_owned()
    }
}

/// Runs the binary with nothing on stdin.
pub fn bitnet<S: AsRef<str>>(args: &[S]) -> Outcome {
    bitnet_reading("", args)
}

/// Runs the binary with `input` on stdin.
pub fn bitnet_reading<S: AsRef<str>>(input: &str, args: &[S]) -> Outcome {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A command that fails early does not read its input.
    let _ = child.stdin.take().expect("stdin is a pipe").write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the binary ends");
    Outcome {
        code: status.code().expect("no signal ends the binary"),
        out: String::from_utf8(stdout).expect("stdout is text"),
        err: String::from_utf8(stderr).expect("stderr is text"),
    }
}

/// The binary with arguments, not started.
pub fn command<S: AsRef<str>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
    command.args(args.iter().map(AsRef::as_ref)).env("BITNET_CACHE", env!("CARGO_TARGET_TMPDIR"));
    for variable in ["BITNET_DEVICE", "BITNET_THREADS", "BITNET_MEMORY", "BITNET_MODEL"] {
        command.env_remove(variable);
    }
    command
}

/// A fixture of the workspace.
pub fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    path.to_str().expect("the workspace has a path of text").into()
}
