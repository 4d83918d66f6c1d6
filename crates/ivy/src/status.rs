//! The routes that tell about the gateway: models, health, readiness, metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::json;

use crate::app::App;
use crate::error::{Error, json};
use crate::pool::unavailable;
use crate::wire::{ModelEntry, ModelList};

/// `GET /v1/models`.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    let entry = ModelEntry {
        id: &app.config.model.id,
        object: "model",
        created: app.started_at,
        owned_by: "flowerbed",
    };
    json(
        StatusCode::OK,
        &ModelList {
            object: "list",
            data: [entry],
        },
    )
}

/// `GET /health`: the process is alive. Whether it can work, `/ready` tells.
pub(crate) async fn health() -> Response {
    json(StatusCode::OK, &json!({"status": "alive"}))
}

/// `GET /ready`: a request sent now can be answered.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, Error> {
    let mut reason = unavailable();
    if app.phases.is_draining() {
        "the gateway is shutting down".clone_into(&mut reason.message);
    } else if app.pool.is_up() {
        return Ok(json(StatusCode::OK, &json!({"status": "ready"})));
    } else {
        reason.message = format!("no worker is ready: {}", app.pool.down_reasons().join("; "));
    }
    Err(reason.into())
}

/// `GET /metrics`, Prometheus text.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4")],
        app.metrics.render(),
    )
        .into_response()
}
