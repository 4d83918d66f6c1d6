//! The OpenAPI 3.1 document, written from the table of routes and their forms.

use flowerbed_protocol::{ErrorKind, limits};
use serde_json::{Map, Value, json};

use crate::endpoints::{Answer, ENDPOINTS, Endpoint};
use crate::error::Dialect;
use crate::form::{Form, Takes};

/// The document.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for endpoint in &ENDPOINTS {
        let path = paths
            .entry(endpoint.path)
            .or_insert_with(|| Value::Object(Map::new()));
        path[endpoint.method] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "flowerbed",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Text embeddings in OpenAI's dialect and in that of \
                text-embeddings-inference. Unknown fields are refused.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": {
            "OpenAiError": object(&["error"], json!({"error": object(
                &["message", "type", "code", "param"],
                json!({
                    "message": {"type": "string"}, "type": {"type": "string"},
                    "code": {"type": "string"}, "param": {"type": ["string", "null"]},
                }),
            )})),
            "TeiError": object(&["error", "error_type"], json!({
                "error": {"type": "string"},
                "error_type": {"enum": tei_types()},
            })),
        }},
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let name = endpoint.path.trim_matches('/').replace(['/', '.'], "_");
    let mut operation = json!({
        "operationId": format!("{}_{}", endpoint.method, if name.is_empty() { "root" } else { &name }),
        "summary": endpoint.summary,
        "tags": [match endpoint.dialect {
            Dialect::OpenAi if endpoint.form.is_some() => "OpenAI",
            Dialect::OpenAi => "server",
            Dialect::Tei => "text-embeddings-inference",
        }],
        "responses": responses(endpoint),
    });
    if let Some(form) = endpoint.form {
        operation["requestBody"] = json!({
            "required": true,
            "content": {"application/json": {"schema": body(form)}},
        });
        operation["parameters"] = json!([
            header(
                "x-flowerbed-lane",
                json!({"enum": ["online", "scoring", "bulk"]})
            ),
            header(
                "x-flowerbed-timeout-ms",
                json!({"type": "integer", "minimum": 1})
            ),
            header("x-request-id", json!({"type": "string"})),
        ]);
    }
    operation
}

fn header(name: &str, schema: Value) -> Value {
    json!({"name": name, "in": "header", "required": false, "schema": schema})
}

/// An object with these and no other fields.
fn object(required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object", "required": required, "properties": properties,
        "additionalProperties": false,
    })
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// A list that a request may send.
fn inputs_list(items: Value) -> Value {
    json!({"type": "array", "items": items, "minItems": 1, "maxItems": limits::MAX_INPUTS})
}

fn body(form: &Form) -> Value {
    let mut properties = properties(form.fields);
    properties[form.inputs] = inputs(form.takes);
    if !form.parameters.is_empty() {
        let mut parameters = object(&[], self::properties(form.parameters));
        parameters["type"] = json!(["object", "null"]);
        properties["parameters"] = parameters;
    }
    object(&[form.inputs], properties)
}

fn properties(fields: &[&str]) -> Value {
    let all: Map<String, Value> = fields
        .iter()
        .map(|field| ((*field).to_owned(), property(field)))
        .collect();
    Value::Object(all)
}

fn inputs(takes: Takes) -> Value {
    let text = json!({"type": "string"});
    let ids = json!({
        "type": "array", "minItems": 1,
        "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX},
    });
    let mut forms = Vec::new();
    if takes.texts() {
        forms.extend([text.clone(), inputs_list(text.clone())]);
    }
    if takes.ids() {
        forms.extend([ids.clone(), inputs_list(ids)]);
    }
    if takes.comparison() {
        let sentences = json!({"source_sentence": text, "sentences": inputs_list(text.clone())});
        forms.push(object(&["source_sentence", "sentences"], sentences));
    }
    json!({"oneOf": forms})
}

/// The schema of one field; null is always as if it were not there.
fn property(field: &str) -> Value {
    let (kind, description) = match field {
        "model" => (
            "string",
            "The served model's id, the last part of it, an alias, or default.",
        ),
        "user" => ("string", "Of no effect."),
        "encoding_format" => {
            let description = "base64 is little-endian float32; only /v1/embeddings gives it.";
            return json!({"enum": ["float", "base64", null], "description": description});
        }
        "truncation_direction" => {
            let description = "The side at which a longer input is cut; the model's own if absent.";
            return json!({"enum": ["left", "right", "Left", "Right", null], "description": description});
        }
        "dimensions" => {
            let description = "Leading values kept of each vector; all if absent.";
            return json!({"type": ["integer", "null"], "minimum": 1, "description": description});
        }
        "truncate" => (
            "boolean",
            "Whether an input that is longer than the model takes is cut, or refused; \
             the server's auto_truncate if absent.",
        ),
        "normalize" => (
            "boolean",
            "Whether vectors are scaled to length 1; true if absent.",
        ),
        "prompt_name" => (
            "string",
            "Which of the model's prompts is put before each text.",
        ),
        "add_special_tokens" => (
            "boolean",
            "Whether the model's own are added; true if absent.",
        ),
        "skip_special_tokens" => ("boolean", "Whether they are left out; true if absent."),
        _ => ("string", ""),
    };
    json!({"type": [kind, "null"], "description": description})
}

fn responses(endpoint: &Endpoint) -> Value {
    let mut responses = Map::new();
    if let Some(good) = good_answer(endpoint.answer) {
        responses.insert("200".to_owned(), good);
    }
    let (schema, status): (_, fn(ErrorKind) -> u16) = match endpoint.dialect {
        Dialect::OpenAi => ("OpenAiError", ErrorKind::http_status),
        Dialect::Tei => ("TeiError", ErrorKind::tei_status),
    };
    for kind in ErrorKind::ALL
        .into_iter()
        .filter(|kind| may_fail(endpoint, *kind))
    {
        let response = responses
            .entry(status(kind).to_string())
            .or_insert_with(|| {
                let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
                json!({"description": "", "content": {"application/json": {"schema": schema}}})
            });
        let known = response["description"].as_str().unwrap_or_default();
        let separator = if known.is_empty() { "" } else { ", " };
        response["description"] = json!(format!("{known}{separator}{}", kind.name()));
    }
    Value::Object(responses)
}

fn may_fail(endpoint: &Endpoint, kind: ErrorKind) -> bool {
    match endpoint.answer {
        Answer::Never => kind == ErrorKind::NoHead,
        Answer::Info | Answer::Empty => kind == ErrorKind::Unavailable,
        Answer::Status => kind == ErrorKind::Unavailable && endpoint.path == "/ready",
        _ if endpoint.form.is_none() => false,
        // Nobody is told of the last one, and there is no key to be wrong yet.
        _ => !matches!(kind, ErrorKind::Unauthorized | ErrorKind::Cancelled),
    }
}

fn good_answer(answer: Answer) -> Option<Value> {
    let number = json!({"type": "number"});
    let vectors = list(list(number.clone()));
    let cosines = list(number.clone());
    let schema = match answer {
        Answer::Never => return None,
        Answer::Empty => return Some(json!({"description": "nothing"})),
        Answer::Metrics => return Some(content("text/plain", json!({"type": "string"}))),
        Answer::Page => return Some(content("text/html", json!({"type": "string"}))),
        Answer::Document | Answer::Status => json!({"type": "object"}),
        Answer::Embeddings => embeddings(&number),
        Answer::Models => object(
            &["object", "data"],
            json!({"object": {"const": "list"}, "data": list(object(
                &["id", "object", "created", "owned_by"],
                json!({
                    "id": {"type": "string"}, "object": {"const": "model"},
                    "created": {"type": "integer"}, "owned_by": {"type": "string"},
                }),
            ))}),
        ),
        Answer::Vectors => vectors,
        Answer::Cosines => cosines,
        Answer::VectorsOrCosines => json!({"oneOf": [vectors, cosines]}),
        Answer::TokenVectors => list(vectors),
        Answer::Texts => list(json!({"type": "string"})),
        Answer::Tokens => list(list(object(
            &["id", "text", "special", "start", "stop"],
            json!({
                "id": {"type": "integer"}, "text": {"type": "string"},
                "special": {"type": "boolean"},
                "start": {"type": ["integer", "null"]}, "stop": {"type": ["integer", "null"]},
            }),
        ))),
        Answer::Info => info(),
    };
    Some(content("application/json", schema))
}

fn content(media: &str, schema: Value) -> Value {
    json!({"description": "the answer", "content": {media: {"schema": schema}}})
}

fn embeddings(number: &Value) -> Value {
    let vector = json!({"oneOf": [list(number.clone()), {"type": "string"}]});
    let item = object(
        &["object", "index", "embedding"],
        json!({"object": {"const": "embedding"}, "index": {"type": "integer"}, "embedding": vector}),
    );
    let count = json!({"type": "integer"});
    let usage = object(
        &["prompt_tokens", "total_tokens"],
        json!({"prompt_tokens": count, "total_tokens": count}),
    );
    object(
        &["object", "data", "model", "usage"],
        json!({
            "object": {"const": "list"}, "data": list(item), "model": {"type": "string"},
            "usage": usage,
        }),
    )
}

fn info() -> Value {
    let pooling = object(&["pooling"], json!({"pooling": {"type": "string"}}));
    let mut properties = Map::new();
    properties.insert(
        "model_type".to_owned(),
        object(&["embedding"], json!({"embedding": pooling})),
    );
    let all = [
        (
            "string",
            "model_id model_dtype served_model_name version space revision",
        ),
        ("string", "tokenizer_sha256 truncation_direction"),
        (
            "integer",
            "max_concurrent_requests max_input_length max_batch_tokens max_client_batch_size",
        ),
        ("integer", "tokenization_workers dimensions max_body_bytes"),
        ("boolean", "auto_truncate"),
    ];
    for (kind, names) in all {
        for name in names.split(' ') {
            properties.insert(name.to_owned(), json!({"type": kind}));
        }
    }
    for name in ["model_sha", "sha", "docker_label", "weights_sha256"] {
        properties.insert(name.to_owned(), json!({"type": ["string", "null"]}));
    }
    properties.insert(
        "max_batch_requests".to_owned(),
        json!({"type": ["integer", "null"]}),
    );
    properties.insert(
        "allowed_dimensions".to_owned(),
        list(json!({"type": "integer"})),
    );
    properties.insert("prompts".to_owned(), list(json!({"type": "string"})));
    let required: Vec<String> = properties.keys().cloned().collect();
    let required: Vec<&str> = required.iter().map(String::as_str).collect();
    object(&required, Value::Object(properties))
}

fn tei_types() -> Vec<&'static str> {
    let mut types: Vec<&str> = ErrorKind::ALL
        .into_iter()
        .map(ErrorKind::tei_type)
        .collect();
    types.sort_unstable();
    types.dedup();
    types
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form;

    #[test]
    fn every_field_of_every_form_is_described() {
        let forms = ENDPOINTS.iter().filter_map(|endpoint| endpoint.form);
        for form in forms.chain([&form::OPENAI]) {
            for field in form.fields.iter().chain(form.parameters) {
                assert_ne!(property(field)["description"], "", "{field}");
            }
        }
    }

    #[test]
    fn every_route_and_method_has_a_place_and_a_name_of_its_own() {
        let document = document();
        let mut names: Vec<String> = Vec::new();
        for endpoint in &ENDPOINTS {
            let operation = &document["paths"][endpoint.path][endpoint.method];
            names.push(operation["operationId"].as_str().unwrap().to_owned());
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ENDPOINTS.len());
    }
}
