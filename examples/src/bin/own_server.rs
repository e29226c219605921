//! A custom axum app that includes OpenAI's API.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::error::Error;

use axum::{Router, routing::get};
use bitnet::{
    inference::EngineConfig,
    load::{Machine, Want, load},
};
use bitnet_server::{App, ServedModel, ServerConfig, Service, router};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let checkpoint = bitnet::open_checkpoint("demo", &mut |_, _, _| {})?.checkpoint;
    let want = Want::engine(16, 0, checkpoint.spec.context);
    let loaded = load(&Machine::default(), &checkpoint, want, &mut |_, _| {})?;
    let engine = EngineConfig { max_batch_size: 16, ..EngineConfig::default() };
    let served = ServedModel::of(&checkpoint);
    let service = Service::start(served, loaded.model, engine, ServerConfig::default())?;

    let app = Router::new()
        .route("/hello", get(async || "hello from around the model"))
        .nest("/llm", router(App::ready(service)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    // The base URL for OpenAI clients is this address with /llm/v1.
    println!("{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
