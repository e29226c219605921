//! Runs every example and checks its output.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

fn printed(program: &str) -> String {
    let done = Command::new(program).output().expect("it starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn generate_and_stream_print_the_same_verse_up_to_the_stop() {
    let whole = printed(env!("CARGO_BIN_EXE_generate"));
    let streamed = printed(env!("CARGO_BIN_EXE_stream"));
    let (text, end) = streamed.trim_end().rsplit_once('\n').expect("a text and its end");
    assert!(whole.starts_with(text) && text.len() > 10, "{whole:?} {streamed:?}");
    assert!(["[stop]", "[length]"].contains(&end), "{end}");
}

#[test]
fn batch_prints_a_line_for_each_prompt_in_order() {
    let lines = printed(env!("CARGO_BIN_EXE_batch"));
    let prompts: Vec<&str> = lines.lines().filter_map(|line| Some(line.split_once('|')?.0)).collect();
    assert_eq!(prompts, ["First Citizen:", "What say you, my lord", "The king is", "O, "]);
}

#[test]
fn own_sampler_follows_its_rule() {
    let text = printed(env!("CARGO_BIN_EXE_own_sampler"));
    let letters: String = text.split_whitespace().filter_map(|word| word.chars().next()).collect();
    assert_eq!(letters, "abcdefgh");
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn own_server_answers_for_itself_and_for_the_model() {
    let server = Command::new(env!("CARGO_BIN_EXE_own_server")).stdout(Stdio::piped()).spawn();
    let mut server = Running(server.expect("it starts"));
    let mut address = String::new();
    BufReader::new(server.0.stdout.take().expect("a pipe")).read_line(&mut address).expect("its address");
    let ask = |request: String| {
        let mut stream = TcpStream::connect(address.trim()).expect("a connection");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        reply
    };
    let head = "HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    assert!(ask(format!("GET /hello {head}\r\n")).ends_with("hello from around the model"));
    let body = r#"{"prompt": "First Citizen:", "max_tokens": 4, "seed": 1}"#;
    let reply = ask(format!(
        "POST /llm/v1/completions {head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("\"completion_tokens\":4"), "{reply}");
}
