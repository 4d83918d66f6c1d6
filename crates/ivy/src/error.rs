//! How a failure is answered: the one place that makes error bodies, in the dialect of the route.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flowerbed_protocol::{Error as RequestError, ErrorKind};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

/// A family of routes, and so the shape of their errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's nested object, also for routes of our own.
    OpenAi,
    /// `error` and `error_type` of text-embeddings-inference.
    Tei,
}

/// A request that is not answered with what it asked for.
#[derive(Clone, Debug, thiserror::Error)]
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
#[serde(untagged)]
enum Envelope<'a> {
    OpenAi {
        error: OpenAiError<'a>,
    },
    Tei {
        error: &'a str,
        error_type: &'static str,
    },
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    r#type: &'static str,
    code: &'static str,
    param: Option<String>,
}

impl Error {
    fn status(&self, dialect: Dialect) -> StatusCode {
        let code = match (self, dialect) {
            (Self::Request(error), Dialect::OpenAi) => error.kind.http_status(),
            (Self::Request(error), Dialect::Tei) => error.kind.tei_status(),
            (Self::MediaType(_) | Self::ContentEncoding(_), _) => 415,
            (Self::Method(_), _) => 405,
        };
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The answer's body and status.
    fn answer(&self, dialect: Dialect) -> Response {
        let status = self.status(dialect);
        let message = self.to_string();
        let envelope = match dialect {
            Dialect::OpenAi => Envelope::OpenAi {
                error: OpenAiError {
                    message: &message,
                    r#type: family(status),
                    code: self.code(),
                    param: self.param(),
                },
            },
            Dialect::Tei => Envelope::Tei {
                error: &message,
                error_type: match self {
                    Self::Request(error) => error.kind.tei_type(),
                    _ => ErrorKind::InvalidInput.tei_type(),
                },
            },
        };
        json(status, &envelope)
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
    /// In OpenAI's dialect, unless [`in_dialect`] is told of another one.
    fn into_response(self) -> Response {
        let mut response = self.answer(Dialect::OpenAi);
        if let Some(seconds) = self.retry_after_s() {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // What is wrong with a caller's input may quote it, so it stays out of the log.
        if response.status().is_server_error() {
            response.extensions_mut().insert(Reason(self.to_string()));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Says an error again in the dialect of its route.
pub(crate) fn in_dialect(dialect: Dialect, mut response: Response) -> Response {
    let Some(error) = response.extensions_mut().remove::<Error>() else {
        return response;
    };
    let (head, body) = error.answer(dialect).into_parts();
    *response.status_mut() = head.status;
    *response.body_mut() = body;
    response.headers_mut().remove(CONTENT_LENGTH);
    response
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

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn an_error_is_said_again_with_its_headers_in_the_dialect_of_the_route() {
        let full = RequestError::new(ErrorKind::Overloaded, "full");
        for (error, status, expected) in [
            (
                full.into(),
                429,
                r#"{"error":"full","error_type":"Overloaded"}"#,
            ),
            (
                RequestError::new(ErrorKind::EngineFailed, "failed").into(),
                424,
                r#"{"error":"failed","error_type":"Backend"}"#,
            ),
            (
                Error::Method(http::Method::PUT),
                405,
                r#"{"error":"this route does not answer PUT","error_type":"Validation"}"#,
            ),
        ] {
            let before = error.into_response();
            let retry_after = before.headers().get(RETRY_AFTER).cloned();
            let after = in_dialect(Dialect::Tei, before);
            assert_eq!(after.status(), status);
            assert_eq!(after.headers().get(RETRY_AFTER).cloned(), retry_after);
            let body = to_bytes(after.into_body(), 1_000).await.unwrap();
            assert_eq!(body, expected);
        }
    }
}
