//! The routes of text-embeddings-inference that run the model.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use flowerbed_protocol::v1::{Head, Normalize};
use flowerbed_protocol::{Error as RequestError, ErrorKind};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::app::App;
use crate::body::discard;
use crate::call::{Call, Received, answer, write};
use crate::context::Context;
use crate::error::{Error, json_bytes};
use crate::fields::Options;
use crate::form::{EMBED, EMBED_ALL, Names, ROOT, SIMILARITY};
use crate::pipeline::{self, Collected, Wanted};
use crate::respond::Vectors;
use crate::wire::Format;

/// `POST /embed`: a vector for each input.
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Response {
    answer(app, context, request, &EMBED, vectors).await
}

/// `POST /embed_all`: a vector for each token of each input, special tokens included.
pub(crate) async fn embed_all(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Response {
    answer(app, context, request, &EMBED_ALL, token_vectors).await
}

/// `POST /similarity`: the cosine of a sentence with each of the others.
pub(crate) async fn similarity(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Response {
    answer(app, context, request, &SIMILARITY, cosines).await
}

/// `POST /` and `/invocations`: what the model does, asked as the hub's clients ask it.
pub(crate) async fn root(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Response {
    answer(
        app,
        context,
        request,
        &ROOT,
        async |call, received| match received.asked.names {
            Names::Comparison => cosines(call, received).await,
            Names::List(_) | Names::TokenArray(_) => vectors(call, received).await,
        },
    )
    .await
}

/// `POST /rerank`, `/predict` and `/embed_sparse`: no model of ours has the head for them.
pub(crate) async fn no_head(State(app): State<Arc<App>>, request: Request) -> Error {
    let (head, body) = request.into_parts();
    discard(&head.headers, body, 0).await;
    let message = format!(
        "{} is an embedding model: it has no head for {}, and answers /embed, /embed_all and \
         /similarity",
        app.config.model.id,
        head.uri.path()
    );
    RequestError::new(ErrorKind::NoHead, message).into()
}

async fn vectors(call: &Call, received: Received) -> Result<Response, Error> {
    let normalize = match received.asked.options.normalize {
        None | Some(true) => Normalize::On,
        Some(false) => Normalize::Off,
    };
    let wanted = Wanted {
        head: Head::Embed,
        normalize,
        are_listed: true,
    };
    run(call, received, wanted, Vectors::write_list).await
}

async fn token_vectors(call: &Call, received: Received) -> Result<Response, Error> {
    let wanted = Wanted {
        head: Head::Tokens,
        normalize: Normalize::Off,
        are_listed: true,
    };
    run(call, received, wanted, Vectors::write_tokens).await
}

async fn cosines(call: &Call, received: Received) -> Result<Response, Error> {
    let wanted = Wanted {
        head: Head::Embed,
        normalize: Normalize::Off,
        are_listed: false,
    };
    run(call, received, wanted, Vectors::write_cosines).await
}

async fn run(
    call: &Call,
    received: Received,
    wanted: Wanted,
    to_body: fn(&Vectors) -> Result<Vec<u8>, RequestError>,
) -> Result<Response, Error> {
    check_format(&received.asked.options)?;
    let collected = pipeline::run(call, received, wanted).await?;
    let mut headers = collected.headers();
    let times = Times::of(&collected);
    let num_chars = collected.num_chars;
    let num_tokens = collected.num_tokens();
    let num_bytes = collected.num_bytes();
    let compute = &call.app.compute;
    let vectors = Vectors::from(collected);
    let body = write(compute, num_bytes, move || to_body(&vectors)).await?;
    times.write(&mut headers, call);
    for (name, count) in [
        ("x-compute-characters", num_chars),
        ("x-compute-tokens", num_tokens),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(count));
    }
    Ok((headers, json_bytes(StatusCode::OK, body.into())).into_response())
}

/// Lists of numbers are all that these routes' clients read.
fn check_format(options: &Options) -> Result<(), RequestError> {
    if options.format.is_some_and(|format| format != Format::Float) {
        let message =
            "encoding_format can only be float here; /v1/embeddings also gives base64 and bytes";
        return Err(RequestError::invalid("encoding_format", message));
    }
    Ok(())
}

/// What TEI's headers tell of one request.
struct Times {
    compute_type: &'static str,
    tokenization: Duration,
    queue: Duration,
    inference: Duration,
}

impl Times {
    fn of(collected: &Collected) -> Self {
        let device = &collected.group.session.info.device;
        Self {
            compute_type: if device.starts_with("cuda") {
                "gpu+optimized"
            } else {
                "cpu"
            },
            tokenization: collected.tokenize_time,
            queue: collected.queue_time(),
            inference: collected.step_time(),
        }
    }

    /// Whole milliseconds, as TEI's clients read them.
    fn write(&self, headers: &mut HeaderMap, call: &Call) {
        let total = call.started.elapsed();
        for (name, time) in [
            ("x-compute-time", total),
            ("x-total-time", total),
            ("x-tokenization-time", self.tokenization),
            ("x-queue-time", self.queue),
            ("x-inference-time", self.inference),
        ] {
            let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from(milliseconds),
            );
        }
        headers.insert(
            HeaderName::from_static("x-compute-type"),
            HeaderValue::from_static(self.compute_type),
        );
    }
}
