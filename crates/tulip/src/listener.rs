//! Accepts connections over TCP or a Unix socket and speaks HTTP on them until the worker drains.
//!
//! tonic's own server arms a timer for the `grpc-timeout` header that answers CANCELLED before the
//! scheduler can answer `DEADLINE_EXCEEDED`, so the connections are served by hyper directly.

use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use axum::Router;
use flowerbed_protocol::limits;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// Calls of one connection at once. Admission bounds them; hyper's default of 200 would make a query
/// wait in the gateway behind bulk calls, where lanes do not count.
const MAX_STREAMS: u32 = 100_000;
/// After a failed accept: out of file descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
        let open = GracefulShutdown::new();
        tokio::pin!(draining);
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&router, &open) => accepted,
                () = &mut draining => break,
            };
            if let Err(error) = accepted {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        drop(self);
        open.shutdown().await;
    }

    async fn accept(&self, router: &Router, open: &GracefulShutdown) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                spawn(stream, router.clone(), open);
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                spawn(stream, router.clone(), open);
            }
        }
        Ok(())
    }
}

fn spawn(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    open: &GracefulShutdown,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(MAX_STREAMS);
    let service = TowerToHyperService::new(router);
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    let watched = open.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = watched.await {
            // A gateway that hangs up is no event.
            tracing::debug!(%error, "connection ended");
        }
    });
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
