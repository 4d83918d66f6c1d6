//! Accepts connections and speaks HTTP/1 and HTTP/2 on them, until the gateway drains.
//!
//! Knows nothing of routes. axum's own server cannot bound the time of a request's head.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::shutdown::Phases;

/// Also closes idle HTTP/1 connections, so it is longer than clients keep theirs.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// After a failed accept: out of file descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until draining begins and what was accepted is answered. Returns false if that took
/// longer than `drain_timeout`: then some requests are still open.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    phases: &Phases,
    drain_timeout: Duration,
) -> bool {
    let open = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = phases.draining() => break,
        };
        match accepted {
            Ok((stream, _)) => spawn(stream, router.clone(), &open),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let is_drained = timeout(drain_timeout, open.shutdown()).await.is_ok();
    if !is_drained {
        tracing::warn!(
            ?drain_timeout,
            "the time to drain is over; ending what is left"
        );
    }
    is_drained
}

fn spawn(stream: TcpStream, router: Router, open: &GracefulShutdown) {
    // Small answers must not wait for the client's acknowledgement.
    drop(stream.set_nodelay(true));
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL);
    let service = TowerToHyperService::new(router);
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    let watched = open.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = watched.await {
            // A client that hangs up is no event.
            tracing::debug!(%error, "connection ended");
        }
    });
}
