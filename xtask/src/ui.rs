//! What xtask says, and how. Everything but results goes to stderr.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// One line about what happens now.
pub(crate) fn say(line: &str) {
    // A closed stderr is no reason to stop.
    let _ = writeln!(stderr(), "xtask: {line}");
}

/// An error with its causes, the last words of a run.
pub(crate) fn error(error: &anyhow::Error) {
    let _ = writeln!(stderr(), "xtask: error: {error:#}");
}

/// `75` → `1 min 15 s`.
pub(crate) fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        s @ 10..60 => format!("{s} s"),
        s => format!("{} min {:02} s", s / 60, s % 60),
    }
}

/// Progress towards a known total: a bar on a terminal, else a line now and then.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    total: u64,
    done: u64,
    start: Instant,
    said: Instant,
}

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(30);

impl Progress {
    /// Starts it at 0 of `total`.
    pub(crate) fn new(what: &str, total: u64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style = "xtask: {msg} [{bar:30}] {pos}/{len}, {elapsed}, about {eta} left";
            let bar = ProgressBar::new(total);
            bar.set_style(
                ProgressStyle::with_template(style)
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.set_message(what.to_owned());
            bar
        });
        let now = Instant::now();
        Self { bar, what: what.to_owned(), total, done: 0, start: now, said: now }
    }

    /// One step more.
    pub(crate) fn step(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done.min(self.total));
        } else if self.said.elapsed() >= LINE_EVERY {
            self.said = Instant::now();
            say(&format!(
                "{}: {}/{}, {}",
                self.what,
                self.done,
                self.total,
                seconds(self.start.elapsed())
            ));
        }
    }

    /// The bar goes; returns the steps that were made and the time they took.
    pub(crate) fn finish(self) -> (u64, Duration) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        (self.done, self.start.elapsed())
    }
}
