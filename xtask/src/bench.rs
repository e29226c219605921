use std::{path::Path, process::Command};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use crate::{bitnet, cargo, git, output};

/// Runs `bitnet bench` on several models and the benchmarks of kernels, engine, server and the host of a GPU, and prints
/// one table.
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
    /// Print one JSON object with commit and processor instead of a table
    #[arg(long)]
    json: bool,
}

impl Bench {
    /// Correctness first: no speed is reported for kernels that disagree with the reference.
    pub(crate) fn run(&self) -> Result<()> {
        let bitnet = bitnet()?;
        let device = ["--device", if self.gpu { "cuda" } else { "cpu" }];
        let doctor = measured(&bitnet, &[&["doctor", "--json"], &device[..]].concat())?;
        let mut results = Vec::new();
        for model in &self.models {
            let (prompt, new) = (self.prompt.to_string(), self.new.to_string());
            let mut args = vec!["bench", model, "-p", &prompt, "-n", &new, "-b", &self.batch, "--json"];
            args.extend(device);
            let threads = self.threads.map(|t| t.to_string());
            if let Some(threads) = &threads {
                args.extend(["--threads", threads]);
            }
            let result = measured(&bitnet, &args).with_context(|| format!("measuring {model}"))?;
            if !self.json {
                print_row(&result);
            }
            results.push(result);
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

/// Runs `bitnet` and returns the JSON that it prints.
fn measured(bitnet: &Path, args: &[&str]) -> Result<Value> {
    let mut command = Command::new(bitnet);
    command.args(args);
    Ok(serde_json::from_slice(&output(command)?)?)
}

fn print_row(result: &Value) {
    let text = |key: &str| result[key].as_str().unwrap_or("?").to_owned();
    println!("{} ({}, {} threads)", text("model"), text("isa"), result["threads"]);
    let (bandwidth, peak) = (&result["memory_bandwidth_gb_s"], &result["integer_peak_tops"]);
    println!("  memory bandwidth {} GB/s, integer peak {} TOPS", number(bandwidth), number(peak));
    for prefill in result["prefill"].as_array().into_iter().flatten() {
        let of = |x: &Value, y: &Value| Some(x.as_f64()? * y.as_f64()?);
        let tops = of(&prefill["tok_s"], &result["trits"]).map(|products| 2e-12 * products);
        let of_peak =
            tops.zip(peak.as_f64()).map_or("unknown".into(), |(t, p)| format!("{:.0} %", 100.0 * t / p));
        println!(
            "  prefill {:>5} tokens  {:>10} tok/s, {of_peak} of the integer peak",
            count(&prefill["tokens"]),
            number(&prefill["tok_s"])
        );
    }
    for decode in result["decode"].as_array().into_iter().flatten() {
        let (speed, bytes) = (number(&decode["tok_s"]), number(&decode["gb_s"]));
        let of_bandwidth = decode["gb_s"].as_f64().zip(result["memory_bandwidth_gb_s"].as_f64());
        let floor = of_bandwidth.map_or("unknown".into(), |(b, all)| format!("{:.0} %", 100.0 * b / all));
        let batch = count(&decode["batch"]);
        println!(
            "  decode  batch {batch:>4}    {speed:>10} tok/s  {bytes:>6} GB/s, {floor} of the bandwidth"
        );
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
        let (op, speed) = (row["op"].as_str().unwrap_or("?"), number(&row["giga_products_s"]));
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

fn count(value: &Value) -> String {
    value.as_u64().map_or("?".into(), |n| n.to_string())
}

/// The value with one decimal, or `unknown`.
fn number(value: &Value) -> String {
    value.as_f64().map_or("unknown".into(), |x| format!("{x:.1}"))
}
