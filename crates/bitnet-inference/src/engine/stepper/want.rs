//! Asks for tokens that are drawn after penalties, biases, bans or a constraint have changed their logits, so that the
//! backend can draw them without computing all logits.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bitnet_kernels::{SamplingParams, draw::MAX_CHANGES};

use super::Stepper;
use crate::schedule::{Scheduler, Sequence, VOCAB_LIMIT, closing, drawn_after_changes};

impl Stepper<'_> {
    /// Asks for the token after the first `len` tokens of a sequence, a row of the last run, with the changes of its
    /// logits, unless they are too many. If the row cannot be `reached`, because its constraint forbids an earlier draft,
    /// it needs no logits. Returns whether the next row can be.
    pub(super) fn want_changed(
        &mut self,
        scheduler: &Scheduler,
        s: &Sequence,
        len: usize,
        row: usize,
        reached: bool,
    ) -> bool {
        let draft = s.tokens.get(len).copied();
        let goes_on = |token| draft.is_none_or(|draft| draft == token);
        if let Some(token) = closing(s, len) {
            return reached && goes_on(token);
        }
        let Some(params) = drawn_after_changes(s, len) else { return reached };
        // Nobody looks at the token of a row that is not reached.
        let certain = if reached { s.forced.get(len - s.confirmed()).copied() } else { Some(0) };
        if let Some(token) = certain {
            self.allowed.clear();
            self.allowed.insert(token);
            self.batch.want_changed(row, SamplingParams::GREEDY, &[], Some(self.allowed.words()));
            return reached && goes_on(token);
        }
        // A request at fault gets all logits, and fails alone when its token is drawn.
        let listed = catch_unwind(AssertUnwindSafe(|| self.list_changes(scheduler, s, len)));
        let listed = listed.unwrap_or(false);
        let constrained = s.request.constraint.is_some();
        let fits = self.changes.last().len() <= MAX_CHANGES && self.model.spec().vocab < VOCAB_LIMIT;
        if listed && fits {
            let mask = constrained.then(|| self.allowed.words());
            self.batch.want_changed(row, params, self.changes.last(), mask);
        }
        let may_follow = |draft| listed && self.allowed.contains(draft) && !scheduler.ends(s, draft);
        !constrained || draft.is_none_or(may_follow)
    }

    /// Lists the tokens that the constraint of a sequence allows after its first `len` tokens, and the changes of their
    /// logits; false if the constraint has no answer.
    fn list_changes(&mut self, scheduler: &Scheduler, s: &Sequence, len: usize) -> bool {
        self.ban(scheduler, s, len);
        self.changes.of(&s.request.config, &s.tokens[..len], s.prompt_len(), &self.banned);
        let Some(constraint) = &s.request.constraint else { return true };
        self.allowed.clear();
        let answer = constraint.allow(s.id.choice, &s.tokens[s.prompt_len()..len], &mut self.allowed);
        self.changes.keep_only(&self.allowed);
        answer.is_ok()
    }
}
