//! What surrounds every request: its id, its place in the log, its count in the metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::app::App;
use crate::error::Reason;
use crate::headers;
use crate::metrics::Labels;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID_BYTES: usize = 128;
/// Probes ask them again and again; that no worker is up has its own line.
const PROBED: [&str; 3] = ["/ready", "/", "/ping"];
/// nginx's word for a caller that hung up.
const HUNG_UP: u16 = 499;

/// One request's labels, filled in by its handler as far as it gets.
#[derive(Clone, Debug)]
pub(crate) struct Context(Arc<Mutex<Labels>>);

impl Context {
    /// The request is for the served model.
    pub(crate) fn set_model(&self, id: &str) {
        id.clone_into(&mut self.0.lock().model);
    }

    pub(crate) fn set_lane(&self, lane: &'static str) {
        self.0.lock().lane = lane;
    }
}

/// Gives a request its id and counts it, also if its caller hangs up.
pub(crate) async fn track(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request_id(request.headers());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map(MatchedPath::as_str);
    let labels = Labels {
        model: "unknown".to_owned(),
        route: route.unwrap_or("unknown").to_owned(),
        lane: "none",
    };
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        route = labels.route
    );
    let context = Context(Arc::new(Mutex::new(labels)));
    app.metrics.request_began();
    let mut count = Count {
        app,
        context: context.clone(),
        id: id.clone(),
        traceparent: headers::traced(request.headers()).map(str::to_owned),
        started: Instant::now(),
        code: HUNG_UP,
        reason: None,
    };
    request.extensions_mut().insert(context);
    let mut response = next.run(request).instrument(span).await;
    count.code = response.status().as_u16();
    count.reason = response.extensions_mut().remove();
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The caller's id if it can be repeated, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_plain = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=MAX_ID_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    headers
        .get(&REQUEST_ID)
        .filter(is_plain)
        .cloned()
        .unwrap_or_else(|| {
            let id = Uuid::new_v4().simple().to_string();
            HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("none"))
        })
}

/// Counts and logs a request when it is dropped.
struct Count {
    app: Arc<App>,
    context: Context,
    id: HeaderValue,
    traceparent: Option<String>,
    started: Instant,
    code: u16,
    reason: Option<Reason>,
}

impl Count {
    /// One line a request; one that failed by no fault of its caller's is always heard of.
    fn log(&self, labels: &Labels, elapsed: Duration) {
        let id = self.id.to_str().unwrap_or_default();
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let Labels { model, route, lane } = labels;
        let (code, traceparent) = (self.code, self.traceparent.as_deref());
        let reason = self.reason.as_ref().map(|reason| reason.0.as_str());
        macro_rules! line {
            ($level:ident, $message:literal) => {
                tracing::$level!(
                    id,
                    code,
                    elapsed_ms,
                    model,
                    route,
                    lane,
                    traceparent,
                    reason,
                    $message
                )
            };
        }
        match code {
            500 => line!(error, "request failed"),
            _ if reason.is_some() && !PROBED.contains(&route.as_str()) => {
                line!(warn, "request failed");
            }
            _ => line!(debug, "request"),
        }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let labels = self.context.0.lock().clone();
        let elapsed = self.started.elapsed();
        self.log(&labels, elapsed);
        self.app.metrics.request(&labels, self.code, elapsed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_no_short_visible_ascii_is_replaced() {
        let id = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
            request_id(&headers)
        };
        assert_eq!(id(b"abc-123"), "abc-123");
        for bad in [&b""[..], b"two words", b"\xc3\xa9", &[b'a'; 129]] {
            assert_eq!(id(bad).len(), 32);
        }
    }
}
