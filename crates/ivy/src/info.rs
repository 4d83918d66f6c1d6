//! `GET /info`: TEI's fields, and what tells whether two vectors may be compared.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use flowerbed_protocol::limits;
use http::StatusCode;
use serde::Serialize;

use crate::app::App;
use crate::error::{Error, json};
use crate::serve::MAX_CONNECTIONS;

#[derive(Serialize)]
struct Info<'a> {
    model_id: &'a str,
    model_sha: Option<&'a str>,
    model_dtype: &'a str,
    served_model_name: &'a str,
    model_type: ModelType<'a>,
    max_concurrent_requests: usize,
    max_input_length: u32,
    max_batch_tokens: u64,
    max_batch_requests: Option<u32>,
    max_client_batch_size: usize,
    auto_truncate: bool,
    tokenization_workers: usize,
    version: &'static str,
    sha: Option<&'static str>,
    docker_label: Option<&'static str>,
    // Ours.
    space: &'a str,
    revision: &'a str,
    tokenizer_sha256: &'a str,
    weights_sha256: Option<&'a str>,
    dimensions: u32,
    allowed_dimensions: &'a [u32],
    truncation_direction: &'static str,
    prompts: Vec<&'a str>,
    max_body_bytes: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ModelType<'a> {
    Embedding { pooling: &'a str },
}

/// The handler. The workers tell what they serve, so one must be up.
pub(crate) async fn info(State(app): State<Arc<App>>) -> Result<Response, Error> {
    let group = app.pool.group()?;
    let served = &group.session.info;
    let body = Info {
        model_id: &served.id,
        model_sha: present(&served.revision),
        model_dtype: &served.dtype,
        served_model_name: &app.config.model.id,
        model_type: ModelType::Embedding {
            pooling: &served.pooling,
        },
        max_concurrent_requests: MAX_CONNECTIONS,
        max_input_length: served.max_length,
        max_batch_tokens: served.max_batch_tokens,
        max_batch_requests: Some(served.max_batch_sequences).filter(|count| *count > 0),
        max_client_batch_size: limits::MAX_INPUTS,
        auto_truncate: app.config.auto_truncate,
        tokenization_workers: app.compute.num_short_threads(),
        version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
        space: &served.space,
        revision: &served.revision,
        tokenizer_sha256: &served.tokenizer_sha256,
        weights_sha256: present(&served.weights_sha256),
        dimensions: served.dimensions,
        allowed_dimensions: &served.allowed_dimensions,
        truncation_direction: app.encoder.settings().truncation_side.name(),
        prompts: app
            .encoder
            .settings()
            .prompts
            .keys()
            .map(String::as_str)
            .collect(),
        max_body_bytes: limits::MAX_BODY_BYTES,
    };
    Ok(json(StatusCode::OK, &body))
}

fn present(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}
