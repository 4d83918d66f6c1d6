//! What the body of each route may hold, and how its inputs are named in errors.
//!
//! The one list of fields: bodies are parsed by it, and `openapi.rs` documents it.

use std::fmt::Display;

use flowerbed_protocol::{Error, ErrorKind};

use crate::json::Place;

/// The fields of a route's body.
#[derive(Debug)]
pub(crate) struct Form {
    /// The field that holds the inputs; it must be there.
    pub(crate) inputs: &'static str,
    pub(crate) takes: Takes,
    /// The other fields.
    pub(crate) fields: &'static [&'static str],
    /// Fields that may also stand in an object `parameters`; none: there is no such object.
    pub(crate) parameters: &'static [&'static str],
}

/// What the inputs may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Texts or token arrays, one or many.
    TextsOrIds,
    Texts,
    Ids,
    /// A sentence and those it is compared with.
    Comparison,
    /// The first or the last of these.
    Any,
}

/// `/v1/embeddings` and `/embeddings`.
pub(crate) const OPENAI: Form = Form {
    inputs: "input",
    takes: Takes::TextsOrIds,
    fields: &[
        "model",
        "encoding_format",
        "dimensions",
        "user",
        "truncate",
        "truncation_direction",
        "prompt_name",
    ],
    parameters: &[],
};

const EMBED_FIELDS: &[&str] = &[
    "truncate",
    "truncation_direction",
    "prompt_name",
    "normalize",
    "dimensions",
    "encoding_format",
];

/// `/embed`.
pub(crate) const EMBED: Form = Form {
    inputs: "inputs",
    takes: Takes::TextsOrIds,
    fields: EMBED_FIELDS,
    parameters: &[],
};

/// `/embed_all`.
pub(crate) const EMBED_ALL: Form = Form {
    inputs: "inputs",
    takes: Takes::TextsOrIds,
    fields: &["truncate", "truncation_direction", "prompt_name"],
    parameters: &[],
};

/// `/similarity`.
pub(crate) const SIMILARITY: Form = Form {
    inputs: "inputs",
    takes: Takes::Comparison,
    fields: &[],
    parameters: &["truncate", "truncation_direction", "prompt_name"],
};

/// `/` and `/invocations`: what the hub's clients send to a model, whatever it does.
pub(crate) const ROOT: Form = Form {
    inputs: "inputs",
    takes: Takes::Any,
    fields: EMBED_FIELDS,
    parameters: EMBED_FIELDS,
};

/// `/tokenize`.
pub(crate) const TOKENIZE: Form = Form {
    inputs: "inputs",
    takes: Takes::Texts,
    fields: &["add_special_tokens", "prompt_name"],
    parameters: &[],
};

/// `/decode`.
pub(crate) const DECODE: Form = Form {
    inputs: "ids",
    takes: Takes::Ids,
    fields: &["skip_special_tokens"],
    parameters: &[],
};

impl Takes {
    /// In words, for "must be …".
    pub(crate) fn forms(self) -> &'static str {
        match self {
            Self::TextsOrIds => {
                "a string, a list of strings, a list of token ids, or a list of such lists"
            }
            Self::Texts => "a string or a list of strings",
            Self::Ids => "a list of token ids, or a list of such lists",
            Self::Comparison => "an object with source_sentence and sentences",
            Self::Any => {
                "a string, a list of strings, a list of token ids, a list of such lists, or an \
                 object with source_sentence and sentences"
            }
        }
    }

    pub(crate) fn texts(self) -> bool {
        matches!(self, Self::TextsOrIds | Self::Texts | Self::Any)
    }

    pub(crate) fn ids(self) -> bool {
        matches!(self, Self::TextsOrIds | Self::Ids | Self::Any)
    }

    pub(crate) fn comparison(self) -> bool {
        matches!(self, Self::Comparison | Self::Any)
    }

    /// What somebody should know whose token ids are none of this model's.
    pub(crate) fn token_hint(self) -> &'static str {
        match self {
            Self::Ids => "ids must be this model's own, as /tokenize lists them",
            _ => TOKEN_HINT,
        }
    }
}

/// Somebody may send another tokenizer's ids without knowing it.
pub(crate) const TOKEN_HINT: &str = "token arrays must hold this model's own ids; LangChain's \
    OpenAIEmbeddings sends OpenAI's ids unless check_embedding_ctx_length=False is set";

/// How the caller names the inputs of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Items of a field that is a list; one text is as a list of one.
    List(&'static str),
    /// One token array: as a list of one, too, but its ids are the items of the field.
    TokenArray(&'static str),
    /// `inputs.source_sentence`, then the items of `inputs.sentences`.
    Comparison,
}

pub(crate) const SOURCE: &str = "inputs.source_sentence";
pub(crate) const SENTENCES: &str = "inputs.sentences";

impl Names {
    /// The field of the request, and the index in its list.
    fn place(self, index: usize) -> Place {
        match (self, index) {
            (Self::List(field) | Self::TokenArray(field), index) => (field, Some(index)),
            (Self::Comparison, 0) => (SOURCE, None),
            (Self::Comparison, index) => (SENTENCES, Some(index - 1)),
        }
    }

    /// The field as a whole.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::List(field) | Self::TokenArray(field) => field,
            Self::Comparison => SENTENCES,
        }
    }

    /// An error of the input at `index` of the internal list.
    pub(crate) fn at(self, index: usize, message: impl Display) -> Error {
        self.error(ErrorKind::InvalidInput, index, message)
    }

    /// The same, of another kind.
    pub(crate) fn error(self, kind: ErrorKind, index: usize, message: impl Display) -> Error {
        at_place(kind, self.place(index), message)
    }

    /// An error of one id of the token array at `index`.
    pub(crate) fn at_id(self, index: usize, position: usize, message: impl Display) -> Error {
        match self {
            Self::TokenArray(field) => {
                at_place(ErrorKind::InvalidInput, (field, Some(position)), message)
            }
            _ => self.at(
                index,
                format_args!("is no token array: item {position} {message}"),
            ),
        }
    }
}

/// An error whose message begins with its place.
pub(crate) fn at_place(kind: ErrorKind, place: Place, message: impl Display) -> Error {
    match place {
        (field, None) => Error::new(kind, format!("{field} {message}")).in_field(field),
        (field, Some(index)) => {
            let error = Error::new(kind, format!("{field}[{index}] {message}")).in_field(field);
            u32::try_from(index).map_or(error.clone(), |index| error.at_index(index))
        }
    }
}
