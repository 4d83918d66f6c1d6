//! The gateway's connections, until it drains.

use std::time::Duration;

use axum::Router;
use flowerbed_connection::Limits;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::shutdown::Phases;

/// To the first byte: longer than clients open connections ahead.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(30);
/// Nothing came and nothing could be sent for so long.
const STILL_TIMEOUT: Duration = Duration::from_secs(120);
/// It is longer by so much than any request may take: who waits for an answer sends nothing either.
const STILL_SLACK: Duration = Duration::from_secs(60);
/// Below the usual limit of open files.
pub(crate) const MAX_CONNECTIONS: usize = 8_192;

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
    let limits = Limits {
        max_connections: MAX_CONNECTIONS,
        first_byte: FIRST_BYTE_TIMEOUT,
        still: STILL_TIMEOUT.max(timeouts.request.saturating_add(STILL_SLACK)),
        ..Limits::default()
    };
    let serving = flowerbed_connection::serve(listener, limits, router, phases.draining());
    let drained = async {
        phases.draining().await;
        sleep(timeouts.drain).await;
    };
    tokio::select! {
        () = serving => true,
        () = drained => {
            tracing::warn!(
                drain_timeout = ?timeouts.drain,
                "the time to drain is over; ending what is left"
            );
            false
        }
    }
}
