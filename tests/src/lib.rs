//! Shared by tests: fixtures with their golden values, the binary, and GPU drivers: simulated, tapped, and null.

pub mod instructions;
mod null;
mod simulator;
mod tap;

use std::{
    collections::HashMap,
    fmt,
    io::BufRead,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use safetensors::{Dtype, SafeTensors};

pub use bitnet_ptxsim::MatrixUnit;
pub use null::Null;
pub use simulator::{Simulator, refusal};
pub use tap::{Call, Handle, Tap};

/// The folder of a fixture.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// The named f32 and i32 tensors of a safetensors file, with its text metadata.
pub struct Tensors {
    tensors: HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    /// Text metadata of the file.
    pub metadata: HashMap<String, String>,
}

impl Tensors {
    /// Reads a file.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("safetensors header");
        let file = SafeTensors::deserialize(&bytes).expect("safetensors file");
        let tensors = file
            .iter()
            .map(|(name, t)| (name.to_owned(), (t.dtype(), t.shape().to_vec(), t.data().to_vec())));
        Tensors { tensors: tensors.collect(), metadata: header.metadata().clone().unwrap_or_default() }
    }

    /// Values of an f32 tensor.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.values(name, Dtype::F32).map(f32::from_le_bytes).collect()
    }

    /// Values of an i32 tensor that holds token ids.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.values(name, Dtype::I32).map(u32::from_le_bytes).collect()
    }

    /// Shape of a tensor.
    pub fn shape(&self, name: &str) -> &[usize] {
        &self.tensors[name].1
    }

    fn values(&self, name: &str, dtype: Dtype) -> impl Iterator<Item = [u8; 4]> + '_ {
        let (actual, _, bytes) = &self.tensors[name];
        assert_eq!(*actual, dtype, "type of {name}");
        bytes.as_chunks::<4>().0.iter().copied()
    }
}

/// A checkpoint in one of its forms, with values computed by an independent oracle.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Folder under `fixtures`.
    pub folder: &'static str,
    /// A GGUF file in the folder, or empty for the folder itself.
    pub file: &'static str,
    /// The oracle's values for this form.
    pub golden: &'static str,
}

impl Form {
    /// The path that a user would give as MODEL.
    pub fn path(&self) -> PathBuf {
        fixture(self.folder).join(self.file)
    }

    /// Checks distances against the limits of an exact implementation for this form. The prompts of grouped forms and of
    /// embedding models avoid ties between two int8 values, so that no rounding differs.
    ///
    /// # Panics
    /// If they exceed the limits.
    pub fn assert_close(&self, distances: Vec<f64>, what: &str) {
        let mut without_ties = GROUPED_FORMS.iter().chain(EXPERT_FORMS).chain([&EMBEDDING_FORM]);
        let limit = if without_ties.any(|form| form.folder == self.folder) { 1e-4 } else { WORST };
        assert_within(distances, limit, &format!("{self:?} {what}"));
    }

    /// The oracle's values.
    pub fn golden(&self) -> Tensors {
        Tensors::read(&fixture(self.folder).join(self.golden))
    }
}

const fn folder(folder: &'static str) -> Form {
    Form { folder, file: "", golden: "golden.safetensors" }
}

const fn gguf(folder: &'static str, file: &'static str, golden: &'static str) -> Form {
    Form { folder, file, golden }
}

/// Every form of every checkpoint with one scale a tensor.
pub const FORMS: &[Form] = &[
    folder("bitnet-packed"),
    gguf("bitnet-packed", "model-I2_S.gguf", "golden-I2_S.safetensors"),
    gguf("bitnet-packed", "model-TQ1_0.gguf", "golden-TQ1_0.safetensors"),
    gguf("bitnet-packed", "model-TQ2_0.gguf", "golden-TQ2_0.safetensors"),
    folder("bitnet-odd"),
    folder("bitnet-master"),
    folder("llama-bitlinear"),
    gguf("llama-bitlinear", "model-I2_S.gguf", "golden-I2_S.safetensors"),
    gguf("llama-bitlinear", "model-TQ1_0.gguf", "golden-TQ1_0.safetensors"),
    gguf("llama-bitlinear", "model-TQ2_0.gguf", "golden-TQ2_0.safetensors"),
    gguf("llama-bitlinear", "model-TQ2_0-K.gguf", "golden-TQ2_0-K.safetensors"),
    folder("llama-explicit"),
    folder("llama-rmsnorm"),
    folder("onebitllm"),
];

const fn grouped(folder: &'static str, file: &'static str) -> Form {
    Form { folder, file, golden: "golden.safetensors" }
}

/// Every form of every checkpoint with a scale for every group of weights. All forms of a checkpoint hold the same
/// weights, so they share a golden file.
pub const GROUPED_FORMS: &[Form] = &[
    grouped("qwen3-ternary", "model-Q2_0.gguf"),
    grouped("qwen3-ternary", "model-PQ2_0.gguf"),
    grouped("qwen3-ternary", "model-PTQ1_0.gguf"),
    grouped("qwen3-ternary", "mlx"),
    grouped("qwen3-unpacked", ""),
    grouped("qwen3-unpacked", "model-PQ2_0.gguf"),
    grouped("qwen3-yarn", "model-PQ2_0.gguf"),
    grouped("qwen3-g64", "model-Q2_0.gguf"),
    grouped("minicpm-mup", "model-TQ2_0.gguf"),
    grouped("minicpm-blocks", ""),
    grouped("minicpm-blocks", "model-TQ2_0.gguf"),
];

/// Every form of every checkpoint with recurrent layers. The forms of a checkpoint share a golden file.
pub const HYBRID_FORMS: &[Form] = &[
    grouped("qwen35-ternary", ""),
    grouped("qwen35-ternary", "model-PQ2_0.gguf"),
    grouped("qwen35-hadamard", "mlx"),
    grouped("qwen35-hadamard", "model-PQ2_0.gguf"),
    grouped("qwen35-hadamard", "model-PTQ1_0.gguf"),
];

const fn head(folder: &'static str, file: &'static str) -> Form {
    Form { folder, file, golden: "golden-mtp.safetensors" }
}

/// Models with recurrent layers that have a draft head. Their golden files have its logits.
pub const HEAD_FORMS: [Form; 3] = [
    head("qwen35-mtp", "model-PQ2_0.gguf"),
    head("qwen35-mtp-hadamard", "mlx"),
    head("qwen35-mtp-hadamard", "model-PTQ1_0.gguf"),
];

/// Checkpoints with experts and windows. Tests make their other forms.
pub const EXPERT_FORMS: &[Form] =
    &[grouped("maple-tiny", "model-TQ1_0-head-F16.gguf"), grouped("maple-unpacked", "mlx")];

/// A model that embeds texts. Its golden file also has embeddings.
pub const EMBEDDING_FORM: Form = folder("qwen3-embedding");

/// The forms of a Gemma model that embeds texts. Their golden files have states and embeddings, and no logits.
pub const GEMMA_FORMS: [Form; 2] = [
    folder("embedding-gemma-tiny"),
    gguf("embedding-gemma-tiny", "model-I2_S.gguf", "golden-I2_S.safetensors"),
];

/// Every form of every checkpoint.
pub fn all_forms() -> impl Iterator<Item = Form> {
    FORMS.iter().chain(GROUPED_FORMS).chain(HYBRID_FORMS).chain(EXPERT_FORMS).copied().chain([EMBEDDING_FORM])
}

/// The path of the binary `bitnet`, built with the profile of the tests.
///
/// # Panics
/// If it cannot be built.
pub fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| built("bitnet-cli", "bitnet")).clone()
}

/// Reads the log of `bitnet serve` up to the line with its address, and returns that.
///
/// # Errors
/// What the server said, if it ended before.
pub fn served_at(log: &mut impl BufRead) -> Result<String, String> {
    let mut said = String::new();
    loop {
        let before = said.len();
        let read = log.read_line(&mut said);
        if let Some((_, url)) = said[before..].split_once(" is served on http://") {
            return Ok(url.trim_end().trim_end_matches("/v1").to_owned());
        }
        if !read.is_ok_and(|bytes| bytes > 0) {
            return Err(said);
        }
    }
}

/// The path of a package's program, built with the profile of the tests.
///
/// # Panics
/// If it cannot be built.
pub fn built(package: &str, program: &str) -> PathBuf {
    build(package, &["--bin", program]).join(format!("{program}{}", std::env::consts::EXE_SUFFIX))
}

/// The stand-in for the NVIDIA driver, built with the profile of the tests.
///
/// # Panics
/// If it cannot be built.
pub fn standin() -> PathBuf {
    build("bitnet-standin", &["--lib"]).join("libbitnet_standin.so")
}

/// Builds a part of a package and returns the folder that holds it.
fn build(package: &str, part: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("path of the test");
    let dir = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let profile = match dir.file_name().and_then(|n| n.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    // Together with the program, a package has the features of dependencies that the whole workspace has. Alone, it has
    // fewer, and cargo would compile nearly everything again.
    let build = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "bitnet-cli", "--package", package, "--profile", profile])
        .args(part)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo runs");
    assert!(build.success(), "{package} builds");
    dir.to_owned()
}

/// Runs the binary `bitnet`.
///
/// # Panics
/// If it cannot be built or started.
pub fn bitnet(args: &[&str]) -> Output {
    Command::new(binary()).args(args).output().expect("the binary runs")
}

/// Relative L2 distance of each row of `actual` to `expected`, rows of `width`.
pub fn distances(actual: &[f32], expected: &[f32], width: usize) -> Vec<f64> {
    assert_eq!(actual.len(), expected.len(), "as many logits as the oracle");
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    actual
        .chunks_exact(width)
        .zip(expected.chunks_exact(width))
        .map(|(a, e)| {
            let difference = norm(&mut a.iter().zip(e).map(|(&a, &e)| f64::from(a) - f64::from(e)));
            difference / norm(&mut e.iter().map(|&e| f64::from(e)))
        })
        .collect()
}

/// Maximum distance of a position: a single different rounding to int8 moves it by up to 0.06.
const WORST: f64 = 0.1;

/// Checks the distances of a whole checkpoint against the limits of an exact implementation: median below 1e-5, none
/// above 0.1.
///
/// # Panics
/// If they exceed the limits.
pub fn assert_close(distances: Vec<f64>, what: &str) {
    assert_within(distances, WORST, what);
}

fn assert_within(mut distances: Vec<f64>, limit: f64, what: &str) {
    distances.sort_by(f64::total_cmp);
    let (median, worst) = (distances[distances.len() / 2], distances[distances.len() - 1]);
    assert!(median < 1e-5 && worst < limit, "{what}: median {median:.2e}, worst {worst:.2e}");
}

impl fmt::Debug for Tensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensors").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}
