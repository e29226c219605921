//! An axum app of one's own, with OpenAI's API as a part of it.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::error::Error;

use axum::{Router, routing::get};
use bitnet_inference::EngineConfig;
use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{Checkpoint, Limits, Transformer};
use bitnet_server::{App, ServedModel, ServerConfig, Service, router};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let checkpoint = Checkpoint::demo()?;
    let limits = Limits { max_tokens: 256, max_logit_rows: 16, kv_blocks: 128 };
    let cpu = Cpu::new(Isa::best(), 2)?;
    let model = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {})?;
    let service = Service::start(
        ServedModel::of(&checkpoint),
        Box::new(model),
        EngineConfig::default(),
        ServerConfig::default(),
    )?;

    let app = Router::new()
        .route("/hello", get(async || "hello from around the model"))
        .nest("/llm", router(App::ready(service)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    // For OpenAI's clients the base URL is this address with /llm/v1.
    println!("{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
