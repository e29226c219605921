//! Every GPU kernel, one row each: what its launch needs, and what its machine code must keep to.

/// A kernel in PTX. Its name is its file, its entry, and this row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// `<oldest architecture>_<operation>_<types>`
    pub name: &'static str,
    /// The text of `ptx/<name>.ptx`.
    pub text: &'static str,
    /// Threads of a block.
    pub block: u32,
    /// Bytes of shared memory that the text declares.
    pub shared: u32,
    /// Bytes of the `.extern .shared` array: of a block, or where the header says so of a column.
    pub dynamic: u32,
    /// Most registers a thread may have on any architecture.
    pub registers: u32,
    /// Bank conflicts allowed in a hundred passes over shared memory.
    pub conflicts: u64,
    /// Instructions that the machine code must contain.
    pub machine: &'static [&'static str],
}

impl Kernel {
    /// Types of the parameters that the text declares, in their order: `.u32`, `.u64`, `.f32` or `.f64`.
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

macro_rules! kernels {
    ($($id:ident = $name:literal: block $block:literal, shared $shared:literal, dynamic $dynamic:literal,
       registers $registers:literal, conflicts $conflicts:literal, machine $machine:expr;)*) => {
        $(
            #[doc = concat!("`ptx/", $name, ".ptx`")]
            pub static $id: Kernel = Kernel {
                name: $name,
                text: include_str!(concat!("../../ptx/", $name, ".ptx")),
                block: $block,
                shared: $shared,
                dynamic: $dynamic,
                registers: $registers,
                conflicts: $conflicts,
                machine: &$machine,
            };
        )*

        /// All kernels.
        pub static KERNELS: &[&Kernel] = &[$(&$id),*];
    };
}

kernels! {
    EMBED = "sm80_embed_bf16": block 128, shared 0, dynamic 0, registers 32, conflicts 0,
        machine ["LDG.E.128", "STG.E.128"];
    BITLINEAR_T1 = "sm80_bitlinear_t1_w2a8": block 256, shared 512, dynamic 0, registers 80, conflicts 0,
        machine ["LDG.E.NA.128", "IDP.4A.U8.S8"];
    BITLINEAR_T8 = "sm80_bitlinear_t8_w2a8": block 128, shared 0, dynamic 24_576, registers 48, conflicts 0,
        machine ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    BITLINEAR_T16 = "sm80_bitlinear_t16_w2a8": block 128, shared 0, dynamic 24_576, registers 56, conflicts 0,
        machine ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    BITLINEAR_T32 = "sm80_bitlinear_t32_w2a8": block 128, shared 0, dynamic 24_576, registers 80, conflicts 0,
        machine ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    BITLINEAR_T64 = "sm80_bitlinear_t64_w2a8": block 256, shared 0, dynamic 49_152, registers 112, conflicts 0,
        machine ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    BITLINEAR_T128 = "sm80_bitlinear_t128_w2a8": block 128, shared 0, dynamic 81_920, registers 240, conflicts 0,
        machine ["IMMA.16832.U8.S8", "LDSM.16.M88.4", "LDS.128", "LDGSTS.E.BYPASS"];
    HEAD_T8 = "sm80_head_t8_bf16": block 128, shared 0, dynamic 55_296, registers 48, conflicts 0,
        machine ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    HEAD_T32 = "sm80_head_t32_bf16": block 128, shared 0, dynamic 81_920, registers 112, conflicts 0,
        machine ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    HEAD_T64 = "sm80_head_t64_bf16": block 128, shared 0, dynamic 98_304, registers 152, conflicts 0,
        machine ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS"];
    ATTENTION_R16_D128 = "sm80_attention_r16_d128_bf16": block 128, shared 0, dynamic 41_472, registers 128, conflicts 0,
        machine ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4"];
    ATTENTION_R64_D128 = "sm80_attention_r64_d128_bf16": block 128, shared 0, dynamic 49_152, registers 248, conflicts 0,
        machine ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4"];
    ATTENTION_MERGE_D128 = "sm80_attention_merge_d128_f32": block 64, shared 0, dynamic 0, registers 40, conflicts 0,
        machine ["FFMA"];
    ATTENTION_R16_D256 = "sm80_attention_r16_d256_bf16": block 128, shared 0, dynamic 78_336, registers 168, conflicts 0,
        machine ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4"];
    ATTENTION_R32_D256 = "sm80_attention_r32_d256_bf16": block 128, shared 0, dynamic 91_136, registers 255, conflicts 0,
        machine ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDSM.16.MT88.4"];
    ATTENTION_MERGE_D256 = "sm80_attention_merge_d256_f32": block 64, shared 0, dynamic 0, registers 40, conflicts 0,
        machine ["FFMA"];
    NORM_QUANTIZE = "sm80_norm_quantize_s8": block 256, shared 4160, dynamic 4, registers 40, conflicts 0,
        machine ["DFMA", "REDUX.MAX", "REDUX.SUM", "IDP.4A", "LDG.E.128", "LDS.128"];
    NORM_ROWS = "sm80_norm_rows_bf16": block 256, shared 2048, dynamic 0, registers 40, conflicts 0, machine ["DFMA"];
    ROPE_STORE = "sm80_rope_store_bf16": block 128, shared 0, dynamic 0, registers 40, conflicts 0, machine ["FFMA"];
    PENALISE = "sm80_penalise_f32": block 128, shared 0, dynamic 0, registers 32, conflicts 0, machine ["LDG.E.128"];
    ARGMAX = "sm80_argmax_f32": block 1024, shared 384, dynamic 0, registers 32, conflicts 0, machine ["REDUX.MAX"];
    SAMPLE = "sm80_sample_f32": block 1024, shared 2944, dynamic 0, registers 64, conflicts 0,
        machine ["REDUX.MAX", "ATOMS", "IMAD.WIDE.U32", "VOTE.ANY"];
    ADVANCE = "sm80_advance_u32": block 128, shared 0, dynamic 0, registers 32, conflicts 0, machine ["LDG.E.64"];
    COPY_BLOCK = "sm80_copy_block": block 256, shared 0, dynamic 0, registers 24, conflicts 0,
        machine ["LDG.E.128", "STG.E.128"];
    PEAK_W2A8 = "sm80_peak_w2a8": block 128, shared 0, dynamic 0, registers 64, conflicts 0, machine ["IMMA.16832.U8.S8"];
    PEAK_BF16 = "sm80_peak_bf16": block 128, shared 0, dynamic 0, registers 64, conflicts 0,
        machine ["HMMA.16816.F32.BF16"];
}
