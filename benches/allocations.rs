//! The heap allocations of a side, with the feature `count-allocations` only: all threads write the counters, which costs two
//! threads, and sides with many allocations, more than what they are measured for.

/// Runs `run`, which repeats something `times` times, and returns a note about the allocations of each repetition.
#[cfg(feature = "count-allocations")]
pub(crate) fn note(times: usize, run: impl FnOnce()) -> String {
    use std::alloc::System;

    use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

    #[global_allocator]
    static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

    let region = Region::new(ALLOCATOR);
    run();
    let change = region.change();
    let count = change.allocations + change.reallocations;
    let [count, bytes] = [count, change.bytes_allocated].map(|number| number as f64 / times as f64);
    format!("{count:.2} allocations, {bytes:.0} bytes")
}

#[cfg(not(feature = "count-allocations"))]
pub(crate) fn note(_: usize, run: impl FnOnce()) -> String {
    run();
    String::new()
}
