//! A request, read from the JSON of any route: one parser, by the fields of the route's form.
//!
//! Parsed in one pass. Unknown and repeated fields are refused: to ignore one silently would
//! answer something else than was asked.

use flowerbed_protocol::{Error, ErrorKind};
use flowerbed_text::TruncationSide;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::form::{Form, Names};
use crate::input::{InputSeed, Inputs};
use crate::json::{Refusal, Scalar};
use crate::value::Value;
use crate::wire::{Format, echo};

/// What is asked, whatever route and dialect it came by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) inputs: Inputs,
    pub(crate) names: Names,
    pub(crate) options: Options,
}

/// The fields beside the inputs; `None` where the route's or the server's default holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) model: Option<String>,
    pub(crate) format: Option<Format>,
    /// As it came, whatever the model gives.
    pub(crate) dimensions: Option<i128>,
    pub(crate) normalize: Option<bool>,
    pub(crate) truncate: Option<bool>,
    pub(crate) side: Option<TruncationSide>,
    pub(crate) prompt_name: Option<String>,
    pub(crate) add_special_tokens: Option<bool>,
    pub(crate) skip_special_tokens: Option<bool>,
}

impl Asked {
    /// Reads a body.
    pub(crate) fn parse(body: &[u8], form: &'static Form) -> Result<Self, Error> {
        let refusal = Refusal::default();
        let mut options = Options::default();
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let mut seen = Vec::new();
        let reader = ObjectReader {
            form,
            refusal: &refusal,
            options: &mut options,
            seen: &mut seen,
            is_nested: false,
        };
        let parsed = reader
            .deserialize(&mut deserializer)
            .and_then(|inputs| deserializer.end().map(|()| inputs));
        let inputs = match parsed {
            Ok(inputs) => inputs,
            Err(error) => return Err(refusal.into_error(&error, body)),
        };
        let field = form.inputs;
        let (inputs, names) =
            inputs.ok_or_else(|| Error::invalid(field, format!("{field} is missing")))?;
        Ok(Self {
            inputs,
            names,
            options,
        })
    }
}

/// Reads the body's object, or the object `parameters` in it.
struct ObjectReader<'r> {
    form: &'static Form,
    refusal: &'r Refusal,
    options: &'r mut Options,
    seen: &'r mut Vec<&'static str>,
    is_nested: bool,
}

const PARAMETERS: &str = "parameters";

impl<'de> DeserializeSeed<'de> for ObjectReader<'_> {
    type Value = Option<(Inputs, Names)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl ObjectReader<'_> {
    fn refuse<T, E: serde::de::Error>(&self, found: &Scalar) -> Result<T, E> {
        let error = if self.is_nested {
            let message = format!("{PARAMETERS} must be an object, not {found}");
            Error::invalid(PARAMETERS, message)
        } else {
            let message = format!("the body must be a JSON object, not {found}");
            Error::new(ErrorKind::InvalidInput, message)
        };
        Err(self.refusal.stop(error))
    }

    /// The fields that may stand here.
    fn known(&self) -> impl Iterator<Item = &'static str> {
        let Form {
            inputs,
            fields,
            parameters,
            ..
        } = self.form;
        let (own, others) = if self.is_nested {
            (None, *parameters)
        } else {
            (Some(*inputs), *fields)
        };
        let has_parameters = !self.is_nested && !parameters.is_empty();
        own.into_iter()
            .chain(others.iter().copied())
            .chain(has_parameters.then_some(PARAMETERS))
    }

    /// The field of that name; it must be known and new.
    fn field<E: serde::de::Error>(&mut self, name: &str) -> Result<&'static str, E> {
        let Some(field) = self.known().find(|field| *field == name) else {
            let name = echo(name);
            let known: Vec<&str> = self.known().collect();
            let place = if self.is_nested { " in parameters" } else { "" };
            let known = known.join(", ");
            let message = format!("unknown field {name:?}{place}; known are {known}");
            return Err(self.refusal.stop(Error::invalid(name, message)));
        };
        if self.seen.contains(&field) {
            let message = format!("{field} is given twice");
            return Err(self.refusal.stop(Error::invalid(field, message)));
        }
        self.seen.push(field);
        Ok(field)
    }

    fn take<E: serde::de::Error>(&mut self, field: &'static str, value: Scalar) -> Result<(), E> {
        let value = Value {
            refusal: self.refusal,
            field,
            value,
        };
        let options = &mut *self.options;
        match field {
            "model" => options.model = value.text()?,
            "encoding_format" => options.format = value.format()?,
            "dimensions" => options.dimensions = value.integer()?,
            "normalize" => options.normalize = value.boolean()?,
            "truncate" => options.truncate = value.boolean()?,
            "truncation_direction" => options.side = value.side()?,
            "prompt_name" => options.prompt_name = value.text()?,
            "add_special_tokens" => options.add_special_tokens = value.boolean()?,
            "skip_special_tokens" => options.skip_special_tokens = value.boolean()?,
            // `user` is checked and otherwise of no use to us.
            _ => drop(value.text()?),
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for ObjectReader<'_> {
    type Value = Option<(Inputs, Names)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut inputs = None;
        while let Some(name) = map.next_key::<String>()? {
            let field = self.field(&name)?;
            self.refusal.reads(Some((field, None)));
            if field == self.form.inputs {
                let seed = InputSeed {
                    form: self.form,
                    refusal: self.refusal,
                };
                inputs = Some(map.next_value_seed(seed)?);
            } else if field == PARAMETERS {
                map.next_value_seed(ObjectReader {
                    form: self.form,
                    refusal: self.refusal,
                    options: self.options,
                    seen: self.seen,
                    is_nested: true,
                })?;
            } else {
                let value = map.next_value()?;
                self.take(field, value)?;
            }
            self.refusal.reads(None);
        }
        Ok(inputs)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        self.refuse(&Scalar::List)
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Self::Value, E> {
        self.refuse(&Scalar::Text(String::new()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        if self.is_nested {
            return Ok(None);
        }
        self.refuse(&Scalar::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Self::Value, E> {
        self.refuse(&Scalar::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Self::Value, E> {
        self.refuse(&Scalar::Integer(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Self::Value, E> {
        self.refuse(&Scalar::Integer(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Self::Value, E> {
        self.refuse(&Scalar::Number(value))
    }
}
