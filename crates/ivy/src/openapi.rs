//! The OpenAPI 3.1 document, written from the table of routes and their forms.

use flowerbed_protocol::ErrorKind;
use serde_json::{Map, Value, json};

use crate::endpoints::{Answer, ENDPOINTS, Endpoint};
use crate::error::Dialect;
use crate::schemas::{body, good_answer, object};

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
            "OpenAiError": object(&["error"], &json!({"error": object(
                &["message", "type", "code", "param"],
                &json!({
                    "message": {"type": "string"}, "type": {"type": "string"},
                    "code": {"type": "string"}, "param": {"type": ["string", "null"]},
                }),
            )})),
            "TeiError": object(&["error", "error_type"], &json!({
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
                &json!({"enum": ["online", "scoring", "bulk"]})
            ),
            header(
                "x-flowerbed-timeout-ms",
                &json!({"type": "integer", "minimum": 1})
            ),
            header("x-request-id", &json!({"type": "string"})),
        ]);
    }
    operation
}

fn header(name: &str, schema: &Value) -> Value {
    json!({"name": name, "in": "header", "required": false, "schema": schema})
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
