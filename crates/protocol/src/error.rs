//! One table of error kinds: HTTP status, gRPC code, whose fault, and whether a retry helps.
//!
//! gRPC codes are not one to one with kinds, so an [`Error`] crosses a process as an
//! `ErrorDetail` in the trailer `flowerbed-error-bin`.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Status};

use crate::v1;

/// Trailer that carries an encoded `ErrorDetail`.
pub const ERROR_TRAILER: &str = "flowerbed-error-bin";

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request cannot be understood or honoured.
    InvalidInput,
    /// A body, list or text is over its limit.
    TooLarge,
    /// The key is missing or wrong.
    Unauthorized,
    /// No such model or route.
    NotFound,
    /// The queue is full.
    Overloaded,
    /// The request's time ran out.
    DeadlineExceeded,
    /// The caller hung up.
    Cancelled,
    /// No worker can answer now.
    Unavailable,
    /// The step that held this input failed.
    EngineFailed,
    /// A fault of our own.
    Internal,
    /// The worker serves another space than the caller asked for.
    WrongSpace,
    /// There is nothing to work on: an empty list, or a text without tokens.
    EmptyInput,
    /// More inputs than a request may hold.
    TooManyInputs,
    /// The tokenizer cannot read the text.
    Tokenizer,
    /// The model has no head for what the route answers.
    NoHead,
}

/// Who has to change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The one who sent the request.
    Caller,
    /// The servers or their operator.
    Server,
    /// The model or the device.
    Engine,
}

impl ErrorKind {
    /// Every kind, for exhaustive tests and documentation.
    pub const ALL: [Self; 15] = [
        Self::InvalidInput,
        Self::TooLarge,
        Self::Unauthorized,
        Self::NotFound,
        Self::Overloaded,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Unavailable,
        Self::EngineFailed,
        Self::Internal,
        Self::WrongSpace,
        Self::EmptyInput,
        Self::TooManyInputs,
        Self::Tokenizer,
        Self::NoHead,
    ];

    /// Name in logs, metrics and JSON bodies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::TooLarge => "too_large",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::Overloaded => "overloaded",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::Unavailable => "unavailable",
            Self::EngineFailed => "engine_failed",
            Self::Internal => "internal",
            Self::WrongSpace => "wrong_space",
            Self::EmptyInput => "empty_input",
            Self::TooManyInputs => "too_many_inputs",
            Self::Tokenizer => "tokenizer",
            Self::NoHead => "no_head",
        }
    }

    /// HTTP status of the OpenAI and Cohere families of routes.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidInput
            | Self::EmptyInput
            | Self::TooManyInputs
            | Self::Tokenizer
            | Self::NoHead => 400,
            Self::Unauthorized => 401,
            Self::NotFound => 404,
            Self::TooLarge => 413,
            Self::Overloaded => 429,
            Self::Cancelled => 499,
            Self::EngineFailed | Self::Internal => 500,
            Self::Unavailable | Self::WrongSpace => 503,
            Self::DeadlineExceeded => 504,
        }
    }

    /// HTTP status of the routes of text-embeddings-inference.
    #[must_use]
    pub fn tei_status(self) -> u16 {
        match self {
            Self::InvalidInput | Self::Tokenizer => 422,
            Self::TooManyInputs => 413,
            Self::EngineFailed | Self::NoHead => 424,
            _ => self.http_status(),
        }
    }

    /// `error_type` in the bodies of those routes; its clients know these six.
    #[must_use]
    pub fn tei_type(self) -> &'static str {
        match self {
            Self::EmptyInput => "Empty",
            Self::Tokenizer => "Tokenizer",
            Self::InvalidInput
            | Self::TooLarge
            | Self::TooManyInputs
            | Self::Unauthorized
            | Self::NotFound => "Validation",
            Self::Overloaded | Self::DeadlineExceeded => "Overloaded",
            Self::Unavailable | Self::WrongSpace => "Unhealthy",
            Self::EngineFailed | Self::NoHead | Self::Internal | Self::Cancelled => "Backend",
        }
    }

    /// gRPC code on the wire between Ivy and Tulip.
    #[must_use]
    pub fn grpc_code(self) -> Code {
        match self {
            Self::InvalidInput | Self::EmptyInput | Self::Tokenizer => Code::InvalidArgument,
            Self::TooLarge | Self::TooManyInputs => Code::OutOfRange,
            Self::NoHead => Code::Unimplemented,
            Self::Unauthorized => Code::Unauthenticated,
            Self::NotFound => Code::NotFound,
            Self::Overloaded => Code::ResourceExhausted,
            Self::DeadlineExceeded => Code::DeadlineExceeded,
            Self::Cancelled => Code::Cancelled,
            Self::Unavailable => Code::Unavailable,
            Self::EngineFailed | Self::Internal => Code::Internal,
            Self::WrongSpace => Code::FailedPrecondition,
        }
    }

    /// Who has to change something.
    #[must_use]
    pub fn fault(self) -> Fault {
        match self {
            Self::InvalidInput
            | Self::TooLarge
            | Self::Unauthorized
            | Self::NotFound
            | Self::Cancelled
            | Self::EmptyInput
            | Self::TooManyInputs
            | Self::Tokenizer
            | Self::NoHead => Fault::Caller,
            Self::Overloaded
            | Self::DeadlineExceeded
            | Self::Unavailable
            | Self::Internal
            | Self::WrongSpace => Fault::Server,
            Self::EngineFailed => Fault::Engine,
        }
    }

    /// Whether the same request may succeed later or elsewhere.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Overloaded | Self::Unavailable | Self::WrongSpace
        )
    }

    /// Whether a good request was turned away because there was too much of it.
    #[must_use]
    pub fn is_shed(self) -> bool {
        self.is_retryable() || self == Self::DeadlineExceeded
    }

    fn to_wire(self) -> v1::ErrorKind {
        match self {
            Self::InvalidInput => v1::ErrorKind::InvalidInput,
            Self::TooLarge => v1::ErrorKind::TooLarge,
            Self::Unauthorized => v1::ErrorKind::Unauthorized,
            Self::NotFound => v1::ErrorKind::NotFound,
            Self::Overloaded => v1::ErrorKind::Overloaded,
            Self::DeadlineExceeded => v1::ErrorKind::DeadlineExceeded,
            Self::Cancelled => v1::ErrorKind::Cancelled,
            Self::Unavailable => v1::ErrorKind::Unavailable,
            Self::EngineFailed => v1::ErrorKind::EngineFailed,
            Self::Internal => v1::ErrorKind::Internal,
            Self::WrongSpace => v1::ErrorKind::WrongSpace,
            Self::EmptyInput => v1::ErrorKind::EmptyInput,
            Self::TooManyInputs => v1::ErrorKind::TooManyInputs,
            Self::Tokenizer => v1::ErrorKind::Tokenizer,
            Self::NoHead => v1::ErrorKind::NoHead,
        }
    }

    /// Kind of a failure that carries no trailer: one made by the transport, not by Tulip.
    fn from_code(code: Code) -> Self {
        match code {
            Code::DeadlineExceeded => Self::DeadlineExceeded,
            // tonic's words for an answer that broke off are several, Internal among them.
            Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::Internal
            | Code::DataLoss
            | Code::Aborted => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}

/// A failure that a caller is told of. It holds nothing of the inside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// What was wrong, where, and what to do.
    pub message: String,
    /// Field of the request, as its caller names it.
    pub field: Option<String>,
    /// Index of the input within the request (on the wire: within the chunk).
    pub index: Option<u32>,
    /// When a retry may help.
    pub retry_after: Option<Duration>,
}

impl Error {
    /// An error of this kind that concerns no single field.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            field: None,
            index: None,
            retry_after: None,
        }
    }

    /// Bad input in `field`.
    #[must_use]
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message).in_field(field)
    }

    /// Names the field at fault.
    #[must_use]
    pub fn in_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Names the input at fault.
    #[must_use]
    pub fn at_index(mut self, index: u32) -> Self {
        self.index = Some(index);
        self
    }

    /// Tells when a retry may help.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let detail = v1::ErrorDetail {
            kind: error.kind.to_wire().into(),
            field: error.field.unwrap_or_default(),
            index: error.index,
            message: error.message.clone(),
            retry_after_ms: error.retry_after.map_or(0, |delay| {
                u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
            }),
        };
        let mut trailers = MetadataMap::new();
        let value = BinaryMetadataValue::from_bytes(&detail.encode_to_vec());
        trailers.insert_bin(ERROR_TRAILER, value);
        Self::with_details_and_metadata(
            error.kind.grpc_code(),
            error.message,
            Bytes::new(),
            trailers,
        )
    }
}

impl From<&Status> for Error {
    /// Reads the trailer; without one, the code alone decides and the transport's own words stay out.
    fn from(status: &Status) -> Self {
        let detail = status
            .metadata()
            .get_bin(ERROR_TRAILER)
            .and_then(|value| value.to_bytes().ok())
            .and_then(|bytes| v1::ErrorDetail::decode(bytes).ok());
        let kind_on_wire = |detail: &v1::ErrorDetail| {
            ErrorKind::ALL
                .into_iter()
                .find(|kind| kind.to_wire() as i32 == detail.kind)
        };
        match detail
            .as_ref()
            .and_then(|d| kind_on_wire(d).map(|kind| (kind, d)))
        {
            Some((kind, detail)) => Self {
                kind,
                message: detail.message.clone(),
                field: (!detail.field.is_empty()).then(|| detail.field.clone()),
                index: detail.index,
                retry_after: (detail.retry_after_ms > 0)
                    .then(|| Duration::from_millis(detail.retry_after_ms)),
            },
            None => match ErrorKind::from_code(status.code()) {
                ErrorKind::Unavailable => Self::new(
                    ErrorKind::Unavailable,
                    "the worker did not answer; try again",
                ),
                kind => Self::new(kind, format!("the worker answered {:?}", status.code())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in ErrorKind::ALL {
            let error = Error::new(kind, "because")
                .in_field("input")
                .at_index(271)
                .after(Duration::from_millis(1_500));
            let status = Status::from(error.clone());
            assert_eq!(status.code(), kind.grpc_code());
            assert_eq!(Error::from(&status), error);
        }
    }

    #[test]
    fn a_retry_is_advised_only_where_the_caller_is_not_at_fault() {
        for kind in ErrorKind::ALL {
            assert!(
                !(kind.is_retryable() && kind.fault() == Fault::Caller),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn every_dialect_blames_the_same_side() {
        for kind in ErrorKind::ALL {
            let is_callers = |status: u16| (400..500).contains(&status) && status != 424;
            match kind {
                // TEI has a status of its own for a model that cannot.
                ErrorKind::NoHead => assert_eq!(kind.tei_status(), 424),
                _ => assert_eq!(
                    is_callers(kind.tei_status()),
                    is_callers(kind.http_status()),
                    "{kind:?}"
                ),
            }
        }
    }

    #[test]
    fn a_dead_worker_is_unavailable_and_tells_nothing_of_the_inside() {
        for code in [Code::Unknown, Code::Internal, Code::DataLoss, Code::Aborted] {
            let error = Error::from(&Status::new(code, "h2 protocol error: /run/secret.sock"));
            assert_eq!(error.kind, ErrorKind::Unavailable);
            assert!(!error.message.contains("secret"));
        }
    }

    #[test]
    fn a_transport_error_is_never_the_callers_fault() {
        for code in 0..=16 {
            let error = Error::from(&Status::new(Code::from_i32(code), "made by no worker"));
            assert_ne!(error.kind.fault(), Fault::Caller, "{code}");
        }
    }
}
