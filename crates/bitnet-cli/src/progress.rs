use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// A progress bar on stderr that is removed at the end, and hidden if stderr is not a terminal or --quiet is set.
pub struct Progress(ProgressBar);

impl Progress {
    /// Makes a bar for `total` pieces of work.
    pub fn new(what: &str, total: usize) -> Self {
        Self::with("{prefix} {wide_bar} {pos}/{len} {eta}", what, total)
    }

    /// Makes a bar for a download.
    pub fn bytes(file: &str) -> Self {
        Self::with("{prefix} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}", file, 0)
    }

    /// Makes a bar for processing a file, with a message.
    pub fn bytes_with_message(what: &str) -> Self {
        Self::with("{prefix} {wide_bar} {bytes}/{total_bytes}, {msg}, {eta} left", what, 0)
    }

    fn with(template: &str, what: &str, total: usize) -> Self {
        let target = if std::io::stderr().is_terminal() && !output::is_quiet() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total as u64), target).with_prefix(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// Shows that `done` of `total` pieces are done.
    pub fn at(&self, done: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
    }

    pub fn say(&self, message: String) {
        self.0.set_message(message);
    }

    /// Shows that one more piece is done.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
