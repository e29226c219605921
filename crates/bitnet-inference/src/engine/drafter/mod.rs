//! Drafters: what guesses the next tokens of texts by other means than the texts themselves.
//! [`Drafter`] is the seam; `head.rs` and `model.rs` are behind it.

mod head;
mod model;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bitnet_kernels::{Drawn, Wanted};
use bitnet_model::{Batch, ForwardError, Logits, Model};

pub use head::HeadDrafter;
pub use model::{DraftModelError, ModelDrafter};

use crate::request::TokenSet;
use crate::sample::{Draw, Sampler};
use crate::schedule::{Plan, PlannedRun, Scheduler, SeqId, Source, bans, needed};

/// Guesses the next tokens of the sequences of a step, between its plan and its forward pass.
///
/// A guess is kept only if the sampler draws the same token, so a drafter cannot change a text. It may be wrong, guess
/// less than it is asked for, fail or panic: only the speed changes.
pub trait Drafter: Send {
    /// Drafts for the runs of a step that are asked for some, after [`Drafter::read`] has seen all earlier ones.
    ///
    /// # Errors
    /// If it cannot. The drafts made so far are used.
    fn draft(&mut self, body: &mut dyn Model, asked: &mut Drafting<'_>) -> Result<(), ForwardError>;

    /// Reads runs that the model has just computed in one pass, the last one before this call.
    ///
    /// # Errors
    /// If it cannot, which counts as a failure to draft.
    fn read(
        &mut self,
        body: &mut dyn Model,
        scheduler: &Scheduler,
        runs: &[PlannedRun],
    ) -> Result<(), ForwardError> {
        let _ = (body, scheduler, runs);
        Ok(())
    }

    /// Copies what it keeps for a block of the cache to another one, as the model does with keys and values.
    ///
    /// # Errors
    /// As [`Drafter::read`].
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        let _ = (from, to);
        Ok(())
    }
}

/// A run of a step that decodes a sequence, and the drafts made for it so far.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Index of the run in the plan.
    run: usize,
    /// The place that the sequence keeps as long as it lives; smaller than the number of sequences.
    pub slot: usize,
    /// The sequence.
    pub id: SeqId,
    /// Number of tokens of the text. The last of them has not been computed yet.
    pub len: usize,
    /// Maximum number of drafts; 0 for a sequence that decodes without.
    pub depth: usize,
    /// Number of drafts made so far.
    pub made: usize,
}

/// The runs that a drafter is asked about, and the means to draft for them.
pub struct Drafting<'a> {
    scheduler: &'a mut Scheduler,
    plan: &'a mut Plan,
    runs: Vec<Asked>,
    /// The drafts, `[runs][deepest]`.
    drafts: Vec<u32>,
    deepest: usize,
    vocab: usize,
    /// The text of a sequence with its drafts.
    text: Vec<u32>,
    row: Vec<f32>,
    sampler: &'a mut Sampler,
    banned: Vec<u32>,
    allowed: &'a mut TokenSet,
}

impl fmt::Debug for Drafting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drafting").field("runs", &self.runs).finish_non_exhaustive()
    }
}

impl<'a> Drafting<'a> {
    pub(super) fn new(
        scheduler: &'a mut Scheduler,
        plan: &'a mut Plan,
        vocab: usize,
        sampler: &'a mut Sampler,
        allowed: &'a mut TokenSet,
    ) -> Self {
        let asked = |(run, planned): (usize, &PlannedRun)| {
            let s = scheduler.sequence(planned);
            let drafter = planned.drafts > 0 && planned.source == Source::Drafter;
            let depth = if drafter { planned.drafts } else { 0 };
            let decodes = planned.start + 1 == s.confirmed() && s.draws;
            let slot = planned.slot as usize;
            decodes.then(|| Asked { run, slot, id: s.id, len: s.confirmed(), depth, made: 0 })
        };
        let runs: Vec<Asked> = plan.runs.iter().enumerate().filter_map(asked).collect();
        let deepest = runs.iter().map(|asked| asked.depth).max().unwrap_or(0);
        let drafts = vec![0; runs.len() * deepest];
        let (text, row, banned) = (Vec::new(), Vec::new(), Vec::new());
        Drafting { scheduler, plan, runs, drafts, deepest, vocab, text, row, sampler, banned, allowed }
    }

    /// The runs of the step that decode.
    pub fn runs(&self) -> &[Asked] {
        &self.runs
    }

    /// The text of a run's sequence, without drafts.
    pub fn text(&self, at: usize) -> &[u32] {
        let s = self.scheduler.sequence(&self.plan.runs[self.runs[at].run]);
        &s.tokens[..s.confirmed()]
    }

    /// The block table of a run's sequence, which covers its text and its drafts.
    pub fn table(&self, at: usize) -> &[u32] {
        &self.scheduler.sequence(&self.plan.runs[self.runs[at].run]).table
    }

    /// The drafts of a run so far.
    pub fn drafts(&self, at: usize) -> &[u32] {
        &self.drafts[at * self.deepest..][..self.runs[at].made]
    }

    /// Adds a draft to a run; returns false if the run takes no more, or there is no such token.
    pub fn push(&mut self, at: usize, token: u32) -> bool {
        let asked = &mut self.runs[at];
        let takes = asked.made < asked.depth && (token as usize) < self.vocab;
        if takes {
            self.drafts[at * self.deepest + asked.made] = token;
            asked.made += 1;
        }
        takes
    }

    /// What is needed of the logits that follow a run's drafts, to draw the next one.
    pub fn wanted(&self, at: usize) -> Wanted {
        let s = self.scheduler.sequence(&self.plan.runs[self.runs[at].run]);
        let Asked { len, made, .. } = self.runs[at];
        needed(s, len + made, self.vocab, self.scheduler.eos())
    }

    /// Draws the next draft of a run from a row of a drafter's logits, with the random number with which the sampler
    /// draws the token in its place: if the drafter were the model, it would be the same. Returns it unless the run
    /// takes no more.
    ///
    /// No draft follows one that ends the text.
    pub fn draw(&mut self, at: usize, logits: &Logits, row: usize) -> Option<u32> {
        let s = self.scheduler.sequence(&self.plan.runs[self.runs[at].run]);
        if self.drafts(at).last().is_some_and(|&draft| self.scheduler.ends(s, draft)) {
            return None;
        }
        let token = match logits.drawn(row) {
            Some(Drawn::Token(token)) => token,
            Some(_) => return None,
            None => match catch_unwind(AssertUnwindSafe(|| self.draw_on_host(at, logits.row(row)))) {
                Ok(token) => token?,
                // A constraint that panics fails its own request when the token is drawn.
                Err(_) => {
                    *self.sampler = Sampler::new(self.vocab);
                    return None;
                }
            },
        };
        self.push(at, token).then_some(token)
    }

    /// Draws the next draft of every run in `wanting`, from the row of a drafter's logits at its place there, and keeps
    /// those in it that need another one. The draft of each of these is put into `batch`, as many positions before its
    /// place in the text as `back` says, and `kept` gets the place of its row.
    fn go_on(
        &mut self,
        wanting: &mut Vec<usize>,
        logits: &Logits,
        batch: &mut Batch,
        back: usize,
        mut kept: impl FnMut(usize),
    ) {
        let mut rows = 0..;
        wanting.retain(|&at| {
            let run = self.runs[at];
            let row = rows.next().expect("there is no last number");
            let token = self.draw(at, logits, row).filter(|_| run.made + 1 < run.depth);
            if let Some(token) = token {
                let position = run.len + run.made - back;
                let table = &self.table(at)[..(position + 1).div_ceil(Batch::BLOCK_TOKENS)];
                batch.push(&[token], position, table, 0..1);
                batch.want(|_| self.wanted(at));
                kept(row);
            }
            token.is_some()
        });
    }

    fn draw_on_host(&mut self, at: usize, row: &[f32]) -> Option<u32> {
        let Drafting { scheduler, plan, runs, text, banned, .. } = self;
        let Asked { run, len, made, .. } = runs[at];
        let s = scheduler.sequence(&plan.runs[run]);
        let config = &s.request.config;
        text.clear();
        text.extend_from_slice(&s.tokens[..len]);
        text.extend_from_slice(&self.drafts[at * self.deepest..][..made]);
        banned.clear();
        banned.extend(bans(s, text.len(), scheduler.eos()));
        let constraint = s.request.constraint.as_ref();
        if let Some(constraint) = constraint {
            self.allowed.clear();
            constraint.allow(s.id.choice, &text[s.prompt_len()..], self.allowed).ok()?;
        }
        let draw = Draw {
            config,
            tokens: text,
            prompt_len: s.prompt_len(),
            banned,
            allowed: constraint.map(|_| &*self.allowed),
            seed: s.seed,
            choice: s.id.choice,
        };
        if row.len() == self.vocab {
            return self.sampler.draw(row, &draw).ok();
        }
        // The smaller model has fewer or more rows of padding.
        self.row.clear();
        self.row.extend_from_slice(&row[..row.len().min(self.vocab)]);
        self.row.resize(self.vocab, f32::NEG_INFINITY);
        self.sampler.draw(&self.row, &draw).ok()
    }

    /// Puts the drafts into the plan in place of its placeholders.
    pub(super) fn finish(self) {
        let Drafting { scheduler, plan, runs, drafts, deepest, .. } = self;
        for (at, asked) in runs.iter().enumerate().filter(|(_, asked)| asked.depth > 0) {
            scheduler.set_drafts(&mut plan.runs[asked.run], &drafts[at * deepest..][..asked.made]);
            let missing = asked.depth - asked.made;
            plan.load.drafts -= missing;
            plan.load.drafted -= missing;
        }
    }
}
