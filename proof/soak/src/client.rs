//! One client: sends requests, behaves as each prescribes, and records what it saw.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpStream},
    thread::sleep,
    time::{Duration, Instant},
};

use bitnet_client::{Client, Reply};
use serde_json::Value;

use super::{
    answer::Answer,
    ledger::{Entry, Outcome},
    mix::{Ask, Manner},
};

/// Maximum number of attempts to resume a stream while the server is busy.
const RETURNS: usize = 5;

/// Sends a request and records its outcome.
pub(super) fn ask(client: &Client, address: SocketAddr, number: u64, ask: &Ask) -> Entry {
    let mut entry = Entry::new(ask);
    let outcome = match ask.manner {
        Manner::HangsUp { sent } => hang_up(address, ask, sent),
        Manner::Resumes { after } => resumed(client, ask, after, &mut entry),
        _ => once(client, ask, &mut entry),
    };
    entry.outcome = outcome.unwrap_or_else(|problem| Outcome::Wrong(format!("request {number}: {problem}")));
    entry
}

fn send(client: &Client, ask: &Ask, more: &[(&str, String)]) -> Result<Reply, String> {
    let mut headers = more.to_vec();
    headers.extend(ask.deadline.map(|deadline| ("x-deadline-ms", deadline.as_millis().to_string())));
    client.post(ask.path, &headers, &ask.body.to_string()).map_err(|e| e.to_string())
}

/// Sends some thousandths of a request and hangs up.
fn hang_up(address: SocketAddr, ask: &Ask, thousandths: usize) -> Result<Outcome, String> {
    let (path, body) = (ask.path, ask.body.to_string());
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         \r\n{body}"
    );
    let sent = request.len() * thousandths / 1000;
    let hang_up = || TcpStream::connect(address)?.write_all(&request.as_bytes()[..sent]);
    hang_up().map_err(|e: io::Error| e.to_string())?;
    let whole = sent == request.len();
    // Half a request is never accepted; a whole one may be, before the server notices that the client is gone.
    Ok(if whole { Outcome::Gone } else { Outcome::NotSent })
}

fn once(client: &Client, ask: &Ask, entry: &mut Entry) -> Result<Outcome, String> {
    let begun = Instant::now();
    let reply = send(client, ask, &[])?;
    if reply.status != 200 {
        return refused(reply, ask);
    }
    if !ask.streams() {
        let object = parsed(&reply.rest().map_err(|e| e.to_string())?)?;
        return whole(&[object], ask, entry);
    }
    stream(reply, ask, entry, begun, None)
}

/// Returns the outcome for a status other than 200.
fn refused(reply: Reply, ask: &Ask) -> Result<Outcome, String> {
    let (status, again) = (reply.status, reply.has_header("retry-after"));
    let object = parsed(&reply.rest().map_err(|e| e.to_string())?)?;
    let code = object["error"]["code"].as_str().unwrap_or_default();
    let told = |outcome| match object["error"]["message"].as_str() {
        Some(_) => Ok(outcome),
        None => Err(format!("{status} without a message: {object}")),
    };
    match (status, ask.manner) {
        (400, Manner::Errs) if object["error"]["param"] == "no_such_field" => told(Outcome::Invalid),
        (429, _) if again && !code.is_empty() => told(Outcome::Refused(code.to_owned())),
        // Its time was over before it had a place.
        (408, _) if ask.may_be_cut() => told(Outcome::Refused("deadline".into())),
        _ => Err(format!("{status} {object}")),
    }
}

fn parsed(bytes: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("{:?}: {e}", String::from_utf8_lossy(bytes)))
}

fn whole(objects: &[Value], ask: &Ask, entry: &mut Entry) -> Result<Outcome, String> {
    let mut answer = Answer::new(ask.choices);
    objects.iter().try_for_each(|object| answer.add(object))?;
    close(answer, ask, entry)
}

/// Returns the outcome of an answer that has ended.
fn close(answer: Answer, ask: &Ask, entry: &mut Entry) -> Result<Outcome, String> {
    answer.judge(ask)?;
    let (prompt, tokens) = answer.usage.unwrap_or_default();
    (entry.prompt_tokens, entry.tokens) = (prompt, tokens);
    entry.answer = Some(answer);
    Ok(Outcome::Complete)
}

/// Reads a stream, or the second part of one.
fn stream(
    mut reply: Reply,
    ask: &Ask,
    entry: &mut Entry,
    begun: Instant,
    before: Option<Answer>,
) -> Result<Outcome, String> {
    let resumes = before.is_some();
    let mut answer = before.unwrap_or_else(|| Answer::new(ask.choices));
    let (mut events, mut id) = (0, String::new());
    loop {
        let event = reply.event().map_err(|e| broken(&e, events))?;
        let event = event.ok_or_else(|| format!("the stream ended without [DONE] after {events} events"))?;
        if event.data == "[DONE]" {
            break;
        }
        let object = parsed(event.data.as_bytes())?;
        let overdue =
            object["error"]["code"].as_str().is_some_and(|code| ["timeout", "deadline"].contains(&code));
        if overdue && ask.may_be_cut() {
            entry.leave(ask, &answer);
            return Ok(Outcome::Refused("deadline".into()));
        }
        answer.add(&object)?;
        if event.id.is_empty() || event.id == id {
            return Err(format!("event {id:?} was followed by event {:?}", event.id));
        }
        (events, id) = (events + 1, event.id);
        if events == 1 && !resumes && ask.has_goal() {
            entry.first = Some(begun.elapsed().as_secs_f64());
        }
        match ask.manner {
            Manner::Leaves { after } if events == after => {
                entry.leave(ask, &answer);
                entry.answer = Some(answer);
                return Ok(Outcome::Left);
            }
            Manner::Resumes { after } if events == after && !resumes => {
                entry.leave(ask, &answer);
                entry.last_event = id;
                entry.answer = Some(answer);
                return Ok(Outcome::Left);
            }
            Manner::Pauses { after, pause } if events == after => sleep(pause),
            _ => {}
        }
    }
    match reply.rest() {
        Ok(rest) if rest.is_empty() => close(answer, ask, entry),
        Ok(rest) => Err(format!("{} bytes follow [DONE]", rest.len())),
        Err(error) => Err(broken(&error, events)),
    }
}

fn broken(error: &io::Error, events: usize) -> String {
    format!("the stream broke after {events} events: {error}")
}

/// Leaves a stream and resumes it; both requests are recorded.
fn resumed(client: &Client, ask: &Ask, after: usize, entry: &mut Entry) -> Result<Outcome, String> {
    let first = once(client, ask, entry)?;
    if first != Outcome::Left {
        // It was refused, or so short that it was read to its end.
        return Ok(first);
    }
    let before = entry.answer.take().ok_or("nothing was read")?;
    let position = [("last-event-id", entry.last_event.clone())];
    for _ in 0..RETURNS {
        let begun = Instant::now();
        let reply = send(client, ask, &position)?;
        if reply.status == 200 {
            let (prompt, tokens) = (entry.prompt_tokens, entry.tokens);
            let outcome = stream(reply, ask, entry, begun, Some(before))
                .map_err(|problem| format!("resumed after {after} events: {problem}"))?;
            return Ok(match outcome {
                Outcome::Complete => {
                    entry.earlier = (prompt, tokens);
                    Outcome::Resumed
                }
                Outcome::Refused(code) => {
                    entry.refusals.push(code);
                    Outcome::Left
                }
                other => other,
            });
        }
        match refused(reply, ask)? {
            Outcome::Refused(code) => entry.refusals.push(code),
            other => return Err(format!("resumed: {other:?}")),
        }
        sleep(Duration::from_millis(300));
    }
    entry.answer = Some(before);
    Ok(Outcome::Left)
}
