//! `GET /metrics`: on the worker's own listener for gateways, and on one of its own for Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use crate::metrics::Metrics;
use crate::service::Token;

/// The route; with a token only for callers that send it.
pub(crate) fn route(metrics: &Arc<Metrics>, token: Option<&str>) -> Router {
    let metrics = Arc::clone(metrics);
    let token = Token::new(token);
    let answer = async move |headers: HeaderMap| -> Response {
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        if !token.admits(given) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4")];
        (kind, metrics.render()).into_response()
    };
    Router::new().route("/metrics", get(answer))
}
