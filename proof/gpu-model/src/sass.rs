//! The cycles of a warp, from its machine code and from how often the simulator executed each line of its text.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bitnet_tests::Sample;

use super::{
    Code,
    assumptions::{ASKS_FOR_ALL, F64, Place, UNITS, WEIGHTS, cost, is_f64, place},
};

/// An instruction of the machine code.
struct Inst {
    /// The line of the text.
    line: u32,
    opcode: String,
    defines: Vec<u16>,
    uses: Vec<u16>,
    /// For a branch, the index of its target.
    target: Option<usize>,
    /// For a wait, the number of groups of copies that it leaves in flight.
    keep: usize,
}

impl Inst {
    fn is(&self, name: &str) -> bool {
        self.opcode.split('.').next() == Some(name)
    }

    /// Whether each of these stands for one instruction of the text, so that more than one to a line are copies of it.
    fn counts(&self) -> bool {
        let one =
            ["LDG", "STG", "LDS", "STS", "LDGSTS", "LDSM", "IMMA", "HMMA", "SHFL", "IDP", "DFMA", "REDUX"];
        one.iter().any(|name| self.is(name))
    }
}

/// Numbers of the registers in an operand: `R`, `UR`, `P`, `UP`, each in its own range.
fn registers(operand: &str) -> impl Iterator<Item = u16> + '_ {
    let words = operand.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter_map(|word| {
        let digits = word.find(|c: char| c.is_ascii_digit())?;
        let first = ["R", "UR", "P", "UP"].iter().position(|name| *name == &word[..digits])?;
        Some(256 * first as u16 + word[digits..].parse::<u16>().ok()?)
    })
}

/// Number of registers that an instruction writes.
fn width(opcode: &str) -> u16 {
    let parts: Vec<&str> = opcode.split('.').collect();
    let has = |part: &str| parts.contains(&part);
    match parts[0] {
        "IMMA" | "HMMA" => 4,
        "LDSM" => parts.last().and_then(|n| n.parse().ok()).unwrap_or(1),
        "CS2R" | "DADD" | "DMUL" | "DFMA" => 2,
        _ if has("128") => 4,
        _ if has("64") || has("WIDE") || has("F64") => 2,
        _ => 1,
    }
}

fn instruction(line: u32, text: &str) -> Inst {
    let (guard, rest) = match text.strip_prefix('@') {
        Some(guarded) => guarded.split_once(' ').unwrap_or((guarded, "")),
        None => ("", text),
    };
    let (opcode, operands) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    let operands: Vec<&str> = operands.split(',').map(str::trim).collect();
    let name = opcode.split('.').next().unwrap_or_default();
    let silent = ["ST", "STG", "STS", "RED", "BRA", "BAR", "DEPBAR", "LDGDEPBAR", "LDGSTS", "MEMBAR"];
    let written = match operands[..] {
        _ if silent.contains(&name) => 0,
        [first, second, ..] if first.contains('P') || second.trim_start_matches('U').starts_with('P') => 2,
        _ => 1,
    };
    let defines = operands[..written].iter().flat_map(|operand| {
        registers(operand).flat_map(|first| first..first + if first < 512 { width(opcode) } else { 1 })
    });
    let uses = operands[written..].iter().flat_map(|operand| registers(operand)).chain(registers(guard));
    let (defines, uses) = (defines.collect(), uses.collect());
    let hex = operands.last().and_then(|last| last.strip_prefix("0x"));
    let keep = hex.and_then(|hex| usize::from_str_radix(hex, 16).ok()).unwrap_or(0);
    Inst { line, opcode: opcode.into(), defines, uses, target: None, keep }
}

/// Reads the listing up to the subroutines at its end, which are for rare operands.
fn read(listing: &str) -> Vec<Inst> {
    let (mut code, mut line) = (Vec::new(), 0);
    let (mut labels, mut jumps) = (HashMap::new(), Vec::new());
    for text in listing.lines().map(str::trim) {
        if let Some((_, number)) = text.rsplit_once(", line ") {
            line = number.parse().unwrap_or(line);
        } else if text.starts_with('$') {
            break;
        } else if let Some(label) = text.strip_suffix(':') {
            labels.insert(label.to_owned(), code.len());
        } else if let Some((_, text)) = text.strip_prefix("/*").and_then(|text| text.split_once("*/")) {
            let text = text.split(';').next().unwrap_or_default().trim();
            if let Some(to) = text.split('`').nth(1).filter(|_| text.contains("BRA")) {
                jumps.push((code.len(), to.trim_matches(['(', ')']).to_owned()));
            }
            code.push(instruction(line, text));
        }
    }
    for (from, to) in jumps {
        code[from].target = labels.get(&to).copied();
    }
    converged(code)
}

/// Leaves out what a warp executes only if its threads have diverged: from the target of `BRA.DIV` to the next branch,
/// which leads back and would look like the end of a loop.
fn converged(code: Vec<Inst>) -> Vec<Inst> {
    let mut kept = vec![true; code.len()];
    for at in 0..code.len() {
        let Some(first) = code[at].target.filter(|_| code[at].opcode == "BRA.DIV") else { continue };
        let back = code[first..].iter().position(|inst| inst.opcode == "BRA" && inst.uses.is_empty());
        let last = back.map_or(code.len() - 1, |n| first + n);
        kept[at] = false;
        kept[first..=last].fill(false);
    }
    let before: Vec<usize> = kept
        .iter()
        .scan(0, |n, &kept| {
            let at = *n;
            *n += usize::from(kept);
            Some(at)
        })
        .collect();
    let kept = code.into_iter().zip(kept).filter(|(_, kept)| *kept);
    kept.map(|(inst, _)| Inst { target: inst.target.map(|to| before[to]), ..inst }).collect()
}

/// A loop of the machine code, from the target of a branch back to the branch.
#[derive(Clone, Copy)]
struct Loop {
    first: usize,
    last: usize,
    /// Iterations over the whole kernel.
    trips: f64,
    /// Iterations that are due: a part of one where it is entered more often than it runs.
    due: f64,
}

/// What a warp does alone, in cycles.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Path {
    /// From the first instruction, or the wait for earlier kernels, to the last.
    pub(super) chain: f64,
    /// For which it occupies each unit, then its f64 instructions and the dispatch.
    pub(super) busy: [f64; UNITS],
    /// The work of the mean warp, as a share of this one's.
    pub(super) mean: f64,
}

struct Walk {
    code: Vec<Inst>,
    loops: Vec<Loop>,
    /// How often each instruction is executed.
    times: Vec<f64>,
    /// Executions of each instruction that are due, where a branch leaves it out now and then.
    due: Vec<f64>,
    /// For each line that reads global memory, the latency of its place.
    latency: BTreeMap<u32, f64>,
    clock: f64,
    ready: Vec<f64>,
    free: [f64; UNITS],
    /// When the copies of each group are done, and those of the next.
    groups: VecDeque<f64>,
    copied: f64,
    /// When the wait for earlier kernels began, if there is one.
    waited: Option<f64>,
    busy: [f64; UNITS],
}

/// Iterations of a loop that are walked; the others take as long as the mean of the last half.
const WALKED: usize = 256;

impl Walk {
    /// Finds the loops, and how often each instruction is executed. Unrolled loops have several copies of a line; the
    /// rest of its executions belongs to the loop with fewer copies.
    fn count(&mut self, executed: &BTreeMap<u32, u64>) {
        let mut left: BTreeMap<u32, f64> = executed.iter().map(|(&line, &n)| (line, n as f64)).collect();
        let all = left.clone();
        let of = |lines: &BTreeMap<u32, f64>, line: u32| lines.get(&line).copied().unwrap_or(0.0);
        self.times = self.code.iter().map(|inst| of(&all, inst.line)).collect();
        let mut loops: Vec<(usize, usize)> = Vec::new();
        for (last, inst) in self.code.iter().enumerate() {
            if let Some(first) = inst.target.filter(|&first| first <= last) {
                match loops.iter_mut().find(|known| known.0 == first) {
                    Some(known) => known.1 = last,
                    None => loops.push((first, last)),
                }
            }
        }
        // Code that is out of line makes loops overlap: the one that begins first then holds the other.
        loops.sort_by_key(|l| std::cmp::Reverse(l.0));
        for outer in 0..loops.len() {
            for inner in (0..outer).rev() {
                if loops[inner].0 <= loops[outer].1 {
                    loops[outer].1 = loops[outer].1.max(loops[inner].1);
                }
            }
        }
        let inside = |at: usize, of: (usize, usize)| of.0 <= at && at <= of.1;
        let own = |of: (usize, usize)| {
            let nested = loops.iter().filter(move |&&l| l != of && inside(l.0, of) && inside(l.1, of));
            let nested: Vec<_> = nested.copied().collect();
            (of.0..=of.1).filter(move |&at| !nested.iter().any(|&l| inside(at, l)))
        };
        let mut copies: Vec<_> = loops
            .iter()
            .map(|&l| {
                let mut copies = BTreeMap::new();
                own(l).filter(|&at| self.code[at].counts()).for_each(|at| {
                    *copies.entry(self.code[at].line).or_insert(0.0) += 1.0;
                });
                (l, copies)
            })
            .collect();
        copies.sort_by(|a, b| {
            let most = |of: &BTreeMap<u32, f64>| of.values().copied().fold(0.0, f64::max);
            most(&b.1).total_cmp(&most(&a.1)).then((a.0.1 - a.0.0).cmp(&(b.0.1 - b.0.0)))
        });
        for (l, copies) in copies {
            let counted = copies.iter().map(|(line, copies)| (of(&left, *line) / copies).floor());
            let plain = own(l).map(|at| of(&all, self.code[at].line));
            let trips =
                if copies.is_empty() { plain.fold(0.0, f64::max) } else { counted.fold(0.0, f64::max) };
            for (line, copies) in copies {
                left.entry(line).and_modify(|left| *left = (*left - trips * copies).max(0.0));
            }
            own(l).for_each(|at| self.times[at] = self.times[at].min(trips));
            self.loops.push(Loop { first: l.0, last: l.1, trips, due: 0.0 });
        }
        for (at, inst) in self.code.iter().enumerate().filter(|(_, inst)| inst.counts()) {
            if !loops.iter().any(|&l| inside(at, l)) {
                self.times[at] = of(&left, inst.line);
            }
        }
    }

    /// Walks instructions that are entered `entered` times in total, and of which `outer` is the innermost loop.
    fn walk(&mut self, first: usize, last: usize, entered: f64, outer: Option<usize>) {
        let mut at = first;
        while at <= last {
            let found = |&i: &usize| {
                let l = &self.loops[i];
                l.first == at && l.last <= last && Some(i) != outer
            };
            if let Some(i) = (0..self.loops.len()).find(found) {
                let l = &mut self.loops[i];
                l.due += l.trips / entered;
                let whole = (l.due + 1e-6).floor();
                l.due -= whole;
                at = l.last + 1;
                self.repeat(i, whole as usize);
                continue;
            }
            self.due[at] += (self.times[at] / entered).min(1.0);
            if self.due[at] > 1.0 - 1e-6 {
                self.due[at] -= 1.0;
                self.issue(at);
            }
            at += 1;
        }
    }

    fn repeat(&mut self, i: usize, trips: usize) {
        let l = self.loops[i];
        let mut middle = (self.clock, self.busy);
        for trip in 0..trips.min(WALKED) {
            if trip == WALKED / 2 {
                middle = (self.clock, self.busy);
            }
            self.walk(l.first, l.last, l.trips, Some(i));
        }
        let more = trips.saturating_sub(WALKED) as f64 / (WALKED / 2) as f64;
        if more > 0.0 {
            let ahead = more * (self.clock - middle.0);
            self.clock += ahead;
            self.ready.iter_mut().chain(&mut self.free).chain(&mut self.groups).for_each(|t| *t += ahead);
            self.busy.iter_mut().zip(middle.1).for_each(|(busy, before)| *busy += more * (*busy - before));
        }
    }

    /// Issues an instruction in order: when its operands are there and its unit is free.
    fn issue(&mut self, at: usize) {
        let inst = &self.code[at];
        let cost = cost(&inst.opcode);
        let latency = self.latency.get(&inst.line).filter(|_| inst.is("LDG") || inst.is("LDGSTS"));
        let latency = latency.copied().unwrap_or(cost.latency);
        let operands = inst.uses.iter().map(|&register| self.ready[usize::from(register)]);
        let mut start = operands.fold(self.clock.max(self.free[cost.unit]), f64::max);
        if inst.is("ACQBULK") && self.waited.is_none() {
            // What was asked for before has come while earlier kernels ran.
            let arrived = |at: &mut f64| *at = at.min(self.clock);
            self.ready.iter_mut().chain(&mut self.free).chain(&mut self.groups).for_each(arrived);
            self.copied = self.copied.min(self.clock);
            self.waited = Some(self.clock);
            return;
        }
        if inst.is("DEPBAR") {
            while self.groups.len() > inst.keep {
                start = start.max(self.groups.pop_front().unwrap_or_default());
            }
        } else if inst.is("LDGDEPBAR") {
            self.groups.push_back(std::mem::take(&mut self.copied));
        } else if inst.is("LDGSTS") {
            self.copied = self.copied.max(start + latency);
        }
        for &register in &inst.defines {
            self.ready[usize::from(register)] = start + latency;
        }
        let waits = if ["BAR", "MEMBAR", "BRA"].iter().any(|name| inst.is(name)) { latency } else { 1.0 };
        self.clock = start + waits;
        self.free[cost.unit] = start + cost.cycles;
        self.busy[cost.unit] += cost.cycles;
        self.busy[F64] += f64::from(u8::from(is_f64(&inst.opcode)));
        self.busy[UNITS - 1] += 1.0;
    }
}

/// The path of the warp that executes most.
pub(super) fn path(code: &Code, sample: &Sample) -> Path {
    let executed = sample.stats.lines.iter().map(|(&line, counts)| (line, counts.longest)).collect();
    let asked = code.overlapped && sample.launch.kernel().name.ends_with(ASKS_FOR_ALL);
    let place = |what: &str| if asked && what == WEIGHTS { Place::Cache } else { place(what) };
    let latency = sample.places.iter().map(|(&line, at)| (line, place(at.0).latency())).collect();
    Path { mean: mean(sample), ..walked(&code.listing, &executed, latency) }
}

/// The same for code whose loops overlap, so that it cannot be walked: each instruction as often as its line by the mean
/// warp, also the copies of unrolled loops, and no chain. The warp never waits: a bound from below if all units had
/// enough warps.
pub(super) fn counted(listing: &str, sample: &Sample) -> Path {
    let kernel = sample.launch.kernel();
    let warps = f64::from(sample.blocks) * f64::from(kernel.block / 32);
    let statements = statements(kernel.text);
    let mut busy = [0.0; UNITS];
    for inst in read(listing) {
        let all = sample.stats.lines.get(&inst.line).map_or(0.0, |counts| counts.warps as f64);
        let times = all / of_line(&statements, inst.line) / warps;
        let cost = cost(&inst.opcode);
        busy[cost.unit] += times * cost.cycles;
        busy[F64] += times * f64::from(u8::from(is_f64(&inst.opcode)));
        busy[UNITS - 1] += times;
    }
    Path { chain: 0.0, busy, mean: 1.0 }
}

/// Statements of each line of a text: the simulator adds up their executions.
fn statements(text: &str) -> Vec<f64> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.map(|code| code.matches(';').count().max(1) as f64).collect()
}

fn of_line(statements: &[f64], line: u32) -> f64 {
    (line as usize).checked_sub(1).and_then(|at| statements.get(at)).copied().unwrap_or(1.0)
}

/// What the mean warp executes, as a share of what the longest would if it were the longest at each line.
pub(super) fn mean(sample: &Sample) -> f64 {
    let kernel = sample.launch.kernel();
    let statements = statements(kernel.text);
    let lines = sample.stats.lines.iter();
    let longest: f64 = lines.map(|(&line, counts)| counts.longest as f64 * of_line(&statements, line)).sum();
    let warps = f64::from(sample.blocks) * f64::from(kernel.block / 32);
    sample.stats.warp_instructions as f64 / (longest * warps)
}

fn walked(listing: &str, executed: &BTreeMap<u32, u64>, latency: BTreeMap<u32, f64>) -> Path {
    let code = read(listing);
    let last = code.len().saturating_sub(1);
    let mut walk = Walk {
        loops: Vec::new(),
        times: Vec::new(),
        due: vec![0.0; code.len()],
        latency,
        clock: 0.0,
        ready: vec![0.0; 1024],
        free: [0.0; UNITS],
        groups: VecDeque::new(),
        copied: 0.0,
        waited: None,
        busy: [0.0; UNITS],
        code,
    };
    walk.count(executed);
    walk.walk(0, last, 1.0, None);
    Path { chain: walk.clock - walk.waited.unwrap_or(0.0), busy: walk.busy, mean: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the text and instructions, as the disassembler prints them.
    fn listing(code: &[(u32, &str)]) -> String {
        let print = |(line, text): &(u32, &str)| match text.strip_suffix(':') {
            Some(_) => format!("{text}\n"),
            None => format!("\t//## File \".nv_debug_ptx_txt\", line {line}\n /*0000*/  {text} ;\n"),
        };
        code.iter().map(print).collect()
    }

    fn chain(code: &[(u32, &str)], executed: &[(u32, u64)]) -> f64 {
        let latency = code.iter().map(|&(line, _)| (line, Place::Memory.latency())).collect();
        walked(&listing(code), &executed.iter().copied().collect(), latency).chain
    }

    #[test]
    fn a_load_waits_for_its_address_and_not_for_the_load_before_it() {
        let once: Vec<_> = (1..=4).map(|line| (line, 1)).collect();
        let memory = Place::Memory.latency();
        let two = |second: &str| {
            let first = (1, "LDG.E R2, desc[UR4][R8.64]");
            chain(&[first, (2, second), (3, "IADD3 R6, R2, R4, RZ")], &once)
        };
        assert_eq!(two("LDG.E R4, desc[UR4][R2.64]"), 2.0 * memory + 1.0);
        // The second begins when the path to memory is free again.
        assert_eq!(two("LDG.E R4, desc[UR4][R10.64]"), 4.0 + memory + 1.0);
    }

    #[test]
    fn a_loop_takes_its_time_once_an_iteration_also_if_it_is_unrolled() {
        let plain = [(0, ".L_x_0:"), (1, "LDG.E R2, desc[UR4][R2.64]"), (2, "@P0 BRA `(.L_x_0)")];
        let load = (1, "LDG.E R2, desc[UR4][R2.64]");
        let unrolled = [
            (0, ".L_x_0:"),
            load,
            load,
            (2, "@P0 BRA `(.L_x_0)"),
            (0, ".L_x_1:"),
            load,
            (2, "@P0 BRA `(.L_x_1)"),
        ];
        let memory = Place::Memory.latency();
        for n in [5, 301] {
            let expected = (n - 1) as f64 * memory;
            let near = |cycles: f64| (cycles - expected).abs() < 20.0;
            let executed = [(1, n), (2, n)];
            assert!(near(chain(&plain, &executed)), "{} {expected}", chain(&plain, &executed));
            assert!(near(chain(&unrolled, &executed)), "{} {expected}", chain(&unrolled, &executed));
        }
    }

    #[test]
    fn a_line_has_as_many_statements_as_it_ends() {
        let statements = statements("a; b; // c;\nlabel:\n  d;\n");
        assert_eq!([1, 2, 3, 4].map(|line| of_line(&statements, line)), [2.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn code_for_threads_that_diverged_is_no_loop_and_hides_nothing() {
        let code = [
            (0, ".L_x_0:"),
            (1, "LDG.E R2, desc[UR4][R2.64]"),
            (2, "@P0 BRA `(.L_x_0)"),
            (3, "BRA.DIV UR4, `(.L_x_1)"),
            (4, "SHFL.BFLY PT, R4, R2, 0x10, 0x1f"),
            (0, ".L_x_2:"),
            (5, "IADD3 R6, R4, R4, RZ"),
            (6, "EXIT"),
            (0, ".L_x_1:"),
            (4, "WARPSYNC.COLLECTIVE R9, `(.L_x_3)"),
            (0, ".L_x_3:"),
            (4, "SHFL.BFLY PT, R4, R2, 0x10, 0x1f"),
            (4, "BRA `(.L_x_2)"),
        ];
        let straight = [code[1], code[2], code[4], code[6], code[7]];
        let executed = [(1, 1), (2, 1), (4, 1), (5, 1), (6, 1)];
        assert_eq!(chain(&code, &executed), chain(&straight, &executed));
        // A loop that is not entered, and that the branch back would extend to the end.
        let never = [(1, 0), (2, 0), (4, 1), (5, 1), (6, 1)];
        assert_eq!(chain(&code, &never), chain(&straight[2..], &never));
    }

    #[test]
    fn a_path_that_was_not_taken_costs_nothing() {
        let code = [(1, "MUFU.RCP R2, R3"), (2, "DFMA R4, R4, R4, R4"), (3, "IADD3 R6, R2, R2, RZ")];
        assert_eq!(chain(&code, &[(1, 1), (3, 1)]), 23.0 + 1.0);
    }

    #[test]
    fn what_comes_before_the_wait_for_earlier_kernels_takes_no_time() {
        let load = (1, "LDG.E R2, desc[UR4][R8.64]");
        let add = (3, "IADD3 R6, R2, R2, RZ");
        let once: Vec<_> = (1..=3).map(|line| (line, 1)).collect();
        assert_eq!(chain(&[load, (2, "ACQBULK"), add], &once), 1.0);
        assert_eq!(chain(&[(2, "ACQBULK"), load, add], &once), Place::Memory.latency() + 1.0);
    }

    #[test]
    fn more_groups_of_copies_in_flight_shorten_a_loop() {
        let copies = |keep: &str, groups: usize| {
            let wait = format!("DEPBAR.LE SB0, {keep}");
            let copy = |line| (line, "LDGSTS.E.BYPASS.128 [R2], desc[UR8][R4.64]");
            let mut code = Vec::new();
            for group in 0..groups as u32 {
                code.extend([copy(10 + group), (10 + group, "LDGDEPBAR")]);
            }
            code.extend([
                (0, ".L_x_0:"),
                (1, wait.as_str()),
                copy(2),
                (3, "LDGDEPBAR"),
                (4, "@P0 BRA `(.L_x_0)"),
            ]);
            let mut executed: Vec<_> = (0..groups as u32).map(|group| (10 + group, 1)).collect();
            executed.extend([(1, 60), (2, 60), (3, 60), (4, 60)]);
            chain(&code, &executed)
        };
        let (one, three) = (copies("0x0", 1), copies("0x2", 3));
        assert!((2.8..3.2).contains(&(one / three)), "{one} {three}");
    }
}
