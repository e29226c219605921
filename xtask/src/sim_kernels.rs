//! GPU kernels at full size on the simulator, compared with the reference.

use std::{fs, time::Instant};

use anyhow::{Context, Result, ensure};
use bitnet_kernels::{
    Gate, Grouping,
    conformance::{Case, cases, check_rounded},
    gpu::Gpu,
};
use bitnet_tensor::DType;
use bitnet_tests::Simulator;
use bitnet_workspace::{git, in_parallel, root};
use clap::Args;
use serde_json::json;

/// Run the GPU kernels on the simulator and compare them with the reference
#[derive(Args)]
pub(crate) struct SimKernels {
    /// Use matrices of full height (6912, 13824 and 128256 rows) instead of the cases that tests run; takes minutes and
    /// gigabytes
    #[arg(long)]
    full: bool,
    /// Number of cases to run at the same time
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Write the result as JSON to this file in the repository, such as record/MACHINE/DATE-sim-kernels.json
    #[arg(long)]
    out: Option<String>,
}

/// The matrices of the 2B model and of a model with group scales, at full height, for one token and for a batch, and the
/// operations of a model with recurrent layers.
fn full() -> Vec<Case> {
    let (k, ffn) = (2560, 6912);
    let mut cases = Vec::new();
    for n in [1, 8, 33] {
        cases.push(Case::BitLinear { n, k: ffn, rows: &[2560], group: None, column: 0, add: true });
        cases.push(Case::BitLinear { n, k, rows: &[6912, 6912], group: None, column: 0, add: false });
        cases.push(Case::GateUp { n, k, ffn, group: None, gate: Gate::SquaredRelu });
        cases.push(Case::Qkv {
            start: 0,
            n,
            k,
            heads: 20,
            kv_heads: 5,
            head_dim: 128,
            group: None,
            norms: false,
        });
        cases.push(Case::NormQuantize { n, width: ffn, norms: 1, grouping: Grouping::Row });
        // Ternary Bonsai 8B.
        cases.push(Case::BitLinear { n, k: 12_288, rows: &[4096], group: Some(128), column: 0, add: true });
        cases.push(Case::GateUp { n, k: 4096, ffn: 12_288, group: Some(128), gate: Gate::Silu });
        cases.push(Case::Qkv {
            start: 0,
            n,
            k: 4096,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            group: Some(128),
            norms: true,
        });
    }
    // Ternary Bonsai 27B.
    let (key_heads, value_heads, head_dim) = (16, 48, 128);
    let runs = &[(5, 1), (0, 3)];
    cases.push(Case::Delta { key_heads, value_heads, head_dim, taps: 4, runs, odd: false });
    for (width, grouped) in [(5120, None), (17_408, None), (6144, Some((16, 3)))] {
        let grouping = Grouping::Groups;
        cases.push(Case::Rotated { n: 2, width, block: 1024, signs: true, grouped, norms: 0, grouping });
    }
    cases.push(Case::Dense { n: 3, width: 5120, rows: 96, column: 16_384, dtype: DType::BF16 });
    cases.push(Case::SigmoidGate { n: 3, width: 6144, column: 8192 });
    let (heads, kv_heads, head_dim, rotary) = (24, 4, 256, 64);
    cases.push(Case::PartialRope { start: 60, n: 9, heads, kv_heads, head_dim, rotary, more: 6144 });
    cases.push(Case::Head { n: 1, width: k, vocab: 128_256, dtype: DType::BF16 });
    cases
}

impl SimKernels {
    pub(crate) fn run(&self) -> Result<()> {
        let cases = if self.full { full() } else { cases() };
        // Checked before the record itself is written.
        let dirty = self.out.is_some() && !git(&["status", "--porcelain"])?.is_empty();
        let started = Instant::now();
        let rows = in_parallel(&cases, self.threads, |&case| {
            let begun = Instant::now();
            let gpu = Gpu::new(Simulator::default()).map_err(|e| e.to_string());
            let result = gpu.and_then(|mut gpu| check_rounded(&mut gpu, case).map_err(|e| e.to_string()));
            let seconds = begun.elapsed().as_secs_f64();
            println!("{case:?}: {} ({seconds:.1} s)", result.as_ref().err().map_or("equal", |e| e));
            json!({
                "case": format!("{case:?}"),
                "equal": result.is_ok(),
                "problem": result.err(),
                "seconds": (10.0 * seconds).round() / 10.0,
            })
        });
        let failed = rows.iter().filter(|row| row["equal"] == false).count();
        if let Some(out) = &self.out {
            let all = json!({
                "commit": git(&["rev-parse", "HEAD"])?,
                "dirty": dirty,
                "on": "simulator",
                "full": self.full,
                "cases": rows,
            });
            let path = root().join(out);
            fs::create_dir_all(path.parent().context("a file in a folder")?)?;
            fs::write(&path, serde_json::to_string_pretty(&all)? + "\n")
                .with_context(|| path.display().to_string())?;
        }
        let seconds = started.elapsed().as_secs_f64();
        println!("{} cases in {seconds:.0} s, {failed} not equal; on silicon: not run", cases.len());
        ensure!(failed == 0, "{failed} cases differ from the reference");
        Ok(())
    }
}
