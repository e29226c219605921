//! `POST /v1/embeddings`, and Ollama's paths for the same, of an embedding model.

use std::{fs, path::Path, time::Duration};

use bitnet::{Model, Request};
use bitnet_server::{App, BatchOptions, ConnectionLimits, ServerConfig, Service, run_batch};
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
        (json!({"input": vec![[1]; 2049]}), "input"),
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
fn ollamas_paths_give_the_same_embeddings() {
    let (server, model) = server();
    let texts = [vec![1u32, 2, 3], vec![7; 40]];
    let want: Vec<_> = texts.iter().map(|ids| model.embed(Request::tokens(ids.clone())).unwrap()).collect();
    let many = server.post("/api/embed", &json!({"input": texts, "truncate": true, "keep_alive": "5m"})).ok();
    assert_eq!((&many["prompt_eval_count"], &many["load_duration"]), (&json!(43), &json!(0)));
    assert_eq!(many["model"], server.get("/v1/models").ok()["data"][0]["id"]);
    assert!(many["total_duration"].as_u64().unwrap() > 0);
    for (i, embedding) in want.iter().enumerate() {
        assert_eq!(floats(&many["embeddings"][i]), embedding.values, "{i}");
        let body = json!({"prompt": texts[i], "options": {"num_ctx": 41}});
        assert_eq!(floats(&server.post("/api/embeddings", &body).ok()["embedding"]), embedding.values, "{i}");
    }
    let short = server.post("/api/embed", &json!({"input": [1, 2, 3], "dimensions": 5})).ok();
    assert_eq!(floats(&short["embeddings"][0]), want[0].clone().truncated(5).values);
    assert_eq!(server.post("/api/show", &json!({})).ok()["capabilities"], json!(["embedding"]));
}

#[test]
fn ollamas_paths_refuse_what_cannot_be_embedded_by_its_field() {
    let (server, _) = server();
    for (path, body, begins) in [
        ("/api/embed", json!({}), "input: it is missing"),
        ("/api/embed", json!({"input": []}), "input: "),
        ("/api/embed", json!({"input": vec![1; 50_000]}), "the prompt has 50000 tokens"),
        ("/api/embed", json!({"input": [1, 2], "options": {"num_ctx": 2}}), "options.num_ctx: "),
        ("/api/embed", json!({"input": [1], "options": {"temperature": 200}}), "options.temperature: "),
        ("/api/embed", json!({"input": [1], "options": {"n": 2}}), "options.n: "),
        ("/api/embed", json!({"input": [1], "truncated": true}), "truncated: "),
        ("/api/embed", json!({"input": [1], "dimensions": 257}), "dimensions: "),
        ("/api/embeddings", json!({}), "prompt: it is missing"),
        ("/api/embeddings", json!({"prompt": [[1], [2]]}), "prompt: it must be one text"),
        ("/api/embeddings", json!({"prompt": [1], "input": [1]}), "input: "),
    ] {
        let reply = server.post(path, &body);
        let error = reply.json();
        let message = error["error"].as_str().unwrap_or_else(|| panic!("{error}"));
        assert!(reply.status == 400 && message.starts_with(begins), "{} {body}: {message}", reply.status);
    }
}

#[test]
fn as_many_texts_are_embedded_as_openai_takes() {
    let (server, model) = server();
    let texts: Vec<[u32; 2]> = (0..2048).map(|i| [i % 7, i % 500]).collect();
    let many = server.post("/v1/embeddings", &json!({"input": texts, "dimensions": 4})).ok();
    assert_eq!(many["data"].as_array().unwrap().len(), 2048);
    for i in [0, 127, 128, 2047] {
        let alone = model.embed(Request::tokens(texts[i].to_vec())).unwrap().truncated(4);
        assert_eq!(floats(&many["data"][i]["embedding"]), alone.values, "{i}");
    }
}

#[test]
fn a_batch_file_embeds_texts() {
    let model = Model::open("synthetic:embedding-tiny").unwrap();
    let service = Service::new(model.clone(), ServerConfig::default());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [input, output] = ["embed.in", "embed.out"].map(|name| folder.join(name));
    let line = |id: usize, body: Value| {
        json!({"custom_id": id.to_string(), "method": "POST", "url": "/v1/embeddings", "body": body})
            .to_string()
            + "\n"
    };
    let lines = [json!({"input": [[1, 2], [3]]}), json!({"input": []}), json!({"input": vec![[5]; 300]})];
    fs::write(&input, lines.into_iter().enumerate().map(|(i, body)| line(i, body)).collect::<String>())
        .unwrap();
    let done = run_batch(&service, &input, &output, BatchOptions::default(), &mut |_| {}).unwrap();
    assert_eq!((done.lines, done.failed), (3, 1));
    let text = fs::read_to_string(&output).unwrap();
    let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let body = |i: usize| &answers[i]["response"]["body"];
    let alone = model.embed(Request::tokens(vec![1, 2])).unwrap();
    assert_eq!(floats(&body(0)["data"][0]["embedding"]), alone.values);
    assert_eq!((body(1)["error"]["param"].as_str(), &answers[1]["custom_id"]), (Some("input"), &json!("1")));
    assert_eq!(body(2)["data"].as_array().unwrap().len(), 300);
    run_batch(&service, &input, &output, BatchOptions::default(), &mut |_| {}).unwrap();
    assert_eq!(fs::read_to_string(&output).unwrap(), text, "the same file gives the same answers");
}

#[test]
fn the_described_fields_of_embeddings_are_those_that_are_taken() {
    let (server, _) = server();
    let description = server.get("/openapi.json").ok();
    for (path, schema, needed) in [
        ("/v1/embeddings", "EmbeddingRequest", "input"),
        ("/api/embed", "OllamaEmbedRequest", "input"),
        ("/api/embeddings", "OllamaEmbeddingsRequest", "prompt"),
    ] {
        let fields = description["components"]["schemas"][schema]["properties"].as_object().unwrap();
        assert!(fields.len() >= 6, "{fields:?}");
        for name in fields.keys() {
            let mut body = json!({needed: [1]});
            body[name] = json!({"no": ["such", "value"]});
            let reply = server.post(path, &body);
            let unknown = reply.text().contains(&format!("{name}: this field is not supported"));
            assert!(reply.status == 200 || (!unknown && reply.text().contains(&**name)), "{}", reply.text());
        }
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
