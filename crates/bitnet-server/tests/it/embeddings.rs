//! `POST /v1/embeddings` of an embedding model.

use std::time::Duration;

use bitnet::{Model, Request};
use bitnet_server::{App, ConnectionLimits, ServerConfig, Service};
use serde_json::{Value, json};

use crate::support::Server;

fn server() -> (Server, Model) {
    let model = Model::open("synthetic:embedding-tiny").unwrap();
    let app = App::ready(Service::new(model.clone(), ServerConfig::default()));
    (Server::start(app, ConnectionLimits::default(), Duration::ZERO), model)
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn every_form_of_input_gives_the_embeddings_of_the_library() {
    let (server, model) = server();
    let texts = [vec![1u32, 2, 3], vec![7; 40], vec![9]];
    let alone: Vec<_> = texts.iter().map(|ids| model.embed(Request::tokens(ids.clone())).unwrap()).collect();
    let many = server.post("/v1/embeddings", &json!({"input": texts})).ok();
    assert_eq!(many["usage"], json!({"prompt_tokens": 44, "total_tokens": 44}));
    for (i, embedding) in alone.iter().enumerate() {
        assert_eq!(many["data"][i]["index"], i);
        assert_eq!(floats(&many["data"][i]["embedding"]), embedding.values, "{i}");
        let one = server.post("/v1/embeddings", &json!({"input": texts[i], "dimensions": 5})).ok();
        assert_eq!(floats(&one["data"][0]["embedding"]), embedding.clone().truncated(5).values, "{i}");
    }
    let coded = json!({"input": [1, 2, 3], "encoding_format": "base64", "dimensions": 3});
    let coded = server.post("/v1/embeddings", &coded).ok();
    assert_eq!(coded["data"][0]["embedding"].as_str().unwrap().len(), 16);
}

#[test]
fn what_cannot_be_embedded_is_refused_by_its_field() {
    let (server, _) = server();
    for (body, field) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": "x"}), "input"),
        (json!({"input": [512]}), "input"),
        (json!({"input": [[1], []]}), "input"),
        (json!({"input": vec![[1]; 129]}), "input"),
        (json!({"input": [1], "dimensions": 0}), "dimensions"),
        (json!({"input": [1], "dimensions": 257}), "dimensions"),
        (json!({"input": [1], "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": [1], "dimension": 3}), "dimension"),
    ] {
        let reply = server.post("/v1/embeddings", &body);
        let error: Value = serde_json::from_str(&reply.text()).unwrap();
        assert_eq!((reply.status, error["error"]["param"].as_str()), (400, Some(field)), "{body}: {error}");
    }
}

#[test]
fn texts_that_do_not_fit_the_queue_together_are_all_refused() {
    let model = Model::builder().engine(|config| config.max_queued_requests = 2);
    let model = model.open("synthetic:embedding-tiny").unwrap();
    let app = App::ready(Service::new(model, ServerConfig::default()));
    let server = Server::start(app, ConnectionLimits::default(), Duration::ZERO);
    assert_eq!(server.post("/v1/embeddings", &json!({"input": [[1], [2]]})).status, 200);
    let reply = server.post("/v1/embeddings", &json!({"input": [[1], [2], [3]]}));
    assert!(reply.status != 200 && reply.text().contains("input"), "{}", reply.text());
    assert_eq!(server.metric("bitnet_prompt_tokens_total"), 2.0);
}
