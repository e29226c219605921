//! The split-K ticket of the bit-linear kernels under the memory model of PTX (PTX ISA, "Memory Consistency Model";
//! Lustig, Sahasrabuddhe and Giroux, ASPLOS 2019). Each block stores its part of the sums, takes a ticket, and the
//! block with the last ticket adds all parts. A stale part must not be readable in any execution that the axioms allow.

use bitnet_kernels::gpu::table::KERNELS;

/// What a kernel does between its parts and its epilogue. All threads of a block run it; a fence or ticket is
/// executed by one thread only.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Op {
    /// Weak stores of the block's part.
    Store,
    Barrier,
    /// `gpu`: the scope includes other blocks.
    Fence {
        sc: bool,
        gpu: bool,
    },
    /// The relaxed atomic increment, at the scope of the GPU.
    Ticket,
    /// Weak loads of all parts.
    Load,
}

const SC: Op = Op::Fence { sc: true, gpu: true };
const ACQ_REL: Op = Op::Fence { sc: false, gpu: true };

/// The operations of a kernel's text, from the stores of the parts on. `None` without a ticket.
fn ticket_of(text: &str) -> Option<Vec<Op>> {
    let lines: Vec<&str> =
        text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()).collect();
    let part = lines.iter().position(|line| *line == "PART:")?;
    let end = part + lines[part..].iter().position(|line| *line == "EPILOGUE:")?;
    let mut ops = Vec::new();
    for line in &lines[part..end] {
        let op = match line.split_whitespace().next().unwrap_or_default() {
            "bar.sync" => Op::Barrier,
            "membar.gl;" | "fence.sc.gpu;" => SC,
            "membar.cta;" | "fence.sc.cta;" => Op::Fence { sc: true, gpu: false },
            "fence.acq_rel.gpu;" => ACQ_REL,
            "fence.acq_rel.cta;" => Op::Fence { sc: false, gpu: false },
            store if store.starts_with("st.global") => Op::Store,
            atomic if atomic.starts_with("atom.global.inc") => Op::Ticket,
            other => {
                assert!(
                    !other.starts_with("red.") && !other.starts_with("atom."),
                    "{line}: not in the model"
                );
                continue;
            }
        };
        // Several stores are one: only their place matters.
        if ops.last() != Some(&op) || op != Op::Store {
            ops.push(op);
        }
    }
    ops.push(Op::Load);
    ops.contains(&Op::Ticket).then_some(ops)
}

/// An operation of a thread. A barrier is an arrival and a departure.
struct Event {
    block: usize,
    thread: usize,
    op: Op,
    leaves: bool,
}

/// Two blocks of two threads. Thread 0 takes the ticket; block 0 takes the first.
fn events(ops: &[Op]) -> Vec<Event> {
    let mut events = Vec::new();
    for (block, thread) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for &op in ops {
            // The first block ends without reading.
            let skipped = (op == Op::Load && block == 0)
                || (thread == 1 && matches!(op, Op::Fence { .. } | Op::Ticket));
            if !skipped {
                events.push(Event { block, thread, op, leaves: false });
                if op == Op::Barrier {
                    events.push(Event { block, thread, op, leaves: true });
                }
            }
        }
    }
    events
}

/// Makes a relation transitive.
fn close(relation: &mut [Vec<bool>]) {
    for k in 0..relation.len() {
        let through = relation[k].clone();
        for row in relation.iter_mut().filter(|row| row[k]) {
            row.iter_mut().zip(&through).for_each(|(related, &on)| *related |= on);
        }
    }
}

/// Base causality order for an order of the sequentially consistent fences: program order and synchronization, closed.
fn base_causality(events: &[Event], fences: &[usize]) -> Vec<Vec<bool>> {
    let n = events.len();
    let follows = |a: usize, b: usize| {
        (events[a].block, events[a].thread) == (events[b].block, events[b].thread) && a < b
    };
    // The number of a barrier among those of its thread.
    let number = |e: usize| {
        (0..e)
            .filter(|&b| follows(b, e) && events[b].op == Op::Barrier && events[b].leaves == events[e].leaves)
            .count()
    };
    let strong = |a: usize, b: usize| {
        let reaches = |e: usize| !matches!(events[e].op, Op::Fence { gpu: false, .. });
        events[a].block == events[b].block || (reaches(a) && reaches(b))
    };
    let ticket = |block: usize| events.iter().position(|e| e.block == block && e.op == Op::Ticket);
    let mut causes = vec![vec![false; n]; n];
    for a in 0..n {
        for b in 0..n {
            let (x, y) = (&events[a], &events[b]);
            let barrier = x.op == Op::Barrier
                && y.op == Op::Barrier
                && x.block == y.block
                && !x.leaves
                && y.leaves
                && number(a) == number(b);
            // A fence before the first ticket, which the second ticket observes, and a fence after the second.
            let (first, second) = (ticket(0), ticket(1));
            let fence = |e: &Event| matches!(e.op, Op::Fence { .. });
            let pattern = fence(x)
                && fence(y)
                && strong(a, b)
                && first.is_some_and(|first| follows(a, first))
                && second.is_some_and(|second| follows(second, b));
            let place = |e| fences.iter().position(|&f| f == e);
            let ordered = place(a).is_some() && place(a) < place(b) && strong(a, b);
            causes[a][b] = follows(a, b) || barrier || pattern || ordered;
        }
    }
    close(&mut causes);
    causes
}

/// All orders of the items.
fn orders(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, &first) in items.iter().enumerate() {
        let rest: Vec<usize> = items.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, &e)| e).collect();
        all.extend(orders(&rest).into_iter().map(|rest| [vec![first], rest].concat()));
    }
    all
}

/// Whether an execution that the axioms allow reads a stale part: one in which a store of the first block does not
/// precede a load of the second in causality order.
fn may_be_stale(ops: &[Op]) -> bool {
    let events = events(ops);
    let select = |wanted: &dyn Fn(&Event) -> bool| -> Vec<usize> {
        (0..events.len()).filter(|&e| wanted(&events[e])).collect()
    };
    let fences = select(&|e| matches!(e.op, Op::Fence { sc: true, .. }));
    let tickets = select(&|e| e.op == Op::Ticket);
    let stores = select(&|e| e.op == Op::Store && e.block == 0);
    let loads = select(&|e| e.op == Op::Load);
    orders(&fences).iter().any(|order| {
        let base = base_causality(&events, order);
        // Causality order adds: observed, then base causality. The second ticket observes the first.
        let causes = |a: usize, b: usize| base[a][b] || (a == tickets[0] && base[tickets[1]][b]);
        // The order of fences must not contradict causality.
        let consistent =
            order.iter().enumerate().all(|(at, &late)| order[..at].iter().all(|&early| !causes(late, early)));
        consistent && stores.iter().any(|&store| loads.iter().any(|&load| !causes(store, load)))
    })
}

#[test]
fn no_allowed_execution_of_a_split_product_reads_a_stale_part() {
    let tickets: Vec<_> = KERNELS.iter().filter_map(|k| Some((k.name, ticket_of(k.text)?))).collect();
    assert!(tickets.len() >= 5, "{tickets:?}");
    for (name, ops) in tickets {
        assert_eq!(ops, [Op::Store, Op::Barrier, SC, Op::Ticket, SC, Op::Barrier, Op::Load], "{name}");
        assert!(!may_be_stale(&ops), "{name}");
    }
}

#[test]
fn every_barrier_and_fence_of_the_ticket_is_needed_and_an_acquire_release_fence_would_do() {
    let ops = [Op::Store, Op::Barrier, SC, Op::Ticket, SC, Op::Barrier, Op::Load];
    for dropped in [1, 2, 4, 5] {
        let mut fewer = ops.to_vec();
        fewer.remove(dropped);
        assert!(may_be_stale(&fewer), "without {:?} at {dropped}", ops[dropped]);
    }
    let with = |at: usize, fence: Op| {
        let mut other = ops;
        other[at] = fence;
        may_be_stale(&other)
    };
    for at in [2, 4] {
        assert!(
            with(at, Op::Fence { sc: true, gpu: false }) && with(at, Op::Fence { sc: false, gpu: false })
        );
    }
    let mut cheap = ops;
    (cheap[2], cheap[4]) = (ACQ_REL, ACQ_REL);
    assert!(!may_be_stale(&cheap) && !with(2, ACQ_REL) && !with(4, ACQ_REL));
}
