//! Where a long text may be cut before it is tokenized, without moving an id that is kept.
//!
//! The argument: for the normalizers and pre-tokenizers listed here, nothing that follows a space
//! changes how the text before that space is split. Call a *boundary* a space (U+0020) that follows
//! a character that is no white space. Cut a text at boundary `p`. Only the word that ends at `p`
//! can come out differently, and an added token that spans `p`. Let `q` be an earlier boundary,
//! farther from `p` than any added token is long: every token that ends at or before `q` is the
//! same in the cut text as in the whole one. Anything not listed is tokenized whole.
//!
//! BERT's normalizer puts a space on both sides of an ideograph, so that between two of them is a
//! boundary too: Chinese has no other.

use serde_json::Value;

/// Splitting patterns known to be local: those of Qwen 2 and 3, and of Llama 3.
const LOCAL_PATTERNS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// A tokenizer whose text may be cut at boundaries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Locality {
    margin_bytes: usize,
    splits_ideographs: bool,
}

/// A prefix of a text, and how far its tokens are those of the whole text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Bytes of the prefix.
    pub(crate) end: usize,
    /// Tokens that end at or before this byte are kept by the rest of the text.
    pub(crate) safe_end: usize,
}

impl Locality {
    /// `None` where the argument does not hold for this tokenizer.json.
    pub(crate) fn of(root: &Value) -> Option<Self> {
        let is_deterministic = matches!(root["model"]["dropout"].as_f64(), None | Some(0.0));
        let has_local_normalizer =
            root["normalizer"].is_null() || is_local_normalizer(&root["normalizer"]);
        let splits = splits_after(&root["pre_tokenizer"], false) == Some(true);
        (is_deterministic && has_local_normalizer && splits).then(|| {
            let added = root["added_tokens"]
                .as_array()
                .map_or(&[][..], Vec::as_slice);
            let longest = added
                .iter()
                .filter_map(|token| token["content"].as_str())
                .map(str::len);
            // A token is matched in normalized text, which may be shorter than its source.
            Self {
                margin_bytes: 8 * longest.max().unwrap_or(0) + 16,
                splits_ideographs: root["normalizer"]["type"] == "BertNormalizer"
                    && root["normalizer"]["handle_chinese_chars"] == true,
            }
        })
    }

    pub(crate) fn splits_ideographs(self) -> bool {
        self.splits_ideographs
    }

    /// The longest cut of at most `max_bytes`, if `text` has boundaries there.
    pub(crate) fn cut(self, text: &str, max_bytes: usize) -> Option<Cut> {
        let end = self.boundary_before(text, max_bytes)?;
        let safe_end = self.boundary_before(text, end.checked_sub(self.margin_bytes)?)?;
        Some(Cut { end, safe_end })
    }

    /// The last boundary at or before byte `at`.
    fn boundary_before(self, text: &str, at: usize) -> Option<usize> {
        let mut end = at.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut next = text[end..].chars().next();
        for (start, c) in text[..end].char_indices().rev() {
            let is_boundary = next.is_some_and(|next| {
                (next == ' ' && !c.is_whitespace())
                    || (self.splits_ideographs && is_ideograph(c) && is_ideograph(next))
            });
            if is_boundary {
                return Some(start + c.len_utf8());
            }
            next = Some(c);
        }
        None
    }
}

/// Whether BERT's normalizer sets `c` apart: the blocks of ideographs that it lists.
fn is_ideograph(c: char) -> bool {
    matches!(u32::from(c),
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F
        | 0x2B740..=0x2B81F | 0x2B920..=0x2CEAF | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F)
}

fn is_local_normalizer(node: &Value) -> bool {
    match node["type"].as_str() {
        Some(
            "BertNormalizer" | "NFC" | "NFD" | "NFKC" | "NFKD" | "Nmt" | "Precompiled"
            | "Lowercase" | "StripAccents" | "Strip",
        ) => true,
        Some("Sequence") => node["normalizers"]
            .as_array()
            .is_some_and(|all| all.iter().all(is_local_normalizer)),
        // XLM-R's and T5's way to merge runs of spaces.
        Some("Replace") => node["pattern"]["Regex"].as_str() == Some(" {2,}"),
        _ => false,
    }
}

/// Whether the text is split at every space once `node` has run, or `None` if `node` is not local.
/// `splits` tells whether an earlier one already split it: once spaces are rewritten it is too late.
fn splits_after(node: &Value, splits: bool) -> Option<bool> {
    match node["type"].as_str()? {
        "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" => Some(true),
        "Punctuation" | "Digits" => Some(splits),
        "Metaspace" => (splits || node["split"].as_bool().unwrap_or(true)).then_some(true),
        "ByteLevel" => (splits || node["use_regex"].as_bool().unwrap_or(true)).then_some(true),
        "Split" => {
            let pattern = node["pattern"]["Regex"].as_str()?;
            LOCAL_PATTERNS.contains(&pattern).then_some(true)
        }
        "Sequence" => node["pretokenizers"]
            .as_array()?
            .iter()
            .try_fold(splits, |splits, child| splits_after(child, splits)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_boundary_follows_a_character_that_is_no_white_space() {
        let boundary_before = |text, at| {
            let locality = Locality {
                margin_bytes: 0,
                splits_ideographs: false,
            };
            locality.boundary_before(text, at)
        };
        assert_eq!(boundary_before("ab  cd", 5), Some(2));
        assert_eq!(boundary_before("ab  cd", 1), None);
        assert_eq!(boundary_before("\u{3000} x", 9), None);
        assert_eq!(boundary_before("é x", 400), Some(2));
    }

    #[test]
    fn between_ideographs_is_a_boundary_where_the_normalizer_sets_them_apart() {
        let cut = |splits_ideographs, text, at| {
            Locality {
                margin_bytes: 0,
                splits_ideographs,
            }
            .boundary_before(text, at)
        };
        assert_eq!(cut(true, "漢字漢字", 7), Some(6));
        assert_eq!(cut(true, "漢a字b", 8), None);
        assert_eq!(cut(true, "漢\u{301}字", 8), None);
        assert_eq!(cut(false, "漢字漢字", 7), None);
    }

    #[test]
    fn a_tokenizer_that_sees_across_spaces_is_never_cut() {
        let cut = |pre_tokenizer: Value, normalizer: Value| {
            Locality::of(&json!({
                "pre_tokenizer": pre_tokenizer, "normalizer": normalizer, "model": {}
            }))
            .is_some()
        };
        assert!(cut(
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "BertNormalizer"})
        ));
        assert!(!cut(Value::Null, Value::Null));
        assert!(!cut(
            json!({"type": "Metaspace", "split": false}),
            Value::Null
        ));
        assert!(!cut(
            json!({"type": "ByteLevel", "use_regex": false}),
            Value::Null
        ));
        assert!(!cut(
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "Prepend"})
        ));
        let unknown = json!({"type": "Split", "pattern": {"Regex": r"\w+ \w+"}});
        assert!(!cut(
            json!({"type": "Sequence", "pretokenizers": [unknown]}),
            Value::Null
        ));
    }
}
