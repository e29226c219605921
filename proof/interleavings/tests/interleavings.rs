//! Thousands of schedules of each model; a failure prints its schedule.

use bitnet_interleavings::{closing, dying, jobs, queueing, reading};
use shuttle::{check_pct, check_random};

#[test]
fn every_part_of_every_job_runs_once_in_any_schedule() {
    check_random(|| jobs(&[0, 0], 2, 5), 300);
    check_random(|| jobs(&[0, 0, 0], 1, 4), 300);
    check_random(|| jobs(&[0, 1, 1], 1, 4), 300);
    check_pct(|| jobs(&[0, 0], 1, 3), 300, 3);
}

#[test]
fn a_reader_misses_nothing_and_a_pause_ends_in_any_schedule() {
    for capacity in [1, 2, 3] {
        check_random(move || reading(7, capacity, false), 2000);
        check_random(move || reading(7, capacity, true), 2000);
    }
    check_pct(|| reading(5, 1, false), 2000, 3);
}

#[test]
fn an_engine_that_dies_ends_its_requests_in_any_schedule() {
    check_random(|| dying(5), 4000);
    check_pct(|| dying(5), 2000, 3);
}

#[test]
fn whoever_waits_for_room_gets_it_in_any_schedule() {
    check_random(|| queueing(3, 2, 1), 4000);
    check_random(|| queueing(4, 2, 2), 2000);
    check_pct(|| queueing(3, 2, 1), 2000, 3);
}

#[test]
fn a_shutdown_ends_every_wait_for_room_in_any_schedule() {
    check_random(|| closing(3), 4000);
    check_pct(|| closing(3), 2000, 3);
}
