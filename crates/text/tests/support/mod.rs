//! Small tokenizers of the shapes that served models have, and the library's own truncation.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test file uses a part, and a fault here fails its test"
)]

use flowerbed_text::{Encoder, TextSettings, Truncation, TruncationSide};
use serde_json::{Value, json};
use tokenizers::{Tokenizer, TruncationDirection, TruncationParams};

/// Cut at the right.
pub(crate) const CUT: Truncation = Truncation::Cut(TruncationSide::Right);

const SPECIAL: [&str; 4] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];

fn added_tokens(contents: &[&str]) -> Vec<Value> {
    contents
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({
                "id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false
            })
        })
        .collect()
}

fn template(before: &str, after: &str) -> Value {
    let token = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let id = |name: &str| SPECIAL.iter().position(|special| *special == name).unwrap();
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let other = json!({"Sequence": {"id": "B", "type_id": 1}});
    json!({
        "type": "TemplateProcessing",
        "single": [token(before), text, token(after)],
        "pair": [token(before), text, token(after), other, token(after)],
        "special_tokens": {
            before: {"id": before, "ids": [id(before)], "tokens": [before]},
            after: {"id": after, "ids": [id(after)], "tokens": [after]}
        }
    })
}

/// Uncased BERT: letters, some words, `[CLS]` and `[SEP]`; its file asks for truncation and padding.
pub(crate) fn wordpiece() -> Value {
    let mut vocab: Vec<String> = SPECIAL.map(str::to_owned).to_vec();
    for letter in 'a'..='z' {
        vocab.extend([letter.to_string(), format!("##{letter}")]);
    }
    vocab.extend(
        [
            "the", "flower", "##bed", "##ing", "query", ":", ",", ".", "!", "-",
        ]
        .map(str::to_owned),
    );
    let vocab: serde_json::Map<String, Value> = vocab
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 5}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"
        },
        "added_tokens": added_tokens(&SPECIAL),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template("[CLS]", "[SEP]"),
        "decoder": null,
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab
        }
    })
}

/// Byte-level BPE without special tokens around a text, split by GPT-2's pattern.
pub(crate) fn byte_level() -> Value {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let alphabet = (0..=255_u8).map(|byte| {
        if printable(byte) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).unwrap()
    });
    let mut tokens: Vec<String> = alphabet.map(String::from).collect();
    tokens.sort();
    tokens.extend(["Ġt", "he", "Ġthe", "in", "ing", "ĠĠ"].map(str::to_owned));
    let vocab: serde_json::Map<String, Value> = tokens
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
        },
        "post_processor": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true
        },
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocab,
            "merges": [["Ġ", "t"], ["h", "e"], ["Ġt", "he"], ["i", "n"], ["in", "g"], ["Ġ", "Ġ"]]
        }
    })
}

/// Byte-level BPE split by Qwen's pattern: punctuation takes the line breaks that follow it.
pub(crate) fn qwen() -> Value {
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let mut root = byte_level();
    root["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
    ]});
    root
}

pub(crate) fn encoder(root: &Value, settings: &Value) -> Encoder {
    let settings: TextSettings = serde_json::from_value(settings.clone()).unwrap();
    Encoder::from_json(root.to_string().as_bytes(), settings).unwrap()
}

/// What the Hugging Face library makes of `text` with `truncation=True, max_length=…`.
pub(crate) struct Oracle(Tokenizer);

impl Oracle {
    pub(crate) fn new(root: &Value, max_length: usize, direction: TruncationDirection) -> Self {
        let mut tokenizer = Tokenizer::from_bytes(root.to_string()).unwrap();
        let params = TruncationParams {
            max_length,
            direction,
            ..TruncationParams::default()
        };
        tokenizer
            .with_truncation(Some(params))
            .unwrap()
            .with_padding(None);
        Self(tokenizer)
    }

    pub(crate) fn ids(&self, text: &str) -> Vec<u32> {
        self.0.encode(text, true).unwrap().get_ids().to_vec()
    }
}
