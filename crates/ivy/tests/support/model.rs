//! The model of the tests: an uncased BERT tokenizer with letters and a few words.

use flowerbed_protocol::v1::{Head, ModelInfo};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) const ID: &str = "flowerbed/tiny-bert";
pub(crate) const SPACE: &str = "space-a";
pub(crate) const TEXT_SHA256: &str = "text-settings";
pub(crate) const MAX_LENGTH: usize = 128;
pub(crate) const VOCAB_ROWS: u32 = 100;
pub(crate) const DIMENSIONS: u32 = 8;
pub(crate) const TOKEN_DIMENSIONS: u32 = 4;
pub(crate) const CLS: u32 = 2;
pub(crate) const SEP: u32 = 3;

/// tokenizer.json.
pub(crate) fn tokenizer() -> String {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
    let mut vocab: Vec<String> = special.map(str::to_owned).to_vec();
    vocab.extend(('a'..='z').flat_map(|letter| [letter.to_string(), format!("##{letter}")]));
    vocab.extend(["the", "flower", "##bed"].map(str::to_owned));
    let vocab: serde_json::Map<String, Value> = vocab
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let added = special.iter().enumerate().map(|(id, content)| {
        json!({
            "id": id, "content": content, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false
        })
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", SEP], "cls": ["[CLS]", CLS]},
        "decoder": null,
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab
        }
    })
    .to_string()
}

pub(crate) fn tokenizer_sha256() -> String {
    Sha256::digest(tokenizer())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// What a fake worker tells of itself.
pub(crate) fn info() -> ModelInfo {
    ModelInfo {
        id: ID.to_owned(),
        space: SPACE.to_owned(),
        tokenizer_sha256: tokenizer_sha256(),
        text_sha256: TEXT_SHA256.to_owned(),
        max_length: 128,
        vocab_rows: VOCAB_ROWS,
        dimensions: DIMENSIONS,
        normalize: true,
        heads: vec![Head::Embed.into(), Head::Tokens.into()],
        token_dimensions: TOKEN_DIMENSIONS,
        revision: "abc123".to_owned(),
        dtype: "float32".to_owned(),
        device: "cpu".to_owned(),
        pooling: "mean".to_owned(),
        weights_sha256: "weights".to_owned(),
        max_batch_sequences: 64,
        max_batch_tokens: 512,
        queue_limit: 100_000,
        attention_scale: 3_840.0,
        ..ModelInfo::default()
    }
}

/// The vector that a fake worker gives to a sequence: the same for the same ids, unlike for others.
pub(crate) fn vector(ids: &[u32], dimensions: u32) -> Vec<f32> {
    let mut seed = ids.iter().fold(17_u32, |seed, id| {
        seed.wrapping_mul(31).wrapping_add(*id + 1)
    });
    (0..dimensions)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(0x3f00_0000 | (seed >> 9))
        })
        .collect()
}
