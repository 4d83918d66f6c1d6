//! Settings of the gateway, as `GatewayConfig.to_core()` of `python/flowerbed/config.py` writes
//! them. Defaults are owned there: every field is required here.

use std::path::PathBuf;
use std::time::Duration;

use flowerbed_protocol::settings::{self, Secret};
use flowerbed_text::TextSettings;
use serde::Deserialize;

/// Settings of Ivy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// The served model.
    pub model: GatewayModel,
    /// Addresses of the workers: `host:port` or `unix:path`.
    pub workers: Vec<String>,
    /// `host:port` to serve on; port 0 takes any free one.
    pub listen: String,
    /// Shared secret that the workers ask for.
    pub worker_token: Option<Secret>,
    /// Time a request may take, unless its caller asks for less.
    #[serde(rename = "request_timeout_s", deserialize_with = "settings::seconds")]
    pub request_timeout: Duration,
    /// Time that open requests have to end after the gateway was told to.
    #[serde(rename = "drain_timeout_s", deserialize_with = "settings::seconds")]
    pub drain_timeout: Duration,
    /// Threads that tokenize short requests; 0 means one a core.
    pub tokenizer_threads: usize,
    /// How long threads stay awake after a query.
    #[serde(rename = "spin_ms", deserialize_with = "settings::millis")]
    pub spin: Duration,
    /// Whether over-long inputs are cut where a request does not say.
    pub auto_truncate: bool,
}

/// One served model, as the gateway sees it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayModel {
    /// Name in answers.
    pub id: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// Path of tokenizer.json.
    pub tokenizer_file: PathBuf,
    /// Digest of that file; a worker with another one is refused.
    pub tokenizer_sha256: String,
    /// How text becomes ids.
    pub text: TextSettings,
    /// Digest of the text settings; a worker with another one is refused.
    pub text_sha256: String,
}

impl GatewayModel {
    /// Whether a request that names `model` means this one.
    pub(crate) fn answers_to(&self, model: &str) -> bool {
        model == self.id
            || model == "default"
            || self
                .id
                .rsplit_once('/')
                .is_some_and(|(_, last)| model == last)
            || self.aliases.iter().any(|alias| model == alias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{
        "model": {
            "id": "sentence-transformers/all-MiniLM-L6-v2", "aliases": ["minilm"],
            "tokenizer_file": "/m/tokenizer.json", "tokenizer_sha256": "aa",
            "text": {"max_length": 256, "truncation_side": "right", "lowercase": false,
                     "strip": false, "prompts": {}, "default_prompt": null, "pool_prompt": true},
            "text_sha256": "bb"
        },
        "workers": ["unix:/run/w.sock"], "listen": "127.0.0.1:0", "worker_token": "hush",
        "request_timeout_s": 60.0, "drain_timeout_s": 30.0, "tokenizer_threads": 0,
        "spin_ms": 0, "auto_truncate": true
    }"#;

    #[test]
    fn the_json_of_the_python_side_is_read_and_its_secret_is_not_printed() {
        let config: GatewayConfig = serde_json::from_str(CONFIG).unwrap();
        assert_eq!(config.request_timeout, Duration::from_secs(60));
        assert!(!format!("{config:?}").contains("hush"));
    }

    #[test]
    fn an_unknown_field_and_an_impossible_time_are_refused_by_name() {
        for (from, to, word) in [
            ("\"listen\"", "\"lisden\"", "lisden"),
            ("60.0", "0", "timeout"),
            ("30.0", "-1", "timeout"),
        ] {
            let error = serde_json::from_str::<GatewayConfig>(&CONFIG.replace(from, to));
            assert!(error.unwrap_err().to_string().contains(word));
        }
    }

    #[test]
    fn pa_11_a_model_answers_to_its_id_last_part_aliases_and_default() {
        let config: GatewayConfig = serde_json::from_str(CONFIG).unwrap();
        for name in [
            "sentence-transformers/all-MiniLM-L6-v2",
            "all-MiniLM-L6-v2",
            "minilm",
            "default",
        ] {
            assert!(config.model.answers_to(name), "{name}");
        }
        for name in ["", "text-embedding-3-small", "/m/tokenizer.json"] {
            assert!(!config.model.answers_to(name), "{name}");
        }
    }
}
