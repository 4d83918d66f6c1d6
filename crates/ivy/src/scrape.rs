//! `GET /metrics`: the gateway's own and, over the connections that exist, those of its workers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::future::join_all;
use http::Request;
use http::header::CONTENT_TYPE;
use tokio::time::timeout;
use tonic::body::Body;
use tower::ServiceExt as _;

use crate::app::App;
use crate::exposition::Exposition;
use crate::replica::Session;

/// A worker that is slower is left out of this scrape: a scraper waits 10 s for the whole.
const TIMEOUT: Duration = Duration::from_secs(1);
/// A worker's text has some 100 lines.
const MAX_BYTES: usize = 1 << 20;

/// The handler.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let scrapes = app.pool.live().map(async |(replica, session)| {
        let text = timeout(TIMEOUT, scrape(&session)).await.ok().flatten();
        if text.is_none() {
            tracing::debug!(replica = replica.name, "no metrics came from this worker");
        }
        (replica, text)
    });
    let scraped = join_all(scrapes).await;
    let mut all = Exposition::default();
    all.add(&app.metrics.render(), None);
    for (replica, text) in scraped {
        all.add(&text.unwrap_or_default(), Some(&replica.name));
    }
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, all.render()).into_response()
}

async fn scrape(session: &Session) -> Option<String> {
    let request = Request::get("/metrics").body(Body::empty()).ok()?;
    let response = session.channel.clone().oneshot(request).await.ok()?;
    if !response.status().is_success() {
        return None;
    }
    let body = axum::body::Body::new(response.into_body());
    String::from_utf8(to_bytes(body, MAX_BYTES).await.ok()?.into()).ok()
}
