//! Pages of other origins.

use bitnet::inference::EngineConfig;
use bitnet_server::{ConnectionLimits, ServerConfig};
use serde_json::json;

use crate::support::*;

fn server(origins: &[&str]) -> Server {
    let config = ServerConfig {
        allow_origins: origins.iter().map(|origin| (*origin).to_owned()).collect(),
        api_key: Some("k3y".into()),
        ..ServerConfig::default()
    };
    Server::start(demo(EngineConfig::default(), config), ConnectionLimits::default(), SOON)
}

const ALLOWED: &str = "access-control-allow-origin";

/// What a browser asks before a page of an origin may send a chat.
fn ask(server: &Server, origin: &str) -> Reply {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,last-event-id,x-stainless-os"),
    ];
    server.call("OPTIONS", "/v1/chat/completions", &headers, b"")
}

#[test]
fn a_page_of_an_allowed_origin_may_send_and_read_what_it_needs() {
    let server = server(&["https://app.example", "http://localhost:3000"]);
    for origin in ["https://app.example", "http://localhost:3000"] {
        let asked = ask(&server, origin);
        assert_eq!((asked.status, asked.header(ALLOWED)), (200, Some(origin)), "without the key");
        let sendable = asked.header("access-control-allow-headers").unwrap();
        assert!(
            ["authorization", "last-event-id", "x-stainless-os"].iter().all(|name| sendable.contains(name))
        );
        assert!(asked.header("access-control-allow-methods").unwrap().contains("POST"));
        assert_eq!(asked.header("access-control-allow-credentials"), None);
        let body = json!({"messages": [{"role": "user", "content": "O"}], "max_tokens": 2});
        let answered = server.post_with(
            "/v1/chat/completions",
            &[("origin", origin), ("authorization", "Bearer k3y")],
            &body,
        );
        assert_eq!((answered.status, answered.header(ALLOWED)), (200, Some(origin)));
        let readable = answered.header("access-control-expose-headers").unwrap();
        assert!(
            ["x-seed", "x-request-id", "retry-after", "x-chat-template"]
                .iter()
                .all(|name| readable.contains(name))
        );
        // Pages must be able to read why they were refused.
        let refused = server.post_with("/v1/chat/completions", &[("origin", origin)], &body);
        assert_eq!((refused.status, refused.header(ALLOWED)), (401, Some(origin)));
    }
    for foreign in ["https://evil.example", "https://app.example.evil.example", "http://app.example", "null"]
    {
        assert_eq!(ask(&server, foreign).header(ALLOWED), None, "{foreign}");
    }
}

#[test]
fn without_the_flag_no_origin_is_allowed_and_with_a_star_every_one() {
    let closed = server(&[]);
    let asked = ask(&closed, "https://app.example");
    assert!(asked.status >= 400 && asked.header(ALLOWED).is_none(), "{asked:?}");
    let open = server(&["*"]);
    assert_eq!(ask(&open, "https://any.example").header(ALLOWED), Some("*"));
    let foreign = [("origin", "https://any.example"), ("access-control-request-method", "POST")];
    let mut client = open.connect();
    let text = String::from_utf8(request("OPTIONS", "/v1/models", &foreign, b"")).unwrap();
    let text = text.replace("host: localhost", "host: evil.example");
    std::io::Write::write_all(&mut client, text.as_bytes()).unwrap();
    assert_eq!(Reply::read(client).status, 421, "the host is still checked");
}
