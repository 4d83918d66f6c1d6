//! One connection to a worker, by which its calls go side by side.

use std::net::SocketAddr;

use flowerbed_protocol::limits;
use flowerbed_protocol::v1::inference_client::InferenceClient;
use flowerbed_protocol::v1::{DescribeRequest, RunRequest, RunResponse};
use tonic::transport::{Channel, Endpoint};

use crate::options::Error;
use crate::plan::Item;

/// Knows what the worker serves.
#[derive(Debug)]
pub struct Worker {
    client: InferenceClient<Channel>,
    model: String,
    space: String,
}

impl Worker {
    /// Connects and asks.
    pub async fn connect(address: SocketAddr) -> Result<Self, Error> {
        let failed = |reason: &str| Error::Usage(format!("--target grpc://{address}: {reason}"));
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| failed("is no address"))?
            .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
            .connect()
            .await
            .map_err(|_| failed("cannot connect"))?;
        let mut client = InferenceClient::new(channel)
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES);
        let described = client.describe(DescribeRequest {}).await;
        let described = described.map_err(|status| failed(status.code().description()))?;
        let model = described.into_inner().models.into_iter().next();
        let model = model.ok_or_else(|| failed("serves no model"))?;
        Ok(Self {
            client,
            model: model.id,
            space: model.space,
        })
    }

    /// One call. The error says how it failed.
    pub async fn send(&self, item: &Item) -> Result<RunResponse, &'static str> {
        let run = item.run.clone().ok_or("nothing for a worker")?;
        let request = RunRequest {
            model: self.model.clone(),
            space: self.space.clone(),
            ..run
        };
        let answer = self.client.clone().run(request).await;
        match answer {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(status.code().description()),
        }
    }
}
