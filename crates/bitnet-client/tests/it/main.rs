//! What a client sees of servers that answer, refuse, break off and err.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use bitnet_client::{Client, Event, Percentiles, Seen, percentile};

/// A server that gives each of these answers to one request, in order, and its address.
fn server(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut reader, mut length) = (BufReader::new(stream.try_clone().unwrap()), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            reader.read_exact(&mut vec![0; length]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    format!("http://{address}")
}

fn seen(answers: &'static [&'static str]) -> Seen {
    let client = Client::new(&server(answers), Duration::from_secs(20));
    let mut seen = Seen::default();
    answers.iter().for_each(|_| seen.ask(&client, "/v1/completions", "{}"));
    seen
}

#[test]
fn a_stream_is_counted_and_timed_and_a_refusal_is_no_failure() {
    const WHOLE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n: ping\n\nid: 1\ndata: {\"finish_reason\":null}\n\n\
        id: 2\ndata: {\"finish_reason\":null}\n\nid: 3\ndata: {\"finish_reason\":\"length\"}\n\ndata: [DONE]\n\n";
    const BUSY: &str =
        "HTTP/1.1 429 Busy\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let seen = seen(&[WHOLE, BUSY, WHOLE]);
    assert_eq!((seen.answered, seen.tokens, seen.failed), (2, 4, 0), "{:?}", seen.problem);
    assert_eq!((seen.first.len(), seen.between.len(), seen.refusals.len()), (2, 2, 1));
}

#[test]
fn a_stream_that_breaks_or_errs_is_a_failure_with_its_reason() {
    const CUT: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: {\"finish_reason\":null}\n\n";
    const ERR: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: {\"error\": \"timeout\"}\n\n";
    const BAD: &str = "HTTP/1.1 400 Bad\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
    let cut = seen(&[CUT]);
    assert_eq!((cut.answered, cut.failed, cut.problem.as_deref()), (0, 1, Some("a stream ended early")));
    let both = seen(&[ERR]).and(seen(&[BAD]));
    assert_eq!((both.failed, both.problem.as_deref()), (2, Some("{\"error\": \"timeout\"}")));
    assert_eq!(seen(&[BAD]).problem.as_deref(), Some("400: no"));
}

#[test]
fn events_are_read_one_by_one_without_comments() {
    const TWO: &str =
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n: hello\n\nid: 7\ndata: a\n\ndata: b\r\n\r\nrest";
    let client = Client::new(&server(&[TWO]), Duration::from_secs(20)).header("x-a", "b");
    let mut reply = client.post("/", &[("x-c", "d".into())], "{}").unwrap();
    assert_eq!((reply.status, reply.has_header("connection")), (200, true));
    assert_eq!(reply.event().unwrap(), Some(Event { id: "7".into(), data: "a".into() }));
    assert_eq!(reply.event().unwrap(), Some(Event { id: String::new(), data: "b".into() }));
    assert_eq!(reply.text().unwrap(), "rest");
}

#[test]
fn percentiles_are_of_the_nearest_rank() {
    assert_eq!((Percentiles::of(&mut []), percentile(&[], 0.5)), (None, None));
    let one = Percentiles { count: 1, p50: 3.0, p90: 3.0, p99: 3.0, max: 3.0 };
    assert_eq!(Percentiles::of(&mut [3.0]), Some(one));
    let mut hundred: Vec<f64> = (1..=200).rev().map(f64::from).collect();
    let many = Percentiles { count: 200, p50: 100.0, p90: 180.0, p99: 198.0, max: 200.0 };
    assert_eq!(Percentiles::of(&mut hundred), Some(many));
}
