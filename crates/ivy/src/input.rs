//! The `input` of a request: a text, texts, a token array, or token arrays.
//!
//! A single one is a list of one from here on. Every error names the index in the caller's list.

use flowerbed_protocol::{Error, limits};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::compute::Work;
use crate::item::{Item, ItemSeed, Kind};
use crate::json::{Refusal, Scalar};

/// Appended where somebody may have sent another tokenizer's ids without knowing it.
pub(crate) const TOKEN_HINT: &str = "token arrays must hold this model's own ids; LangChain's \
    OpenAIEmbeddings sends OpenAI's ids unless check_embedding_ctx_length=False is set";

const FORMS: &str = "a string, a list of strings, a list of token ids, or a list of such lists";

/// What is to be embedded, in the caller's order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inputs {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Inputs {
    /// Rows of the answer.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Tokens(arrays) => arrays.len(),
        }
    }

    /// Where it is tokenized; token arrays need no tokenizer.
    pub(crate) fn work(&self) -> Work {
        match self {
            Self::Texts(texts) => Work::tokenizing(texts.iter().map(String::len)),
            Self::Tokens(_) => Work::tokenizing([]),
        }
    }
}

/// An error of `input[index]`.
pub(crate) fn at(index: usize, message: impl std::fmt::Display) -> Error {
    let error = Error::invalid("input", format!("input[{index}] {message}"));
    u32::try_from(index).map_or(error.clone(), |index| error.at_index(index))
}

/// Reads the value of `input`.
#[derive(Clone, Copy)]
pub(crate) struct InputSeed<'r>(pub(crate) &'r Refusal);

impl<'de> DeserializeSeed<'de> for InputSeed<'_> {
    type Value = Inputs;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Inputs, D::Error> {
        deserializer.deserialize_any(InputVisitor(self.0))
    }
}

struct InputVisitor<'r>(&'r Refusal);

impl InputVisitor<'_> {
    fn refuse<E: serde::de::Error>(&self, found: &Scalar) -> Result<Inputs, E> {
        let message = format!("input must be {FORMS}, not {}", found.name());
        Err(self.0.stop(Error::invalid("input", message)))
    }
}

impl<'de> Visitor<'de> for InputVisitor<'_> {
    type Value = Inputs;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(FORMS)
    }

    fn visit_str<E>(self, text: &str) -> Result<Inputs, E> {
        Ok(Inputs::Texts(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Inputs, A::Error> {
        let mut items = Items {
            list,
            refusal: self.0,
            index: 0,
            kind: None,
        };
        match items.next()? {
            None => {
                let message = format!("input is an empty list; it must be {FORMS}");
                Err(self.0.stop(Error::invalid("input", message)))
            }
            Some(Item::Text(text)) => items.rest(text, Item::into_text).map(Inputs::Texts),
            Some(Item::Ids(ids)) => items.rest(ids, Item::into_ids).map(Inputs::Tokens),
            Some(Item::Id(id)) => {
                let mut ids = vec![id];
                while let Some(item) = items.next()? {
                    ids.extend(item.into_id());
                }
                Ok(Inputs::Tokens(vec![ids]))
            }
        }
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Inputs, E> {
        self.refuse(&Scalar::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Inputs, E> {
        self.refuse(&Scalar::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Inputs, E> {
        self.refuse(&Scalar::Number)
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Inputs, E> {
        self.refuse(&Scalar::Number)
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Inputs, E> {
        self.refuse(&Scalar::Number)
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Inputs, A::Error> {
        self.refuse(&Scalar::Object)
    }
}

/// The items of a list, all of one kind.
struct Items<'r, A> {
    list: A,
    refusal: &'r Refusal,
    index: usize,
    kind: Option<Kind>,
}

impl<'de, A: SeqAccess<'de>> Items<'_, A> {
    fn next(&mut self) -> Result<Option<Item>, A::Error> {
        let seed = ItemSeed {
            refusal: self.refusal,
            index: self.index,
            kind: self.kind,
        };
        let item = self.list.next_element_seed(seed)?;
        self.index += 1;
        self.kind = self.kind.or(item.as_ref().map(Item::kind));
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
                    return Err(self.refusal.stop(too_many(num_inputs)));
                }
                break;
            }
        }
        Ok(all)
    }
}

fn too_many(num_inputs: usize) -> Error {
    let limit = limits::MAX_INPUTS;
    let message = format!("input has {num_inputs} items, the limit is {limit}: split the request");
    Error::invalid("input", message)
}
