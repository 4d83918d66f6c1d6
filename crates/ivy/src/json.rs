//! JSON values whose type may be wrong, read once, with errors that name the field and the index.
//!
//! serde's own errors are text without a place to put a field. A visitor that refuses a value
//! leaves the error in a [`Refusal`] and stops the parse with a placeholder.

use std::cell::RefCell;

use flowerbed_protocol::Error;
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Why a visitor stopped the parse.
#[derive(Debug, Default)]
pub(crate) struct Refusal(RefCell<Option<Error>>);

impl Refusal {
    /// Keeps `error`, and gives the placeholder that stops the parse.
    pub(crate) fn stop<E: de::Error>(&self, error: Error) -> E {
        *self.0.borrow_mut() = Some(error);
        E::custom("refused")
    }

    /// The error that was kept, else what the parser itself found.
    pub(crate) fn into_error(self, error: &serde_json::Error) -> Error {
        self.0.into_inner().unwrap_or_else(|| {
            Error::new(
                flowerbed_protocol::ErrorKind::InvalidInput,
                format!("the body is not valid JSON: {error}"),
            )
        })
    }
}

/// A value that is expected to be small. Lists and objects are read past, however deep they are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Bool(bool),
    Integer(i64),
    /// With a fraction, or beyond 64 bits.
    Number,
    Text(String),
    List,
    Object,
}

impl Scalar {
    /// What it is, for "must be …, not …".
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) | Self::Number => "a number",
            Self::Text(_) => "a string",
            Self::List => "a list",
            Self::Object => "an object",
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
        Ok(Scalar::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(i64::try_from(value).map_or(Scalar::Number, Scalar::Integer))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number)
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
