//! Writes answers: rows of floats straight into the bytes of a body, or as they are.
//!
//! Numbers are written in their shortest form that reads back to the same float32.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flowerbed_protocol::{Error, ErrorKind};

use crate::admission::Admitted;
use crate::dispatch::Rows;
use crate::form::Names;
use crate::pipeline::Collected;
use crate::wire::Usage;

/// The vectors of an answer.
#[derive(Debug)]
pub(crate) struct Vectors {
    /// Chunk by chunk, in order.
    chunks: Vec<Rows>,
    /// Floats a row, at least 1.
    dimensions: usize,
    names: Names,
    /// Tokens of each input.
    lengths: Vec<usize>,
    _admitted: Option<Admitted>,
}

/// Everything in an answer of OpenAI's dialect but its vectors.
#[derive(Clone, Debug)]
pub(crate) struct OpenAiAnswer {
    pub(crate) model: String,
    /// Vectors as base64, not as lists of numbers.
    pub(crate) is_base64: bool,
    pub(crate) usage: Usage,
}

impl From<Collected> for Vectors {
    fn from(collected: Collected) -> Self {
        Self {
            chunks: collected.rows,
            dimensions: collected.dimensions,
            names: collected.names,
            lengths: collected.lengths,
            _admitted: Some(collected.admitted),
        }
    }
}

impl Vectors {
    /// Rows as they came, float32 little-endian.
    fn rows(&self) -> impl Iterator<Item = &[[u8; 4]]> {
        self.chunks
            .iter()
            .flat_map(|rows| rows.data.chunks_exact(4 * self.dimensions))
            .map(|row| row.as_chunks::<4>().0)
    }

    /// The row of each input. A value that is not finite is never given out.
    fn checked(&self) -> impl Iterator<Item = Result<&[[u8; 4]], Error>> {
        self.rows()
            .enumerate()
            .map(|(index, row)| self.check(index, row))
    }

    fn check<'a>(&self, index: usize, row: &'a [[u8; 4]]) -> Result<&'a [[u8; 4]], Error> {
        if row
            .iter()
            .all(|value| f32::from_le_bytes(*value).is_finite())
        {
            return Ok(row);
        }
        let message = "gave a value that is not a number";
        Err(self.names.error(ErrorKind::EngineFailed, index, message))
    }

    /// The rows end to end, as they came.
    pub(crate) fn bytes(&self) -> Result<Bytes, Error> {
        for row in self.checked() {
            row?;
        }
        Ok(match &self.chunks[..] {
            [rows] => rows.data.clone(),
            chunks => {
                let data: Vec<&[u8]> = chunks.iter().map(|rows| &rows.data[..]).collect();
                data.concat().into()
            }
        })
    }

    fn body(&self) -> Vec<u8> {
        let num_bytes: usize = self.chunks.iter().map(|rows| rows.data.len()).sum();
        Vec::with_capacity(256 + 3 * num_bytes)
    }

    /// A list with the vector of each input.
    pub(crate) fn write_list(&self) -> Result<Vec<u8>, Error> {
        let mut body = self.body();
        body.push(b'[');
        for (index, row) in self.checked().enumerate() {
            comma(&mut body, index);
            write_floats(&mut body, row?.iter().copied().map(f32::from_le_bytes));
        }
        body.push(b']');
        Ok(body)
    }

    /// A list with a list for each input, that of its tokens' vectors.
    pub(crate) fn write_tokens(&self) -> Result<Vec<u8>, Error> {
        let mut body = self.body();
        let mut rows = self.rows();
        body.push(b'[');
        for (index, &length) in self.lengths.iter().enumerate() {
            comma(&mut body, index);
            body.push(b'[');
            for (position, row) in rows.by_ref().take(length).enumerate() {
                comma(&mut body, position);
                let row = self.check(index, row)?;
                write_floats(&mut body, row.iter().copied().map(f32::from_le_bytes));
            }
            body.push(b']');
        }
        body.push(b']');
        Ok(body)
    }

    /// A list with the cosine of the first vector with each of the others.
    pub(crate) fn write_cosines(&self) -> Result<Vec<u8>, Error> {
        let floats = |row: &[[u8; 4]]| -> Vec<f64> {
            row.iter()
                .map(|value| f64::from(f32::from_le_bytes(*value)))
                .collect()
        };
        let mut rows = self.checked().map(|row| row.map(floats));
        let first = rows.next().unwrap_or_else(|| Ok(Vec::new()))?;
        let cosines: Vec<f32> = rows
            .enumerate()
            .map(|(index, other)| {
                cosine(&first, &other?).ok_or_else(|| {
                    let message = "gave a vector without a direction";
                    self.names
                        .error(ErrorKind::EngineFailed, index + 1, message)
                })
            })
            .collect::<Result<_, _>>()?;
        let mut body = Vec::new();
        write_floats(&mut body, cosines.into_iter());
        Ok(body)
    }
}

impl OpenAiAnswer {
    /// The body of the answer.
    pub(crate) fn write(&self, vectors: &Vectors) -> Result<Vec<u8>, Error> {
        let mut body = vectors.body();
        body.extend_from_slice(br#"{"object":"list","data":["#);
        for (index, row) in vectors.checked().enumerate() {
            let row = row?;
            comma(&mut body, index);
            body.extend_from_slice(br#"{"object":"embedding","index":"#);
            body.extend_from_slice(itoa::Buffer::new().format(index).as_bytes());
            body.extend_from_slice(br#","embedding":"#);
            if self.is_base64 {
                write_base64(&mut body, row.as_flattened());
            } else {
                write_floats(&mut body, row.iter().copied().map(f32::from_le_bytes));
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

fn comma(body: &mut Vec<u8>, index: usize) {
    if index > 0 {
        body.push(b',');
    }
}

fn write_floats(body: &mut Vec<u8>, values: impl Iterator<Item = f32>) {
    let mut buffer = ryu::Buffer::new();
    body.push(b'[');
    for (position, value) in values.enumerate() {
        comma(body, position);
        body.extend_from_slice(buffer.format_finite(value).as_bytes());
    }
    body.push(b']');
}

/// The worker's bytes are already what OpenAI's clients decode: little-endian float32.
fn write_base64(body: &mut Vec<u8>, row: &[u8]) {
    body.push(b'"');
    body.extend_from_slice(STANDARD.encode(row).as_bytes());
    body.push(b'"');
}

/// `None` where a vector has the length zero.
#[allow(clippy::cast_possible_truncation, reason = "a cosine is within 1")]
fn cosine(left: &[f64], right: &[f64]) -> Option<f32> {
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let cosine = dot(left, right) / (dot(left, left) * dot(right, right)).sqrt();
    cosine.is_finite().then(|| cosine.clamp(-1.0, 1.0) as f32)
}

#[cfg(test)]
mod tests {
    use flowerbed_protocol::v1::RunStats;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn vectors(rows: &[&[f32]], lengths: &[usize]) -> Vectors {
        let chunk = |row: &&[f32]| Rows {
            data: row.iter().flat_map(|value| value.to_le_bytes()).collect(),
            stats: RunStats::default(),
        };
        Vectors {
            chunks: rows.iter().map(chunk).collect(),
            dimensions: rows[0].len(),
            names: Names::List("input"),
            lengths: lengths.to_vec(),
            _admitted: None,
        }
    }

    fn written(rows: &[&[f32]], is_base64: bool) -> Result<Value, Error> {
        let answer = OpenAiAnswer {
            model: "m\"q".to_owned(),
            is_base64,
            usage: Usage::of(7),
        };
        let body = answer.write(&vectors(rows, &[1, 1]))?;
        Ok(serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn bytes_are_the_rows_end_to_end_and_finite() {
        let two: &[&[f32]] = &[&[1.0, -0.5], &[1e-7, 3.0]];
        let bytes = vectors(two, &[1, 1]).bytes().unwrap();
        let expected: Vec<u8> = two.concat().iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(bytes, expected);
        let one = vectors(&two[..1], &[1]);
        let (bytes, chunk) = (one.bytes().unwrap(), &one.chunks[0].data);
        assert_eq!(bytes.as_ptr(), chunk.as_ptr()); // not copied
        let bad = vectors(&[&[1.0, 1.0], &[f32::NAN, 1.0]], &[1, 1]);
        assert_eq!(bad.bytes().unwrap_err().index, Some(1));
    }

    #[test]
    fn the_body_has_openais_shape() {
        let body = written(&[&[1.0, -0.5], &[1e-7, 3.0]], false).unwrap();
        assert_eq!(
            body,
            json!({
                "object": "list", "model": "m\"q", "usage": {"prompt_tokens": 7, "total_tokens": 7},
                "data": [
                    {"object": "embedding", "index": 0, "embedding": [1.0, -0.5]},
                    {"object": "embedding", "index": 1, "embedding": [1e-7, 3.0]}
                ]
            })
        );
    }

    #[test]
    fn teis_bodies_are_bare_lists() {
        let read = |body: Result<Vec<u8>, Error>| -> Value {
            serde_json::from_slice(&body.unwrap()).unwrap()
        };
        let vectors = vectors(&[&[1.0, 0.0], &[2.0, 2.0], &[-3.0, 0.0]], &[1, 2]);
        assert_eq!(
            read(vectors.write_list()),
            json!([[1.0, 0.0], [2.0, 2.0], [-3.0, 0.0]])
        );
        assert_eq!(
            read(vectors.write_tokens()),
            json!([[[1.0, 0.0]], [[2.0, 2.0], [-3.0, 0.0]]])
        );
        let half = f64::from(std::f32::consts::FRAC_1_SQRT_2);
        let cosines: Vec<f64> = serde_json::from_value(read(vectors.write_cosines())).unwrap();
        assert!((cosines[0] - half).abs() < 1e-6);
        assert_eq!(cosines[1..], [-1.0]);
    }

    #[test]
    fn a_value_that_is_not_finite_is_an_error_that_names_its_input() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let without_direction = vectors(&[&[1.0], &[1.0], &[0.0]], &[1, 1, 1]);
            let rows: [&[f32]; 3] = [&[1.0, 2.0], &[1.0, 2.0], &[1.0, bad]];
            let vectors = vectors(&rows, &[1, 2]);
            let results = [
                (written(&rows, false).unwrap_err(), 2),
                (written(&rows, true).unwrap_err(), 2),
                (vectors.write_list().unwrap_err(), 2),
                (vectors.write_cosines().unwrap_err(), 2),
                (vectors.write_tokens().unwrap_err(), 1),
                (without_direction.write_cosines().unwrap_err(), 2),
            ];
            for (error, index) in results {
                assert_eq!(
                    (error.kind, error.index),
                    (ErrorKind::EngineFailed, Some(index))
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
            let floats = written(&[&row], false).unwrap();
            let numbers = floats["data"][0]["embedding"].as_array().unwrap();
            for (number, value) in numbers.iter().zip(&row) {
                let text = number.to_string();
                prop_assert_eq!(text.parse::<f32>().unwrap().to_bits(), value.to_bits());
            }
            let packed = written(&[&row], true).unwrap();
            let bytes = STANDARD.decode(packed["data"][0]["embedding"].as_str().unwrap()).unwrap();
            prop_assert_eq!(bytes, row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        }
    }
}
