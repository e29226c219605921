//! The clients' records, compared with what the server counts for the same requests.

use std::collections::BTreeMap;

use super::{answer::Answer, mix::Ask, server::Metrics};

/// Maximum number of problems that are kept in full.
const SHOWN: usize = 20;

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// The whole answer was read.
    Complete,
    /// The whole answer was read, in two parts from two requests.
    Resumed,
    /// The client left in the middle of a stream.
    Left,
    /// The client hung up before any answer, so its outcome on the server is unknown.
    Gone,
    /// The client hung up before it had sent the whole request.
    NotSent,
    /// 429 with this code, or a timeout while it was queued.
    Refused(String),
    /// 400, as expected for an invalid request.
    Invalid,
    /// Something that must not happen.
    Wrong(String),
}

/// A client's record of a request.
#[derive(Debug)]
pub(super) struct Entry {
    pub kind: &'static str,
    interactive: bool,
    pub outcome: Outcome,
    /// Seconds to the first token of a stream that has a goal.
    pub first: Option<f64>,
    pub prompt_tokens: u64,
    /// Tokens that were read.
    pub tokens: u64,
    /// Tokens that may have been generated but were not read.
    unread: u64,
    /// Prompt tokens and tokens read of the request that this one resumes.
    pub earlier: (u64, u64),
    /// Last event of the stream that is resumed.
    pub last_event: String,
    /// Codes of refusals of its other requests.
    pub refusals: Vec<String>,
    pub answer: Option<Answer>,
}

impl Entry {
    pub fn new(ask: &Ask) -> Self {
        Entry {
            kind: ask.kind,
            interactive: ask.body["priority"] == "interactive",
            outcome: Outcome::Gone,
            first: None,
            prompt_tokens: ask.prompt_tokens.unwrap_or(0) as u64,
            tokens: 0,
            unread: (ask.choices * ask.max_tokens()) as u64,
            earlier: (0, 0),
            last_event: String::new(),
            refusals: Vec::new(),
            answer: None,
        }
    }

    /// Records that the client reads no further.
    pub fn leave(&mut self, ask: &Ask, read: &Answer) {
        self.tokens = read.tokens;
        self.unread = ((ask.choices * ask.max_tokens()) as u64).saturating_sub(read.tokens);
    }
}

/// Sums over entries.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Number of requests by kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Requests that the server answered with 200, whether completed or not.
    pub complete: u64,
    pub resumed: u64,
    /// Whole answers that a deadline cut short; the server counts them as timeouts.
    cut: u64,
    pub left: u64,
    pub gone: u64,
    not_sent: u64,
    invalid: u64,
    pub refused: BTreeMap<String, u64>,
    /// Seconds to the first token of each stream that has a goal, and whether it is interactive, in order of
    /// completion.
    pub first: Vec<(f64, bool)>,
    /// Tokens of whole answers.
    pub answered_tokens: u64,
    prompt_tokens: u64,
    tokens: u64,
    unread: u64,
    /// Prompt tokens of requests that may not have been accepted.
    possible_prompt_tokens: u64,
    wrong: u64,
    pub problems: Vec<String>,
}

impl Ledger {
    /// Number of requests sent, including those after a refusal or a hang-up.
    pub fn sent(&self) -> u64 {
        self.known() + self.gone + self.not_sent + self.invalid + self.wrong
    }

    /// Number of requests that the server must have counted as answered, left or refused.
    fn known(&self) -> u64 {
        self.complete + 2 * self.resumed + self.left + self.refused.values().sum::<u64>()
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: &Entry) {
        *self.kinds.entry(entry.kind).or_default() += 1;
        for code in &entry.refusals {
            *self.refused.entry(code.clone()).or_default() += 1;
            // A request that timed out may have begun.
            if code == "deadline" {
                self.possible_prompt_tokens += entry.prompt_tokens;
                self.unread += entry.tokens + entry.unread;
            }
        }
        self.first.extend(entry.first.map(|seconds| (seconds, entry.interactive)));
        match &entry.outcome {
            Outcome::Complete | Outcome::Resumed => {
                let resumed = entry.outcome == Outcome::Resumed;
                self.complete += u64::from(!resumed);
                self.resumed += u64::from(resumed);
                self.cut += u64::from(entry.answer.as_ref().is_some_and(Answer::is_cut));
                self.answered_tokens += entry.tokens;
                self.prompt_tokens += entry.prompt_tokens + entry.earlier.0;
                self.tokens += entry.tokens + entry.earlier.1;
                // The first of the two requests may have run to its end unread, and the second computed everything
                // again.
                self.unread += if resumed { entry.unread } else { 0 };
            }
            Outcome::Left => {
                self.left += 1;
                self.prompt_tokens += entry.prompt_tokens;
                self.tokens += entry.tokens;
                self.unread += entry.unread;
            }
            Outcome::Gone => {
                self.gone += 1;
                self.unread += entry.unread;
                self.possible_prompt_tokens += entry.prompt_tokens;
            }
            Outcome::NotSent => self.not_sent += 1,
            Outcome::Invalid => self.invalid += 1,
            Outcome::Refused(code) => {
                *self.refused.entry(code.clone()).or_default() += 1;
                // A request that timed out may have begun.
                if code == "deadline" {
                    self.possible_prompt_tokens += entry.prompt_tokens;
                    self.tokens += entry.tokens;
                    self.unread += entry.unread;
                }
            }
            Outcome::Wrong(problem) => {
                self.wrong += 1;
                self.fault(problem.clone());
            }
        }
    }

    /// Records a problem.
    pub fn fault(&mut self, problem: String) {
        if self.problems.len() < SHOWN {
            self.problems.push(problem);
        } else if self.problems.len() == SHOWN {
            self.problems.push("and more".into());
        }
    }

    /// Compares the counters of a server with the records of all its clients.
    pub fn reconcile(&mut self, metrics: &Metrics) {
        let counted = |name: &str, label: &str| metrics.sum(name, label);
        let ended = "bitnet_requests_total";
        let rejected = "bitnet_requests_rejected_total";
        let known = self.known();
        let late = self.refused.get("deadline").copied().unwrap_or(0);
        let loose = self.left + self.resumed + self.gone + late;
        let mut rows = vec![
            ("requests ended or rejected", counted(ended, "") + counted(rejected, ""), known, self.gone),
            ("requests complete", counted(ended, "complete"), self.complete + self.resumed - self.cut, loose),
            ("requests whose time was over", counted(ended, "timeout"), self.cut, loose),
            (
                "prompt tokens",
                counted("bitnet_prompt_tokens_total", ""),
                self.prompt_tokens,
                self.possible_prompt_tokens,
            ),
            ("tokens generated", counted("bitnet_generation_tokens_total", ""), self.tokens, self.unread),
        ];
        for (code, &count) in self.refused.iter().filter(|(code, _)| *code != "deadline") {
            rows.push((code, counted(rejected, code), count, self.gone));
        }
        for name in [
            "bitnet_row_faults_total",
            "bitnet_step_faults_total",
            "bitnet_engine_restarts_total",
            "bitnet_invariant_violations_total",
            "bitnet_requests_running",
            "bitnet_requests_waiting",
            "bitnet_kv_blocks_used",
        ] {
            rows.push((name, counted(name, ""), 0, 0));
        }
        let wrong = rows
            .into_iter()
            .filter(|&(_, told, least, slack)| told < least as f64 || told > (least + slack) as f64);
        let told: Vec<String> = wrong
            .map(|(what, told, least, slack)| {
                format!("the server counts {told} {what}; the clients recorded {least} to {}", least + slack)
            })
            .collect();
        told.into_iter().for_each(|problem| self.fault(problem));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::ask;

    fn entry(outcome: Outcome, tokens: u64) -> Entry {
        Entry { outcome, tokens, prompt_tokens: 5, ..Entry::new(&ask(0)) }
    }

    fn problems(told: &str, entries: &[Entry]) -> Vec<String> {
        let mut ledger = Ledger::default();
        entries.iter().for_each(|entry| ledger.add(entry));
        ledger.reconcile(&Metrics::parse(told));
        ledger.problems
    }

    #[test]
    fn a_count_that_differs_from_the_books_is_found() {
        let told = "bitnet_requests_total{class=\"normal\",reason=\"complete\"} 2\n\
                    bitnet_requests_rejected_total{reason=\"queue_full\"} 1\n\
                    bitnet_prompt_tokens_total 10\nbitnet_generation_tokens_total 15\n";
        let entries = [
            entry(Outcome::Complete, 7),
            entry(Outcome::Complete, 8),
            entry(Outcome::Refused("queue_full".into()), 0),
        ];
        assert_eq!(problems(told, &entries), [""; 0]);
        for (right, wrong) in [
            ("\"complete\"} 2", "\"complete\"} 3"),
            ("\"queue_full\"} 1", "\"queue_full\"} 0"),
            ("\"queue_full\"} 1", "\"overloaded\"} 1"),
            ("_tokens_total 10", "_tokens_total 11"),
            ("_tokens_total 15", "_tokens_total 14"),
            ("_tokens_total 15\n", "_tokens_total 15\nbitnet_kv_blocks_used 1\n"),
            ("_tokens_total 15\n", "_tokens_total 15\nbitnet_row_faults_total{kind=\"panic\"} 1\n"),
        ] {
            let found = problems(&told.replace(right, wrong), &entries);
            assert!(told.contains(right) && !found.is_empty(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_that_its_deadline_cut_short_is_counted_as_a_timeout() {
        let told = |complete: u8, timeout: u8, cancelled: u8| {
            let ended = |reason, count| format!("bitnet_requests_total{{reason=\"{reason}\"}} {count}\n");
            let tokens = "bitnet_prompt_tokens_total 10\nbitnet_generation_tokens_total 15\n";
            ended("complete", complete) + &ended("timeout", timeout) + &ended("cancelled", cancelled) + tokens
        };
        let mut cut = Answer::new(2);
        cut.choices[1].cut = true;
        let entries =
            [entry(Outcome::Complete, 7), Entry { answer: Some(cut), ..entry(Outcome::Complete, 8) }];
        assert_eq!(problems(&told(1, 1, 0), &entries), [""; 0]);
        for (complete, timeout, cancelled) in [(2, 0, 0), (1, 0, 1), (1, 2, 0)] {
            assert!(!problems(&told(complete, timeout, cancelled), &entries).is_empty());
        }
    }

    #[test]
    fn a_stream_whose_second_part_timed_out_may_have_run_twice() {
        let left = Entry { refusals: vec!["deadline".into()], unread: 13, ..entry(Outcome::Left, 7) };
        let told = |ended: u8, prompts: u8, tokens: u8| {
            format!(
                "bitnet_requests_total{{reason=\"timeout\"}} {ended}\nbitnet_prompt_tokens_total {prompts}\n\
                 bitnet_generation_tokens_total {tokens}\n"
            )
        };
        let entries = [left];
        for (ended, prompts, tokens) in [(2, 10, 40), (2, 5, 7)] {
            assert_eq!(problems(&told(ended, prompts, tokens), &entries), [""; 0]);
        }
        for (ended, prompts, tokens) in [(1, 10, 40), (2, 11, 40), (2, 10, 41), (2, 10, 6)] {
            assert!(!problems(&told(ended, prompts, tokens), &entries).is_empty());
        }
    }
}
