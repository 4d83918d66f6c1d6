//! One item of a list of inputs: a text, a token id, or a token array.

use flowerbed_protocol::ErrorKind;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::form::{Form, Names};
use crate::json::{Refusal, Scalar};

/// What the first item is, all others must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Id,
    Ids,
}

/// An item of the right type.
pub(crate) enum Item {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

impl Item {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Text(_) => Kind::Text,
            Self::Id(_) => Kind::Id,
            Self::Ids(_) => Kind::Ids,
        }
    }

    pub(crate) fn into_text(self) -> Option<String> {
        if let Self::Text(text) = self {
            Some(text)
        } else {
            None
        }
    }

    pub(crate) fn into_id(self) -> Option<u32> {
        if let Self::Id(id) = self {
            Some(id)
        } else {
            None
        }
    }

    pub(crate) fn into_ids(self) -> Option<Vec<u32>> {
        if let Self::Ids(ids) = self {
            Some(ids)
        } else {
            None
        }
    }
}

/// Reads the item at `index`, which must be of `kind` if that is known.
#[derive(Clone, Copy)]
pub(crate) struct ItemSeed<'r> {
    pub(crate) form: &'static Form,
    pub(crate) refusal: &'r Refusal,
    pub(crate) index: usize,
    pub(crate) kind: Option<Kind>,
}

impl ItemSeed<'_> {
    fn stop<E: serde::de::Error>(&self, message: impl std::fmt::Display) -> E {
        let names = Names::List(self.form.inputs);
        self.refusal.stop(names.at(self.index, message))
    }

    fn refuse<T, E: serde::de::Error>(&self, found: &Scalar) -> Result<T, E> {
        let takes = self.form.takes;
        let wanted = match (self.kind, takes.texts(), takes.ids()) {
            (None, true, true) => "a string, a token id or a list of token ids",
            (None, false, _) => "a token id or a list of token ids",
            (None, true, false) => "a string",
            (Some(Kind::Text), ..) => "a string like those before it",
            (Some(Kind::Id), ..) => "a token id like those before it",
            (Some(Kind::Ids), ..) => "a list of token ids like those before it",
        };
        let message = format!("must be {wanted}, not {found}");
        Err(match self.kind {
            Some(Kind::Id | Kind::Ids) => {
                self.stop(format_args!("{message}; {}", takes.token_hint()))
            }
            _ => self.stop(message),
        })
    }

    fn accept<E: serde::de::Error>(&self, item: Item, found: &Scalar) -> Result<Item, E> {
        let is_taken = match item.kind() {
            Kind::Text => self.form.takes.texts(),
            Kind::Id | Kind::Ids => self.form.takes.ids(),
        };
        if is_taken && self.kind.is_none_or(|kind| kind == item.kind()) {
            Ok(item)
        } else {
            self.refuse(found)
        }
    }

    fn id<E: serde::de::Error>(&self, value: &Scalar) -> Result<Item, E> {
        let id = token_id(value);
        let item = self.accept(Item::Id(id.unwrap_or_default()), value)?;
        id.map(|_| item)
            .ok_or_else(|| self.stop(self.not_an_id(value)))
    }

    fn not_an_id(&self, found: &Scalar) -> String {
        let hint = self.form.takes.token_hint();
        format!("must be a token id, an integer from 0 on, not {found}; {hint}")
    }
}

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Item, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemSeed<'_> {
    type Value = Item;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an input")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Item, E> {
        self.accept(Item::Text(text.to_owned()), &Scalar::Text(String::new()))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Item, E> {
        self.id(&Scalar::Integer(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Item, E> {
        self.id(&Scalar::Integer(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Item, E> {
        self.id(&Scalar::Number(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        self.accept(Item::Ids(Vec::new()), &Scalar::List)?;
        let mut ids = Vec::new();
        while let Some(value) = list.next_element::<Scalar>()? {
            let Some(id) = token_id(&value) else {
                let (position, problem) = (ids.len(), self.not_an_id(&value));
                return Err(self.stop(format_args!("is no token array: item {position} {problem}")));
            };
            ids.push(id);
        }
        if ids.is_empty() {
            let names = Names::List(self.form.inputs);
            let message = "is an empty list; it must be a list of token ids";
            let error = names.error(ErrorKind::EmptyInput, self.index, message);
            return Err(self.refusal.stop(error));
        }
        Ok(Item::Ids(ids))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Item, E> {
        self.refuse(&Scalar::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Item, E> {
        self.refuse(&Scalar::Bool(value))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Item, A::Error> {
        self.refuse(&Scalar::Object)
    }
}

fn token_id(value: &Scalar) -> Option<u32> {
    if let Scalar::Integer(value) = value {
        u32::try_from(*value).ok()
    } else {
        None
    }
}
