//! Keeps the connection to one worker: connect, Describe, watch its health, and again.
//!
//! The health stream is also the fastest sign of a broken connection: it ends with it.

use std::sync::Arc;
use std::time::Duration;

use flowerbed_protocol::v1::inference_client::InferenceClient;
use flowerbed_protocol::v1::{DescribeRequest, DescribeResponse, ModelInfo};
use flowerbed_protocol::{PROTOCOL_VERSION, limits};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::config::{GatewayConfig, GatewayModel};
use crate::replica::{Authorization, AuthorizedChannel, Replica, Session};

const SERVICE: &str = "flowerbed.v1.Inference";
const FIRST_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_millis(250);
/// For each of connecting, Describe and the first health report.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// A worker whose machine has gone closes nothing; a busy one still answers pings.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a worker is not asked. `/ready` shows it.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("cannot connect")]
    Connect,
    #[error("{0} did not answer in time")]
    Slow(&'static str),
    #[error("{call} failed: {:?}", status.code())]
    Call { call: &'static str, status: Status },
    #[error("speaks protocol {found}, this gateway speaks {PROTOCOL_VERSION}")]
    Protocol { found: u32 },
    #[error("serves {found}, not {wanted}")]
    Model { found: String, wanted: String },
    #[error("has another {what} than this gateway")]
    Text { what: &'static str },
    #[error("the connection broke")]
    Broken,
}

/// What it takes to connect to one worker.
#[derive(Debug)]
pub(crate) struct Connector {
    endpoint: Endpoint,
    authorization: Authorization,
    model: GatewayModel,
}

impl Connector {
    /// For `address`, `host:port` or `unix:path`; the error says what is wrong with it.
    pub(crate) fn new(address: &str, config: &GatewayConfig) -> Result<Self, String> {
        let uri = if address.starts_with("unix:") {
            address.to_owned()
        } else {
            format!("http://{address}")
        };
        let endpoint = Endpoint::from_shared(uri)
            .map_err(|error| format!("worker address {address:?}: {error}"))?
            .connect_timeout(STEP_TIMEOUT)
            .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        let authorization = match &config.worker_token {
            None => Authorization(None),
            Some(token) => {
                let value = format!("Bearer {}", token.expose());
                let mut value: MetadataValue<Ascii> = value
                    .parse()
                    .map_err(|_| "worker_token holds characters that no header can".to_owned())?;
                value.set_sensitive(true);
                Authorization(Some(value))
            }
        };
        Ok(Self {
            endpoint,
            authorization,
            model: config.model.clone(),
        })
    }

    /// Keeps `replica` connected for ever.
    pub(crate) async fn keep(self, replica: Arc<Replica>) {
        let mut delay = FIRST_DELAY;
        loop {
            let mut was_up = false;
            let refusal = self.session(&replica, &mut was_up).await;
            replica.set_down(&refusal.to_string());
            delay = if was_up {
                FIRST_DELAY
            } else {
                (2 * delay).min(MAX_DELAY)
            };
            sleep(delay).await;
        }
    }

    /// One connection, from its start to why it ended.
    async fn session(&self, replica: &Replica, was_up: &mut bool) -> Refusal {
        match self.try_session(replica, was_up).await {
            Ok(()) => Refusal::Broken,
            Err(refusal) => refusal,
        }
    }

    async fn try_session(&self, replica: &Replica, was_up: &mut bool) -> Result<(), Refusal> {
        let channel = timeout(STEP_TIMEOUT, self.endpoint.connect())
            .await
            .map_err(|_| Refusal::Slow("connecting"))?
            .map_err(|_| Refusal::Connect)?;
        let channel = AuthorizedChannel::new(channel, self.authorization.clone());
        let mut client = InferenceClient::new(channel.clone())
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES);
        let described = answer("Describe", client.describe(DescribeRequest {})).await?;
        let info = self.accept(described.into_inner())?;
        let session = Arc::new(Session {
            client,
            channel: channel.clone(),
            info,
            broken: Notify::new(),
        });
        let asked = HealthCheckRequest {
            service: SERVICE.to_owned(),
        };
        let mut health = HealthClient::new(channel);
        let mut health = answer("health", health.watch(asked)).await?.into_inner();
        let mut first = true;
        loop {
            let report = if std::mem::take(&mut first) {
                answer("health", health.message()).await?
            } else {
                tokio::select! {
                    report = health.message() => report.map_err(|_| Refusal::Broken)?,
                    () = session.broken.notified() => return Ok(()),
                }
            };
            let Some(report) = report else { return Ok(()) };
            if report.status == ServingStatus::Serving as i32 {
                *was_up = true;
                replica.set_up(&session);
            } else {
                replica.set_down("the worker says that it is not serving");
            }
        }
    }

    /// The model's description, if this gateway's ids mean the same to the worker.
    fn accept(&self, described: DescribeResponse) -> Result<ModelInfo, Refusal> {
        if described.protocol != PROTOCOL_VERSION {
            return Err(Refusal::Protocol {
                found: described.protocol,
            });
        }
        let known: Vec<&str> = described
            .models
            .iter()
            .map(|model| model.id.as_str())
            .collect();
        let known = known.join(", ");
        let Some(info) = described
            .models
            .into_iter()
            .find(|model| model.id == self.model.id)
        else {
            return Err(Refusal::Model {
                found: known,
                wanted: self.model.id.clone(),
            });
        };
        if info.tokenizer_sha256 != self.model.tokenizer_sha256 {
            return Err(Refusal::Text { what: "tokenizer" });
        }
        if info.text_sha256 != self.model.text_sha256 {
            return Err(Refusal::Text {
                what: "set of text settings",
            });
        }
        Ok(info)
    }
}

async fn answer<T>(
    call: &'static str,
    future: impl Future<Output = Result<T, Status>>,
) -> Result<T, Refusal> {
    timeout(STEP_TIMEOUT, future)
        .await
        .map_err(|_| Refusal::Slow(call))?
        .map_err(|status| Refusal::Call { call, status })
}
