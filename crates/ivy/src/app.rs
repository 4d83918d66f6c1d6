//! What every request shares, and nothing that belongs to one request.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use flowerbed_text::Encoder;

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
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) phases: Phases,
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
        let replicas = config
            .workers
            .iter()
            .enumerate()
            .map(|(index, address)| {
                Arc::new(Replica::new(index, address.clone(), Arc::clone(&metrics)))
            })
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
            metrics,
            phases,
            started_at,
            config,
        };
        Ok((app, connectors.map_err(invalid)?))
    }
}
