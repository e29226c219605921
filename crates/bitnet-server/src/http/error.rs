//! Why a request is not answered: status, message and the name of the field as the client sent it.

use std::time::Duration;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bitnet::inference::{InvalidConfig, InvalidRequest, RequestError, SubmitError};
use bitnet::model::ModelError;
use serde::Serialize;

/// Maximum characters of a message or of a field's name, so that what a client sent is not sent back at any length.
const MAX_SHOWN: usize = 400;

/// Why a request is not answered, in the form that OpenAI's clients understand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub body: ErrorBody,
    /// Time after which another try is likely to succeed.
    pub retry_after: Option<Duration>,
}

/// The contents of `{"error": ...}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ErrorBody {
    pub message: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl ToString) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            s if s.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let body = ErrorBody { message: shown(message), kind, param: None, code: Some(code) };
        ApiError { status, body, retry_after: None }
    }

    /// The body is malformed, and no field can be named.
    pub fn malformed(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    }

    /// A field has an invalid value.
    pub fn field(param: impl ToString, problem: impl ToString) -> Self {
        let (param, problem) = (param.to_string(), problem.to_string());
        Self::new(StatusCode::BAD_REQUEST, "invalid_value", format!("{param}: {problem}")).about(param)
    }

    /// A field, or its value, is not supported.
    pub fn unsupported(param: impl ToString, what: impl ToString) -> Self {
        let (param, what) = (param.to_string(), what.to_string());
        Self::new(StatusCode::BAD_REQUEST, "unsupported", format!("{param}: {what} is not supported"))
            .about(param)
    }

    /// The same error, with advice at the end of its message.
    pub fn advised(mut self, cure: impl ToString) -> Self {
        self.body.message = shown(format!("{}: {}", self.body.message, cure.to_string()));
        self
    }

    /// The format allows no text, or none that begins like the text so far.
    pub fn format(param: &str, problem: impl ToString) -> Self {
        let problem = problem.to_string();
        let lines = problem.lines().map(str::trim).filter(|line| !line.starts_with("<non-verbose"));
        Self::field(param, lines.collect::<Vec<_>>().join(" "))
    }

    /// The server is too busy for the request.
    pub fn busy(code: &'static str, message: impl ToString, retry_after: Duration) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, code, message);
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// The server has a fault.
    pub fn fault(message: impl ToString) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// A handler panicked.
    pub fn panicked() -> Self {
        Self::fault("this request failed because of a fault in the server; other requests are not affected")
    }

    /// The server accepts no requests.
    pub fn unavailable(code: &'static str, message: impl ToString) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    /// The same error about a field that the client calls otherwise than the engine.
    pub fn renamed(mut self, names: &Names) -> Self {
        let Some(param) = self.body.param.take() else { return self };
        let sent = names.sent(&param);
        if let Some(problem) = self.body.message.strip_prefix(&format!("{param}: ")) {
            self.body.message = shown(format!("{sent}: {problem}"));
        }
        self.about(sent)
    }

    pub fn about(mut self, param: impl ToString) -> Self {
        self.body.param = Some(shown(param));
        self
    }
}

/// What a client calls the fields of a request, where that is not what the engine calls them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    /// The engine's names, each with the client's.
    renamed: Vec<(&'static str, &'static str)>,
    /// The path of the object that has all other fields, with a dot at its end.
    path: &'static str,
}

impl Names {
    pub fn new(renamed: impl Into<Vec<(&'static str, &'static str)>>) -> Self {
        Names { renamed: renamed.into(), path: "" }
    }

    /// The same names, for fields within an object.
    pub fn within(self, path: &'static str) -> Self {
        Names { path, ..self }
    }

    fn sent(&self, name: &str) -> String {
        match self.renamed.iter().find(|(engines, _)| *engines == name) {
            Some((_, sent)) => (*sent).to_owned(),
            None => format!("{}{name}", self.path),
        }
    }
}

/// Shortens a long text.
fn shown(text: impl ToString) -> String {
    let mut text = text.to_string();
    if let Some((end, _)) = text.char_indices().nth(MAX_SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[derive(Serialize)]
pub(crate) struct Wrapped<'a> {
    pub error: &'a ErrorBody,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(Wrapped { error: &self.body })).into_response();
        // For paths whose clients expect another form.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Rounds up to whole seconds, at least one, for `Retry-After`.
fn whole_seconds(time: Duration) -> u64 {
    (time.as_secs_f64().ceil() as u64).max(1)
}

impl From<InvalidConfig> for ApiError {
    fn from(error: InvalidConfig) -> Self {
        let param = match error.field {
            "max_new_tokens" => "max_tokens",
            "min_new_tokens" => "min_tokens",
            "stop_strings" => "stop",
            "logit_bias token" | "logit_bias value" => "logit_bias",
            other => other,
        };
        ApiError::field(param, format!("{} is not {}", error.value, error.allowed))
    }
}

impl From<InvalidRequest> for ApiError {
    fn from(error: InvalidRequest) -> Self {
        let message = error.to_string();
        match error {
            InvalidRequest::Config(config) => config.into(),
            InvalidRequest::TooLong { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message).about("prompt")
            }
            InvalidRequest::NoText => ApiError::field("stop", message),
            InvalidRequest::NothingPrompted { .. } => ApiError::field("generated_tokens", message),
            _ => ApiError::field("prompt", message),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Invalid(invalid) => invalid.into(),
            SubmitError::NeverFits { .. } => Self::new(StatusCode::BAD_REQUEST, "never_fits", message),
            // A default; `Overload::with_retry_time` replaces it by a better time.
            SubmitError::QueueFull { .. } => Self::busy("queue_full", message, Duration::from_secs(1)),
            SubmitError::BacklogFull { .. } => Self::busy("backlog_full", message, Duration::from_secs(1)),
            SubmitError::Lost(_) => Self::unavailable("device_lost", message),
            SubmitError::Draining => Self::unavailable("draining", message),
            _ => Self::unavailable("stopped", message),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        match error {
            RequestError::Timeout => Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", message),
            RequestError::SlowReader => Self::new(StatusCode::REQUEST_TIMEOUT, "slow_reader", message),
            RequestError::Constraint { message } => Self::format("response_format", message),
            RequestError::Stopped => Self::unavailable("stopped", message),
            RequestError::Forward(lost) if lost.is_lost() => Self::unavailable("device_lost", message),
            _ => Self::fault(message),
        }
    }
}

impl From<ModelError> for ApiError {
    fn from(error: ModelError) -> Self {
        // The model's files have been read by now, so the error is in what the client sent.
        Self::malformed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sent_is_not_sent_back_at_any_length() {
        let error = ApiError::field("é".repeat(9000), "x".repeat(9000)).body;
        assert_eq!(error.message.chars().count(), MAX_SHOWN + 1);
        assert_eq!(error.param.unwrap().chars().count(), MAX_SHOWN + 1);
        assert_eq!(ApiError::field("stop", "it is long").body.message, "stop: it is long");
    }

    #[test]
    fn an_error_is_about_the_field_that_the_client_sent() {
        let names = Names::new([("max_tokens", "num_predict"), ("prompt", "input")]).within("options.");
        let renamed = |error: ApiError| {
            let body = error.renamed(&names).body;
            (body.param.unwrap_or_default(), body.message)
        };
        let sent = |param: &str, message: &str| (param.to_owned(), message.to_owned());
        assert_eq!(renamed(ApiError::field("max_tokens", "bad")), sent("num_predict", "num_predict: bad"));
        assert_eq!(renamed(ApiError::field("top_p", "bad")), sent("options.top_p", "options.top_p: bad"));
        assert_eq!(renamed(ApiError::malformed("no text").about("prompt")), sent("input", "no text"));
        assert_eq!(renamed(ApiError::malformed("no text")), sent("", "no text"));
    }

    #[test]
    fn the_problems_of_a_format_are_joined_into_one_line() {
        let error =
            ApiError::format("response_format", "regex parse error:\n    [\n    ^\n<non-verbose/>").body;
        assert_eq!(error.message, "response_format: regex parse error: [ ^");
    }

    #[test]
    fn a_time_to_retry_is_whole_seconds_rounded_up() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_500, 60)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
        let error = ApiError::busy("queue_full", "full", Duration::from_millis(2500)).into_response();
        assert_eq!(error.status(), 429);
        assert_eq!(error.headers()["retry-after"], "3");
    }
}
