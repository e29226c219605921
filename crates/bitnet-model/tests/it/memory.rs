//! Counts what a thread allocates.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn add(bytes: usize) {
    // A thread that is ending has no counters any more, and nobody asks for them.
    let _ = LIVE.try_with(|live| {
        live.set(live.get().wrapping_add(bytes));
        // What another thread allocated and this one frees makes the difference negative: it is no peak.
        let _ = PEAK.try_with(|peak| {
            if live.get() < usize::MAX / 2 {
                peak.set(peak.get().max(live.get()));
            }
        });
    });
}

// SAFETY: every call goes to the system's allocator with the arguments it came with; counting touches two cells of
// this thread and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(layout.size().wrapping_neg());
        // SAFETY: the caller's promise about `pointer` and `layout` is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size.wrapping_sub(layout.size()));
        // SAFETY: the caller's promise about all three is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The result of `work`, and how many bytes this thread held at most beyond what it held before.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LIVE.set(0);
    PEAK.set(0);
    let result = work();
    (result, PEAK.get())
}

#[test]
fn the_peak_of_a_thread_is_counted() {
    let (_, bytes) = peak(|| drop((vec![0u8; 1 << 20], vec![0u8; 1 << 19])));
    assert!((1_572_864..1_600_000).contains(&bytes), "{bytes}");
}
