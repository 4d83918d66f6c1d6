//! A gateway over fake workers, driven over real sockets.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test file uses a part, and a fault here fails its test"
)]

pub(crate) mod http;
pub(crate) mod model;
pub(crate) mod tulip;

use std::time::{Duration, SystemTime};

use flowerbed_ivy::{Gateway, Running};
use serde_json::{Value, json};
use tempfile::TempDir;

use http::{Answer, Client};
use tulip::Tulip;

/// A running gateway and where it is.
pub(crate) struct Ivy {
    pub(crate) running: Running,
    pub(crate) client: Client,
    _folder: TempDir,
}

impl Ivy {
    /// A gateway over these workers, ready to answer.
    pub(crate) fn over(workers: &[&Tulip]) -> Self {
        let ivy = Self::with(workers, |_| {});
        ivy.await_ready();
        ivy
    }

    /// A gateway with other settings, which may not be ready yet.
    pub(crate) fn with(workers: &[&Tulip], change: impl FnOnce(&mut Value)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        std::fs::write(&file, model::tokenizer()).unwrap();
        let mut config = json!({
            "model": {
                "id": model::ID, "aliases": ["tiny"], "tokenizer_file": file,
                "tokenizer_sha256": model::tokenizer_sha256(),
                "text": {
                    "max_length": model::MAX_LENGTH, "truncation_side": "right",
                    "lowercase": false, "strip": false, "prompts": {"query": "the "},
                    "default_prompt": null, "pool_prompt": true
                },
                "text_sha256": model::TEXT_SHA256
            },
            "workers": workers.iter().map(|worker| worker.address.clone()).collect::<Vec<_>>(),
            "listen": "127.0.0.1:0", "worker_token": null, "request_timeout_s": 20.0,
            "drain_timeout_s": 20.0,
            "tokenizer_threads": 2, "spin_ms": 0, "auto_truncate": true
        });
        change(&mut config);
        let running = Gateway::start(serde_json::from_value(config).unwrap()).unwrap();
        let client = Client::new(running.address());
        Self {
            running,
            client,
            _folder: folder,
        }
    }

    pub(crate) fn await_ready(&self) {
        eventually("ready", || self.client.get("/ready").status == 200);
    }

    pub(crate) fn embed(&self, body: &Value) -> Answer {
        self.client.post("/v1/embeddings", body)
    }

    /// The vectors of a good answer.
    pub(crate) fn vectors(&self, body: &Value) -> Vec<Vec<f32>> {
        self.embed(body).vectors()
    }

    /// The value of a metric whose line starts with `series`.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let text = String::from_utf8(self.client.get("/metrics").body).unwrap();
        let line = text.lines().find(|line| line.starts_with(series))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

/// Waits until something that takes a moment is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = SystemTime::now();
    while !is_so() {
        assert!(
            started.elapsed().unwrap() < Duration::from_secs(10),
            "never: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
