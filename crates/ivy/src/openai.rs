//! `POST /v1/embeddings`: OpenAI's dialect.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use flowerbed_protocol::v1::{Head, Normalize};
use http::StatusCode;

use crate::app::App;
use crate::call::{answer, write};
use crate::context::Context;
use crate::error::json_bytes;
use crate::form::OPENAI;
use crate::pipeline::{self, Wanted};
use crate::respond::{OpenAiAnswer, Vectors};
use crate::wire::{Format, Usage};

const WANTED: Wanted = Wanted {
    head: Head::Embed,
    normalize: Normalize::Model,
    are_listed: true,
};

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
        let answer = OpenAiAnswer {
            model: call.app.config.model.id.clone(),
            format,
            usage: Usage::of(collected.num_tokens()),
        };
        let num_bytes = collected.num_bytes();
        let vectors = Vectors::from(collected);
        let body = write(&call.app.compute, num_bytes, move || answer.write(&vectors)).await?;
        Ok((headers, json_bytes(StatusCode::OK, body.into())).into_response())
    })
    .await
}
