//! Memory nodes (NUMA): a processor reads the memory of its own node faster than that of another.
//!
//! On a machine with several nodes, the members of a pool are spread over them, in ascending order and in proportion to
//! the processors that they may use there. Members have consecutive shares of every job, so the members of a node read
//! one stretch of a matrix, and the system is asked to keep its pages on their node. With one node there is no
//! [`Team`].

use std::{fs, iter, ops::Range};

use crate::cpu::pool::share;

/// A memory node with processors that the calling thread may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNode {
    /// Its number in the system.
    pub id: usize,
    /// The numbers of these processors. Two hardware threads of a core count as two.
    pub cpus: Vec<usize>,
}

/// The memory nodes with processors that the calling thread may use, in ascending order; none if the system does not
/// tell, as outside Linux.
pub fn memory_nodes() -> Vec<MemoryNode> {
    let text = |file: &str| fs::read_to_string(file).ok();
    let status = text("/proc/thread-self/status").unwrap_or_default();
    let online = text("/sys/devices/system/node/online").unwrap_or_default();
    let cpus = |id| text(&format!("/sys/devices/system/node/node{id}/cpulist"));
    nodes(&status, &online, cpus).unwrap_or_default()
}

/// The nodes in the list `online`, whose processors are in the lists `cpus`, as far as a thread of this `status` may
/// use them. A node without such processors is left out.
fn nodes(status: &str, online: &str, cpus: impl Fn(usize) -> Option<String>) -> Option<Vec<MemoryNode>> {
    let allowed = list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)?;
    let node = |id| {
        let mut cpus = list(&cpus(id)?)?;
        cpus.retain(|cpu| allowed.contains(cpu));
        Some(MemoryNode { id, cpus })
    };
    let mut nodes = list(online)?.into_iter().map(node).collect::<Option<Vec<_>>>()?;
    nodes.retain(|node| !node.cpus.is_empty());
    Some(nodes)
}

/// Reads a list of the system like `0-3,8`.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(numbers)
}

/// The members of a pool on a machine with several memory nodes.
pub(crate) struct Team {
    nodes: Vec<MemoryNode>,
    /// The index of each member's node, ascending.
    members: Vec<usize>,
}

impl Team {
    /// Spreads `threads` members over the nodes; `None` if there are not several.
    pub(crate) fn new(nodes: Vec<MemoryNode>, threads: usize) -> Option<Self> {
        let near = |(i, node): (usize, &MemoryNode)| iter::repeat_n(i, node.cpus.len());
        let cpus: Vec<usize> = nodes.iter().enumerate().flat_map(near).collect();
        let member = |member| cpus[(2 * member + 1) * cpus.len() / (2 * threads)];
        (nodes.len() > 1).then(|| Team { members: (0..threads).map(member).collect(), nodes })
    }

    /// The index of each member's node, ascending.
    pub(crate) fn members(&self) -> &[usize] {
        &self.members
    }

    /// Keeps the calling thread on the processors of a node, and returns whether the system does that. Otherwise it
    /// runs anywhere, which only takes longer.
    pub(crate) fn stay_on(&self, node: usize) -> bool {
        system::run_on(&self.nodes[node].cpus)
    }

    /// Asks the system to keep every page of `memory`, a range of addresses, on the node whose members read the middle
    /// of the page, and returns whether it will. Otherwise a page is on the node of the thread that first writes it.
    /// Parts of pages at both ends are never meant, because other memory shares them.
    pub(crate) fn place(&self, memory: Range<usize>, page: usize) -> bool {
        // One member is on no node in particular, since the caller of a pool may run anywhere.
        self.members.len() > 1 && self.pages(memory, page).all(|(node, pages)| system::keep_on(node, pages))
    }

    /// The numbers of the nodes and the pages that should be there.
    fn pages(&self, memory: Range<usize>, page: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let first = memory.start.next_multiple_of(page);
        let end = (memory.end / page * page).max(first);
        let border = move |at: usize| ((memory.start + at + page / 2) / page * page).clamp(first, end);
        let stretches = self.stretches(memory.len());
        let pages = stretches.map(move |(node, bytes)| (node, border(bytes.start)..border(bytes.end)));
        pages.filter(|(_, pages)| !pages.is_empty())
    }

    /// The number of each node that has members, and their stretch of `0..total`.
    fn stretches(&self, total: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let start = move |member| share(total, self.members.len(), member).start;
        let mut end = 0;
        self.members.chunk_by(|a, b| a == b).map(move |near| {
            let first = end;
            end += near.len();
            (self.nodes[near[0]].id, start(first)..start(end))
        })
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::{
        ffi::{c_long, c_ulong},
        ops::Range,
    };

    fn mask(bits: &[usize]) -> Vec<c_ulong> {
        let width = c_ulong::BITS as usize;
        let mut mask = vec![0; bits.iter().max().map_or(0, |bit| bit / width + 1)];
        bits.iter().for_each(|bit| mask[bit / width] |= 1 << (bit % width));
        mask
    }

    pub(super) fn run_on(cpus: &[usize]) -> bool {
        let mask = mask(cpus);
        // SAFETY: the pointer is valid for as many bytes, and the system takes masks of any length.
        unsafe { libc::sched_setaffinity(0, size_of_val(&mask[..]), mask.as_ptr().cast()) == 0 }
    }

    pub(super) fn keep_on(node: usize, pages: Range<usize>) -> bool {
        let mask = mask(&[node]);
        // The system reads one bit less than it is told.
        let bits = mask.len() * c_ulong::BITS as usize + 1;
        let (preferred, none) = (libc::MPOL_PREFERRED as c_long, 0 as c_long);
        // SAFETY: the call changes no memory and moves no page, only where pages come from that are used later; the
        // system checks the addresses. The mask is valid for the bits that it reads. Every argument is as wide as a
        // register, which is what the system reads.
        unsafe {
            libc::syscall(libc::SYS_mbind, pages.start, pages.len(), preferred, mask.as_ptr(), bits, none)
                == 0
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn run_on(_: &[usize]) -> bool {
        false
    }

    pub(super) fn keep_on(_: usize, _: std::ops::Range<usize>) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use bitnet_tensor::{SharedBytes, TernaryTensor};

    use super::*;
    use crate::{
        Backend, Cpu, Grouping, Inspect, Isa, Panels, RowOrder, RowsKind, Weights,
        conformance::{check, cpu_cases},
    };

    fn read(allowed: &str, online: &str, cpus: &[&str]) -> Option<Vec<(usize, Vec<usize>)>> {
        let status = format!("Name:\tbitnet\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n");
        let nodes = nodes(&status, online, |id| Some((*cpus.get(id)?).to_owned()))?;
        Some(nodes.into_iter().map(|node| (node.id, node.cpus)).collect())
    }

    #[test]
    fn nodes_have_the_processors_that_the_thread_may_use() {
        let two = ["0-1,4-5\n", "2-3,6-7\n"];
        assert_eq!(read("0-7", "0-1\n", &two), Some(vec![(0, vec![0, 1, 4, 5]), (1, vec![2, 3, 6, 7])]));
        assert_eq!(read("3-4,7", "0-1\n", &two), Some(vec![(0, vec![4]), (1, vec![3, 7])]));
        assert_eq!(read("2-3", "0-1\n", &two), Some(vec![(1, vec![2, 3])]));
        // Node 1 is off, and node 2 has only memory.
        assert_eq!(read("0-9", "0,2-3\n", &["0", "", "\n", "8"]), Some(vec![(0, vec![0]), (3, vec![8])]));
    }

    #[test]
    fn what_the_system_does_not_tell_is_unknown() {
        assert_eq!(read("0-7", "0-1\n", &["0-7"]), None);
        assert_eq!(read("0-7", "0-x\n", &["0-7"]), None);
        assert_eq!(read("0-7", "", &[]), Some(Vec::new()));
        assert_eq!(nodes("", "0\n", |_| Some("0".into())), None);
    }

    /// Nodes 1, 3, 5 and so on with these numbers of processors.
    fn team(cpus: &[usize], threads: usize) -> Option<Team> {
        let node = |(i, &count)| MemoryNode { id: 2 * i + 1, cpus: (100 * i..100 * i + count).collect() };
        Team::new(cpus.iter().enumerate().map(node).collect(), threads)
    }

    /// Teams on two to four nodes, even and uneven, with up to twice as many members as processors.
    fn teams() -> impl Iterator<Item = Team> {
        let nodes = [&[4, 4][..], &[2, 6], &[9, 1], &[3, 3, 3, 3], &[5, 1, 2, 4], &[1, 1, 1]];
        nodes.into_iter().flat_map(|cpus| (1..24).map(|threads| team(cpus, threads).unwrap()))
    }

    #[test]
    fn members_are_spread_in_proportion_to_the_processors_of_nodes() {
        for team in teams() {
            let (threads, all) =
                (team.members.len(), team.nodes.iter().map(|node| node.cpus.len()).sum::<usize>());
            assert!(team.members.is_sorted());
            for (i, node) in team.nodes.iter().enumerate() {
                let members = team.members.iter().filter(|&&member| member == i).count();
                assert!((members * all).abs_diff(threads * node.cpus.len()) <= all, "{:?}", team.members);
            }
        }
        assert_eq!(team(&[2, 6], 8).unwrap().members, [0, 0, 1, 1, 1, 1, 1, 1]);
        assert!(team(&[8], 8).is_none() && team(&[], 8).is_none());
    }

    #[test]
    fn the_shares_of_a_nodes_members_are_one_stretch() {
        for team in teams() {
            let members = &team.members;
            for parts in (0..70).chain([1000, 4097]) {
                let mut end = 0;
                for (id, stretch) in team.stretches(parts) {
                    assert_eq!(stretch.start, end);
                    end = stretch.end;
                    let own = (0..members.len()).filter(|&member| team.nodes[members[member]].id == id);
                    let shares = own.map(|member| share(parts, members.len(), member));
                    assert!(shares.flatten().eq(stretch));
                }
                assert_eq!(end, parts);
            }
        }
    }

    #[test]
    fn a_page_is_for_the_node_that_reads_its_middle_and_no_other_memory_is_meant() {
        for team in teams() {
            for (start, len) in [(0usize, 800), (100, 900), (33, 95), (33, 210), (64, 36), (7, 3)] {
                let (memory, mut end) = (start..start + len, start.next_multiple_of(100));
                for (id, pages) in team.pages(memory.clone(), 100) {
                    assert!(pages.start == end && pages.end % 100 == 0 && pages.end <= memory.end);
                    end = pages.end;
                    let (_, stretch) = team.stretches(len).find(|(node, _)| *node == id).unwrap();
                    for page in pages.step_by(100) {
                        assert!(stretch.contains(&(page + 49 - start)), "{memory:?} {id} {page}");
                    }
                }
                assert_eq!(end, (memory.end / 100 * 100).max(start.next_multiple_of(100)));
            }
        }
    }

    /// Two nodes that are both the first one of this machine, each with one of the processors.
    fn two_nodes(threads: usize) -> Option<Team> {
        let real = memory_nodes();
        let cpus: Vec<usize> = real.iter().flat_map(|node| node.cpus.clone()).collect();
        let id = real.first().map_or(0, |node| node.id);
        let node = |cpu: Option<&usize>| MemoryNode { id, cpus: vec![cpu.copied().unwrap_or(0)] };
        Team::new(vec![node(cpus.first()), node(cpus.last())], threads)
    }

    #[test]
    fn two_nodes_change_no_result() {
        let spread = || Cpu::of_team(Isa::best(), 3, two_nodes(3)).unwrap();
        let mut cpu = spread();
        let failures: Vec<_> =
            cpu_cases().into_iter().filter_map(|case| check(&mut cpu, case).err()).collect();
        assert!(failures.is_empty(), "{failures:#?}");

        // Panels of several huge pages, packed and from a file.
        let (rows, cols, n) = (9000, 1600, 3);
        let trits: Vec<i8> = (0..rows * cols).map(|i| (i * i % 11 % 3) as i8 - 1).collect();
        let tensor = TernaryTensor::from_trits(rows, cols, &trits, 0.5).unwrap();
        let values: Vec<f32> = (0..n * cols).map(|i| (i * i % 91) as f32 - 45.0).collect();
        let product = |mut cpu: Cpu, weights: Weights<'_>| {
            let w = cpu.linear(weights, RowOrder::Plain).unwrap();
            let mut x = cpu.rows(n, cols, RowsKind::Residual).unwrap();
            let mut q = cpu.int8_rows(n, cols, Grouping::Row).unwrap();
            let mut out = cpu.rows(n, rows, RowsKind::Residual).unwrap();
            cpu.write(&mut x, &values).unwrap();
            cpu.norm_quantize(n, &x, [None, None], None, &mut q).unwrap();
            cpu.bit_linear(n, &q, &w, &mut out, 0, None).unwrap();
            cpu.read(&out, n).unwrap()
        };
        let one = || Cpu::of_team(Isa::best(), 1, None).unwrap();
        let expected = product(one(), (&tensor).into());
        let file = SharedBytes::new(one().panels(&tensor).unwrap().stored().collect::<Vec<_>>().concat());
        let stored = || Panels::from_stored(rows, cols, None, &file).unwrap();
        assert!(product(spread(), (&tensor).into()) == expected);
        assert!(product(spread(), stored().into()) == expected);
        let place = |mut cpu: Cpu| cpu.pack(stored().into()).unwrap().data.as_ptr();
        assert!(place(one()) == file.as_ptr() && place(spread()) != file.as_ptr());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_keeps_threads_and_pages_on_nodes() {
        use crate::cpu::memory::buffer::{Arena, HUGE};

        // Some systems do not tell their nodes.
        if memory_nodes().is_empty() {
            return;
        }
        for node in [0, 1] {
            let stay = move || (two_nodes(2).unwrap().stay_on(node), memory_nodes());
            let (stays, now) = std::thread::spawn(stay).join().unwrap();
            let cpus: Vec<usize> = now.into_iter().flat_map(|node| node.cpus).collect();
            assert!(stays && cpus == two_nodes(2).unwrap().nodes[node].cpus);
        }

        let policy = |address: usize| {
            let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
            let mut maps = maps.lines().map(|line| line.split_once(' ').unwrap());
            let under = maps.rfind(|(start, _)| usize::from_str_radix(start, 16).unwrap() <= address);
            under.unwrap().1.split(' ').next().unwrap().to_owned()
        };
        let mut memory = Arena::of(two_nodes(2).map(Into::into));
        let kept = format!("prefer:{}", two_nodes(2).unwrap().nodes[0].id);
        for bytes in [5 * HUGE, 70 * HUGE + 5] {
            let buffer = memory.zeroed::<u8>(bytes, "test").unwrap();
            // A container may forbid the call.
            if memory.place(&buffer) == Some(true) {
                let first = buffer.as_ptr().addr();
                for page in 0..bytes / HUGE {
                    assert_eq!(policy(first + page * HUGE), kept, "page {page} of {bytes} bytes");
                }
                assert_ne!(policy(first + bytes / HUGE * HUGE), kept);
            }
        }
        assert!(!system::keep_on(1 << 15, 0..HUGE), "no such node");
    }
}
