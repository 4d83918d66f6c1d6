//! How a failure is answered: the one place that makes an error body, in OpenAI's nested envelope.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flowerbed_protocol::{Error as RequestError, ErrorKind};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

/// A request that is not answered with what it asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Of a kind that both sides of the wire know.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The body is not declared as JSON.
    #[error("the content type is {0:?}: send the body as application/json")]
    MediaType(String),
    /// The body is compressed.
    #[error("the content encoding is {0:?}: send the body as it is")]
    ContentEncoding(String),
    /// The route exists, the method does not.
    #[error("this route does not answer {0}")]
    Method(http::Method),
}

/// Why a request failed, for its line in the log; an extension of the answer.
#[derive(Clone, Debug)]
pub(crate) struct Reason(pub(crate) String);

#[derive(Serialize)]
struct Envelope<'a> {
    error: Body<'a>,
}

#[derive(Serialize)]
struct Body<'a> {
    message: &'a str,
    r#type: &'static str,
    code: &'static str,
    param: Option<String>,
}

impl Error {
    /// HTTP status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Request(error) => StatusCode::from_u16(error.kind.http_status())
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            Self::MediaType(_) | Self::ContentEncoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Request(error)
                if error.kind == ErrorKind::NotFound && error.field.as_deref() == Some("model") =>
            {
                "model_not_found" // OpenAI's word, which its clients look for
            }
            Self::Request(error) => error.kind.name(),
            Self::MediaType(_) | Self::ContentEncoding(_) => "unsupported_media_type",
            Self::Method(_) => "method_not_allowed",
        }
    }

    fn param(&self) -> Option<String> {
        let Self::Request(error) = self else {
            return None;
        };
        match (&error.field, error.index) {
            (Some(field), Some(index)) => Some(format!("{field}[{index}]")),
            (Some(field), None) => Some(field.clone()),
            (None, _) => None,
        }
    }

    /// Whole seconds, at least one: where a retry may help, the answer always says when.
    fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::Request(error) if error.kind.is_retryable() => {
                let delay = error.retry_after.unwrap_or_default();
                Some((delay.as_millis().div_ceil(1_000)).clamp(1, 3_600) as u64)
            }
            _ => None,
        }
    }
}

/// OpenAI's words for the families of errors.
fn family(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = self.status();
        let message = self.to_string();
        let body = Envelope {
            error: Body {
                message: &message,
                r#type: family(status),
                code: self.code(),
                param: self.param(),
            },
        };
        let mut response = json(status, &body);
        if let Some(seconds) = self.retry_after_s() {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // What is wrong with a caller's input may quote it, so it stays out of the log.
        if status.is_server_error() {
            response.extensions_mut().insert(Reason(message));
        }
        response
    }
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    // Our own structs of strings and numbers always serialize.
    json_bytes(status, serde_json::to_vec(body).unwrap_or_default().into())
}

/// A JSON answer that is already written.
pub(crate) fn json_bytes(status: StatusCode, body: Bytes) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// A fault of our own; `reason` goes to the log only.
pub(crate) fn internal(reason: &str) -> RequestError {
    tracing::error!(reason, "internal error");
    RequestError::new(ErrorKind::Internal, "the gateway failed; its log says why")
}
