//! What is sent: one request a line of JSON, and the vectors that answers must equal.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::options::Error;

/// Vectors by name.
pub type Golden = HashMap<String, Arc<[f32]>>;

/// One request and what its answer must be.
#[derive(Clone, Debug)]
pub struct Item {
    /// Of the request.
    pub method: Method,
    /// Of the request.
    pub path: Uri,
    /// Beside host and length, which the connection adds.
    pub headers: HeaderMap,
    /// As it stands in the plan.
    pub body: Bytes,
    /// Rows of a right answer; 0 for routes that give none.
    pub num_rows: usize,
    /// Statuses that are right.
    pub expect: Vec<u16>,
    /// The caller closes the connection after this long without an answer.
    pub hang_up_after: Option<Duration>,
    /// One a row, or empty; `None` where the row may be anything.
    pub golden: Vec<Option<Arc<[f32]>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default = "post")]
    method: String,
    #[serde(default = "embeddings")]
    path: String,
    #[serde(default)]
    headers: HashMap<String, String>,
    body: Option<Box<RawValue>>,
    /// Instead of `body`: bytes that need not be JSON.
    raw_body: Option<String>,
    #[serde(default)]
    rows: usize,
    #[serde(default = "ok")]
    expect: Vec<u16>,
    hang_up_ms: Option<u64>,
    #[serde(default)]
    golden: Vec<Option<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GoldenLine {
    id: String,
    /// Little-endian float32, base64.
    vector: String,
}

fn post() -> String {
    "POST".to_owned()
}

fn embeddings() -> String {
    "/v1/embeddings".to_owned()
}

fn ok() -> Vec<u16> {
    vec![200]
}

/// Reads a plan; a bad line is refused with its number.
pub fn read(path: &Path, golden: &Golden) -> Result<Arc<[Item]>, Error> {
    let items = lines(path, |line: Line| item(line, golden))?;
    if items.is_empty() {
        return Err(Error::Plan(format!("{}: no requests", path.display())));
    }
    Ok(items.into())
}

/// Reads the vectors that a plan names.
pub fn read_golden(path: &Path) -> Result<Golden, Error> {
    let named = lines(path, |line: GoldenLine| {
        let bytes = STANDARD.decode(&line.vector).map_err(|e| e.to_string())?;
        Ok((line.id, floats(&bytes)?.into()))
    })?;
    Ok(named.into_iter().collect())
}

/// Little-endian float32.
pub(crate) fn floats(bytes: &[u8]) -> Result<Vec<f32>, String> {
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are no float32s", bytes.len()));
    }
    Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
}

fn lines<L: for<'a> Deserialize<'a>, T>(
    path: &Path,
    make: impl Fn(L) -> Result<T, String>,
) -> Result<Vec<T>, Error> {
    let at = |number: usize, reason: String| {
        Error::Plan(format!("{}:{}: {reason}", path.display(), number + 1))
    };
    let text = fs::read_to_string(path)
        .map_err(|error| Error::Plan(format!("{}: {error}", path.display())))?;
    let numbered = text.lines().enumerate();
    numbered
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            let line = serde_json::from_str(line).map_err(|e| at(number, e.to_string()))?;
            make(line).map_err(|reason| at(number, reason))
        })
        .collect()
}

fn item(line: Line, golden: &Golden) -> Result<Item, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &line.headers {
        let name = HeaderName::try_from(name).map_err(|e| e.to_string())?;
        headers.insert(
            name,
            HeaderValue::try_from(value).map_err(|e| e.to_string())?,
        );
    }
    let body = match (line.body, line.raw_body) {
        (Some(_), Some(_)) => return Err("body and raw_body are both given".to_owned()),
        (Some(json), None) => Bytes::from(json.get().to_owned()),
        (None, Some(raw)) => Bytes::from(raw),
        (None, None) => Bytes::new(),
    };
    if !line.golden.is_empty() && line.golden.len() != line.rows {
        let (rows, given) = (line.rows, line.golden.len());
        return Err(format!("golden names {given} rows of {rows}"));
    }
    let find = |id: &String| {
        let vector = golden.get(id).map(Arc::clone);
        vector.ok_or_else(|| format!("no golden vector is named {id:?}"))
    };
    let vectors = line
        .golden
        .iter()
        .map(|id| id.as_ref().map(find).transpose());
    Ok(Item {
        method: Method::try_from(line.method.as_str()).map_err(|e| e.to_string())?,
        path: Uri::try_from(&line.path).map_err(|e| e.to_string())?,
        headers,
        body,
        num_rows: line.rows,
        expect: line.expect,
        hang_up_after: line.hang_up_ms.map(Duration::from_millis),
        golden: vectors.collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Arc<[Item]>, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.jsonl");
        fs::write(&path, text).unwrap();
        read(&path, &Golden::from([("a".to_owned(), vec![1.0].into())]))
    }

    #[test]
    fn a_line_is_a_request_with_what_its_answer_must_be() {
        let items = read_text(
            "{\"body\": {\"input\": \"x\"}, \"rows\": 1, \"golden\": [\"a\"]}\n\n\
             {\"raw_body\": \"{\", \"expect\": [400], \"hang_up_ms\": 3}\n",
        )
        .unwrap();
        assert_eq!(items[0].body, "{\"input\": \"x\"}");
        assert_eq!(items[0].path, "/v1/embeddings");
        assert_eq!(items[0].golden[0].as_deref(), Some(&[1.0][..]));
        assert_eq!(items[1].expect, [400]);
        assert_eq!(items[1].hang_up_after, Some(Duration::from_millis(3)));
    }

    #[test]
    fn a_bad_line_is_refused_with_its_number() {
        for (text, reason) in [
            ("{}\n{\"bodi\": 1}", ":2: unknown field"),
            ("{\"rows\": 1, \"golden\": [\"b\"]}", ":1: no golden vector"),
            (
                "{\"rows\": 2, \"golden\": [null]}",
                "golden names 1 rows of 2",
            ),
            ("", "no requests"),
        ] {
            let error = read_text(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
