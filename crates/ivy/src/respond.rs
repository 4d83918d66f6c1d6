//! Writes the answer: rows of floats straight into the bytes of the body.
//!
//! Numbers are written in their shortest form that reads back to the same float32.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flowerbed_protocol::{Error, ErrorKind};

use crate::dispatch::Rows;
use crate::wire::{Format, Usage};

/// Everything in an answer but its rows.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) model: String,
    pub(crate) format: Format,
    /// Floats a row, at least 1.
    pub(crate) dimensions: usize,
    pub(crate) usage: Usage,
}

impl Answer {
    /// The body of the answer. A value that is not finite is never written.
    pub(crate) fn write(&self, chunks: &[Rows]) -> Result<Vec<u8>, Error> {
        let num_bytes: usize = chunks.iter().map(|rows| rows.data.len()).sum();
        let mut body = Vec::with_capacity(256 + 3 * num_bytes);
        body.extend_from_slice(br#"{"object":"list","data":["#);
        let rows = chunks
            .iter()
            .flat_map(|rows| rows.data.chunks_exact(4 * self.dimensions));
        for (index, row) in rows.enumerate() {
            let (values, _) = row.as_chunks::<4>();
            if !values
                .iter()
                .all(|value| f32::from_le_bytes(*value).is_finite())
            {
                return Err(not_finite(index));
            }
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(br#"{"object":"embedding","index":"#);
            body.extend_from_slice(itoa::Buffer::new().format(index).as_bytes());
            body.extend_from_slice(br#","embedding":"#);
            match self.format {
                Format::Float => write_floats(&mut body, values),
                Format::Base64 => write_base64(&mut body, row),
            }
            body.push(b'}');
        }
        body.extend_from_slice(br#"],"model":"#);
        body.extend_from_slice(serde_json::json!(self.model).to_string().as_bytes());
        body.extend_from_slice(br#","usage":"#);
        body.extend_from_slice(&serde_json::to_vec(&self.usage).unwrap_or_default());
        body.push(b'}');
        Ok(body)
    }
}

fn write_floats(body: &mut Vec<u8>, values: &[[u8; 4]]) {
    let mut buffer = ryu::Buffer::new();
    body.push(b'[');
    for (position, value) in values.iter().enumerate() {
        if position > 0 {
            body.push(b',');
        }
        body.extend_from_slice(buffer.format_finite(f32::from_le_bytes(*value)).as_bytes());
    }
    body.push(b']');
}

/// The worker's bytes are already what OpenAI's clients decode: little-endian float32.
fn write_base64(body: &mut Vec<u8>, row: &[u8]) {
    body.push(b'"');
    body.extend_from_slice(STANDARD.encode(row).as_bytes());
    body.push(b'"');
}

fn not_finite(index: usize) -> Error {
    let message = format!("input[{index}]: the model gave a value that is not a number");
    let error = Error::new(ErrorKind::EngineFailed, message).in_field("input");
    u32::try_from(index).map_or(error.clone(), |index| error.at_index(index))
}

#[cfg(test)]
mod tests {
    use flowerbed_protocol::v1::RunStats;
    use proptest::prelude::*;

    use super::*;

    fn written(rows: &[&[f32]], format: Format) -> Result<serde_json::Value, Error> {
        let chunk = |row: &&[f32]| Rows {
            data: row.iter().flat_map(|value| value.to_le_bytes()).collect(),
            stats: RunStats::default(),
        };
        let answer = Answer {
            model: "m\"q".to_owned(),
            format,
            dimensions: rows[0].len(),
            usage: Usage {
                prompt_tokens: 7,
                total_tokens: 7,
            },
        };
        let body = answer.write(&rows.iter().map(chunk).collect::<Vec<_>>())?;
        Ok(serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn the_body_has_openais_shape() {
        let body = written(&[&[1.0, -0.5], &[1e-7, 3.0]], Format::Float).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "object": "list", "model": "m\"q", "usage": {"prompt_tokens": 7, "total_tokens": 7},
                "data": [
                    {"object": "embedding", "index": 0, "embedding": [1.0, -0.5]},
                    {"object": "embedding", "index": 1, "embedding": [1e-7, 3.0]}
                ]
            })
        );
    }

    #[test]
    fn a_value_that_is_not_finite_is_an_error_that_names_its_row() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for format in [Format::Float, Format::Base64] {
                let error = written(&[&[1.0, 2.0], &[1.0, bad]], format).unwrap_err();
                assert_eq!(
                    (error.kind, error.index),
                    (ErrorKind::EngineFailed, Some(1))
                );
            }
        }
    }

    proptest! {
        #[test]
        fn pa_01_floats_and_base64_read_back_to_the_same_bits(
            row in prop::collection::vec(
                any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite()), 1..40,
            ),
        ) {
            let floats = written(&[&row], Format::Float).unwrap();
            let numbers = floats["data"][0]["embedding"].as_array().unwrap();
            for (number, value) in numbers.iter().zip(&row) {
                let text = number.to_string();
                prop_assert_eq!(text.parse::<f32>().unwrap().to_bits(), value.to_bits());
            }
            let packed = written(&[&row], Format::Base64).unwrap();
            let bytes = STANDARD.decode(packed["data"][0]["embedding"].as_str().unwrap()).unwrap();
            prop_assert_eq!(bytes, row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        }
    }
}
