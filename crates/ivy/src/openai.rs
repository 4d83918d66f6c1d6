//! `POST /v1/embeddings`: OpenAI's dialect.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flowerbed_protocol::v1::{Head, Normalize};
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::app::App;
use crate::call::{Call, answer, write};
use crate::context::Context;
use crate::error::{Error, json_bytes};
use crate::form::OPENAI;
use crate::pipeline::{self, Collected, Wanted};
use crate::respond::{OpenAiAnswer, Vectors};
use crate::wire::{Format, Usage};

const WANTED: Wanted = Wanted {
    head: Head::Embed,
    normalize: Normalize::Model,
    are_listed: true,
};

const SHAPE: HeaderName = HeaderName::from_static("x-flowerbed-shape");
const TOKENS: HeaderName = HeaderName::from_static("x-flowerbed-tokens");

/// The handler.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Response {
    answer(app, context, request, &OPENAI, async |call, received| {
        let format = received.asked.options.format.unwrap_or(Format::Float);
        let collected = pipeline::run(call, received, WANTED).await?;
        let headers = collected.headers();
        if format == Format::Bytes {
            return octets(call, collected).await;
        }
        let answer = OpenAiAnswer {
            model: call.app.config.model.id.clone(),
            is_base64: format == Format::Base64,
            usage: Usage::of(collected.num_tokens()),
        };
        let num_bytes = collected.num_bytes();
        let vectors = Vectors::from(collected);
        let body = write(&call.app.compute, num_bytes, move || answer.write(&vectors)).await?;
        Ok((headers, json_bytes(StatusCode::OK, body.into())).into_response())
    })
    .await
}

/// The rows alone; what JSON says beside them stands in headers.
async fn octets(call: &Call, collected: Collected) -> Result<Response, Error> {
    let mut headers = collected.headers();
    let shape = format!("{},{}", collected.lengths.len(), collected.dimensions);
    if let Ok(shape) = HeaderValue::try_from(shape) {
        headers.insert(SHAPE, shape);
    }
    headers.insert(TOKENS, HeaderValue::from(collected.num_tokens()));
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    let num_bytes = collected.num_bytes();
    let vectors = Vectors::from(collected);
    let body: Bytes = write(&call.app.compute, num_bytes, move || vectors.bytes()).await?;
    Ok((headers, body).into_response())
}
