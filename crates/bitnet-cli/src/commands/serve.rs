//! `bitnet serve`: loads a model and answers over HTTP until it is told to end.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    panic::{AssertUnwindSafe, catch_unwind},
    process::exit,
    sync::Arc,
    thread,
    time::Duration,
};

use bitnet::inference::{BatchSizing, EngineConfig};
use bitnet_server::{App, ConnectionLimits, ServerConfig, Service};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{
    args::{CacheFlags, Common, ServeArgs, Speculation},
    error::CliError,
    load, model_arg, output,
};

/// Defaults for one goal if only the other is given.
const TTFT_GOAL: Duration = Duration::from_secs(5);
const ITL_GOAL: Duration = Duration::from_millis(500);

pub fn run(common: &Common, args: &ServeArgs) -> Result<(), CliError> {
    let config = server_config(args)?;
    let address = SocketAddr::new(args.host, args.port);
    let cannot = |e: io::Error| {
        CliError::refused(format!("cannot listen on {address}: {e}"), "--port", "use another port or --host")
    };
    let listener = TcpListener::bind(address).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    log(args)?;
    if !args.host.is_loopback() && config.api_key.is_none() {
        output::note(
            "warning: anyone who can reach this address can use the server; --api-key requires a key",
        );
    }
    let app = App::new(config.clone());
    let limits = ConnectionLimits { connections: args.max_connections, ..ConnectionLimits::default() };
    let report = thread::scope(|scope| {
        let loading = Arc::clone(&app);
        // The probes report that the model is loading.
        let load = move || match loaded(|| service(common, args, config)) {
            Ok(service) => {
                loading.install(service);
                output::note(format_args!("{} is served on http://{address}/v1", args.model));
            }
            Err(e) => {
                output::error(&e);
                exit(e.exit_code().into());
            }
        };
        let no_thread =
            |e| CliError::refused(e, "threads", "close other programs, or raise the limit on threads");
        let load = thread::Builder::new().name("loading".into()).spawn_scoped(scope, load);
        let load = load.map_err(no_thread)?;
        let report = bitnet_server::run(listener, Arc::clone(&app), limits, args.drain_timeout, args.linger)
            .map_err(cannot);
        if report.is_ok() && !load.is_finished() {
            // The model is no longer needed, and a download could keep its thread busy for long.
            exit(0);
        }
        report
    })?;
    let lost = app.lost();
    if !report.complete {
        // The process ends. Dropping the engine would wait for a step that may hang.
        std::mem::forget(app);
    }
    if let Some(what) = lost {
        return Err(CliError::Lost { what });
    }
    if report.complete {
        return Ok(());
    }
    let what = format!("some requests did not finish within {:?}", args.drain_timeout);
    Err(CliError::refused(what, "--drain-timeout", "give more time"))
}

/// The server's limits and rules, with the key from its flag or else from the environment.
fn server_config(args: &ServeArgs) -> Result<ServerConfig, CliError> {
    let (api_key, place) = match &args.api_key {
        Some(key) => (Some(key.clone()), "--api-key"),
        None => (std::env::var("BITNET_API_KEY").ok(), "BITNET_API_KEY"),
    };
    if api_key.as_ref().is_some_and(|key| key.trim().is_empty()) {
        return Err(CliError::usage("the key is empty", place, "give a key, or leave it out"));
    }
    Ok(ServerConfig {
        name: args.name.clone(),
        api_key,
        body_limit: args.body_limit,
        bodies_limit: args.bodies_limit,
        allow_hosts: args.allow_host.clone(),
        allow_origins: args.allow_origin.clone(),
        request_timeout: args.request_timeout,
        ttft_goal: args.ttft_goal,
        thinking_budget: args.thinking_budget,
        thinking_last_words: args.thinking_last_words.clone(),
        log_prompts: args.log == "prompts",
        strict: args.strict,
        ..ServerConfig::default()
    })
}

/// Runs `load` and turns a panic into an error, so that a server never reports forever that it is loading.
fn loaded<T>(load: impl FnOnce() -> Result<T, CliError>) -> Result<T, CliError> {
    // The panic itself is already on stderr.
    catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|_| {
        Err(CliError::refused("loading the model panicked", "MODEL", "check the model with `bitnet inspect`"))
    })
}

fn service(common: &Common, args: &ServeArgs, config: ServerConfig) -> Result<Service, CliError> {
    let sizing = match (args.ttft_goal, args.itl_goal) {
        (None, None) => BatchSizing::paced(args.max_batch_size),
        (ttft, itl) => BatchSizing::Auto { ttft: ttft.unwrap_or(TTFT_GOAL), itl: itl.unwrap_or(ITL_GOAL) },
    };
    let engine = EngineConfig {
        max_batch_size: args.max_batch_size,
        max_queued_requests: args.max_queued_requests,
        max_queued_tokens: args.max_queued_tokens,
        step_limit: args.step_limit,
        sizing,
        ..EngineConfig::default()
    };
    start(common, &args.model, &args.speculation, engine, config, &args.cache)
}

/// Loads a model and starts its service.
pub fn start(
    common: &Common,
    model: &str,
    speculation: &Speculation,
    engine: EngineConfig,
    config: ServerConfig,
    cache: &CacheFlags,
) -> Result<Service, CliError> {
    let model = load::start(common, model_arg::open_files(model)?, speculation, engine, cache)?;
    Ok(Service::new(model, config))
}

/// Logs requests to stderr; `RUST_LOG` selects levels and targets, like `warn` or `bitnet_server=debug`.
fn log(args: &ServeArgs) -> Result<(), CliError> {
    if args.log == "off" {
        return Ok(());
    }
    let targets = match std::env::var("RUST_LOG") {
        Ok(text) => {
            text.parse().map_err(|e| CliError::usage(e, "RUST_LOG", "give levels like info or a=debug"))?
        }
        Err(_) => Targets::new().with_default(LevelFilter::INFO),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(lines.with_filter(targets)).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_loading_is_an_error_like_any_other() {
        assert_eq!(loaded(|| Ok(3)).ok(), Some(3));
        let failed = loaded::<()>(|| panic!("planted")).unwrap_err();
        assert_eq!(failed.exit_code(), 1);
        assert!(failed.to_string().contains("panicked"), "{failed}");
    }
}
