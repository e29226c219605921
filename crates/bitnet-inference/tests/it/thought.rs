//! Thoughts: where they end, and what a request's rule for them changes in the engine.

use std::sync::Arc;

use bitnet_hash_model::{HashModel, Oracle};
use bitnet_inference::{
    EngineConfig, FinishReason, GenerationConfig, InvalidRequest, Marker, Part, Request, RequestHandle,
    ThoughtBudget, ThoughtEnd, ThoughtRule, TokenText,
    sampling::{Draw, Sampler},
};
use bitnet_model::{Batch, Limits, Logits};
use proptest::prelude::*;

use crate::support::*;

fn marker(text: &str, token: Option<u32>) -> Marker {
    Marker { text: text.into(), token }
}

/// Thoughts between `<think>`, token 1, and `</think>`, token 2; token 3 begins a call.
fn think(open: bool) -> ThoughtRule {
    ThoughtRule {
        open,
        opening: marker("<think>", Some(1)),
        closing: marker("</think>", Some(2)),
        gap: "\n\n".into(),
        calls: vec![3],
        ..ThoughtRule::default()
    }
}

/// The thought, the answer, and the number of tokens in the thought.
fn split<'t>(open: bool, tokens: impl IntoIterator<Item = (u32, &'t str)>) -> (String, String, usize) {
    split_by(think(open), tokens)
}

fn split_by<'t>(
    rule: ThoughtRule,
    tokens: impl IntoIterator<Item = (u32, &'t str)>,
) -> (String, String, usize) {
    let (mut reader, mut parts) = (Arc::new(rule).reader(), [Vec::new(), Vec::new()]);
    let mut add =
        |part: Part, bytes: &[u8]| parts[usize::from(part == Part::Answer)].extend_from_slice(bytes);
    tokens.into_iter().for_each(|(token, text)| reader.push(Some(token), text.as_bytes(), &mut add));
    reader.finish(&mut add);
    let [thought, answer] = parts.map(|part| String::from_utf8(part).unwrap());
    (thought, answer, reader.tokens())
}

#[test]
fn a_text_is_split_at_the_first_end_marker() {
    let texts = [
        (true, "so</think>\n\nyes", "so", "yes"),
        (true, "\n so \n</think>\n\n\n yes ", "so", " yes "),
        (true, "never closed \n", "never closed", ""),
        (true, "cut in its marker</thi", "cut in its marker</thi", ""),
        (true, "</think>yes", "", "yes"),
        (true, "\n\n</think>\n\n", "", ""),
        (true, "a</think>b</think>c", "a", "b</think>c"),
        (true, "<think>\nagain</think>yes", "again", "yes"),
        (true, "1 < 2 </ 3 < /think></think>\nyes", "1 < 2 </ 3 < /think>", "yes"),
        (false, "<think>\nso</think>\n\nyes", "so", "yes"),
        (false, "\n<think>so\n", "so", ""),
        (false, "<think></think>", "", ""),
        (false, "<thin", "", "<thin"),
        (false, " \nyes <think>no</think>", "", " \nyes <think>no</think>"),
        (false, "", "", ""),
        (true, "", "", ""),
    ];
    for (open, text, thought, answer) in texts {
        let whole = split(open, [(9, text)]);
        assert_eq!((&*whole.0, &*whole.1), (thought, answer), "{text:?}");
        let bytes = split(open, (0..text.len()).map(|i| (9, &text[i..i + 1])));
        assert_eq!((&*bytes.0, &*bytes.1), (thought, answer), "{text:?} by characters");
    }
}

#[test]
fn markers_are_found_as_tokens_even_where_they_have_no_text() {
    let tokens = [(1, ""), (9, "so"), (2, ""), (9, "\n\n"), (9, "yes")];
    assert_eq!(split(false, tokens), ("so".into(), "yes".into(), 3));
    let spelt = [(9, "so"), (9, "</"), (9, "think>\n"), (9, "\nyes")];
    assert_eq!(split(true, spelt), ("so".into(), "yes".into(), 3));
}

#[test]
fn a_token_that_begins_a_call_ends_the_thought_and_its_text_does_not() {
    let call = [(9, "so <tool_call> no"), (3, "<tool_call>"), (9, "\n{")];
    assert_eq!(split(true, call), ("so <tool_call> no".into(), "<tool_call>\n{".into(), 1));
    let later = [(2, "</think>"), (3, "<tool_call>"), (9, "{"), (3, "<tool_call>")];
    assert_eq!(split(true, later), (String::new(), "<tool_call>{<tool_call>".into(), 1));
}

#[test]
fn a_token_at_the_beginning_of_a_line_opens_another_thought_until_there_is_a_call() {
    let again = |tokens: &[(u32, &'static str)]| {
        let (thought, answer, count) =
            split_by(ThoughtRule { again: true, ..think(false) }, tokens.iter().copied());
        (thought, answer, count)
    };
    let said = |thought: &str, answer: &str, count| (thought.to_owned(), answer.to_owned(), count);
    let (open, close) = ((1, "<think>"), (2, "</think>"));
    let two = [open, (9, "\nso"), close, (9, "\n\nyes\n"), open, (9, "\nbut\n"), close, (9, "\n\nno")];
    assert_eq!(again(&two), said("sobut", "yes\nno", 6));
    let first = [(9, "yes"), (9, "\n"), open, (9, "so"), close, (9, "no")];
    assert_eq!(again(&first), said("so", "yes\nno", 3));
    let at_once = [open, (9, "so"), close, (9, "\n"), open, (9, "but"), close, (9, "no")];
    assert_eq!(again(&at_once), said("sobut", "no", 6));
    // Text that only looks like a marker, one within a line, and one after a call are part of the answer.
    for tokens in [
        &[(9, "yes\n"), (9, "<think>"), (9, "no")][..],
        &[(9, "yes\n "), open, (9, "no")],
        &[(9, "yes\n"), (3, "<tool_call>"), (9, "\n"), open, (9, "no")],
    ] {
        let whole: String = tokens.iter().map(|(_, text)| *text).collect();
        assert_eq!(again(tokens), said("", &whole, 0));
    }
    assert_eq!(
        split_by(think(false), two).1,
        "yes\n<think>\nbut\n</think>\n\nno",
        "only where the rule says so"
    );
}

proptest! {
    #[test]
    fn a_text_is_split_in_the_same_way_however_it_is_cut(
        pieces in proptest::collection::vec(
            prop_oneof![Just("<think>"), Just("</think>"), Just("<"), Just("</thi"), Just("\n"), Just(" "), Just("é")],
            0..12,
        ),
        cuts in proptest::collection::vec(1usize..5, 90),
        open in any::<bool>(),
    ) {
        let text = pieces.concat();
        let (mut parts, mut at) = (Vec::new(), 0);
        for cut in cuts {
            let mut to = (at + cut).min(text.len());
            while !text.is_char_boundary(to) {
                to += 1;
            }
            parts.push((9, &text[at..to]));
            at = to;
        }
        let (thought, answer, _) = split(open, parts);
        let (whole_thought, whole_answer, _) = split(open, [(9, &*text)]);
        prop_assert_eq!((thought, answer), (whole_thought, whole_answer));
    }
}

/// The end marker of the texts below, which the token 12 spells, as do several pairs of tokens.
const CLOSE: &str = "bc";

fn spelled(tokens: &[u32]) -> String {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|&token| Letters.append_bytes(token, &mut bytes));
    String::from_utf8(bytes).unwrap()
}

fn rule(budget: usize, ending: &[u32]) -> Option<Arc<ThoughtRule>> {
    Some(Arc::new(ThoughtRule {
        open: true,
        closing: marker(CLOSE, Some(12)),
        budget: Some(ThoughtBudget { tokens: budget, ending: ending.to_vec() }),
        ..ThoughtRule::default()
    }))
}

/// What must follow these generated tokens, found from the text as a whole.
fn forced(rule: &ThoughtRule, generated: &[u32]) -> Option<u32> {
    let ThoughtBudget { tokens, ending } = rule.budget.as_ref()?;
    let ended = generated.len().checked_sub(*tokens)?;
    let closed = spelled(&generated[..*tokens]).contains(CLOSE);
    ending.get(ended).copied().filter(|_| !closed)
}

/// The tokens of a request alone. `next` chooses each from those generated before, and may draw it.
fn alone_by(
    mut oracle: Oracle,
    request: &Request,
    choice: u32,
    mut next: impl FnMut(&[u32], &mut dyn FnMut() -> u32) -> u32,
) -> Vec<u32> {
    let config = &request.config;
    let (mut row, mut sampler, mut tokens) = (vec![0.0; VOCAB], Sampler::new(VOCAB), request.prompt.clone());
    tokens.iter().for_each(|&t| oracle.push(t));
    let prompt_len = request.prompt.len() - request.generated;
    while tokens.len() < prompt_len + config.max_new_tokens {
        oracle.logits(&mut row);
        let at = Draw {
            config,
            tokens: &tokens,
            prompt_len,
            banned: &[],
            allowed: None,
            seed: config.seed.unwrap_or(0),
            choice,
        };
        let token = next(&tokens[prompt_len..], &mut || sampler.draw(&row, &at).unwrap());
        if token == EOS && !config.ignore_eos {
            break;
        }
        tokens.push(token);
        oracle.push(token);
    }
    tokens.split_off(prompt_len + request.generated)
}

/// As [`alone_with`], with thoughts.
fn alone_thinking(state_slots: usize, request: &Request, choice: u32) -> Vec<u32> {
    let rule = request.thought.as_ref().unwrap();
    let oracle = if state_slots > 0 { Oracle::recurrent() } else { Oracle::default() };
    alone_by(oracle, request, choice, |generated, draw| forced(rule, generated).unwrap_or_else(draw))
}

/// Requests with budgets, of which many texts repeat themselves, so that drafts are accepted.
fn thinking(count: usize, seed: u64) -> Vec<Request> {
    let mixed = mixed(count, seed).into_iter().enumerate();
    let request = |(i, (prompt, mut config)): (usize, (Vec<u32>, GenerationConfig))| {
        config.max_new_tokens += 20;
        config.n = 1 + i % 2;
        if i % 3 == 0 {
            config.temperature = 1.0;
            config.logit_bias = (1..4).map(|token| (token, 100.0)).collect();
        }
        if i % 5 == 0 {
            config.logprobs = Some(2);
        }
        Request { thought: rule(i % 20, &[40, 41, 12, 5][i % 3..]), ..Request::new(prompt, config) }
    };
    mixed.map(request).collect()
}

/// The tokens that close a thought before a call, which begins with a token from 20 on.
const BEFORE_CALL: [u32; 2] = [40, 12];

/// Requests in whose thoughts calls begin.
fn calling(count: usize, seed: u64) -> Vec<Request> {
    let mut requests = thinking(count, seed);
    for request in &mut requests {
        let end = ThoughtEnd {
            tail_tokens: BEFORE_CALL[..1].to_vec(),
            tokens: BEFORE_CALL[1..].to_vec(),
            ..ThoughtEnd::default()
        };
        let rule = rule(0, &[]).map(Arc::unwrap_or_clone).unwrap();
        let rule = ThoughtRule { calls: (20..30).collect(), before_call: Some(end), budget: None, ..rule };
        request.thought = Some(Arc::new(rule));
    }
    requests
}

/// As [`alone_thinking`], for a request of [`calling`]; also returns how many calls closed a thought.
fn alone_calling(request: &Request, choice: u32) -> (Vec<u32>, usize) {
    let (mut written, mut closed) = (Vec::new(), 0);
    let tokens = alone_by(Oracle::default(), request, choice, |generated, draw| {
        written.pop().unwrap_or_else(|| {
            let drawn = draw();
            let thinks = closed == 0 && !spelled(generated).contains(CLOSE);
            if !thinks || !(20..30).contains(&drawn) {
                return drawn;
            }
            (written, closed) = (vec![drawn, BEFORE_CALL[1]], 1);
            BEFORE_CALL[0]
        })
    });
    (tokens, closed)
}

#[test]
fn a_call_within_a_thought_closes_it_first_alone_and_in_a_batch_with_drafts_and_preemption() {
    let (mut closed, mut accepted, mut preempted) = (0, 0, 0);
    for (kv_blocks, max_draft) in [(64, 0), (9, 4), (64, 4)] {
        let (engine, _) =
            engine_with(Limits { kv_blocks, ..limits() }, EngineConfig { max_draft, ..config() });
        let requests: Vec<Request> = (5..9).flat_map(|seed| calling(60, seed)).collect();
        let handles = engine.submit_all(requests.clone()).unwrap();
        for (handle, request) in handles.into_iter().zip(&requests) {
            for (choice, got) in (0..).zip(handle.wait().unwrap().choices) {
                let (alone, calls) = alone_calling(request, choice);
                assert_eq!(got.tokens, alone, "{kv_blocks} blocks, {max_draft} drafts");
                assert_eq!(
                    got.logprobs.len(),
                    if request.config.logprobs.is_some() { alone.len() } else { 0 }
                );
                closed += calls;
            }
        }
        let counts = engine.status().scheduler;
        (accepted, preempted) = (accepted + counts.accepted, preempted + counts.preemptions);
    }
    // How often depends on how fast the machine is.
    assert!(closed > 30 && accepted > 0 && preempted > 0, "{closed} closed, {accepted} {preempted}");
}

#[test]
fn white_space_that_ends_a_thought_already_is_not_written_again_before_a_call() {
    let end = ThoughtEnd { tail: "\n".into(), tail_tokens: vec![8], tokens: vec![2, 9] };
    let rule = Arc::new(ThoughtRule { before_call: Some(end), ..think(true) });
    let closed = |thought: &str| {
        let mut reader = rule.reader();
        reader.push(Some(7), thought.as_bytes(), |_, _| {});
        (reader.closed_before(3), reader.closed_before(5))
    };
    assert_eq!(closed("so"), (Some(vec![8, 2, 9, 3]), None));
    assert_eq!(closed("so\n"), (Some(vec![2, 9, 3]), None));
    assert_eq!(closed("so</think>"), (None, None), "the thought has ended");
}

fn check(handle: RequestHandle, request: &Request, state_slots: usize, what: &str) -> usize {
    let choices = handle.wait().unwrap().choices;
    let mut cut = 0;
    for (choice, got) in (0..).zip(choices) {
        let alone = alone_thinking(state_slots, request, choice);
        assert_eq!(got.tokens, alone, "{what}");
        let rule = request.thought.as_ref().unwrap();
        let text = spelled(&alone);
        let thought = text.find(CLOSE).map_or(alone.len(), |at| (at + CLOSE.len()).div_ceil(2));
        assert_eq!(got.thought_tokens, thought, "{what}: {text}");
        assert_eq!(got.logprobs.len(), if request.config.logprobs.is_some() { alone.len() } else { 0 });
        cut += (0..alone.len()).filter(|&n| forced(rule, &alone[..n]).is_some()).count();
    }
    cut
}

#[test]
fn a_budget_gives_the_same_tokens_alone_and_in_a_batch_with_drafts_preemption_and_choices() {
    let (mut cut, mut accepted, mut preempted) = (0, 0, 0);
    for (state_slots, kv_blocks, max_draft) in [(0, 64, 0), (0, 9, 4), (24, 64, 4), (16, 9, 0), (24, 9, 2)] {
        let limits = Limits { state_slots, kv_blocks, ..limits() };
        let (engine, _) = engine_with(limits, EngineConfig { max_draft, ..config() });
        let requests: Vec<Request> = (5..8).flat_map(|seed| thinking(40, seed)).collect();
        let handles = engine.submit_all(requests.clone()).unwrap();
        for (handle, request) in handles.into_iter().zip(&requests) {
            let what = format!("{state_slots} slots, {kv_blocks} blocks, {max_draft} drafts");
            cut += check(handle, request, state_slots, &what);
        }
        let counts = engine.status().scheduler;
        (accepted, preempted) = (accepted + counts.accepted, preempted + counts.preemptions);
    }
    assert!(cut > 100 && accepted > 10 && preempted > 10, "{cut} forced, {accepted} {preempted}");
}

#[test]
fn a_text_that_another_engine_has_begun_goes_on_in_the_same_way_from_any_token() {
    let (engine, _) = engine(config());
    let mut requests = thinking(12, 8);
    for request in &mut requests {
        (request.config.n, request.config.logprobs) = (1, None);
        let whole = alone_thinking(0, request, 0);
        let begun = |n: usize| {
            let prompt = [&request.prompt[..], &whole[..n]].concat();
            let config = GenerationConfig { n: 1, ..request.config.clone() };
            Request { generated: n, prompt, config, ..request.clone() }
        };
        let begun = (0..whole.len()).map(begun).collect();
        for (n, handle) in engine.submit_all(begun).unwrap().into_iter().enumerate() {
            assert_eq!(handle.wait().unwrap().choices[0].tokens, whole[n..], "{n} tokens of {whole:?}");
        }
    }
}

#[test]
fn forced_tokens_are_not_drawn_but_count() {
    let (engine, _) = engine(config());
    let request = Request { thought: rule(0, &[40, 41, 12]), ..Request::new([3, 4], greedy(8)) };
    let done = engine.submit(request).unwrap().wait().unwrap().choices.remove(0);
    assert_eq!((&done.tokens[..3], done.tokens.len()), (&[40, 41, 12][..], 8));
    assert_eq!((done.finish, done.thought_tokens), (FinishReason::Length, 3));
    assert_eq!(engine.status().draws.host + engine.status().draws.device, 5);
    let request = Request { thought: rule(0, &[40, 41, 12]), ..Request::new([3, 4], greedy(2)) };
    let done = engine.submit(request).unwrap().wait().unwrap().choices.remove(0);
    assert_eq!((done.tokens, done.finish), (vec![40, 41], FinishReason::Length));
}

#[test]
fn stop_strings_apply_to_the_answer_only() {
    let (engine, _) = engine(EngineConfig { max_draft: 3, ..config() });
    let mut stopped = 0;
    for (i, mut request) in thinking(60, 11).into_iter().enumerate() {
        request.config.n = 1;
        request.config.ignore_eos = true;
        let whole = alone_thinking(0, &request, 0);
        let text = spelled(&whole);
        let answer = text.find(CLOSE).map_or(text.len(), |at| at + CLOSE.len());
        // Strings that occur in the thought, at the border, and in the answer.
        let at = (answer + 2 * (i % 5)).saturating_sub(4).min(text.len().saturating_sub(3));
        let Some(stop) = text.get(at..at + 3) else { continue };
        request.config.stop_strings = vec![stop.to_owned()];
        let found = text[answer..].find(stop).map(|at| answer + at);
        let done = engine.submit(request).unwrap().wait().unwrap().choices.remove(0);
        let seen = spelled(&done.tokens) + str::from_utf8(&done.tail).unwrap();
        assert_eq!(seen, text[..found.unwrap_or(text.len())], "{stop} in {text}");
        assert_eq!(done.finish == FinishReason::StopString(0), found.is_some());
        stopped += usize::from(found.is_some());
    }
    assert!(stopped > 10, "{stopped} stopped");
}

/// Token `t` is byte `t + 0xA0`: a byte after the first of a character, except for the tokens from 0x30 on.
struct Bytes;

impl TokenText for Bytes {
    fn append_bytes(&self, token: u32, out: &mut Vec<u8>) {
        out.push(token as u8 + 0xA0 + if token >= 0x30 { 0x20 } else { 0 });
    }
}

/// An engine whose model writes these tokens.
fn scripted(script: &'static [u32], text: impl TokenText + 'static) -> bitnet_inference::Engine {
    let mut ends = Vec::new();
    let hook = move |batch: &Batch, logits: Option<&mut Logits>| {
        match logits {
            None => {
                ends.clear();
                ends.extend(batch.runs().iter().map(|run| run.start + run.tokens.len()));
            }
            Some(logits) => {
                for (row, &end) in ends.iter().enumerate() {
                    let row = logits.row_mut(row);
                    row.fill(0.0);
                    row[script[(end - 1).min(script.len() - 1)] as usize] = 9.0;
                }
            }
        }
        Ok(())
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    bitnet_inference::Engine::start(model, EngineConfig { text: Some(Arc::new(text)), ..config() }).unwrap()
}

#[test]
fn a_budget_waits_for_the_end_of_a_character_but_not_for_ever() {
    // 0xF0 with three more bytes; then first bytes only, which never become a character.
    for (script, drawn) in [(&[0x30, 1, 1, 1, 1][..], 4), (&[0x30], 4), (&[1], 1)] {
        let engine = scripted(script, Bytes);
        let closing = marker("", Some(9));
        let budget = Some(ThoughtBudget { tokens: 1, ending: vec![9] });
        let rule = ThoughtRule { open: true, closing, budget, ..ThoughtRule::default() };
        let request = Request { thought: Some(Arc::new(rule)), ..Request::new([0], greedy(8)) };
        let tokens = engine.submit(request).unwrap().wait().unwrap().choices.remove(0).tokens;
        assert_eq!(tokens.iter().position(|&token| token == 9), Some(drawn), "{tokens:?}");
    }
}

#[test]
fn a_rule_that_cannot_hold_is_refused_by_name() {
    let engine = engine(EngineConfig { text: None, ..config() }).0;
    let refused = |rule: ThoughtRule| {
        let request = Request { thought: Some(Arc::new(rule)), ..Request::new([1], greedy(4)) };
        engine.validate(&request).unwrap_err()
    };
    let with = |ending: &[u32]| ThoughtRule {
        open: true,
        closing: marker("", Some(2)),
        budget: Some(ThoughtBudget { tokens: 3, ending: ending.to_vec() }),
        ..ThoughtRule::default()
    };
    assert_eq!(refused(with(&[])), InvalidRequest::NoEnding);
    assert_eq!(refused(with(&[2, 50])), InvalidRequest::UnknownEnding { token: 50, vocab: VOCAB });
    let end = ThoughtEnd { tail_tokens: vec![50], ..ThoughtEnd::default() };
    let before_call = ThoughtRule { before_call: Some(end), ..with(&[2]) };
    assert_eq!(refused(before_call), InvalidRequest::UnknownEnding { token: 50, vocab: VOCAB });
    let spelt = ThoughtRule { closing: marker("</think>", None), ..with(&[2]) };
    assert_eq!(refused(spelt), InvalidRequest::NoTextOfMarkers);
}
