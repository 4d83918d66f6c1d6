//! What is sent: one request a line of JSON, and the vectors that answers must equal.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flowerbed_protocol::packed;
use flowerbed_protocol::v1::{Dtype, Head, Lane, OutputSpec, RunRequest};
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
    /// Instead of all of these, for a worker; who sends it adds its model and space.
    pub run: Option<RunRequest>,
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
    /// Instead of `body`: what a worker is asked.
    run: Option<RunLine>,
    #[serde(default)]
    rows: usize,
    #[serde(default = "ok")]
    expect: Vec<u16>,
    hang_up_ms: Option<u64>,
    #[serde(default)]
    golden: Vec<Option<String>>,
}

/// Float32 vectors of these sequences.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunLine {
    ids: Vec<Vec<u32>>,
    lane: LaneName,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LaneName {
    Online,
    Scoring,
    Bulk,
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
    let body = match (line.body, line.raw_body, &line.run) {
        (Some(json), None, None) => Bytes::from(json.get().to_owned()),
        (None, Some(raw), None) => Bytes::from(raw),
        (None, None, _) => Bytes::new(),
        _ => return Err("give one of body, raw_body and run".to_owned()),
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
        run: line.run.as_ref().map(run_request).transpose()?,
        num_rows: line.rows,
        expect: line.expect,
        hang_up_after: line.hang_up_ms.map(Duration::from_millis),
        golden: vectors.collect::<Result<_, _>>()?,
    })
}

fn run_request(line: &RunLine) -> Result<RunRequest, String> {
    let lengths: Result<Vec<u32>, _> = line.ids.iter().map(|ids| ids.len().try_into()).collect();
    let lengths = lengths.map_err(|_| "a sequence is too long".to_owned())?;
    let lane = match line.lane {
        LaneName::Online => Lane::Online,
        LaneName::Scoring => Lane::Scoring,
        LaneName::Bulk => Lane::Bulk,
    };
    Ok(RunRequest {
        head: Head::Embed.into(),
        ids: packed::from_u32s(&line.ids.concat()),
        lengths: packed::from_u32s(&lengths),
        outputs: vec![OutputSpec {
            dtype: Dtype::Float32.into(),
            ..OutputSpec::default()
        }],
        lane: lane.into(),
        ..RunRequest::default()
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
    fn a_line_for_a_worker_holds_sequences_end_to_end() {
        let line = "{\"run\": {\"ids\": [[1, 2], [3]], \"lane\": \"scoring\"}, \"rows\": 2}";
        let run = read_text(line).unwrap()[0].run.clone().unwrap();
        assert_eq!(packed::to_u32s(&run.ids).unwrap(), [1, 2, 3]);
        assert_eq!(packed::to_u32s(&run.lengths).unwrap(), [2, 1]);
        assert_eq!((run.head(), run.lane()), (Head::Embed, Lane::Scoring));
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
            (
                "{\"body\": 1, \"run\": {\"ids\": [], \"lane\": \"bulk\"}}",
                "one of body, raw_body and run",
            ),
            (
                "{\"run\": {\"ids\": [], \"lane\": \"fast\"}}",
                "unknown variant",
            ),
            ("", "no requests"),
        ] {
            let error = read_text(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
