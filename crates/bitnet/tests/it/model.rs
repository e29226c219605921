//! The API that Rust users see first.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use bitnet::{
    Answer, Constraint, Error, FinishReason, Memory, Message, Model, Piece, Request, Stream, TokenSet,
    inference::{ConstraintError, EngineConfig, metrics::Counter},
};

fn demo() -> Model {
    Model::builder().threads(2).open("demo").unwrap()
}

fn verse(seed: u64) -> Request {
    Request::new("First Citizen:").max_tokens(24).temperature(0.9).seed(seed)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal executor.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn all_forms_give_the_same_text() {
    let model = demo();
    let whole = model.complete(verse(3)).unwrap();
    assert_eq!((whole.tokens.len(), whole.seed, whole.finish), (24, 3, FinishReason::Length));
    assert_eq!(model.tokenizer().unwrap().decode(&whole.tokens, true).unwrap(), whole.text);

    let pieces: Result<Vec<Piece>, Error> = model.stream(verse(3)).unwrap().collect();
    let pieces: Vec<String> = pieces.unwrap().iter().map(ToString::to_string).collect();
    assert!(pieces.len() > 12 && pieces.concat() == whole.text, "{pieces:?}");
    let mut stream = model.stream(verse(3)).unwrap();
    let first = stream.next().unwrap().unwrap();
    assert!(whole.text.starts_with(first.text()) && whole.thought.is_empty());
    assert_eq!(stream.answer().unwrap(), whole, "pieces that were taken are part of the answer");

    assert_eq!(block_on(model.complete_async(verse(3))).unwrap(), whole);
    let text = block_on(async {
        let (mut stream, mut text) = (model.stream_async(verse(3)).await.unwrap(), String::new());
        while let Some(piece) = std::future::poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)).await {
            text.push_str(piece.unwrap().text());
        }
        text
    });
    assert_eq!(text, whole.text);
}

#[test]
fn a_batch_gives_each_request_what_it_gets_alone_and_each_its_own_error() {
    let model = demo();
    let mut requests: Vec<Request> = (0..12).map(verse).collect();
    requests.insert(5, Request::new("O").max_tokens(4).logprobs(9999));
    requests.insert(9, Request::tokens([1 << 30]));
    let alone: Vec<Result<Answer, Error>> = requests.iter().map(|r| model.complete(r)).collect();
    let text = |results: Vec<Result<Answer, Error>>| -> Vec<Result<Answer, String>> {
        results.into_iter().map(|result| result.map_err(|error| error.to_string())).collect()
    };
    let want = text(alone);
    assert_eq!(want.iter().filter(|r| r.is_err()).count(), 2);
    assert_eq!(text(model.batch(&requests)), want);
    assert_eq!(text(block_on(model.batch_async(&requests))), want);
}

#[test]
fn an_answer_has_the_log_probability_of_each_token_if_asked() {
    let model = demo();
    let answer = model.complete(verse(3).logprobs(2)).unwrap();
    assert_eq!(answer.logprobs.len(), answer.tokens.len());
    assert!(answer.logprobs.iter().all(|token| token.logprob <= 0.0 && token.top.len() == 2));
    assert_eq!(model.complete(verse(3)).unwrap().logprobs, []);
}

#[test]
fn a_request_takes_every_setting_of_a_text() {
    let model = demo();
    let plain = model.complete(Request::new("O").max_tokens(6).temperature(0.0)).unwrap();
    let bias = |token: u32, value: f32| {
        Request::new("O").max_tokens(6).temperature(0.0).logit_bias([(token, value)])
    };
    let first = plain.tokens[0];
    assert_ne!(model.complete(bias(first, -100.0)).unwrap().tokens[0], first);
    let biased = || bias(first, 20.0);
    assert_eq!(model.complete(biased()).unwrap().tokens, [first; 6]);
    for penalized in [biased().presence_penalty(100.0), biased().frequency_penalty(100.0)] {
        assert_ne!(model.complete(penalized).unwrap().tokens, [first; 6]);
    }
    // A factor below 1 favours tokens of the prompt.
    let repeating = Request::new("O").max_tokens(6).temperature(0.0).repetition_penalty(0.01);
    assert_ne!(model.complete(repeating).unwrap().tokens, plain.tokens);
    assert!(model.complete(biased().stop_tokens([first])).unwrap().tokens.is_empty());
    assert_eq!(model.complete(biased().stop_tokens([first]).min_tokens(1)).unwrap().tokens.len(), 1);
    let likely = Request::new("O").max_tokens(6).temperature(100.0).min_p(1.0).seed(5);
    assert_eq!(model.complete(likely).unwrap().tokens, plain.tokens);
}

#[test]
fn an_end_token_ends_a_text_by_default() {
    let model = demo();
    let eos = model.checkpoint().spec.eos.clone();
    assert!(!eos.is_empty());
    // The bias makes every token the end token.
    let end = Request::new("O").max_tokens(9).logit_bias([(eos[0], 100.0)]);
    let answer = model.complete(&end).unwrap();
    assert_eq!((answer.finish, answer.tokens.len()), (FinishReason::Eos, 0));
    // The same engine under its other names knows the end token as well.
    let config = bitnet::names::GenerationConfig { logit_bias: vec![(eos[0], 100.0)], ..Default::default() };
    let tokens = bitnet::names::batch_generate(model.engine(), &[vec![1]], &config).unwrap();
    assert_eq!(tokens, [Vec::<u32>::new()]);
}

#[test]
fn a_text_stops_before_a_string_and_a_conversation_is_answered() {
    let model = demo();
    let whole = model.complete(verse(3)).unwrap().text;
    let stop = &whole[10..13];
    let stopped = model.complete(verse(3).stop(stop)).unwrap();
    assert_eq!(stopped.text, whole[..whole.find(stop).unwrap()]);
    assert_eq!(stopped.finish, FinishReason::StopString(0));

    let said = [Message::new("system", "Be brief."), Message::new("user", "Who goes there?")];
    let answer = model.complete(Request::chat(said).max_tokens(8).seed(1)).unwrap();
    let template = "<|begin_of_text|><|eot_id|>Chorus:\nBe brief.<|eot_id|>First Citizen:\nWho goes there?<|eot_id|>\
                    Second Citizen:\n";
    let ids = model.tokenizer().unwrap().encode(template, false).unwrap();
    let joined = model.complete(Request::tokens(ids).max_tokens(8).seed(1)).unwrap();
    assert_eq!(answer, joined);
}

#[cfg(feature = "json")]
#[test]
fn a_text_follows_its_schema() {
    let model = demo();
    let schema = r#"{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                     "additionalProperties": false}"#;
    for seed in 0..4 {
        let text = model.complete(verse(seed).json_schema(schema)).unwrap().text;
        assert!([r#"{"ok":true}"#, r#"{"ok":false}"#].contains(&text.replace(' ', "").as_str()), "{text}");
    }
    for schema in ["3", "{", r#"{"type": "nonsense"}"#] {
        let error = model.complete(verse(1).json_schema(schema)).unwrap_err();
        assert!(matches!(error, Error::Schema { .. }) && error.to_string().contains("(schema): "), "{error}");
    }
}

#[cfg(feature = "json")]
#[test]
fn a_text_matches_its_expression_or_is_one_of_its_choices() {
    let model = demo();
    let choices = ["Who's \"there\"?", "Nobody/none\n", "é"];
    for seed in 0..4 {
        let text = model.complete(verse(seed).regex("[a-c]{3}/[0-9]")).unwrap().text;
        let [a, b, c, b'/', digit] = *text.as_bytes() else { panic!("{text:?}") };
        assert!([a, b, c].iter().all(|c| (b'a'..=b'c').contains(c)) && digit.is_ascii_digit(), "{text:?}");
        let text = model.complete(verse(seed).choice(choices)).unwrap().text;
        assert!(choices.contains(&text.as_str()), "{text:?}");
    }
    for impossible in [verse(1).regex("("), verse(1).choice([""; 0])] {
        let error = model.complete(impossible).unwrap_err();
        assert!(matches!(error, Error::Schema { .. }), "{error}");
    }
}

#[test]
fn tools_that_no_template_shows_to_the_model_are_described_in_the_system_message() {
    let input = bitnet::TemplateInput { tools: vec!["{\"name\": \"f\"}".into()], ..Default::default() };
    let request = Request::chat([Message::new("user", "O")]).template_input(input);
    let model = demo();
    let prompt = model.encode(&request).unwrap();
    let text = model.tokenizer().unwrap().decode(&prompt, true).unwrap();
    assert!(text.contains("<tools>\n{\"name\": \"f\"}\n</tools>"), "{text}");
    assert!(text.find("<tools>") < text.rfind('O'), "{text}");
}

/// Allows only one token.
#[derive(Debug)]
struct Only(u32);

impl Constraint for Only {
    fn allow(&self, _: u32, _: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        allowed.insert(self.0);
        Ok(())
    }
}

#[test]
fn a_rule_of_ones_own_says_which_tokens_may_follow() {
    let answer = demo().complete(verse(1).max_tokens(5).constraint(Only(77))).unwrap();
    assert_eq!(answer.tokens, [77; 5]);
}

#[test]
fn dropping_a_stream_cancels_it_and_dropping_a_model_does_not_wait() {
    // It does not compute further than its readers read.
    let model = demo_that_waits_for_readers();
    let long = Request::new("O").max_tokens(400).ignore_eos(true);
    let mut stream = model.stream(&long).unwrap();
    stream.next().unwrap().unwrap();
    drop(stream);
    let cancelled = || model.engine().metrics().snapshot().get(Counter::Cancelled);
    for _ in 0..2000 {
        if cancelled() == 1 {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(cancelled(), 1);
    let last = model.stream(&long).unwrap();
    drop(model);
    let error = last.answer().unwrap_err();
    assert_ne!(error.cure(), "read the pieces as they come", "the engine did not wait for the reader");
}

/// Pauses a request with four unread tokens, and ends it if they stay unread for two seconds.
fn demo_that_waits_for_readers() -> Model {
    let change = |engine: &mut EngineConfig| {
        engine.mailbox = 4;
        engine.slow_reader_timeout = Duration::from_secs(2);
    };
    Model::builder().threads(2).engine(change).open("demo").unwrap()
}

#[test]
fn a_stream_that_nobody_reads_pauses_and_then_fails_and_the_cure_is_to_read_it() {
    let model = demo_that_waits_for_readers();
    let unread = model.stream(verse(3)).unwrap();
    let count = |counter| model.engine().metrics().snapshot().get(counter);
    for _ in 0..2000 {
        if count(Counter::Failed) == 1 {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!([Counter::Pauses, Counter::Failed].map(count), [1, 1]);
    let error = unread.answer().unwrap_err();
    assert_eq!(error.cure(), "read the pieces as they come");
    let read: Result<Vec<Piece>, Error> = model.stream(verse(3)).unwrap().collect();
    let text: String = read.unwrap().iter().map(Piece::text).collect();
    assert_eq!(text, demo().complete(verse(3)).unwrap().text);
}

#[test]
fn a_batch_reads_its_answers_as_they_come_so_none_is_ended_for_being_unread() {
    let model = demo_that_waits_for_readers();
    let requests: Vec<Request> = (0..20).map(verse).collect();
    let alone = demo();
    let want: Vec<Answer> = requests.iter().map(|request| alone.complete(request).unwrap()).collect();
    let got = model.batch(&requests);
    assert_eq!(got.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), want);
    let got = block_on(model.batch_async(&requests));
    assert_eq!(got.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), want);
}

#[test]
fn a_prompt_of_a_thousand_tokens_takes_two_steps_with_a_reduced_cache() {
    let model =
        Model::builder().memory(Memory::Bytes(500_000_000)).batch_size(32).open("synthetic:tiny").unwrap();
    assert!(model.plan().to_string().contains("longest request 8192 tokens"), "{}", model.plan());
    let prompt: Vec<u32> = (0..1000).map(|i| i % 500).collect();
    model.complete(Request::tokens(prompt).max_tokens(1)).unwrap();
    let steps = model.engine().metrics().snapshot().get(Counter::Steps);
    assert!(steps <= 3, "{steps} steps");
}

#[test]
fn texts_are_embedded_together_as_alone_and_only_by_a_model_for_that() {
    let model = Model::open("synthetic:embedding-tiny").unwrap();
    let text = |i: u32| Request::tokens((0..1 + 37 * i).map(|p| (p * p + i) % 512).collect::<Vec<u32>>());
    let together = model.embed_batch((0..6).map(text));
    let in_turn = block_on(model.embed_batch_async((0..6).map(text)));
    for (i, (embedding, in_turn)) in (0..).zip(together.into_iter().zip(in_turn)) {
        let embedding = embedding.unwrap();
        assert_eq!((embedding.values.len(), embedding.prompt_tokens), (256, 1 + 37 * i as usize));
        assert_eq!(model.embed(text(i)).unwrap(), embedding, "{i}");
        assert_eq!(block_on(model.embed_async(text(i))).unwrap(), embedding, "{i}");
        assert_eq!(in_turn.unwrap(), embedding, "{i}");
        let length = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        assert!((length(&embedding.values) - 1.0).abs() < 1e-6);
        let whole = embedding.values.clone();
        let short = embedding.truncated(10).values;
        assert!((length(&short) - 1.0).abs() < 1e-6 && short.len() == 10);
        let ratio = short[0] / whole[0];
        assert!(short.iter().zip(&whole).all(|(s, w)| (s - w * ratio).abs() < 1e-6));
    }
    assert!(matches!(model.embed(Request::tokens([512])), Err(Error::Request(_))));
    let mixed = [Request::tokens([512]), text(1)];
    for each in [model.embed_batch(&mixed), block_on(model.embed_batch_async(&mixed))] {
        assert!(matches!(&each[..], [Err(Error::Request(_)), Ok(_)]), "{each:?}");
    }
    let error = demo().embed("ROMEO:").unwrap_err().to_string();
    assert!(error.contains("does not embed") && error.contains("demo"), "{error}");
}
