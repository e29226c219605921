//! Every GPU kernel, one row each: what its launch needs, and what its machine code must keep to.

/// A kernel in PTX. Its name is its file, its entry, and this row.
#[derive(Debug, PartialEq, Eq)]
pub struct Kernel {
    /// `<oldest architecture>_<operation>_<types>`
    pub name: &'static str,
    /// The text of `ptx/<name>.ptx`.
    pub text: &'static str,
    /// Threads of a block.
    pub block: u32,
    /// Bytes of shared memory that the text declares.
    pub shared: u32,
    /// Most registers a thread may have on any architecture.
    pub registers: u32,
    /// Bank conflicts allowed in a hundred passes over shared memory.
    pub conflicts: u64,
    /// Instructions that the machine code must contain.
    pub machine: &'static [&'static str],
}

/// `kernel!(NAME, "file", block, shared, registers, conflicts, [instructions])`
macro_rules! kernels {
    ($($id:ident = $name:literal: block $block:literal, shared $shared:literal, registers $registers:literal,
       conflicts $conflicts:literal, machine $machine:expr;)*) => {
        $(
            #[doc = concat!("`ptx/", $name, ".ptx`")]
            pub static $id: Kernel = Kernel {
                name: $name,
                text: include_str!(concat!("../../ptx/", $name, ".ptx")),
                block: $block,
                shared: $shared,
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
    EMBED = "sm80_embed_bf16": block 128, shared 0, registers 32, conflicts 0, machine ["LDG.E.128", "STG.E.128"];
}
