//! Whether an embedding answer is right, in JSON, as bytes or from a worker: as many rows as asked, in
//! order, finite, of length one, and equal to the vectors that the plan names.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use flowerbed_protocol::v1::{Output, RunResponse};

use crate::plan::{Item, floats};

const NORM_TOLERANCE: f64 = 1e-3;

/// How closely answers are looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Check {
    /// Only their usage is read.
    Nothing,
    /// Every row; those with a golden vector may differ from it by so much in any value.
    Rows {
        /// Largest difference.
        tolerance: f32,
    },
}

#[derive(Deserialize)]
struct Skimmed {
    #[serde(default)]
    usage: Usage,
    #[serde(rename = "data")]
    _data: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Row>,
    usage: Usage,
}

#[derive(Default, Deserialize)]
struct Usage {
    prompt_tokens: u64,
}

#[derive(Deserialize)]
struct Row {
    index: usize,
    embedding: Embedding,
}

struct Embedding(Vec<f32>);

/// Tokens of the answer to `item`, or what is wrong with it. Reasons never hold texts or vectors.
pub fn check(body: &[u8], item: &Item, check: Check) -> Result<u64, String> {
    let Check::Rows { tolerance } = check else {
        let answer: Skimmed = serde_json::from_slice(body).map_err(|e| e.to_string())?;
        return Ok(answer.usage.prompt_tokens);
    };
    if item.num_rows == 0 {
        return Ok(0);
    }
    let answer: Answer = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    if answer.data.len() != item.num_rows {
        let (given, asked) = (answer.data.len(), item.num_rows);
        return Err(format!("{given} rows instead of {asked}"));
    }
    for (position, row) in answer.data.iter().enumerate() {
        if row.index != position {
            return Err(format!("row {position} has index {}", row.index));
        }
        let golden = item.golden.get(position).and_then(Option::as_deref);
        check_row(&row.embedding.0, golden, tolerance)
            .map_err(|reason| format!("row {position} {reason}"))?;
    }
    Ok(answer.usage.prompt_tokens)
}

/// The same of little-endian float32, rows end to end.
pub fn check_raw(body: &[u8], item: &Item, check: Check) -> Result<(), String> {
    let values = floats(body)?;
    if item.num_rows == 0 || values.is_empty() || values.len() % item.num_rows != 0 {
        let (given, asked) = (values.len(), item.num_rows);
        return Err(format!("{given} values are not {asked} rows"));
    }
    let Check::Rows { tolerance } = check else {
        return Ok(());
    };
    let rows = values.chunks_exact(values.len() / item.num_rows);
    rows.enumerate().try_for_each(|(position, row)| {
        let golden = item.golden.get(position).and_then(Option::as_deref);
        check_row(row, golden, tolerance).map_err(|reason| format!("row {position} {reason}"))
    })
}

/// Tokens of a worker's answer to `item`, or what is wrong with it.
pub fn check_run(response: &RunResponse, item: &Item, check: Check) -> Result<u64, String> {
    let [Output { shape, data, .. }] = &response.outputs[..] else {
        return Err(format!("{} outputs instead of 1", response.outputs.len()));
    };
    if shape.first() != Some(&(item.num_rows as u64)) {
        return Err(format!("shape {shape:?} instead of {} rows", item.num_rows));
    }
    check_raw(data, item, check)?;
    let num_ids = item.run.as_ref().map_or(0, |run| run.ids.len() / 4);
    Ok(num_ids as u64)
}

fn check_row(row: &[f32], golden: Option<&[f32]>, tolerance: f32) -> Result<(), String> {
    if row.is_empty() || !row.iter().all(|value| value.is_finite()) {
        return Err("is empty or not finite".to_owned());
    }
    let squares = row.iter().map(|value| f64::from(*value).powi(2));
    let norm = squares.sum::<f64>().sqrt();
    if (norm - 1.0).abs() > NORM_TOLERANCE {
        return Err(format!("has length {norm:.6}"));
    }
    let Some(golden) = golden else { return Ok(()) };
    if golden.len() != row.len() {
        let (given, wanted) = (row.len(), golden.len());
        return Err(format!("has {given} values instead of {wanted}"));
    }
    let differences = row.iter().zip(golden).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, f32::max);
    if largest > tolerance {
        return Err(format!("differs from its golden vector by {largest:.2e}"));
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Embedding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EitherForm).map(Self)
    }
}

struct EitherForm;

impl<'de> Visitor<'de> for EitherForm {
    type Value = Vec<f32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("floats, or base64 of them")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<f32>, E> {
        let bytes = STANDARD.decode(text).map_err(E::custom)?;
        floats(&bytes).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Vec<f32>, A::Error> {
        let mut row = Vec::with_capacity(1_024);
        while let Some(value) = values.next_element()? {
            row.push(value);
        }
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderMap, Method, Uri};

    use super::*;

    fn item(num_rows: usize, golden: Option<&[f32]>) -> Item {
        Item {
            method: Method::POST,
            path: Uri::from_static("/"),
            headers: HeaderMap::new(),
            body: bytes::Bytes::new(),
            run: None,
            num_rows,
            expect: vec![200],
            hang_up_after: None,
            golden: golden.map(|row| Some(Arc::from(row))).into_iter().collect(),
        }
    }

    fn answer(rows: &[&str]) -> Vec<u8> {
        let rows = rows.iter().enumerate();
        let rows: Vec<String> = rows
            .map(|(index, row)| format!("{{\"index\":{index},\"embedding\":{row}}}"))
            .collect();
        let rows = rows.join(",");
        format!("{{\"data\":[{rows}],\"usage\":{{\"prompt_tokens\":5}}}}").into_bytes()
    }

    const ALL: Check = Check::Rows { tolerance: 1e-4 };

    #[test]
    fn both_forms_of_a_vector_are_read() {
        let base64 = format!(
            "\"{}\"",
            STANDARD.encode([0.6_f32, 0.8].map(f32::to_le_bytes).concat())
        );
        let golden = item(1, Some(&[0.6, 0.8]));
        for row in ["[0.6,0.8]", &base64] {
            assert_eq!(check(&answer(&[row]), &golden, ALL), Ok(5));
        }
    }

    #[test]
    fn every_kind_of_wrong_answer_is_found() {
        for (rows, num_rows, reason) in [
            (&["[1.0,0.0]"][..], 2, "1 rows instead of 2"),
            (&["[0.5,0.0]"], 1, "length"),
            (&["[0.0,0.0]"], 1, "length"),
            (&["[]"], 1, "empty"),
            (&["[1.0,null]"], 1, "invalid type"),
            (&["[0.0,1.0]"], 1, "golden"),
            (&["[1.0,0.0,0.0]"], 1, "3 values instead of 2"),
        ] {
            let golden = item(num_rows, Some(&[1.0, 0.0]));
            let error = check(&answer(rows), &golden, ALL).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn rows_as_bytes_are_checked_alike() {
        let bytes = |values: &[f32]| -> Vec<u8> {
            let bytes = values.iter().map(|value| value.to_le_bytes());
            bytes.flatten().collect()
        };
        let right = bytes(&[0.6, 0.8, 1.0, 0.0]);
        assert_eq!(check_raw(&right, &item(2, None), ALL), Ok(()));
        check_raw(&right, &item(3, None), Check::Nothing).unwrap_err();
        check_raw(&right[1..], &item(2, None), Check::Nothing).unwrap_err();
        let long = check_raw(&bytes(&[3.0, 4.0]), &item(1, None), ALL);
        assert!(long.unwrap_err().contains("length 5"));
        let other = check_raw(&bytes(&[1.0, 0.0]), &item(1, Some(&[0.0, 1.0])), ALL);
        assert!(other.unwrap_err().contains("golden"));
    }

    #[test]
    fn without_a_check_only_the_usage_is_read() {
        assert_eq!(
            check(&answer(&["[7]"]), &item(2, None), Check::Nothing),
            Ok(5)
        );
    }
}
