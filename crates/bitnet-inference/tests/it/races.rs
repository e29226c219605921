//! Threads that use an engine at the same time must not affect each other.

use std::time::Duration;

use bitnet_inference::{Engine, EngineConfig, Request, SubmitError, metrics::Counter};

use crate::support::*;

const SOON: Duration = Duration::from_secs(20);

/// Submits until the engine refuses; each accepted request must be served.
fn submit_until_refused(engine: &Engine) -> SubmitError {
    loop {
        match engine.submit_timeout(Request::new([1], greedy(1)), SOON) {
            Ok(handle) => assert_eq!(handle.wait().unwrap().choices[0].tokens.len(), 1),
            Err(refused) => return refused,
        }
    }
}

#[test]
fn requests_accepted_before_a_shutdown_are_served() {
    for round in 0..200 {
        let (engine, _) = engine(config());
        std::thread::scope(|scope| {
            let submitters = [(); 3].map(|()| scope.spawn(|| submit_until_refused(&engine)));
            std::thread::sleep(Duration::from_micros(round % 20 * 50));
            assert!(engine.shutdown(SOON).complete);
            // Refused at submission, not lost after it.
            for thread in submitters {
                assert_eq!(thread.join().unwrap(), SubmitError::Draining);
            }
        });
    }
}

#[test]
fn a_paused_request_resumes_when_half_of_its_updates_are_read() {
    let (engine, _) = engine(EngineConfig { mailbox: 8, ..config() });
    let mut handle = engine.submit(Request::new([1, 2], greedy(160))).unwrap();
    let mut read = 0;
    while handle.recv().is_some() {
        read += 1;
        std::thread::sleep(Duration::from_micros(300));
    }
    let pauses = engine.metrics().snapshot().get(Counter::Pauses) as usize;
    // At least four updates are read between two pauses.
    assert!((5..=read / 4 + 1).contains(&pauses), "{pauses} pauses in {read} updates");
}
