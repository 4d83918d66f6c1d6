//! The inputs of a request: texts or token arrays, alone, in a list, or as a comparison.
//!
//! A single one is a list of one from here on. Every error names the index in the caller's list.

use flowerbed_protocol::{Error, ErrorKind, limits};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::compute::{Compute, Work};
use crate::form::{Form, Names, SENTENCES, SOURCE, Takes};
use crate::item::{Item, ItemSeed};
use crate::json::{Refusal, Scalar};
use crate::wire::echo;

/// What is to be worked on, in the caller's order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inputs {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Inputs {
    /// Characters of the texts; ids, where there are only these.
    pub(crate) fn num_chars(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.iter().map(|text| text.chars().count()).sum(),
            Self::Tokens(arrays) => arrays.iter().map(Vec::len).sum(),
        }
    }

    /// Memory of the texts or ids.
    pub(crate) fn num_bytes(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.iter().map(String::len).sum(),
            Self::Tokens(arrays) => arrays.iter().map(|ids| size_of_val(&ids[..])).sum(),
        }
    }

    /// Where it is tokenized; token arrays are only checked.
    pub(crate) fn work(&self) -> Work {
        match self {
            Self::Texts(texts) => Work::tokenizing(texts.iter().map(String::len)),
            Self::Tokens(_) if Compute::is_small(self.num_bytes()) => Work::Inline,
            Self::Tokens(_) => Work::Json,
        }
    }
}

const KNOWN: &str = "source_sentence, sentences";
const OTHER_SENTENCES: Form = Form {
    inputs: SENTENCES,
    takes: Takes::Texts,
    fields: &[],
    parameters: &[],
};

/// Reads the inputs of a form.
#[derive(Clone, Copy)]
pub(crate) struct InputSeed<'r> {
    pub(crate) form: &'static Form,
    pub(crate) refusal: &'r Refusal,
}

impl<'de> DeserializeSeed<'de> for InputSeed<'_> {
    type Value = (Inputs, Names);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl InputSeed<'_> {
    fn refuse<T, E: serde::de::Error>(self, found: &Scalar) -> Result<T, E> {
        let Form { inputs, takes, .. } = self.form;
        let message = format!("{inputs} must be {}, not {found}", takes.forms());
        Err(self.refusal.stop(Error::invalid(*inputs, message)))
    }

    fn names(self) -> Names {
        Names::List(self.form.inputs)
    }
}

impl<'de> Visitor<'de> for InputSeed<'_> {
    type Value = (Inputs, Names);

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.form.takes.forms())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if !self.form.takes.texts() {
            return self.refuse(&Scalar::Text(String::new()));
        }
        Ok((Inputs::Texts(vec![text.to_owned()]), self.names()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        let takes = self.form.takes;
        if !takes.texts() && !takes.ids() {
            return self.refuse(&Scalar::List);
        }
        let seed = ItemSeed {
            form: self.form,
            refusal: self.refusal,
            index: 0,
            kind: None,
        };
        let mut items = Items { list, seed };
        let inputs = match items.next()? {
            None => return Err(self.refusal.stop(empty(self.form))),
            Some(Item::Text(text)) => items.rest(text, Item::into_text).map(Inputs::Texts)?,
            Some(Item::Ids(ids)) => items.rest(ids, Item::into_ids).map(Inputs::Tokens)?,
            Some(Item::Id(id)) => {
                let mut ids = vec![id];
                while let Some(item) = items.next()? {
                    ids.extend(item.into_id());
                }
                let names = Names::TokenArray(self.form.inputs);
                return Ok((Inputs::Tokens(vec![ids]), names));
            }
        };
        Ok((inputs, self.names()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        if !self.form.takes.comparison() {
            return self.refuse(&Scalar::Object);
        }
        let stop = |error: Error| self.refusal.stop(error);
        let (mut source, mut sentences) = (None, None);
        while let Some(name) = map.next_key::<String>()? {
            let is_repeated = match name.as_str() {
                "source_sentence" => {
                    self.refusal.reads(Some((SOURCE, None)));
                    match map.next_value()? {
                        Scalar::Text(text) => source.replace(text).is_some(),
                        other => {
                            let message = format!("{SOURCE} must be a string, not {other}");
                            return Err(stop(Error::invalid(SOURCE, message)));
                        }
                    }
                }
                "sentences" => {
                    self.refusal.reads(Some((SENTENCES, None)));
                    let seed = Self {
                        form: &OTHER_SENTENCES,
                        ..self
                    };
                    sentences.replace(map.next_value_seed(seed)?.0).is_some()
                }
                _ => {
                    let name = echo(&name);
                    let message = format!("unknown field {name:?} in inputs; known are {KNOWN}");
                    return Err(stop(Error::invalid("inputs", message)));
                }
            };
            if is_repeated {
                let message = format!("inputs.{} is given twice", echo(&name));
                return Err(stop(Error::invalid("inputs", message)));
            }
            self.refusal.reads(Some(("inputs", None)));
        }
        let missing = |field: &str| stop(Error::invalid(field, format!("{field} is missing")));
        let source = source.ok_or_else(|| missing(SOURCE))?;
        let Some(Inputs::Texts(mut texts)) = sentences else {
            return Err(missing(SENTENCES));
        };
        texts.insert(0, source);
        if texts.len() > limits::MAX_INPUTS {
            return Err(stop(too_many("inputs", texts.len())));
        }
        Ok((Inputs::Texts(texts), Names::Comparison))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
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

/// The items of a list, all of one kind.
struct Items<'r, A> {
    list: A,
    seed: ItemSeed<'r>,
}

impl<'de, A: SeqAccess<'de>> Items<'_, A> {
    fn next(&mut self) -> Result<Option<Item>, A::Error> {
        let seed = self.seed;
        seed.refusal
            .reads(Some((seed.form.inputs, Some(seed.index))));
        let item = self.list.next_element_seed(seed)?;
        self.seed.index += 1;
        self.seed.kind = self.seed.kind.or(item.as_ref().map(Item::kind));
        Ok(item)
    }

    /// All items, `first` included. Past the limit they are counted, not kept.
    fn rest<T>(mut self, first: T, take: impl Fn(Item) -> Option<T>) -> Result<Vec<T>, A::Error> {
        let mut all = vec![first];
        while let Some(item) = self.next()? {
            all.extend(take(item));
            if all.len() == limits::MAX_INPUTS {
                let mut num_inputs = limits::MAX_INPUTS;
                while self.list.next_element::<IgnoredAny>()?.is_some() {
                    num_inputs += 1;
                }
                if num_inputs > limits::MAX_INPUTS {
                    let error = too_many(self.seed.form.inputs, num_inputs);
                    return Err(self.seed.refusal.stop(error));
                }
                break;
            }
        }
        Ok(all)
    }
}

fn empty(form: &Form) -> Error {
    let Form { inputs, takes, .. } = form;
    let message = format!("{inputs} is an empty list; it must be {}", takes.forms());
    Error::new(ErrorKind::EmptyInput, message).in_field(*inputs)
}

fn too_many(field: &str, num_inputs: usize) -> Error {
    let limit = limits::MAX_INPUTS;
    let message =
        format!("{field} has {num_inputs} items, the limit is {limit}: split the request");
    Error::new(ErrorKind::TooManyInputs, message).in_field(field)
}
