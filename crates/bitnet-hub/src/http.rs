//! HTTP requests. Redirects are followed here, so that the token is sent to the hub and nowhere else.

use std::time::Duration;

use ureq::{
    Agent, Body,
    http::{Response, Uri},
    tls::{RootCerts, TlsConfig, TlsProvider},
};

use crate::HubError;

const MAX_REDIRECTS: usize = 8;
const CONNECT: Duration = Duration::from_secs(15);
/// Silence after which a connection is considered broken.
const SILENCE: Duration = Duration::from_secs(60);

/// TLS with the certificates of public authorities, in pure Rust.
fn tls() -> TlsConfig {
    let tls = TlsConfig::builder().provider(TlsProvider::Rustls).root_certs(RootCerts::WebPki);
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    let tls = tls.unversioned_rustls_crypto_provider(rustls_graviola::default_provider().into());
    tls.build()
}

/// Makes an HTTP client that speaks to any server, with TLS if the address asks for it. Statuses are not errors.
///
/// # Errors
/// If `url` needs TLS and this CPU lacks the instructions for it.
pub fn agent(url: &str) -> Result<Agent, HubError> {
    if url.starts_with("https:") && !has_tls() {
        return Err(HubError::NoTls { url: url.into() });
    }
    Ok(Agent::config_builder().tls_config(tls()).http_status_as_error(false).build().into())
}

#[derive(Debug, Clone)]
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// An answer, together with the head of the hub's first one, which describes the file.
pub(crate) struct Answer {
    pub url: String,
    pub first: Response<()>,
    pub last: Response<Body>,
}

impl Client {
    pub(crate) fn new(endpoint: &str, token: Option<String>) -> Client {
        let config = Agent::config_builder()
            .tls_config(tls())
            .user_agent(concat!("bitnet/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build();
        Client { agent: config.into(), endpoint: endpoint.trim_end_matches('/').into(), token }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Gets a path of the hub, from byte `start` on.
    pub(crate) fn get(&self, path: &str, start: u64) -> Result<Answer, HubError> {
        let mut url = format!("{}/{path}", self.endpoint);
        let mut first = None;
        for _ in 0..MAX_REDIRECTS {
            let response = self.request(&url, start)?;
            let location = if response.status().is_redirection() {
                response.headers().get("location").and_then(|l| l.to_str().ok()).map(str::to_owned)
            } else {
                None
            };
            let first = first.get_or_insert_with(|| head(&response)).clone();
            let Some(location) = location else { return Ok(Answer { url, first, last: response }) };
            url = joined(&url, &location).ok_or_else(|| HubError::Answer {
                url,
                problem: "it redirects to an invalid address".into(),
            })?;
        }
        Err(HubError::Answer { url, problem: format!("more than {MAX_REDIRECTS} redirects") })
    }

    fn request(&self, url: &str, start: u64) -> Result<Response<Body>, HubError> {
        if url.starts_with("https:") && !has_tls() {
            return Err(HubError::NoTls { url: url.into() });
        }
        let mut request = self.agent.get(url);
        // The length of a compressed answer would not be the file's.
        request = request.header("accept-encoding", "identity");
        if let Some(token) = self.token.as_deref().filter(|_| same_origin(url, &self.endpoint)) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        request.call().map_err(|e| HubError::Network { url: url.into(), problem: e.to_string() })
    }
}

fn head(response: &Response<Body>) -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = response.status();
    head.headers_mut().clone_from(response.headers());
    head
}

/// Whether scheme, host and port are equal; only the hub's own origin gets the token.
fn same_origin(a: &str, b: &str) -> bool {
    let origin = |url: &str| {
        let uri: Uri = url.parse().ok()?;
        Some((uri.scheme_str()?.to_owned(), uri.authority()?.as_str().to_owned()))
    };
    origin(a).is_some() && origin(a) == origin(b)
}

/// Resolves a `Location` header relative to `base`; `None` if it is not an http address or an absolute path.
fn joined(base: &str, location: &str) -> Option<String> {
    if location.starts_with("http://") || location.starts_with("https://") {
        return Some(location.into());
    }
    let base: Uri = base.parse().ok()?;
    let path = location.starts_with('/') && !location.starts_with("//");
    path.then(|| Some(format!("{}://{}{location}", base.scheme_str()?, base.authority()?)))?
}

/// Whether this CPU has the instructions that the TLS provider needs; it would panic without them.
fn has_tls() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has!("aes")
            && has!("ssse3")
            && has!("pclmulqdq")
            && has!("avx")
            && has!("avx2")
            && has!("bmi1")
            && has!("bmi2")
            && has!("adx")
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        has!("neon") && has!("aes") && has!("pmull") && has!("sha2")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

#[cfg(test)]
mod tests {
    use super::{joined, same_origin};

    #[test]
    fn the_token_is_for_the_hub_alone() {
        assert!(same_origin("https://hub.test/a/b", "https://hub.test"));
        for other in [
            "http://hub.test/",
            "https://hub.test:444/",
            "https://cdn.hub.test/",
            "https://hub.test@evil.test/",
        ] {
            assert!(!same_origin(other, "https://hub.test"), "{other}");
        }
    }

    #[test]
    fn redirects_lead_to_addresses() {
        let base = "https://hub.test/a/resolve/main/f";
        assert_eq!(joined(base, "/b?x=1").unwrap(), "https://hub.test/b?x=1");
        assert_eq!(joined(base, "http://cdn.test/c").unwrap(), "http://cdn.test/c");
        assert_eq!(joined(base, "file:///etc/passwd"), None);
        assert_eq!(joined(base, "//cdn.test/c"), None);
    }
}
