//! JSON values whose type may be wrong, read once, with errors that name the field and the index.
//!
//! serde's own errors are text without a place to put a field. A visitor that refuses a value
//! leaves the error in a [`Refusal`] and stops the parse with a placeholder. Each says where it
//! reads, so that what is no JSON at all has a field and an index, too.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};

use flowerbed_protocol::{Error, ErrorKind};
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::form::at_place;

/// A field, and the index in its list.
pub(crate) type Place = (&'static str, Option<usize>);

/// Why a visitor stopped the parse, and where the parse is.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    error: RefCell<Option<Error>>,
    place: Cell<Option<Place>>,
}

impl Refusal {
    /// Keeps `error`, and gives the placeholder that stops the parse.
    pub(crate) fn stop<E: de::Error>(&self, error: Error) -> E {
        *self.error.borrow_mut() = Some(error);
        E::custom("refused")
    }

    /// What is read next; none between fields.
    pub(crate) fn reads(&self, place: Option<Place>) {
        self.place.set(place);
    }

    /// The error that was kept, else what the parser itself found in `body`.
    pub(crate) fn into_error(self, error: &serde_json::Error, body: &[u8]) -> Error {
        if let Some(error) = self.error.into_inner() {
            return error;
        }
        let message = format!("is not valid JSON: {error}{}", hint(error, body));
        let kind = ErrorKind::InvalidInput;
        match self.place.into_inner() {
            None => Error::new(kind, format!("the body {message}")),
            Some(place) => at_place(kind, place, message),
        }
    }
}

/// What to do about the mistakes that JSON's own writers make.
fn hint(error: &serde_json::Error, body: &[u8]) -> &'static str {
    let found = error.to_string();
    // Byte order marks, and how UTF-16 and UTF-32 write a brace.
    let starts: [&[u8]; 5] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0"];
    if starts.iter().any(|start| body.starts_with(start)) {
        return ": send it in UTF-8, without a byte order mark";
    }
    if found.contains("hex escape") {
        return ": half of a surrogate pair is no character, replace it";
    }
    let line = body
        .split(|byte| *byte == b'\n')
        .nth(error.line().saturating_sub(1));
    let from = error.column().saturating_sub(1);
    let rest = line.and_then(|line| line.get(from..)).unwrap_or_default();
    if rest.starts_with(b"NaN") || rest.starts_with(b"Infinity") {
        return ": JSON has neither NaN nor Infinity, replace it or leave it out";
    }
    ""
}

/// A value that is expected to be small. Lists and objects are read past, however deep they are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Bool(bool),
    Integer(i128),
    /// With a fraction, or beyond 64 bits.
    Number(f64),
    Text(String),
    List,
    Object,
}

impl Display for Scalar {
    /// What it is, for "must be …, not …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value:?}"),
            Self::Text(_) => f.write_str("a string"),
            Self::List => f.write_str("a list"),
            Self::Object => f.write_str("an object"),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Scalar, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Object)
    }
}
