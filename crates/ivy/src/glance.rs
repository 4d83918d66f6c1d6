//! What a request asks at least, before anything is tokenized; off the runtime, if it is large.

use std::sync::Arc;

use flowerbed_protocol::{CostModel, Error};
use flowerbed_text::Encoder;

use crate::compute::{Compute, Work};
use crate::input::Inputs;

/// The inputs again, and what was seen of them.
#[derive(Debug)]
pub(crate) struct Glance {
    pub(crate) inputs: Inputs,
    /// They cost so much or more.
    pub(crate) least_cost: u64,
    /// See [`Inputs::num_chars`].
    pub(crate) num_chars: usize,
}

/// Looks at `inputs`.
pub(crate) async fn glance(
    compute: &Compute,
    encoder: &Arc<Encoder>,
    cost_model: CostModel,
    inputs: Inputs,
) -> Result<Glance, Error> {
    let is_small = Compute::is_small(inputs.num_bytes());
    let encoder = Arc::clone(encoder);
    let look = move || Glance {
        least_cost: least_lengths(&inputs, &encoder)
            .map(|length| cost_model.cost(length as u64))
            .sum(),
        num_chars: inputs.num_chars(),
        inputs,
    };
    if is_small {
        return Ok(look());
    }
    compute.run(Work::Json, move |_| look()).await
}

/// Tokens that each input has at least, once it is cut.
fn least_lengths(inputs: &Inputs, encoder: &Encoder) -> impl Iterator<Item = usize> {
    let max_length = encoder.settings().max_length;
    let (texts, arrays) = match inputs {
        Inputs::Texts(texts) => (&texts[..], &[][..]),
        Inputs::Tokens(arrays) => (&[][..], &arrays[..]),
    };
    let texts = texts.iter().map(|text| encoder.min_tokens(text));
    texts
        .chain(arrays.iter().map(move |ids| ids.len().min(max_length)))
        .map(|length| length.max(1))
}

#[cfg(test)]
mod tests {
    use flowerbed_text::{TextSettings, Truncation, TruncationSide};
    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;
    use crate::form::Names;
    use crate::tokenize::{Encoding, tokenize};

    fn encoder() -> Arc<Encoder> {
        let file = json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
        });
        let settings: TextSettings = serde_json::from_value(json!({
            "max_length": 128, "truncation_side": "right", "lowercase": false, "strip": false,
            "prompts": {}, "default_prompt": null, "pool_prompt": true
        }))
        .unwrap();
        Arc::new(Encoder::from_json(file.to_string().as_bytes(), settings).unwrap())
    }

    fn encoding() -> Encoding {
        Encoding {
            names: Names::List("input"),
            prompt_name: None,
            truncation: Truncation::Cut(TruncationSide::Right),
            vocab_rows: 2,
        }
    }

    /// A poll of a future that leaves nothing to a pool ends it.
    #[tokio::test]
    async fn a_large_request_is_looked_at_off_the_runtime() {
        let (compute, encoder) = (Compute::new(1).unwrap(), encoder());
        let look = |inputs| glance(&compute, &encoder, CostModel::new(0.0), inputs);
        let texts = |count| Inputs::Texts(vec!["a ".repeat(4_000); count]);
        let ids = |count| Inputs::Tokens(vec![vec![0; 4_000]; count]);
        for (inputs, least_cost) in [(texts(1), 128), (ids(1), 128)] {
            let seen = look(inputs).now_or_never().unwrap().unwrap();
            assert_eq!(seen.least_cost, least_cost);
        }
        for inputs in [texts(2_048), ids(2_048)] {
            assert!(look(inputs.clone()).now_or_never().is_none());
            let seen = look(inputs).await.unwrap();
            assert_eq!(seen.least_cost, 2_048 * 128);
        }
        let check = |inputs| tokenize(&compute, &encoder, inputs, encoding());
        assert_eq!(check(ids(1)).now_or_never().unwrap().unwrap().len(), 1);
        assert!(check(ids(2_048)).now_or_never().is_none());
        assert_eq!(check(ids(2_048)).await.unwrap().len(), 2_048);
    }
}
