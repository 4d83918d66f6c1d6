//! The JSON of `POST /v1/embeddings`: OpenAI's fields, and `truncate` and `prompt_name` of ours.
//!
//! Parsed in one pass. Unknown and repeated fields are refused: to ignore one silently would
//! answer something else than was asked.

use flowerbed_protocol::Error;
use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::input::{InputSeed, Inputs};
use crate::json::{Refusal, Scalar};

const FIELDS: [&str; 7] = [
    "input",
    "model",
    "encoding_format",
    "dimensions",
    "user",
    "truncate",
    "prompt_name",
];
/// A name out of a request is repeated in an error only this far.
const MAX_ECHO_CHARS: usize = 64;

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A JSON list of numbers.
    Float,
    /// Little-endian float32 in base64.
    Base64,
}

/// A request whose fields have the right types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EmbedRequest {
    pub(crate) inputs: Inputs,
    pub(crate) model: Option<String>,
    pub(crate) format: Format,
    pub(crate) dimensions: Option<u32>,
    pub(crate) truncate: bool,
    pub(crate) prompt_name: Option<String>,
}

/// `usage` of an answer.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) total_tokens: usize,
}

/// The body of `GET /v1/models`.
#[derive(Debug, Serialize)]
pub(crate) struct ModelList<'a> {
    pub(crate) object: &'static str,
    pub(crate) data: [ModelEntry<'a>; 1],
}

/// One served model.
#[derive(Debug, Serialize)]
pub(crate) struct ModelEntry<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
}

impl EmbedRequest {
    /// Reads a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Error> {
        let refusal = Refusal::default();
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let parsed = BodyVisitor(&refusal)
            .deserialize(&mut deserializer)
            .and_then(|request| deserializer.end().map(|()| request));
        parsed.map_err(|error| refusal.into_error(&error))
    }
}

/// `name` for an error message, cut if it is long.
pub(crate) fn echo(name: &str) -> String {
    name.chars().take(MAX_ECHO_CHARS).collect()
}

#[derive(Clone, Copy)]
struct BodyVisitor<'r>(&'r Refusal);

impl<'de> DeserializeSeed<'de> for BodyVisitor<'_> {
    type Value = EmbedRequest;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<EmbedRequest, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl BodyVisitor<'_> {
    fn refuse<E: serde::de::Error>(self, found: &str) -> Result<EmbedRequest, E> {
        let message = format!("the body must be a JSON object, not {found}");
        Err(self.0.stop(Error::new(
            flowerbed_protocol::ErrorKind::InvalidInput,
            message,
        )))
    }

    /// Position of a field in `FIELDS`; it must be known and new.
    fn field<E: serde::de::Error>(
        self,
        name: &str,
        seen: &mut [bool; FIELDS.len()],
    ) -> Result<&'static str, E> {
        let Some(position) = FIELDS.iter().position(|field| *field == name) else {
            let name = echo(name);
            let message = format!("unknown field {name:?}; known are {}", FIELDS.join(", "));
            return Err(self.0.stop(Error::invalid(name, message)));
        };
        if std::mem::replace(&mut seen[position], true) {
            let message = format!("{name} is given twice");
            return Err(self.0.stop(Error::invalid(name, message)));
        }
        Ok(FIELDS[position])
    }

    fn wrong<T, E: serde::de::Error>(
        self,
        field: &str,
        expected: &str,
        found: &Scalar,
    ) -> Result<T, E> {
        let message = format!("{field} must be {expected}, not {}", found.name());
        Err(self.0.stop(Error::invalid(field, message)))
    }

    fn text<E: serde::de::Error>(self, field: &str, value: Scalar) -> Result<Option<String>, E> {
        match value {
            Scalar::Null => Ok(None),
            Scalar::Text(text) => Ok(Some(text)),
            other => self.wrong(field, "a string", &other),
        }
    }

    fn format<E: serde::de::Error>(self, value: &Scalar) -> Result<Format, E> {
        match value {
            Scalar::Null => Ok(Format::Float),
            Scalar::Text(text) if text == "float" => Ok(Format::Float),
            Scalar::Text(text) if text == "base64" => Ok(Format::Base64),
            Scalar::Text(text) => {
                let text = echo(text);
                let message = format!("encoding_format must be float or base64, not {text:?}");
                Err(self.0.stop(Error::invalid("encoding_format", message)))
            }
            other => self.wrong("encoding_format", "\"float\" or \"base64\"", other),
        }
    }

    fn dimensions<E: serde::de::Error>(self, value: &Scalar) -> Result<Option<u32>, E> {
        match value {
            Scalar::Null => Ok(None),
            Scalar::Integer(number) => match u32::try_from(*number) {
                Ok(dimensions) if dimensions > 0 => Ok(Some(dimensions)),
                _ => {
                    let message = format!("dimensions must be at least 1, not {number}");
                    Err(self.0.stop(Error::invalid("dimensions", message)))
                }
            },
            other => self.wrong("dimensions", "an integer", other),
        }
    }
}

impl<'de> Visitor<'de> for BodyVisitor<'_> {
    type Value = EmbedRequest;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EmbedRequest, A::Error> {
        let mut inputs = None;
        let mut request = EmbedRequest {
            inputs: Inputs::Texts(Vec::new()),
            model: None,
            format: Format::Float,
            dimensions: None,
            truncate: true,
            prompt_name: None,
        };
        let mut seen = [false; FIELDS.len()];
        while let Some(name) = map.next_key::<String>()? {
            let field = self.field(&name, &mut seen)?;
            if field == "input" {
                inputs = Some(map.next_value_seed(InputSeed(self.0))?);
                continue;
            }
            let value: Scalar = map.next_value()?;
            match field {
                "model" => request.model = self.text(field, value)?,
                "encoding_format" => request.format = self.format(&value)?,
                "dimensions" => request.dimensions = self.dimensions(&value)?,
                "truncate" => match value {
                    Scalar::Null => {}
                    Scalar::Bool(truncate) => request.truncate = truncate,
                    other => return self.wrong(field, "true or false", &other),
                },
                "prompt_name" => request.prompt_name = self.text(field, value)?,
                // `user` is checked and otherwise of no use to us.
                _ => drop(self.text::<A::Error>(field, value)?),
            }
        }
        match inputs {
            Some(inputs) => Ok(EmbedRequest { inputs, ..request }),
            None => Err(self.0.stop(Error::invalid("input", "input is missing"))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<EmbedRequest, A::Error> {
        self.refuse("a list")
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<EmbedRequest, E> {
        self.refuse("a string")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<EmbedRequest, E> {
        self.refuse("null")
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<EmbedRequest, E> {
        self.refuse("a boolean")
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<EmbedRequest, E> {
        self.refuse("a number")
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<EmbedRequest, E> {
        self.refuse("a number")
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<EmbedRequest, E> {
        self.refuse("a number")
    }
}
