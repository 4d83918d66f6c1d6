//! The routes that tell about the gateway: models, health, readiness.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde_json::json;

use crate::app::App;
use crate::error::{Error, json};
use crate::pool::unavailable;
use crate::replica::Replica;
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

/// `GET /` and `/ping`: as `/ready`, in few words.
pub(crate) async fn ping(State(app): State<Arc<App>>) -> Result<(), Error> {
    check_ready(&app)
}

/// `GET /ready`: a request sent now can be answered. Tells of each worker whether it is up; a
/// rolling restart goes by that.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, Error> {
    check_ready(&app)?;
    let state = |replica: &Arc<Replica>| {
        let state = replica.down_reason().unwrap_or_else(|| "up".to_owned());
        (replica.name.clone(), state)
    };
    let workers: BTreeMap<String, String> = app.pool.replicas.iter().map(state).collect();
    let body = json!({"status": "ready", "workers": workers});
    Ok(json(StatusCode::OK, &body))
}

fn check_ready(app: &App) -> Result<(), Error> {
    let mut reason = unavailable();
    if app.phases.is_draining() {
        "the gateway is shutting down".clone_into(&mut reason.message);
    } else if app.pool.is_up() {
        return Ok(());
    } else {
        reason.message = format!("no worker is ready: {}", app.pool.down_reasons().join("; "));
    }
    Err(reason.into())
}
