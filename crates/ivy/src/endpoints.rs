//! Every route, once: the router is built from this table, and `/openapi.json` and `/docs` are
//! written from it.

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};

use crate::app::App;
use crate::error::Dialect;
use crate::form::{DECODE, EMBED, EMBED_ALL, Form, OPENAI, ROOT, SIMILARITY, TOKENIZE};
use crate::{docs, info, openai, scrape, status, tei, tokens};

/// One route and method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    /// Lower case.
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) dialect: Dialect,
    /// What it does, in a line.
    pub(crate) summary: &'static str,
    /// Of its body, where it is read.
    pub(crate) form: Option<&'static Form>,
    pub(crate) answer: Answer,
    pub(crate) handler: fn() -> MethodRouter<Arc<App>>,
}

/// What a good answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Embeddings,
    Models,
    Vectors,
    TokenVectors,
    Cosines,
    VectorsOrCosines,
    Tokens,
    Texts,
    Info,
    /// An object that is for people and probes.
    Status,
    Empty,
    Metrics,
    Document,
    Page,
    /// There is none.
    Never,
}

const OPENAI_ROUTE: Endpoint = Endpoint {
    method: "post",
    path: "/v1/embeddings",
    dialect: Dialect::OpenAi,
    summary: "OpenAI's embeddings: a vector for each input",
    form: Some(&OPENAI),
    answer: Answer::Embeddings,
    handler: || post(openai::embeddings),
};

const TEI_ROUTE: Endpoint = Endpoint {
    method: "post",
    path: "/embed",
    dialect: Dialect::Tei,
    summary: "a vector for each input, normalised unless normalize is false",
    form: Some(&EMBED),
    answer: Answer::Vectors,
    handler: || post(tei::embed),
};

const STATUS_ROUTE: Endpoint = Endpoint {
    method: "get",
    path: "/health",
    dialect: Dialect::OpenAi,
    summary: "the gateway is alive",
    form: None,
    answer: Answer::Status,
    handler: || get(status::health),
};

const NO_HEAD_ROUTE: Endpoint = Endpoint {
    path: "/rerank",
    summary: "for re-rankers, which are not served: 424",
    form: None,
    answer: Answer::Never,
    handler: || post(tei::no_head),
    ..TEI_ROUTE
};

/// All of them.
pub(crate) const ENDPOINTS: [Endpoint; 21] = [
    OPENAI_ROUTE,
    Endpoint {
        path: "/embeddings",
        ..OPENAI_ROUTE
    },
    Endpoint {
        path: "/v1/models",
        summary: "the served model",
        answer: Answer::Models,
        handler: || get(status::models),
        ..STATUS_ROUTE
    },
    TEI_ROUTE,
    Endpoint {
        path: "/embed_all",
        summary: "a vector for each token of each input, special tokens included",
        form: Some(&EMBED_ALL),
        answer: Answer::TokenVectors,
        handler: || post(tei::embed_all),
        ..TEI_ROUTE
    },
    Endpoint {
        path: "/similarity",
        summary: "the cosine of a sentence with each of the others",
        form: Some(&SIMILARITY),
        answer: Answer::Cosines,
        handler: || post(tei::similarity),
        ..TEI_ROUTE
    },
    Endpoint {
        path: "/",
        summary: "as /embed, or as /similarity where inputs has a source_sentence",
        form: Some(&ROOT),
        answer: Answer::VectorsOrCosines,
        handler: || post(tei::root),
        ..TEI_ROUTE
    },
    Endpoint {
        path: "/invocations",
        summary: "the same, under SageMaker's name",
        form: Some(&ROOT),
        answer: Answer::VectorsOrCosines,
        handler: || post(tei::root),
        ..TEI_ROUTE
    },
    Endpoint {
        path: "/tokenize",
        summary: "the tokens of each text, never cut; places count characters of prompt and text",
        form: Some(&TOKENIZE),
        answer: Answer::Tokens,
        handler: || post(tokens::tokenize),
        ..TEI_ROUTE
    },
    Endpoint {
        path: "/decode",
        summary: "the text of each token array",
        form: Some(&DECODE),
        answer: Answer::Texts,
        handler: || post(tokens::decode),
        ..TEI_ROUTE
    },
    NO_HEAD_ROUTE,
    Endpoint {
        path: "/predict",
        summary: "for classifiers, which are not served: 424",
        ..NO_HEAD_ROUTE
    },
    Endpoint {
        path: "/embed_sparse",
        summary: "for sparse models, which are not served: 424",
        ..NO_HEAD_ROUTE
    },
    Endpoint {
        method: "get",
        path: "/info",
        summary: "the model, its space, and the limits of a request",
        form: None,
        answer: Answer::Info,
        handler: || get(info::info),
        ..TEI_ROUTE
    },
    Endpoint {
        path: "/",
        dialect: Dialect::Tei,
        summary: "a request sent now can be answered",
        answer: Answer::Empty,
        handler: || get(status::ping),
        ..STATUS_ROUTE
    },
    Endpoint {
        path: "/ping",
        dialect: Dialect::Tei,
        summary: "the same, under SageMaker's name",
        answer: Answer::Empty,
        handler: || get(status::ping),
        ..STATUS_ROUTE
    },
    STATUS_ROUTE,
    Endpoint {
        path: "/ready",
        summary: "a request sent now can be answered; each worker's state",
        handler: || get(status::ready),
        ..STATUS_ROUTE
    },
    Endpoint {
        path: "/metrics",
        summary: "Prometheus text: the gateway's metrics and every worker's",
        answer: Answer::Metrics,
        handler: || get(scrape::metrics),
        ..STATUS_ROUTE
    },
    Endpoint {
        path: "/openapi.json",
        summary: "this list as an OpenAPI 3.1 document",
        answer: Answer::Document,
        handler: || get(docs::openapi),
        ..STATUS_ROUTE
    },
    Endpoint {
        path: "/docs",
        summary: "this list as a page",
        answer: Answer::Page,
        handler: || get(docs::page),
        ..STATUS_ROUTE
    },
];
