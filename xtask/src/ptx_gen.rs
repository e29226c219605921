//! Prints the unrolled PTX kernels from the templates beside them.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use minijinja::{Environment, UndefinedBehavior, Value, context, syntax::SyntaxConfig};

/// The folder of the kernels.
const PTX: &str = "crates/bitnet-kernels/ptx";

/// A kernel: its name (and file), its template, and the numbers by which the template unrolls.
struct Kernel {
    name: String,
    template: &'static str,
    numbers: Value,
}

/// BitLinear with a scale per row or, if `grouped`, per group of columns, and products with int8 weights.
fn linear() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    // `share` of a block's warps share 16 rows; with `normed`, all its warps norm the token first.
    for (name, normed, [warps, share, blocks_per_sm], registers) in [
        ("bitlinear", false, [4, 4, 6], 80),
        ("normed", true, [8, 4, 2], 128),
        ("normed_rows", true, [8, 1, 2], 128),
        ("grouped", false, [4, 4, 6], 80),
        ("grouped_normed", true, [8, 4, 2], 128),
        ("grouped_normed_rows", true, [8, 1, 2], 128),
    ] {
        let grouped = name.starts_with("grouped");
        kernels.push(Kernel {
            name: format!("sm80_{name}_t1_w2a8"),
            template: if grouped { "grouped_t1.ptx" } else { "bitlinear_t1.ptx" },
            numbers: context! {
                normed, warps, share, ahead => 3, blocks_per_sm, columns => if grouped { 24 } else { 28 }, registers,
            },
        });
    }
    // A block takes 16 * row_tiles * row_warps rows and 8 * token_tiles * token_warps tokens. Its `teams` of
    // row_warps * token_warps warps share the features; each has memory for `stages` stages, and multiplies `unroll` at
    // once. The epilogue has `ahead` tokens of a warp in flight.
    for (
        weights,
        purpose,
        [row_tiles, row_warps, token_tiles, token_warps],
        [stages, unroll, teams],
        [blocks_per_sm, ahead],
        registers,
    ) in [
        ("bitlinear", "2 to 8 tokens", [2, 1, 1, 1], [6, 1, 4], [4, 1], 104),
        ("bitlinear", "9 to 16 tokens", [2, 1, 2, 1], [4, 1, 8], [2, 1], 128),
        ("bitlinear", "17 to 32 tokens", [4, 1, 4, 1], [3, 1, 4], [2, 4], 168),
        ("bitlinear", "33 to 64 tokens", [4, 2, 8, 1], [4, 1, 2], [2, 8], 240),
        ("bitlinear", "65 tokens and more", [4, 2, 8, 2], [4, 1, 1], [2, 8], 240),
        ("grouped", "2 to 8 tokens", [1, 4, 1, 1], [12, 4, 1], [4, 2], 128),
        ("grouped", "9 to 16 tokens", [1, 4, 2, 1], [6, 2, 1], [3, 4], 160),
        ("grouped", "17 to 32 tokens", [1, 4, 4, 1], [4, 1, 1], [4, 4], 104),
        ("grouped", "33 to 64 tokens", [2, 4, 4, 2], [4, 1, 1], [2, 4], 128),
        ("grouped", "65 tokens and more", [2, 4, 8, 2], [4, 1, 1], [1, 8], 224),
        ("int8", "1 to 8 tokens", [1, 4, 1, 1], [6, 2, 1], [3, 2], 128),
        ("int8", "9 to 32 tokens", [1, 4, 4, 1], [4, 1, 1], [4, 4], 128),
        ("int8", "33 tokens and more", [2, 4, 4, 2], [3, 1, 1], [1, 4], 168),
        ("experts", "tokens that pass an expert", [1, 4, 1, 1], [12, 4, 1], [4, 2], 128),
        ("experts", "tokens that pass an expert", [1, 4, 4, 1], [4, 1, 1], [4, 4], 112),
        ("experts", "tokens that pass an expert", [2, 4, 4, 2], [4, 1, 1], [2, 4], 128),
    ] {
        let rows = 16 * row_tiles * row_warps;
        let tokens = 8 * token_tiles * token_warps;
        let (stage, types) = match weights {
            "bitlinear" => (32 * rows + 128 * tokens, "w2a8"),
            "grouped" | "experts" => (36 * rows + 144 * tokens, "w2a8"),
            _ => (136 * rows + 144 * tokens, "w8a8"),
        };
        kernels.push(Kernel {
            name: format!("sm80_{weights}_t{tokens}_{types}"),
            template: "bitlinear.ptx",
            numbers: context! {
                grouped => weights != "bitlinear", int8 => weights == "int8", experts => weights == "experts",
                row_tiles, row_warps, token_tiles, token_warps, stages, unroll, teams, blocks_per_sm, ahead,
                registers, purpose,
                shared => (teams * stages * stage).max(tokens * (teams * (4 * rows + 16) + 24)),
            },
        });
    }
    kernels
}

/// All kernels that come from templates.
fn kernels() -> Vec<Kernel> {
    let mut kernels = linear();
    let tiny = format!("0f{:08X}", 1e-37f32.to_bits());
    for (
        bounds,
        purpose,
        [row_tiles, row_warps, token_tiles, token_warps],
        [stages, blocks_per_sm],
        registers,
    ) in [
        (false, "up to 8 tokens", [1, 4, 1, 1], [6, 3], 48),
        (false, "9 to 32 tokens", [2, 4, 4, 1], [4, 2], 112),
        (false, "33 tokens and more", [4, 2, 4, 2], [4, 2], 152),
        (true, "up to 4 tokens", [1, 4, 1, 1], [6, 3], 56),
        (true, "5 to 16 tokens", [2, 4, 4, 1], [4, 2], 120),
        (true, "17 tokens and more with little shared memory", [4, 2, 4, 2], [4, 2], 160),
        (true, "17 tokens and more", [4, 4, 8, 2], [3, 1], 255),
    ] {
        let rows = 16 * row_tiles * row_warps;
        let tokens = 8 * token_tiles * token_warps;
        let name = if bounds { format!("bounds_t{}_s8", tokens / 2) } else { format!("head_t{tokens}_bf16") };
        kernels.push(Kernel {
            name: format!("sm80_{name}"),
            template: "head.ptx",
            numbers: context! {
                bounds, purpose, row_tiles, row_warps, token_tiles, token_warps, stages, blocks_per_sm,
                registers, tiny => &tiny,
                shared => stages * 128 * (rows + tokens),
            },
        });
    }
    // Bounds are made for rows whose largest value lies between these.
    let bits = |value: f32| value.to_bits();
    kernels.push(Kernel {
        name: "sm80_planes_s8".into(),
        template: "planes.ptx",
        numbers: context! {
            smallest => bits(1e-15), largest => bits(1e15), slack => format!("0f{:08X}", bits(1.0001)),
            registers => 56,
        },
    });
    kernels.push(Kernel {
        name: "sm80_rescore_bf16".into(),
        template: "rescore.ptx",
        numbers: context! {
            threads => 128, groups => 1024, stages => 3, piece => 2048, blocks_per_sm => 3, registers => 128,
            shared => 4 * 3 * 4096 + 8 * 2048 + 64,
        },
    });
    kernels.push(Kernel {
        name: "sm80_leaders_f32".into(),
        template: "leaders.ptx",
        numbers: context! { tiny => &tiny, registers => 40 },
    });
    // 4 / row_warps warps share 16 rows.
    for (int8, name) in [(false, "bf16"), (true, "s8")] {
        for (dim, row_warps, purpose, blocks_per_sm, registers) in [
            (128, 1, "runs of up to 16 rows: decoding", 4, 128),
            (128, 4, "runs of more rows", 2, 252),
            (256, 1, "runs of up to 16 rows: decoding", 2, 168),
            (256, 2, "runs of more rows", 2, 255),
        ] {
            let rows = 16 * row_warps;
            let scores = if row_warps < 4 { (288 + 16 / row_warps) * rows } else { 0 };
            let cached = if int8 { 128 * dim + 512 } else { 256 * dim };
            kernels.push(Kernel {
                name: format!("sm80_attention_r{rows}_d{dim}_{name}"),
                template: "attention.ptx",
                numbers: context! {
                    int8, dim, row_warps, purpose, blocks_per_sm, registers,
                    shared => 2 * dim * rows + cached + scores,
                },
            });
        }
        kernels.push(Kernel {
            name: format!("sm80_norm_rope_store_{name}"),
            template: "norm_rope_store.ptx",
            numbers: context! { int8, registers => 80 },
        });
    }
    for (name, template, registers) in [
        ("sm80_embed_bf16", "embed_bf16.ptx", 32),
        ("sm80_embed_w2", "embed_w2.ptx", 40),
        ("sm80_norm_quantize_s8", "norm_quantize.ptx", 80),
        ("sm80_argmax_f32", "argmax.ptx", 48),
        ("sm80_hadamard_f32", "hadamard.ptx", 40),
        ("sm80_sigmoid_gate_bf16", "sigmoid_gate.ptx", 32),
        ("sm80_choose_f32", "choose.ptx", 40),
        ("sm80_group_tokens_u32", "group_tokens.ptx", 40),
        ("sm80_mix_f32", "mix.ptx", 40),
        ("sm80_delta_inputs_f32", "delta_inputs.ptx", 128),
        ("sm80_delta_outputs_bf16", "delta_outputs.ptx", 48),
        ("sm80_contend_f32", "contend.ptx", 48),
        ("sm80_edit_f32", "edit.ptx", 40),
        ("sm80_sample_f32", "sample.ptx", 64),
    ] {
        kernels.push(Kernel { name: name.into(), template, numbers: context! { registers } });
    }
    for (name, wide) in [("sm80_dense_bf16", false), ("sm80_router_f32", true)] {
        let numbers = context! { wide, registers => 40 };
        kernels.push(Kernel { name: name.into(), template: "dense.ptx", numbers });
    }
    for (name, narrow, adds) in [
        ("sm80_norm_rows_bf16", false, false),
        ("sm80_norm_hidden_bf16", true, false),
        ("sm80_norm_add_f32", true, true),
    ] {
        let numbers = context! { narrow, adds, registers => 64 };
        kernels.push(Kernel { name: name.into(), template: "norm_rows.ptx", numbers });
    }
    for (name, whole, registers) in
        [("sm80_delta_rule_d128_f32", true, 128), ("sm80_delta_rule_f32", false, 96)]
    {
        let numbers = context! { whole, registers };
        kernels.push(Kernel { name: name.into(), template: "delta_rule.ptx", numbers });
    }
    for (name, int8, depth) in [("sm80_peak_bf16", false, 16), ("sm80_peak_w2a8", true, 32)] {
        let start = |sum: u32| match int8 {
            true => sum.to_string(),
            false => format!("0f{:08X}", (sum as f32).to_bits()),
        };
        let starts: Vec<String> = (0..8).map(start).collect();
        let numbers = context! { int8, depth, starts, registers => 64 };
        kernels.push(Kernel { name: name.into(), template: "peak.ptx", numbers });
    }
    for dim in [128, 256] {
        kernels.push(Kernel {
            name: format!("sm80_attention_merge_d{dim}_f32"),
            template: "attention_merge.ptx",
            numbers: context! { dim, threads => 64, ahead => 8, registers => if dim == 256 { 72 } else { 64 } },
        });
    }
    kernels
}

fn environment() -> Result<Environment<'static>> {
    let mut env = Environment::new();
    env.set_syntax(
        SyntaxConfig::builder()
            .variable_delimiters("${", "}")
            .comment_delimiters("/#", "#/")
            .line_statement_prefix("//%")
            .build()?,
    );
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.add_function("log", u32::ilog2);
    env.add_function("regs", |prefix: &str, first: usize, count: usize| {
        (first..first + count).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>().join(", ")
    });
    let folder = bitnet_workspace::root().join(PTX).join("templates");
    env.set_loader(move |name| Ok(fs::read_to_string(folder.join(name)).ok()));
    Ok(env)
}

/// All generated kernels: path and text.
fn texts() -> Result<Vec<(PathBuf, String)>> {
    let env = environment()?;
    let text = |kernel: Kernel| {
        let name = &kernel.name;
        let rendered = env
            .get_template(kernel.template)
            .and_then(|t| t.render(context! { name, ..kernel.numbers }))
            .with_context(|| format!("{name} from {}", kernel.template))?;
        // Removes what loops and macros leave behind.
        let lines = rendered.lines().filter(|line| !line.trim().is_empty());
        let text = lines.map(|line| format!("{}\n", line.trim_end())).collect();
        Ok((bitnet_workspace::root().join(PTX).join(format!("generated/{name}.ptx")), text))
    };
    kernels().into_iter().map(text).collect()
}

/// Writes the files.
pub fn write() -> Result<()> {
    for (path, text) in texts()? {
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn committed_kernels_are_what_their_templates_print() {
        for (path, text) in super::texts().unwrap() {
            let committed = std::fs::read_to_string(&path).unwrap();
            assert!(committed == text, "{}: run `cargo xtask ptx-gen`", path.display());
        }
    }
}
