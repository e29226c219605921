//! Refuses requests for host names that are not the server's, against DNS rebinding, and those that do not name one host.
//!
//! Another site can point its own name at 127.0.0.1; a browser then lets the pages of that site read what a server on
//! this machine answers. The `Host` header still has the site's name, so such requests can be refused.

use std::net::IpAddr;

use axum::http::{Request, StatusCode, Version, header, uri::Authority};

use crate::http::error::ApiError;

/// The host names that a server answers to.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    /// Names in addition to those of this machine; `None` allows every name.
    allowed: Option<Vec<String>>,
    /// Whether requests come from connections, and so must name their host as HTTP asks.
    connected: bool,
}

impl Hosts {
    /// Allows every name, and requests that another app has taken apart.
    pub fn any() -> Self {
        Hosts { allowed: None, connected: false }
    }

    /// The names for a server at `address`. On a loopback address, these are the names of this machine and those in
    /// `allowed`; on another address, the same, but every name if `allowed` is empty.
    pub fn of(address: IpAddr, allowed: &[String]) -> Self {
        let guarded = address.is_loopback() || !allowed.is_empty();
        Hosts { allowed: guarded.then(|| allowed.to_vec()), connected: true }
    }

    /// Refuses a request for a name that is not allowed, and one of HTTP/1.1 without exactly one valid `Host`, as RFC
    /// 9112 asks. A request of HTTP/1.0 without a name is let through, because no browser sends one.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let problem = match (hosts.next(), hosts.next()) {
            (_, Some(_)) => Some("there must be only one"),
            (None, None) if request.version() > Version::HTTP_10 => Some("it is missing"),
            (Some(host), None) if !is_host(host.as_bytes()) => Some("it is not a host"),
            _ => None,
        };
        if let Some(problem) = problem.filter(|_| self.connected) {
            return Err(
                ApiError::new(StatusCode::BAD_REQUEST, "bad_host", format!("Host: {problem}")).about("Host")
            );
        }
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

/// Whether a header is a name or an address, with or without a port. It may be empty.
fn is_host(host: &[u8]) -> bool {
    host.is_empty() || !host.contains(&b'@') && Authority::try_from(host).is_ok()
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
        let old = Request::get("/").version(Version::HTTP_10).body(()).unwrap();
        assert_eq!(hosts.check(&old), Ok(()), "HTTP/1.0 has no such header");
        let absolute = Request::get("http://evil.example/").header("host", "localhost").body(()).unwrap();
        assert_eq!(hosts.check(&absolute).unwrap_err().status, 421);
    }

    #[test]
    fn a_request_names_exactly_one_host() {
        let open = Hosts::of("0.0.0.0".parse().unwrap(), &[]);
        let none = Request::get("/").body(()).unwrap();
        let two = Request::get("/").header("host", "a").header("host", "a").body(()).unwrap();
        let old = Request::get("/").version(Version::HTTP_10);
        let old_two = old.header("host", "a").header("host", "b").body(()).unwrap();
        for refused in [&none, &two, &old_two] {
            assert_eq!(open.check(refused).unwrap_err().status, 400, "{refused:?}");
            assert_eq!(Hosts::any().check(refused), Ok(()), "another app has let it through");
        }
        for (host, valid) in
            [("a", true), ("[::1]:80", true), ("", true), ("a b", false), ("u@a", false), ("a/b", false)]
        {
            let request = Request::get("/").header("host", host).body(()).unwrap();
            assert_eq!(open.check(&request).is_ok(), valid, "{host:?}");
        }
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
