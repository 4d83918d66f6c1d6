//! Binds TCP or a Unix socket, and serves HTTP there until the worker drains.
//!
//! tonic's own server arms a timer for the `grpc-timeout` header that answers CANCELLED before the
//! scheduler can answer `DEADLINE_EXCEEDED`, so the connections are served by hyper directly.

use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use axum::Router;
use flowerbed_connection::{Limits, serve};
use flowerbed_protocol::limits;
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// Calls of one connection at once. Admission bounds them; hyper's default of 200 would make a query
/// wait in the gateway behind bulk calls, where lanes do not count.
const MAX_STREAMS: u32 = 100_000;

/// A bound address.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

// === impl Listener ===

impl Listener {
    /// Binds `host:port` or `unix:path`; returns the address with the real port as well.
    ///
    /// # Errors
    /// The address is in use, or not this machine's; the error names it.
    pub(crate) async fn bind(address: &str) -> io::Result<(Self, String)> {
        Self::try_bind(address).await.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
        })
    }

    async fn try_bind(address: &str) -> io::Result<(Self, String)> {
        if let Some(path) = address.strip_prefix("unix:") {
            let listener = bind_unix(Path::new(path)).await?;
            return Ok((Self::Unix(listener), address.to_owned()));
        }
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?.to_string();
        Ok((Self::Tcp(listener), address))
    }

    /// Serves until `draining` ends and every open call is answered.
    pub(crate) async fn serve(self, router: Router, draining: impl Future<Output = ()>) {
        let limits = Limits {
            max_streams: MAX_STREAMS,
            // A gateway calls for many clients, who may hang up together while this process waits for a core.
            max_given_up: Some(MAX_STREAMS as usize),
            windows: Some((limits::STREAM_WINDOW_BYTES, limits::CONNECTION_WINDOW_BYTES)),
            ..Limits::default()
        };
        match self {
            Self::Tcp(listener) => serve(listener, limits, router, draining).await,
            Self::Unix(listener) => serve(listener, limits, router, draining).await,
        }
    }
}

/// Takes over the socket of a dead predecessor, never of a living one.
async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
