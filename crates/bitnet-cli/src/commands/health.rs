//! `bitnet health`: what supervisors of containers run inside one, where there is no other program.

use std::{fmt::Display, time::Duration};

use bitnet::hub;

use crate::{error::CliError, output};

/// A server answers a probe immediately, whatever it computes.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks a running server whether it accepts requests.
pub fn run(url: &str) -> Result<(), CliError> {
    let base = url.trim_end_matches('/').trim_end_matches("/v1");
    let agent = hub::agent(base).map_err(bitnet::Error::from)?;
    let ask = agent.get(format!("{base}/ready")).config().timeout_global(Some(TIMEOUT)).build();
    let nobody =
        |e: &dyn Display| CliError::refused(e, base, "start `bitnet serve` there, or give its address");
    let mut answer = ask.call().map_err(|e| nobody(&e))?;
    if answer.status() == 200 {
        return output::line("ready");
    }
    let text = answer.body_mut().read_to_string().map_err(|e| nobody(&e))?;
    let told: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    match told["error"]["message"].as_str() {
        Some(why) if answer.status() == 503 => {
            Err(CliError::refused(why, base, "wait, or read the server's log"))
        }
        _ => Err(nobody(&answer.status())),
    }
}
