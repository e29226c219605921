//! A custom axum app that includes OpenAI's API.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::error::Error;

use axum::{Router, routing::get};
use bitnet::Model;
use bitnet_server::{App, ServerConfig, Service, router};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::builder().batch_size(16).open("demo")?;
    let service = Service::new(model, ServerConfig::default());

    let app = Router::new()
        .route("/hello", get(async || "hello from around the model"))
        .nest("/llm", router(App::ready(service)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    // The base URL for OpenAI clients is this address with /llm/v1.
    println!("{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
