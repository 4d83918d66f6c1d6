//! What every request shares, and nothing that belongs to one request.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use flowerbed_protocol::Awake;
use flowerbed_text::Encoder;

use crate::answers::AnswerMemory;
use crate::body::BodyMemory;
use crate::compute::Compute;
use crate::config::GatewayConfig;
use crate::connect::Connector;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::replica::Replica;
use crate::shutdown::Phases;

/// The state of one gateway.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: GatewayConfig,
    pub(crate) encoder: Arc<Encoder>,
    pub(crate) compute: Compute,
    pub(crate) pool: Arc<Pool>,
    pub(crate) body_memory: BodyMemory,
    pub(crate) answers: AnswerMemory,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) phases: Phases,
    /// Touched by every short request.
    pub(crate) awake: Awake,
    /// Seconds since 1970.
    pub(crate) started_at: u64,
}

impl App {
    /// Loads the tokenizer; gives the state and a connector for each of its replicas.
    pub(crate) fn new(config: GatewayConfig, phases: Phases) -> io::Result<(Self, Vec<Connector>)> {
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        if config.workers.is_empty() {
            return Err(invalid("workers: name at least one worker".to_owned()));
        }
        let model = &config.model;
        let encoder = Encoder::from_file(
            &model.tokenizer_file,
            &model.tokenizer_sha256,
            model.text.clone(),
        )
        .map_err(|error| invalid(error.to_string()))?;
        let metrics = Arc::new(Metrics::new());
        let connectors: Result<Vec<Connector>, String> = config
            .workers
            .iter()
            .map(|address| Connector::new(address, &config))
            .collect();
        let replicas = names(&config.workers)
            .into_iter()
            .enumerate()
            .map(|(index, name)| Arc::new(Replica::new(index, name, Arc::clone(&metrics))))
            .collect();
        let started_at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let app = Self {
            encoder: Arc::new(encoder),
            compute: Compute::new(config.tokenizer_threads)?,
            pool: Arc::new(Pool::new(replicas)),
            body_memory: BodyMemory::new(),
            answers: AnswerMemory::new(),
            metrics,
            phases,
            awake: Awake::new(config.spin),
            started_at,
            config,
        };
        Ok((app, connectors.map_err(invalid)?))
    }
}

/// A short, stable name for each address: the socket's, such as `worker-0`, where that is enough.
fn names(addresses: &[String]) -> Vec<String> {
    let short = |address: &String| {
        address
            .strip_prefix("unix:")
            .and_then(|path| Path::new(path).file_stem())
            .map_or_else(
                || address.clone(),
                |stem| stem.to_string_lossy().into_owned(),
            )
    };
    let shorts: Vec<String> = addresses.iter().map(short).collect();
    let is_unique = shorts.iter().collect::<BTreeSet<_>>().len() == shorts.len();
    if is_unique {
        shorts
    } else {
        addresses.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_named_after_its_socket_or_its_host_and_port() {
        let addresses = ["unix:/tmp/x/worker-0.sock", "gpu-7:50051"].map(str::to_owned);
        assert_eq!(names(&addresses), ["worker-0", "gpu-7:50051"]);
        let alike = ["unix:/a/w.sock", "unix:/b/w.sock"].map(str::to_owned);
        assert_eq!(names(&alike), alike);
    }
}
