//! The table of GPU kernels, with a row for each: what its launch needs, and the limits of its machine code. The
//! numbers are in the header of the kernel's text, and are read from there when this crate is compiled.

/// A kernel in PTX. Its name is that of its file and of its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// `<oldest architecture>_<operation>_<types>`
    pub name: &'static str,
    /// The text of `<name>.ptx`.
    pub text: &'static str,
    /// Threads per block.
    pub block: u32,
    /// Bytes of shared memory that the text declares.
    pub shared: u32,
    /// Bytes of the `.extern .shared` array per block or, if the header says so, per column.
    pub dynamic: u32,
    /// Maximum number of registers per thread, on any architecture.
    pub registers: u32,
    /// Maximum bank conflicts per hundred passes over shared memory.
    pub conflicts: u64,
    /// Instructions that the machine code must contain.
    pub machine: &'static [&'static str],
}

impl Kernel {
    /// Types of the declared parameters, in order: `.u32`, `.u64`, `.f32` or `.f64`.
    pub fn parameters(&self) -> Vec<&'static str> {
        let text = self.text;
        let words = text
            .lines()
            .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
            .skip_while(|code| !code.contains(".entry"))
            .flat_map(|code| code.split(|c: char| c.is_whitespace() || "(,".contains(c)))
            .filter(|word| !word.is_empty())
            .take_while(|word| !word.ends_with(')'));
        let next = words.clone().skip(1);
        words.zip(next).filter(|(word, _)| *word == ".param").map(|(_, declared)| declared).collect()
    }
}

/// What a text says to GPUs whose launches overlap: lines after this mark are comments for all others.
const NEWER: &str = "//sm_90 ";

/// Whether a kernel's text has such lines, so that its launches can overlap with those before.
pub fn waits(text: &str) -> bool {
    text.contains(NEWER)
}

/// Makes the text for launches that overlap, `.target sm_90`, of a kernel's text: the lines marked `//sm_90` become
/// instructions. They ask for weights and let the next launch begin, then wait for the launches before this one. Lines keep
/// their numbers.
pub fn overlapped(text: &str) -> String {
    let text = text.replacen(".version 7.4", ".version 8.0", 1).replacen(".target sm_80", ".target sm_90", 1);
    text.replace(NEWER, "")
}

/// Reads a number that follows a word in a header: `block 128`, `regs <= 40`.
const fn stated(text: &str, word: &str) -> u32 {
    let (text, word) = (text.as_bytes(), word.as_bytes());
    let mut at = 0;
    while at + word.len() < text.len() {
        let mut matched = 0;
        while matched < word.len() && text[at + matched] == word[matched] {
            matched += 1;
        }
        let mut from = at + word.len();
        while text[from] == b' ' || text[from] == b'<' || text[from] == b'=' {
            from += 1;
        }
        if matched == word.len() && text[from].is_ascii_digit() {
            let mut number = 0;
            while text[from].is_ascii_digit() {
                number = 10 * number + (text[from] - b'0') as u32;
                from += 1;
            }
            return number;
        }
        at += 1;
    }
    panic!("a header must state block, shared bytes, registers and conflicts")
}

/// Reads the number before ` static` in a header.
const fn stated_static(text: &str) -> u32 {
    let text = text.as_bytes();
    let end = b" static";
    let mut at = 1;
    loop {
        let mut matched = 0;
        while matched < end.len() && text[at + matched] == end[matched] {
            matched += 1;
        }
        if matched == end.len() && text[at - 1].is_ascii_digit() {
            let (mut number, mut place) = (0, 1);
            while text[at - 1].is_ascii_digit() {
                number += place * (text[at - 1] - b'0') as u32;
                place *= 10;
                at -= 1;
            }
            return number;
        }
        at += 1;
    }
}

macro_rules! kernels {
    ($($id:ident = $($folder:ident)? $name:literal: $machine:expr;)*) => {
        $(
            #[doc = concat!("`", $name, ".ptx`")]
            pub static $id: Kernel = {
                let text = include_str!(concat!("../../ptx/", $(stringify!($folder), "/",)? $name, ".ptx"));
                Kernel {
                    name: $name,
                    text,
                    block: stated(text, "block"),
                    shared: stated_static(text),
                    dynamic: stated(text, "shared"),
                    registers: stated(text, "regs"),
                    conflicts: stated(text, "conflicts") as u64,
                    machine: &$machine,
                }
            };
        )*

        /// All kernels.
        pub static KERNELS: &[&Kernel] = &[$(&$id),*];
    };
}

kernels! {
    EMBED = generated "sm80_embed_bf16": ["LDG.E.128", "STG.E.128"];
    EMBED_TERNARY = generated "sm80_embed_w2": ["LDG.E", "STG.E.128"];
    BITLINEAR_T1 = generated "sm80_bitlinear_t1_w2a8": ["LDG.E.NA.128", "IMMA.16832.U8.S8"];
    NORMED_T1 = generated "sm80_normed_t1_w2a8": ["LDG.E.NA.128", "IMMA.16832.U8.S8", "DFMA", "REDUX.MAX", "REDUX.SUM"];
    NORMED_ROWS_T1 = generated "sm80_normed_rows_t1_w2a8": ["LDG.E.NA.128", "IMMA.16832.U8.S8", "DFMA", "REDUX.MAX", "REDUX.SUM"];
    BITLINEAR_T8 = generated "sm80_bitlinear_t8_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    BITLINEAR_T16 = generated "sm80_bitlinear_t16_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    BITLINEAR_T32 = generated "sm80_bitlinear_t32_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    BITLINEAR_T64 = generated "sm80_bitlinear_t64_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    BITLINEAR_T128 = generated "sm80_bitlinear_t128_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    GROUPED_T1 = generated "sm80_grouped_t1_w2a8": ["LDG.E.NA.128", "IMMA.16832.U8.S8", "FFMA"];
    GROUPED_NORMED_T1 = generated "sm80_grouped_normed_t1_w2a8": ["LDG.E.NA.128", "IMMA.16832.U8.S8", "DFMA", "REDUX.MAX", "REDUX.SUM", "IDP.4A"];
    GROUPED_NORMED_ROWS_T1 = generated "sm80_grouped_normed_rows_t1_w2a8": ["LDG.E.NA.128", "IMMA.16832.U8.S8", "DFMA", "REDUX.MAX", "REDUX.SUM", "IDP.4A"];
    GROUPED_T8 = generated "sm80_grouped_t8_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FFMA"];
    GROUPED_T16 = generated "sm80_grouped_t16_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FFMA"];
    GROUPED_T32 = generated "sm80_grouped_t32_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FFMA"];
    GROUPED_T64 = generated "sm80_grouped_t64_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FFMA"];
    GROUPED_T128 = generated "sm80_grouped_t128_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FFMA"];
    INT8_T8 = generated "sm80_int8_t8_w8a8": ["IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FMUL"];
    INT8_T32 = generated "sm80_int8_t32_w8a8": ["IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FMUL"];
    INT8_T64 = generated "sm80_int8_t64_w8a8": ["IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FMUL"];
    HEAD_T8 = generated "sm80_head_t8_bf16": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    HEAD_T32 = generated "sm80_head_t32_bf16": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    HEAD_T64 = generated "sm80_head_t64_bf16": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    PLANES = generated "sm80_planes_s8": ["LDG.E.128", "REDUX.MAX"];
    BOUNDS_T4 = generated "sm80_bounds_t4_s8": ["IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    BOUNDS_T16 = generated "sm80_bounds_t16_s8": ["IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    BOUNDS_T32 = generated "sm80_bounds_t32_s8": ["IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    BOUNDS_T64 = generated "sm80_bounds_t64_s8": ["IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    RESCORE = generated "sm80_rescore_bf16": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "REDUX.SUM"];
    ATTENTION_R16_D128 = generated "sm80_attention_r16_d128_bf16": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4"];
    ATTENTION_R64_D128 = generated "sm80_attention_r64_d128_bf16": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4"];
    ATTENTION_R16_D128_INT8 = generated "sm80_attention_r16_d128_s8": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4", "HFMA2"];
    ATTENTION_R64_D128_INT8 = generated "sm80_attention_r64_d128_s8": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4", "HFMA2"];
    ATTENTION_R16_D256_INT8 = generated "sm80_attention_r16_d256_s8": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4", "HFMA2"];
    ATTENTION_R32_D256_INT8 = generated "sm80_attention_r32_d256_s8": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4", "HFMA2"];
    ATTENTION_MERGE_D128 = generated "sm80_attention_merge_d128_f32": ["FFMA"];
    ATTENTION_R16_D256 = generated "sm80_attention_r16_d256_bf16": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4"];
    ATTENTION_R32_D256 = generated "sm80_attention_r32_d256_bf16": ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4"];
    ATTENTION_MERGE_D256 = generated "sm80_attention_merge_d256_f32": ["FFMA"];
    NORM_QUANTIZE = generated "sm80_norm_quantize_s8": ["DFMA", "REDUX.MAX", "REDUX.SUM", "IDP.4A", "LDGSTS.E.BYPASS.128", "LDS.128"];
    NORM_HIDDEN = generated "sm80_norm_hidden_bf16": ["DFMA"];
    NORM_ROWS = generated "sm80_norm_rows_bf16": ["DFMA"];
    NORM_ADD = generated "sm80_norm_add_f32": ["DFMA"];
    NORM_ROPE_STORE = generated "sm80_norm_rope_store_bf16": ["FFMA"];
    NORM_ROPE_STORE_INT8 = generated "sm80_norm_rope_store_s8": ["FFMA", "REDUX.MAX"];
    SIGMOID_GATE = generated "sm80_sigmoid_gate_bf16": ["MUFU.RCP"];
    DENSE = generated "sm80_dense_bf16": ["DFMA", "FFMA"];
    ROUTER = generated "sm80_router_f32": ["DFMA", "FFMA"];
    CHOOSE = generated "sm80_choose_f32": ["REDUX.MAX", "REDUX.MIN", "VOTE"];
    GROUP_TOKENS = generated "sm80_group_tokens_u32": ["ATOMS", "SHFL.UP"];
    EXPERTS_T8 = generated "sm80_experts_t8_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FFMA"];
    EXPERTS_T32 = generated "sm80_experts_t32_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FFMA"];
    EXPERTS_T64 = generated "sm80_experts_t64_w2a8": ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS", "FFMA"];
    MIX = generated "sm80_mix_f32": ["FFMA", "LDG.E.128", "STG.E.128"];
    HADAMARD = generated "sm80_hadamard_f32": ["SHFL.BFLY", "LDG.E.128", "STG.E.128"];
    DELTA_INPUTS = generated "sm80_delta_inputs_f32": ["FFMA", "SHFL.BFLY", "MUFU.RSQ"];
    DELTA_RULE_D128 = generated "sm80_delta_rule_d128_f32": ["FFMA", "LDS.128", "LDG.E.128", "STG.E.128"];
    DELTA_RULE = generated "sm80_delta_rule_f32": ["FFMA", "LDS.128", "LDG.E.128", "STG.E.128"];
    DELTA_OUTPUTS = generated "sm80_delta_outputs_bf16": ["DADD", "SHFL.BFLY"];
    LEADERS = generated "sm80_leaders_f32": ["REDUX.MAX", "LDG.E.128", "SHFL.IDX"];
    CONTEND = generated "sm80_contend_f32": ["REDUX.MAX", "LDG.E.128", "VOTE"];
    EDIT = generated "sm80_edit_f32": ["LDG.E.128", "FMUL"];
    ARGMAX = generated "sm80_argmax_f32": ["REDUX.MAX"];
    SAMPLE = generated "sm80_sample_f32": ["REDUX.MAX", "REDUX.SUM", "ATOMS.ADD", "LDG.E.128", "FMNMX.NAN"];
    COPY_BLOCK = "sm80_copy_block": ["LDG.E.128", "STG.E.128"];
    PEAK_W2A8 = generated "sm80_peak_w2a8": ["IMMA.16832.U8.S8"];
    PEAK_BF16 = generated "sm80_peak_bf16": ["HMMA.16816.F32.BF16"];
}
