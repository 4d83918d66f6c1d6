//! Starts and ends a gateway. Blocking calls for a caller without an async runtime.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::app::App;
use crate::config::GatewayConfig;
use crate::routes;
use crate::serve::{self, Timeouts};
use crate::shutdown::{Ended, Phases};

const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// What `stop` waits for tasks that are in the middle of something.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Ivy. Started, it is a [`Running`] gateway.
#[derive(Debug)]
pub struct Gateway;

/// A gateway that serves on threads of its own, until it is drained or stopped.
#[derive(Debug)]
pub struct Running {
    address: String,
    phases: Phases,
    ended: Arc<Ended>,
    runtime: Mutex<Option<Runtime>>,
}

impl Gateway {
    /// Loads the tokenizer, binds and serves. Workers may come later: `/ready` tells.
    ///
    /// # Errors
    /// If the tokenizer cannot be loaded, a setting is wrong, or the address cannot be bound.
    pub fn start(config: GatewayConfig) -> io::Result<Running> {
        let phases = Phases::new();
        let (listener, address) = bind(&config.listen)?;
        let (app, connectors) = App::new(config, phases.clone())?;
        let app = Arc::new(app);
        let ended = Arc::new(Ended::default());
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .thread_name("ivy")
            .build()?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let serving_ended = Arc::clone(&ended);
        runtime.spawn(async move {
            // Ends with this task.
            let mut background = JoinSet::new();
            for (replica, connector) in app.pool.replicas.iter().zip(connectors) {
                background.spawn(connector.keep(Arc::clone(replica)));
            }
            let kept = Arc::clone(&app);
            background.spawn(async move { kept.awake.keep().await });
            let metrics = Arc::clone(&app.metrics);
            background.spawn(async move {
                loop {
                    tokio::time::sleep(UPKEEP_INTERVAL).await;
                    metrics.run_upkeep();
                }
            });
            let timeouts = Timeouts {
                request: app.config.request_timeout,
                drain: app.config.drain_timeout,
            };
            let router = routes::router(&app);
            let is_drained = serve::serve(listener, router, &app.phases, timeouts).await;
            serving_ended.set(!is_drained);
        });
        tracing::info!(address, "gateway serves");
        Ok(Running {
            address,
            phases,
            ended,
            runtime: Mutex::new(Some(runtime)),
        })
    }
}

impl Running {
    /// `host:port`, with the real port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Not ready from now on, no new connections; open requests finish, then it has stopped. Those
    /// that take longer than the settings allow are ended.
    pub fn drain(&self) {
        self.phases.drain();
    }

    /// Stops at once; open requests are dropped.
    pub fn stop(&self) {
        self.phases.drain();
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_timeout(STOP_TIMEOUT);
        }
        self.ended.set(true);
    }

    /// Whether it stopped before every open request was answered.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.ended.was_cut()
    }

    /// Blocks for `timeout` at most; whether it has stopped.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.ended.wait(timeout)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn bind(listen: &str) -> io::Result<(TcpListener, String)> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("listen {listen:?}: {error}"));
    let addresses: Vec<SocketAddr> = listen.to_socket_addrs().map_err(named)?.collect();
    let listener = TcpListener::bind(addresses.as_slice()).map_err(named)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?.to_string();
    Ok((listener, address))
}
