//! Runs the server on a blocking thread, for the binary.

use std::{io, net::TcpListener, sync::Arc, time::Duration};

use bitnet::{inference::DrainReport, kernels::trim_heap};
#[cfg(unix)]
use tokio::signal::unix;
#[cfg(windows)]
use tokio::signal::windows;

use crate::http::{
    app::App,
    connections::{ConnectionLimits, serve},
};

/// Time between two looks at the device.
const LOOK: Duration = Duration::from_millis(200);

/// Time between two returns of freed memory to the system.
const TRIM: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT, or until the model's device is lost ([`App::lost`]), then drains; a signal during
/// the drain ends the process immediately, with exit code 1. Except after SIGINT, which comes from a person, it still
/// answers for `linger`, with refusals, so that a proxy notices.
///
/// # Errors
/// If the async runtime or the signal handlers cannot be set up, or the listener cannot be used.
pub fn run(
    listener: TcpListener,
    app: Arc<App>,
    limits: ConnectionLimits,
    drain: Duration,
    linger: Duration,
) -> io::Result<DrainReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .thread_name("bitnet-http")
        .enable_all()
        .build()?;
    let report = runtime.block_on(async {
        let mut signals = Signals::new()?;
        tokio::spawn(trim());
        let watched = Arc::clone(&app);
        let end = async move {
            let by_hand = tokio::select! {
                by_hand = signals.next() => {
                    tracing::info!(
                        target: "bitnet::server",
                        "finishing requests; a second signal ends the process immediately"
                    );
                    by_hand
                }
                why = lost(&watched) => {
                    tracing::error!(target: "bitnet::server", "ending: {why}");
                    false
                }
            };
            tokio::spawn(async move {
                signals.next().await;
                std::process::exit(1);
            });
            if by_hand { Duration::ZERO } else { linger }
        };
        serve(listener, app, limits, drain, end).await
    });
    // Whatever still runs has used up its time. Waiting for it here could take forever.
    runtime.shutdown_background();
    report
}

/// Returns freed memory to the system at regular intervals.
async fn trim() {
    let mut clock = tokio::time::interval(TRIM);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        if tokio::task::spawn_blocking(trim_heap).await.is_err() {
            return;
        }
    }
}

/// Returns when the model's device is lost, which only a new process can cure. Logs when its driver fails at recordings,
/// which costs time but no result.
async fn lost(app: &App) -> String {
    let mut clock = tokio::time::interval(LOOK);
    let mut known = 0;
    loop {
        clock.tick().await;
        if let Some((failures, recorded)) = app.recording_failures()
            && failures > known
        {
            tracing::warn!(
                target: "bitnet::server",
                "the GPU's driver failed at a recording; launches are now recorded {}",
                recorded.name()
            );
            known = failures;
        }
        if let Some(why) = app.lost() {
            return why;
        }
    }
}

/// The signals that end a server: SIGTERM and SIGINT; on Windows Ctrl-C, Ctrl-Break, the close of the console and the
/// shutdown of the system.
#[cfg(unix)]
struct Signals {
    term: unix::Signal,
    int: unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use unix::{SignalKind, signal};
        Ok(Signals { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal; true if it comes from a person.
    async fn next(&mut self) -> bool {
        tokio::select! { _ = self.term.recv() => false, _ = self.int.recv() => true }
    }
}

#[cfg(windows)]
struct Signals {
    int: windows::CtrlC,
    /// What programs send instead of SIGTERM.
    stop: windows::CtrlBreak,
    close: windows::CtrlClose,
    shutdown: windows::CtrlShutdown,
}

#[cfg(windows)]
impl Signals {
    fn new() -> io::Result<Self> {
        use windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
        Ok(Signals { int: ctrl_c()?, stop: ctrl_break()?, close: ctrl_close()?, shutdown: ctrl_shutdown()? })
    }

    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.int.recv() => true,
            _ = self.close.recv() => true,
            _ = self.stop.recv() => false,
            _ = self.shutdown.recv() => false,
        }
    }
}
