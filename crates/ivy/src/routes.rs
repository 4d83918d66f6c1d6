//! The router: the table of routes and the layers around them.

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use flowerbed_protocol::{Error as RequestError, ErrorKind};
use tower_http::catch_panic::CatchPanicLayer;

use crate::answers::{Sending, send};
use crate::app::App;
use crate::body::discard;
use crate::context;
use crate::endpoints::ENDPOINTS;
use crate::error::{Dialect, Error, internal};

/// All routes of a gateway.
pub(crate) fn router(app: &Arc<App>) -> Router {
    Router::new()
        .merge(spoken_in(Dialect::OpenAi, app))
        .merge(spoken_in(Dialect::Tei, app))
        .fallback(no_such_route)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(Arc::clone(app), context::track))
        .with_state(Arc::clone(app))
}

/// The routes of one dialect; whatever fails under them is answered in it.
fn spoken_in(dialect: Dialect, app: &App) -> Router<Arc<App>> {
    let sending = Sending {
        memory: app.answers.clone(),
        metrics: Arc::clone(&app.metrics),
        dialect,
    };
    let own = ENDPOINTS
        .into_iter()
        .filter(|endpoint| endpoint.dialect == dialect);
    own.fold(Router::new(), |router, endpoint| {
        router.route(endpoint.path, (endpoint.handler)())
    })
    .method_not_allowed_fallback(wrong_method)
    .layer(CatchPanicLayer::custom(panicked))
    .layer(from_fn_with_state(sending, send))
}

async fn no_such_route(request: Request) -> Error {
    let (head, body) = request.into_parts();
    discard(&head.headers, body, 0).await;
    RequestError::new(ErrorKind::NotFound, "there is no such route").into()
}

async fn wrong_method(request: Request) -> Error {
    let (head, body) = request.into_parts();
    discard(&head.headers, body, 0).await;
    Error::Method(head.method)
}

/// The panic itself goes to the log by its hook; it may hold parts of a text, so not from here.
#[allow(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(_: Box<dyn Any + Send>) -> Response {
    Error::from(internal("a handler panicked")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_answered_as_a_500_that_tells_nothing_of_it() {
        let response = panicked(Box::new("a secret text"));
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers()["content-type"], "application/json");
    }
}
