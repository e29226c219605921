//! The answer that a client has read, and checks of whether it can be right.

use serde_json::Value;

use super::mix::Ask;

/// The choices of an answer, assembled from one object or from the events of streams.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Answer {
    pub choices: Vec<Choice>,
    /// Tokens of the prompt and of all choices, as reported by the server.
    pub usage: Option<(u64, u64)>,
    /// Tokens received, with or without their ids.
    pub tokens: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Choice {
    pub text: String,
    ids: Vec<u64>,
    logprobs: Vec<Value>,
    pub finish: Option<String>,
    /// Whether a deadline or the server's timeout ended the text.
    pub cut: bool,
}

impl Answer {
    pub fn new(choices: usize) -> Self {
        Answer { choices: vec![Choice::default(); choices], ..Answer::default() }
    }

    /// Adds an object of the API: a whole answer, or the data of an event in a stream.
    pub fn add(&mut self, object: &Value) -> Result<(), String> {
        if let Some(error) = object.get("error") {
            return Err(format!("an error instead of an answer: {error}"));
        }
        for told in object["choices"].as_array().into_iter().flatten() {
            self.add_choice(told)?;
        }
        if let Some(prompt) = object["usage"]["prompt_tokens"].as_u64() {
            let completion = object["usage"]["completion_tokens"].as_u64().unwrap_or_default();
            if self.usage.replace((prompt, completion)).is_some() {
                return Err("the counts were reported twice".into());
            }
        }
        Ok(())
    }

    fn add_choice(&mut self, told: &Value) -> Result<(), String> {
        let index = told["index"].as_u64().unwrap_or(u64::MAX) as usize;
        let choice = self.choices.get_mut(index).ok_or_else(|| format!("there is no choice {index}"))?;
        if choice.finish.is_some() {
            return Err(format!("choice {index} continues after its end"));
        }
        let text = [&told["text"], &told["delta"]["content"], &told["message"]["content"]];
        let text = text.iter().find_map(|value| value.as_str());
        choice.text += text.ok_or_else(|| format!("a choice without a text: {told}"))?;
        choice.ids.extend(told["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64));
        for list in [&told["logprobs"]["token_logprobs"], &told["logprobs"]["content"]] {
            choice.logprobs.extend(list.as_array().into_iter().flatten().cloned());
        }
        choice.finish = told["finish_reason"].as_str().map(str::to_owned);
        choice.cut = told["stop_reason"] == "deadline";
        // An event carries a token or an end.
        self.tokens += u64::from(choice.finish.is_none());
        Ok(())
    }

    /// Whether a deadline or the server's timeout ended any of its texts.
    pub fn is_cut(&self) -> bool {
        self.choices.iter().any(|choice| choice.cut)
    }

    /// Checks whether a whole answer can be right for this request.
    pub fn judge(&self, ask: &Ask) -> Result<(), String> {
        let (prompt, completion) = self.usage.ok_or("the counts were not reported")?;
        if ask.prompt_tokens.is_some_and(|known| known as u64 != prompt) {
            return Err(format!("{prompt} prompt tokens were reported instead of {:?}", ask.prompt_tokens));
        }
        if ask.streams() && self.tokens != completion {
            return Err(format!("{} events carried a token, but {completion} were reported", self.tokens));
        }
        let ids: usize = self.choices.iter().map(|choice| choice.ids.len()).sum();
        if ask.body["return_token_ids"] == true && ids as u64 != completion {
            return Err(format!("{ids} ids were sent, but {completion} tokens were reported"));
        }
        self.choices.iter().enumerate().try_for_each(|(index, choice)| {
            choice.judge(ask).map_err(|problem| format!("choice {index}: {problem}"))
        })
    }

    /// Checks whether the answer equals the one that the request gets alone, or the beginning of it.
    pub fn compare(&self, alone: &Answer, whole: bool) -> Result<(), String> {
        for (index, (mine, other)) in self.choices.iter().zip(&alone.choices).enumerate() {
            // A text that a deadline cuts may end in a part of a character.
            let text = if whole { &mine.text } else { mine.text.trim_end_matches('\u{fffd}') };
            let begins = other.ids.starts_with(&mine.ids) && other.text.starts_with(text);
            let begins = begins && other.logprobs.starts_with(&mine.logprobs);
            if !begins || (whole && mine != other) {
                return Err(format!("choice {index} was {mine:?}, but is {other:?} alone"));
            }
        }
        if whole && self.usage != alone.usage {
            Err(format!("the counts were {:?}, but are {:?} alone", self.usage, alone.usage))
        } else {
            Ok(())
        }
    }
}

impl Choice {
    fn judge(&self, ask: &Ask) -> Result<(), String> {
        let finish = self.finish.as_deref().ok_or("it has no end")?;
        let (body, count) = (&ask.body, self.ids.len());
        let told = body["return_token_ids"] == true;
        if self.cut && !ask.may_be_cut() {
            return Err(format!("a deadline ended it after {count} tokens, but it has none"));
        }
        if told && finish == "length" && count != ask.max_tokens() && !self.cut {
            return Err(format!("it ended by length with {count} tokens of {}", ask.max_tokens()));
        }
        if told && finish == "stop" && (count as u64) < body["min_tokens"].as_u64().unwrap_or(0) {
            return Err(format!("{count} tokens are fewer than min_tokens"));
        }
        let stops = body["stop"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if let Some(stop) = stops.into_iter().find(|stop| self.text.contains(stop)) {
            return Err(format!("{:?} contains the stop string {stop:?}", self.text));
        }
        let banned = |id: &u64| {
            let ends = body["stop_token_ids"].as_array().is_some_and(|ids| ids.contains(&(*id).into()));
            ends || body["logit_bias"][id.to_string()] == -100
        };
        if let Some(id) = self.ids.iter().find(|id| banned(id)) {
            return Err(format!("token {id} was banned or a stop token"));
        }
        if finish == "stop" && !body["response_format"].is_null() {
            let parsed: Result<Value, _> = serde_json::from_str(&self.text);
            parsed.map_err(|e| format!("{:?} is not JSON: {e}", self.text))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mix::{Manner, ask};

    fn event(text: &str, id: u64) -> Value {
        json!({"choices": [{"index": 0, "text": text, "finish_reason": null, "token_ids": [id]}]})
    }

    fn end() -> Value {
        json!({"choices": [{"index": 0, "text": "", "finish_reason": "length", "token_ids": []}]})
    }

    fn counts(tokens: u64) -> Value {
        json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})
    }

    fn read(events: &[Value]) -> Result<Answer, String> {
        let mut answer = Answer::new(1);
        events.iter().try_for_each(|event| answer.add(event))?;
        Ok(answer)
    }

    fn asked() -> Ask {
        let mut ask = ask(0);
        ask.body = json!({"prompt": [1, 2, 3], "max_tokens": 2, "stream": true, "return_token_ids": true});
        Ask {
            choices: 1,
            prompt_tokens: Some(3),
            background: false,
            deadline: None,
            manner: Manner::Reads,
            ..ask
        }
    }

    #[test]
    fn an_event_that_is_lost_doubled_or_altered_is_found() {
        let (a, b) = (event("a", 7), event("b", 8));
        let judged = |events: &[Value]| read(events).and_then(|answer| answer.judge(&asked()));
        assert_eq!(judged(&[a.clone(), b.clone(), end(), counts(2)]), Ok(()));
        let doubled = [a.clone(), a.clone(), b.clone(), end(), counts(2)];
        assert!(judged(&doubled).is_err());
        assert!(judged(&[a.clone(), end(), counts(2)]).is_err(), "lost");
        assert!(judged(&[a.clone(), b.clone(), end()]).is_err(), "no counts");
        assert!(judged(&[a.clone(), b.clone(), counts(2)]).is_err(), "no end");
        assert!(judged(&[a.clone(), end(), b.clone(), counts(2)]).is_err(), "after the end");
        assert!(judged(&[a.clone(), b.clone(), end(), counts(2), counts(2)]).is_err(), "counts twice");
        let alone = read(&[a.clone(), b.clone(), end(), counts(2)]).unwrap();
        let altered = read(&[a.clone(), event("c", 8), end(), counts(2)]).unwrap();
        assert_eq!(altered.judge(&asked()), Ok(()), "by itself it looks right");
        assert!(altered.compare(&alone, true).is_err());
        let begun = read(&[a]).unwrap();
        assert!(begun.compare(&alone, false).is_ok() && begun.compare(&alone, true).is_err());
        assert!(read(&[b]).unwrap().compare(&alone, false).is_err());
        // A deadline may cut a text within a character.
        let cut = read(&[event("a\u{fffd}", 7)]).unwrap();
        assert!(cut.compare(&alone, false).is_ok() && cut.compare(&alone, true).is_err());
    }

    #[test]
    fn only_a_request_that_may_wait_until_its_time_is_over_is_cut_short() {
        let judged = |background: bool, reason: Value| {
            let mut told = end();
            told["choices"][0]["stop_reason"] = reason;
            read(&[event("a", 7), told, counts(1)]).unwrap().judge(&Ask { background, ..asked() })
        };
        assert_eq!(judged(true, json!("deadline")), Ok(()));
        assert!(judged(true, Value::Null).is_err(), "too short for no reason");
        assert!(judged(false, json!("deadline")).is_err(), "a goal limits how long it waits");
    }

    #[test]
    fn a_text_that_breaks_what_was_asked_for_is_found() {
        let judged = |rule: &str, value: Value| {
            let mut ask = asked();
            ask.body[rule] = value;
            read(&[event("a", 7), event("b", 8), end(), counts(2)]).unwrap().judge(&ask)
        };
        assert_eq!(judged("stop", json!(["x"])), Ok(()));
        assert!(judged("stop", json!(["ab"])).is_err());
        assert!(judged("stop_token_ids", json!([8])).is_err());
        assert!(judged("logit_bias", json!({"8": -100})).is_err());
        assert!(judged("max_tokens", json!(3)).is_err());
    }
}
