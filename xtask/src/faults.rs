use std::{collections::BTreeSet, process::Stdio};

use anyhow::{Context, Result, ensure};

use crate::{cargo, rows};

/// A fault made on purpose, its allowed consequence, and the tests that make it.
pub(crate) struct Fault {
    pub fault: &'static str,
    pub expected: &'static str,
    pub tests: &'static [&'static str],
}

/// In every row: only the culprit fails, its error is typed, its blocks return, and the tokens of all other requests do
/// not change.
pub(crate) const FAULTS: &[Fault] = &[
    Fault {
        fault: "logits that are not numbers",
        expected: "its request fails with a typed error, over HTTP 500; no other request does",
        tests: &[
            "a_fault_in_any_phase_fails_the_culprit_alone_and_all_blocks_return",
            "a_nan_row_fails_its_request_and_no_other",
            "f25_a_nan_in_a_batch_fails_its_request_by_name",
            "a_poisoned_request_fails_alone_with_a_status_that_says_so",
        ],
    },
    Fault {
        fault: "a forward error, once",
        expected: "the step is repeated; no request notices",
        tests: &[
            "a_fault_in_any_phase_fails_the_culprit_alone_and_all_blocks_return",
            "f16_a_step_that_fails_loses_nobodys_cache",
        ],
    },
    Fault {
        fault: "a forward error, always",
        expected: "every request fails with it; afterwards all are served",
        tests: &[
            "while_every_forward_pass_fails_all_requests_do_and_afterwards_all_are_served",
            "f16_an_error_reaches_everyone_it_concerns_and_the_next_batch_is_served",
        ],
    },
    Fault {
        fault: "a forward error or panic for one row",
        expected: "the step is halved until the culprit is alone, and only that fails",
        tests: &[
            "a_fault_in_any_phase_fails_the_culprit_alone_and_all_blocks_return",
            "f16_a_failing_or_panicking_request_fails_alone",
            "f16_the_partial_form_gives_the_good_results_beside_the_bad",
        ],
    },
    Fault {
        fault: "a panic in sampling",
        expected: "the request fails with the panic's message",
        tests: &["a_fault_in_any_phase_fails_the_culprit_alone_and_all_blocks_return"],
    },
    Fault {
        fault: "an error or panic in a constraint",
        expected: "the request fails with the constraint's message",
        tests: &[
            "a_fault_in_any_phase_fails_the_culprit_alone_and_all_blocks_return",
            "a_constraint_that_fails_ends_its_own_request_and_no_other",
        ],
    },
    Fault {
        fault: "a panic in the bookkeeping, or a broken rule of the scheduler",
        expected: "running requests fail with a typed error, the scheduler restarts, waiting requests are served",
        tests: &[
            "f16_after_a_panic_in_the_bookkeeping_the_engine_fails_what_runs_and_serves_the_rest",
            "f16_who_comes_in_one_group_with_a_panic_is_served_after_it",
            "a_broken_rule_fails_what_runs_and_the_scheduler_begins_anew",
            "after_a_fault_of_the_engine_requests_are_answered_or_ready_says_why_not",
        ],
    },
    Fault {
        fault: "a panic in a handler or while loading",
        expected: "HTTP 500 for that request; while loading, one line and exit 1",
        tests: &[
            "a_handler_that_panics_fails_its_own_request_and_no_other",
            "a_panic_while_loading_is_an_error_like_any_other",
        ],
    },
    Fault {
        fault: "no memory at start",
        expected: "a typed error that names the smallest amount that works",
        tests: &[
            "too_little_memory_names_the_least_that_works_and_that_works",
            "an_engine_without_room_for_anything_does_not_start",
            "f23_f32_a_gpu_that_cannot_take_the_model_is_a_typed_error_with_its_cure",
            "memory_that_the_system_refuses_at_start_is_an_error_of_one_line",
        ],
    },
    Fault {
        fault: "a full disk under `batch`",
        expected: "exit 1; complete lines are kept, and the next run continues",
        tests: &["a_full_disk_is_an_error_that_loses_nothing"],
    },
    Fault {
        fault: "a client that hangs up in any phase",
        expected: "its request ends immediately and leaves nothing behind",
        tests: &[
            "a_client_that_hangs_up_in_any_phase_leaves_nothing_and_disturbs_nobody",
            "a_client_that_hangs_up_costs_nothing_more_streamed_or_not",
            "a_thousand_clients_that_disconnect_at_random_leave_nothing_and_are_counted_as_they_saw_it",
            "f17_dropping_a_handle_cancels_also_before_the_engine_has_seen_it",
            "a_thousand_cancels_lose_double_and_leak_nothing",
        ],
    },
    Fault {
        fault: "a reader that stops",
        expected: "only its request pauses; it loses no token, and is ended after a time limit",
        tests: &[
            "a_reader_that_stops_pauses_its_own_request_and_no_other_and_loses_no_token",
            "a_reader_that_stops_reading_pauses_its_request_and_fails_in_the_end",
            "a_client_that_reads_nothing_for_long_is_let_go",
        ],
    },
    Fault {
        fault: "a clock that jumps, stops and goes back",
        expected: "no token changes and no request is lost; only requests with a timeout end early",
        tests: &[
            "a_clock_that_jumps_and_goes_back_changes_no_token_and_loses_no_request",
            "a_clock_that_jumps_ends_requests_with_a_timeout_and_no_others",
        ],
    },
    Fault {
        fault: "a lost GPU",
        expected: "all requests and probes report why, and nothing more runs on it",
        tests: &[
            "f16_f32_a_lost_gpu_fails_its_requests_and_the_engine_says_so",
            "f16_requests_that_wait_when_the_gpu_is_lost_are_told_so_too",
            "when_the_gpu_is_lost_every_request_and_every_probe_is_told_why",
        ],
    },
    Fault {
        fault: "SIGTERM, SIGINT or SIGKILL in any phase of a batch job",
        expected: "started again it completes the same output, byte for byte",
        tests: &[
            "a_batch_ended_by_any_signal_in_any_phase_goes_on_byte_for_byte",
            "killed_at_any_point_and_started_again_it_loses_and_doubles_nothing",
        ],
    },
    Fault {
        fault: "SIGTERM to a server",
        expected: "it finishes accepted requests and exits with 0; a second one ends it immediately",
        tests: &[
            "told_to_end_it_finishes_what_it_has_and_exits_with_0",
            "told_to_end_it_refuses_new_requests_and_finishes_those_it_has",
            "told_twice_it_ends_at_once",
        ],
    },
];

/// Prints the table; fails if it names a test that does not exist.
pub(crate) fn check() -> Result<()> {
    let tests = rows::tests()?;
    let mut gaps = Vec::new();
    for Fault { fault, expected, tests: named } in FAULTS {
        println!("{fault}: {expected}");
        for name in *named {
            match tests.iter().find(|test| test.name == **name) {
                Some(test) => println!("    {name} ({})", test.package),
                None => gaps.push(*name),
            }
        }
        ensure!(!named.is_empty(), "no test for the fault: {fault}");
    }
    ensure!(gaps.is_empty(), "no such tests: {}", gaps.join(", "));
    Ok(())
}

/// Checks the table and runs its tests; fails if one fails or does not run.
pub(crate) fn run() -> Result<()> {
    check()?;
    let wanted: BTreeSet<&str> = FAULTS.iter().flat_map(|fault| fault.tests).copied().collect();
    // The whole workspace, so that features and binaries are those of the other tests.
    let mut test = cargo(&["test", "--release", "--workspace", "--lib", "--bins", "--tests", "--"]);
    test.args(&wanted).stderr(Stdio::inherit());
    let out = test.output().context("cargo test")?;
    let told = String::from_utf8_lossy(&out.stdout);
    let missing: Vec<&str> = wanted.into_iter().filter(|name| !passed(&told, name)).collect();
    if !(out.status.success() && missing.is_empty()) {
        print!("{told}");
    }
    ensure!(out.status.success(), "a fault did more than the table allows");
    ensure!(missing.is_empty(), "these tests did not run: {}", missing.join(", "));
    println!("{} faults did what the table allows and no more", FAULTS.len());
    Ok(())
}

/// Whether a test passed, according to the output of a test run.
fn passed(told: &str, name: &str) -> bool {
    told.lines().any(|line| {
        let test = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... ok"));
        test.is_some_and(|test| test.rsplit("::").next() == Some(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_passed_test_of_exactly_that_name_counts() {
        let told = "test engine::a_b ... ok\ntest engine::a_c ... FAILED\ntest a_d ... ignored\n";
        assert!(passed(told, "a_b"));
        assert!(!["b", "a", "a_c", "a_d", "engine::a_b"].iter().any(|name| passed(told, name)));
    }
}
