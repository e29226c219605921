//! All benchmarks, one after the other, as tables.

use std::process::Command;

use anyhow::Result;
use bitnet_workspace::{bitnet, cargo, git, output, run};
use clap::Args;
use serde_json::{Value, json};

/// Runs `bitnet bench` on several models and the benchmarks of kernels, engine, server and the host of a GPU, and prints
/// their tables.
#[derive(Args)]
pub(crate) struct Bench {
    /// Models to measure
    #[arg(default_values = ["demo", "synthetic:125m", "synthetic:700m", "synthetic:2b4t"])]
    models: Vec<String>,
    /// Prompt tokens
    #[arg(short, default_value_t = 512)]
    prompt: usize,
    /// Tokens to decode
    #[arg(short, default_value_t = 64)]
    new: usize,
    /// Batch sizes
    #[arg(short, default_value = "1,4,8")]
    batch: String,
    /// Number of threads [default: all cores]
    #[arg(long)]
    threads: Option<usize>,
    /// Measure models on a GPU, which must be present, instead of the CPU
    #[arg(long)]
    gpu: bool,
    /// Print one JSON object with commit and processor instead of tables
    #[arg(long)]
    json: bool,
}

impl Bench {
    /// Correctness first: no speed is reported for kernels that disagree with the reference.
    pub(crate) fn run(&self) -> Result<()> {
        let bitnet = bitnet()?;
        let device = ["--device", if self.gpu { "cuda" } else { "cpu" }];
        let mut doctor = Command::new(&bitnet);
        doctor.args(["doctor", "--json"]).args(device);
        let doctor: Value = serde_json::from_slice(&output(doctor)?)?;
        let mut results = Vec::new();
        let (prompt, new) = (self.prompt.to_string(), self.new.to_string());
        for model in &self.models {
            let mut bench = Command::new(&bitnet);
            bench.args(["bench", model, "-p", &prompt, "-n", &new, "-b", &self.batch]).args(device);
            bench.args(self.threads.iter().flat_map(|n| ["--threads".to_owned(), n.to_string()]));
            if self.json {
                bench.arg("--json");
                results.push(serde_json::from_slice::<Value>(&output(bench)?)?);
            } else {
                run(bench)?;
            }
        }
        let ops = ratios("bitnet-kernels", "ops")?;
        let engine = ratios("bitnet-inference", "engine")?;
        let server = ratios("bitnet-server", "serving")?;
        let host = ratios("bitnet-tests", "host")?;
        if !self.json {
            print_ops(&ops);
            print_ratios("engine", &engine);
            print_ratios("server", &server);
            print_ratios("host", &host);
        }
        if self.json {
            let all = json!({"commit": git(&["rev-parse", "HEAD"])?, "machine": doctor, "results": results, "ops": ops,
                    "engine": engine, "server": server, "host": host});
            println!("{}", serde_json::to_string_pretty(&all)?);
        }
        Ok(())
    }
}

/// Runs a crate's own benchmark and returns its results.
fn ratios(package: &str, bench: &str) -> Result<Value> {
    let args = ["bench", "--quiet", "--package", package, "--bench", bench];
    Ok(serde_json::from_slice(&output(cargo(&args))?)?)
}

/// Prints the speeds of kernels as fractions of the register loop that ran in turns with them.
fn print_ops(measured: &Value) {
    println!("kernels ({}, {} threads)", measured["isa"].as_str().unwrap_or("?"), measured["threads"]);
    for row in measured["rows"].as_array().into_iter().flatten() {
        let shape = ["tokens", "rows", "cols", "keys", "head_dim"];
        let shape: Vec<String> =
            shape.iter().filter_map(|name| Some(format!("{} {name}", row[name].as_u64()?))).collect();
        let part = row["part_of_integer_peak"].as_f64().map_or("?".into(), |x| format!("{:.0} %", 100.0 * x));
        let op = row["op"].as_str().unwrap_or("?");
        let speed = number(&row["giga_products_s"]);
        println!("  {op:<10} {}: {speed} 10^9 products/s, {part} of the integer peak", shape.join(", "));
    }
}

fn print_ratios(what: &str, measured: &Value) {
    let isa = measured["isa"].as_str().unwrap_or("?");
    println!("{what} ({isa}, {} threads)", measured["threads"]);
    for row in measured["rows"].as_array().into_iter().flatten() {
        let text = |key: &str| row[key].as_str().unwrap_or("?");
        let value = |key: &str| row[key].as_f64().map(|x| format!("{x:.3}"));
        let spread = value("min").zip(value("max")).map_or(String::new(), |(a, b)| format!(", {a} to {b}"));
        let median = value("value").unwrap_or("unknown".into());
        println!("  {median:>9} {:<6} ({}{spread}): {}", text("unit"), text("goal"), text("what"));
    }
}

/// The value with one decimal, or `unknown`.
fn number(value: &Value) -> String {
    value.as_f64().map_or("unknown".into(), |x| format!("{x:.1}"))
}
