//! The value of one field of a body, checked for its type.

use flowerbed_protocol::Error;
use flowerbed_text::TruncationSide;
use serde::de;

use crate::json::{Refusal, Scalar};
use crate::wire::{Format, echo};

/// A value and its field. Null is as if it were not there.
pub(crate) struct Value<'r> {
    pub(crate) refusal: &'r Refusal,
    pub(crate) field: &'static str,
    pub(crate) value: Scalar,
}

impl Value<'_> {
    fn wrong<T, E: de::Error>(&self, expected: &str) -> Result<T, E> {
        let Self { field, value, .. } = self;
        let message = format!("{field} must be {expected}, not {value}");
        Err(self.refusal.stop(Error::invalid(*field, message)))
    }

    /// A word that is none of those expected is repeated in the error.
    fn wrong_word<T, E: de::Error>(&self, expected: &str, word: &str) -> Result<T, E> {
        let message = format!("{} must be {expected}, not {:?}", self.field, echo(word));
        Err(self.refusal.stop(Error::invalid(self.field, message)))
    }

    pub(crate) fn text<E: de::Error>(self) -> Result<Option<String>, E> {
        match self.value {
            Scalar::Null => Ok(None),
            Scalar::Text(text) => Ok(Some(text)),
            _ => self.wrong("a string"),
        }
    }

    pub(crate) fn boolean<E: de::Error>(&self) -> Result<Option<bool>, E> {
        match self.value {
            Scalar::Null => Ok(None),
            Scalar::Bool(value) => Ok(Some(value)),
            _ => self.wrong("true or false"),
        }
    }

    pub(crate) fn format<E: de::Error>(&self) -> Result<Option<Format>, E> {
        match &self.value {
            Scalar::Null => Ok(None),
            Scalar::Text(text) if text == "float" => Ok(Some(Format::Float)),
            Scalar::Text(text) if text == "base64" => Ok(Some(Format::Base64)),
            Scalar::Text(text) if text == "bytes" => Ok(Some(Format::Bytes)),
            Scalar::Text(text) => self.wrong_word("float, base64 or bytes", text),
            _ => self.wrong("\"float\", \"base64\" or \"bytes\""),
        }
    }

    pub(crate) fn side<E: de::Error>(&self) -> Result<Option<TruncationSide>, E> {
        match &self.value {
            Scalar::Null => Ok(None),
            Scalar::Text(text) if text.eq_ignore_ascii_case("left") => {
                Ok(Some(TruncationSide::Left))
            }
            Scalar::Text(text) if text.eq_ignore_ascii_case("right") => {
                Ok(Some(TruncationSide::Right))
            }
            Scalar::Text(text) => self.wrong_word("left or right", text),
            _ => self.wrong("\"left\" or \"right\""),
        }
    }

    /// Of any size: what the model gives is known later.
    pub(crate) fn integer<E: de::Error>(&self) -> Result<Option<i128>, E> {
        match self.value {
            Scalar::Null => Ok(None),
            Scalar::Integer(number) => Ok(Some(number)),
            _ => self.wrong("an integer"),
        }
    }
}
