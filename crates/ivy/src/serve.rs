//! Accepts connections and speaks HTTP/1 and HTTP/2 on them, until the gateway drains.
//!
//! Knows nothing of routes. axum's own server cannot bound the time of a request's head.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use crate::shutdown::Phases;

/// Also closes idle HTTP/1 connections, so it is longer than clients keep theirs.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// Nothing came for so long, be it the first byte.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// It is longer by so much than any request may take: who waits for an answer sends nothing either.
const READ_SLACK: Duration = Duration::from_secs(60);
/// A client that reads nothing of its answer for so long holds memory for nothing.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Further ones wait in the kernel; below the usual limit of open files.
pub(crate) const MAX_CONNECTIONS: usize = 8_192;
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// After a failed accept: out of file descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Times of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// The longest that a request may take.
    pub(crate) request: Duration,
    /// For what is open when draining begins.
    pub(crate) drain: Duration,
}

/// Serves until draining begins and what was accepted is answered. Returns false if that took
/// longer than its time: then some requests are still open.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    phases: &Phases,
    timeouts: Timeouts,
) -> bool {
    let read_timeout = READ_TIMEOUT.max(timeouts.request.saturating_add(READ_SLACK));
    let open = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = async {
            let place = Arc::clone(&places)
                .acquire_owned()
                .await
                .map_err(io::Error::other)?;
            listener.accept().await.map(|(stream, _)| (stream, place))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = phases.draining() => break,
        };
        match accepted {
            Ok((stream, place)) => spawn(stream, place, router.clone(), &open, read_timeout),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let is_drained = timeout(timeouts.drain, open.shutdown()).await.is_ok();
    if !is_drained {
        tracing::warn!(
            drain_timeout = ?timeouts.drain,
            "the time to drain is over; ending what is left"
        );
    }
    is_drained
}

fn spawn(
    stream: TcpStream,
    place: OwnedSemaphorePermit,
    router: Router,
    open: &GracefulShutdown,
    read_timeout: Duration,
) {
    // Small answers must not wait for the client's acknowledgement.
    drop(stream.set_nodelay(true));
    let mut stream = TimeoutStream::new(stream);
    stream.set_read_timeout(Some(read_timeout));
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
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
        .serve_connection(TokioIo::new(Box::pin(stream)), service)
        .into_owned();
    let watched = open.watch(connection);
    tokio::spawn(async move {
        let _place = place;
        if let Err(error) = watched.await {
            // A client that hangs up is no event.
            tracing::debug!(%error, "connection ended");
        }
    });
}
