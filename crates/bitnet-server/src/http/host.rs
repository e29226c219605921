//! Refuses requests for host names that are not the server's, against DNS rebinding.
//!
//! Another site can point its own name at 127.0.0.1; a browser then lets the pages of that site read what a server on
//! this machine answers. The `Host` header still has the site's name, so such requests can be refused.

use std::net::IpAddr;

use axum::http::{Request, StatusCode, header};

use crate::http::error::ApiError;

/// The host names that a server answers to.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    /// Names in addition to those of this machine; `None` allows every name.
    allowed: Option<Vec<String>>,
}

impl Hosts {
    /// Allows every name.
    pub fn any() -> Self {
        Hosts { allowed: None }
    }

    /// The names for a server at `address`. On a loopback address, these are the names of this machine and those in
    /// `allowed`; on another address, the same, but every name if `allowed` is empty.
    pub fn of(address: IpAddr, allowed: &[String]) -> Self {
        let guarded = address.is_loopback() || !allowed.is_empty();
        Hosts { allowed: guarded.then(|| allowed.to_vec()) }
    }

    /// Refuses a request for a name that is not allowed. A request without a name is let through, because no browser
    /// sends one.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let Some(allowed) = &self.allowed else { return Ok(()) };
        let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let headers = request.headers().get_all(header::HOST).iter().map(|value| value.as_bytes());
        for host in target.into_iter().chain(headers) {
            let host = String::from_utf8_lossy(host);
            let name = without_port(&host);
            if !is_local(name) && !allowed.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                let message = format!(
                    "Host: {name:.100?} is not a name of this server: use localhost, or start it with --allow-host"
                );
                return Err(
                    ApiError::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", message).about("Host")
                );
            }
        }
        Ok(())
    }
}

/// The name in `name`, `name:port`, `[v6]` or `[v6]:port`.
fn without_port(host: &str) -> &str {
    if let Some((inside, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return inside;
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn is_local(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(hosts: &Hosts, host: &str) -> bool {
        hosts.check(&Request::get("/").header("host", host).body(()).unwrap()).is_ok()
    }

    #[test]
    fn a_server_on_a_loopback_address_answers_to_names_of_this_machine_only() {
        let hosts = Hosts::of("127.0.0.1".parse().unwrap(), &["models.example".into()]);
        for local in ["localhost", "LocalHost:8080", "127.0.0.1", "127.8.9.1:1", "[::1]", "[::1]:8080"] {
            assert!(takes(&hosts, local), "{local}");
        }
        assert!(takes(&hosts, "models.example") && takes(&hosts, "Models.Example:80"));
        for foreign in
            ["evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.nip"]
        {
            assert!(!takes(&hosts, foreign), "{foreign}");
        }
        let alone = Hosts::of("127.0.0.1".parse().unwrap(), &[]);
        assert!(
            takes(&alone, "localhost:8080") && !takes(&alone, "evil.example"),
            "no name needs to be allowed"
        );
        let none = Request::get("/").body(()).unwrap();
        assert_eq!(hosts.check(&none), Ok(()), "HTTP/1.0 has no such header");
        let absolute = Request::get("http://evil.example/").header("host", "localhost").body(()).unwrap();
        assert_eq!(hosts.check(&absolute).unwrap_err().status, 421);
        let two =
            Request::get("/").header("host", "localhost").header("host", "evil.example").body(()).unwrap();
        assert_eq!(hosts.check(&two).unwrap_err().status, 421);
    }

    #[test]
    fn a_server_of_the_network_answers_to_every_name_unless_some_are_allowed() {
        let open = Hosts::of("0.0.0.0".parse().unwrap(), &[]);
        assert!(takes(&open, "any.example"));
        let named = Hosts::of("0.0.0.0".parse().unwrap(), &["models.example".into()]);
        assert!(
            takes(&named, "models.example") && !takes(&named, "any.example") && takes(&named, "localhost")
        );
    }
}
