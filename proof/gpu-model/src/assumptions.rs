//! Everything that the model assumes, on one screen. The first run on a GPU corrects it.

/// A card, and what is usually reached of its datasheet.
pub(super) struct Device {
    pub(super) name: &'static str,
    /// Bandwidth that copies reach, in bytes per microsecond.
    pub(super) memory: f64,
}

/// Published numbers of a chip (datasheets; microbenchmarks; NVIDIA's table of throughputs), and the cards with it.
pub(super) struct Chip {
    pub(super) name: &'static str,
    pub(super) capability: (u32, u32),
    /// The name by which the assembler knows it.
    pub(super) code: &'static str,
    pub(super) devices: &'static [Device],
    /// Bandwidth of the second-level cache, in bytes per microsecond.
    pub(super) cache: f64,
    pub(super) processors: u32,
    /// Cycles per microsecond.
    pub(super) clock: f64,
    /// Maximum bytes of shared memory of a block.
    pub(super) shared: u32,
    /// Threads, registers, bytes of shared memory and blocks that a multiprocessor holds. Each block takes 1 KB more.
    pub(super) room: [u32; 4],
    /// Cycles for which an f64 instruction of a warp, also a conversion, keeps the multiprocessor's only f64 unit busy; 0
    /// if there is one of its own in each quarter. Norms begin a kernel, so these cycles are part of its chain.
    pub(super) f64_cycles: f64,
}

pub(super) const CHIPS: [Chip; 2] = [
    Chip {
        name: "hopper",
        capability: (9, 0),
        code: "90",
        devices: &[Device { name: "H200", memory: 4.3e6 }, Device { name: "H100", memory: 3.0e6 }],
        cache: 5.5e6,
        processors: 132,
        clock: 1755.0,
        shared: 227 << 10,
        room: [2048, 65_536, 228 << 10, 32],
        f64_cycles: 0.0,
    },
    Chip {
        name: "ada",
        capability: (8, 9),
        code: "89",
        devices: &[Device { name: "4090", memory: 0.92e6 }],
        cache: 4.0e6,
        processors: 128,
        clock: 2520.0,
        shared: 99 << 10,
        room: [1536, 65_536, 100 << 10, 24],
        f64_cycles: 16.0,
    },
];
/// Microseconds between the end of a kernel of a recording and the first instruction of the next.
pub(super) const GAP: f64 = 1.3;
/// The same where launches overlap: from the end of a kernel to the end of the next one's wait. NVIDIA's programming guide
/// (programmatic dependent launch) says what such a launch hides, its start and the part before the wait, and what remains,
/// the flush of the earlier kernel's writes and the release of the wait, but no times. This is a little more than half.
pub(super) const OVERLAPPED_GAP: f64 = 0.7;
/// Kernels that ask the cache for all their weights before the wait.
pub(super) const ASKS_FOR_ALL: &str = "_t1_w2a8";
/// The purpose of these weights.
pub(super) const WEIGHTS: &str = "ternary weights";
/// Number of kinds of units. Each multiprocessor has four of each, and one path to shared memory.
pub(super) const UNITS: usize = 8;
/// Of these, the f64 instructions, counted for chips with one f64 unit.
pub(super) const F64: usize = 6;
/// What an instruction costs a warp: the unit that executes it, cycles until its result, cycles of the unit.
pub(super) struct Cost {
    pub(super) unit: usize,
    pub(super) latency: f64,
    pub(super) cycles: f64,
}

/// By name; the first that fits. Units: 0 integers, 1 floats, 2 f64, 3 special, 4 matrices, 5 loads and stores, 6 a cycle
/// for every f64 instruction, 7 dispatch (a cycle for every instruction). Matrix units reach 60 % of their peak with `mma`. Loads of global memory have the
/// latency of their place instead.
const COSTS: [(&[&str], usize, f64, f64); 12] = [
    (&["IMMA", "HMMA"], 4, 33.0, 6.7),
    (&["DFMA", "DADD", "DMUL", "DSETP"], 2, 16.0, 2.0),
    (&["MUFU", "REDUX", "F2F", "FRND"], 3, 23.0, 8.0),
    (&["I2F", "F2I", "I2FP", "VOTE", "MATCH"], 3, 14.0, 2.0),
    (&["LDS", "LDSM", "LDC", "S2R", "S2UR", "SHFL"], 5, 29.0, 4.0),
    (&["ATOMS"], 5, 64.0, 4.0),
    (&["LDG", "ATOMG", "ATOM"], 5, 262.0, 4.0),
    (&["STG", "STS", "ST", "RED", "LDGSTS"], 5, 4.0, 4.0),
    (&["MEMBAR"], 5, 500.0, 1.0),
    (&["BAR"], 5, 30.0, 1.0),
    (&["BRA"], 0, 8.0, 1.0),
    (&["FFMA", "FADD", "FMUL", "MOV"], 1, 4.0, 1.0),
];

pub(super) fn cost(opcode: &str) -> Cost {
    let name = opcode.split('.').next().unwrap_or_default();
    let found = COSTS.iter().find(|(names, ..)| names.contains(&name));
    found.map_or(Cost { unit: 0, latency: 5.0, cycles: 2.0 }, |&(_, unit, latency, cycles)| Cost {
        unit,
        latency,
        cycles,
    })
}

/// Whether an instruction adds, multiplies, compares or converts f64.
pub(super) fn is_f64(opcode: &str) -> bool {
    ["DFMA", "DADD", "DMUL", "DSETP"].iter().any(|name| opcode.starts_with(name))
        || opcode.starts_with("F2F") && opcode.contains("F64")
}

/// Where data is when a kernel begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Place {
    /// In the second-level cache, because an earlier kernel of the step has written it.
    Cache,
    /// In memory: the weights of a step exceed the cache.
    Memory,
}

impl Place {
    /// Cycles of a load.
    pub(super) fn latency(self) -> f64 {
        if self == Place::Cache { 262.0 } else { 479.0 }
    }
}

/// Logits of a greedy row that bounds do not rule out. Of a row of 128,256 random ones of 2,560 columns, about 40 are left;
/// the likeliest token of a trained model stands out more.
pub(super) const CANDIDATES: usize = 64;

/// The purpose of recurrent states. A step reads all of a sequence's and writes all.
pub(super) const STATES: &str = "recurrent states";

/// The place of an allocation, by its purpose.
pub(super) fn place(purpose: &str) -> Place {
    let stored = ["weights", "gains", "dense", "cached", "rotary", STATES, "parameters of recurrent"];
    if stored.iter().any(|word| purpose.contains(word)) { Place::Memory } else { Place::Cache }
}

/// Tokens per second that a step must reach on an H200, and those hoped for, 0 if there are none.
pub(super) struct Goal {
    pub(super) must: f64,
    pub(super) moonshot: f64,
}

/// Models with goals.
pub(super) const JUDGED: [&str; 2] = ["2b4t", "bonsai-27b"];

/// A step: its sequences, the tokens of each, the positions before them, and the goal of the model that has one.
pub(super) struct Case {
    pub(super) sequences: usize,
    pub(super) tokens: usize,
    pub(super) context: usize,
    pub(super) goal: Option<Goal>,
}

const fn case(sequences: usize, tokens: usize, context: usize, goal: [f64; 2]) -> Case {
    let [must, moonshot] = goal;
    let goal = if must > 0.0 { Some(Goal { must, moonshot }) } else { None };
    Case { sequences, tokens, context, goal }
}

/// The steps of a model. Goals are those of 2B-4T and of the ternary 27B.
pub(super) fn cases(model: &str) -> &'static [Case] {
    if model.ends_with("-27b") { &RECURRENT } else { &CASES }
}

/// Steps of models with recurrent layers.
pub(super) const RECURRENT: [Case; 5] = [
    case(1, 1, 128, [300.0, 0.0]),
    case(8, 1, 128, [2e3, 0.0]),
    case(64, 1, 128, [6e3, 0.0]),
    case(64, 1, 1024, [0.0; 2]),
    case(1, 512, 0, [0.0; 2]),
];

pub(super) const CASES: [Case; 7] = [
    case(1, 1, 128, [1.4e3, 2.4e3]),
    case(8, 1, 128, [0.0; 2]),
    case(32, 1, 128, [35e3, 60e3]),
    case(256, 1, 128, [60e3, 105e3]),
    case(32, 1, 1024, [20e3, 28e3]),
    case(256, 1, 1024, [25e3, 35e3]),
    case(1, 2048, 0, [80e3, 140e3]),
];
