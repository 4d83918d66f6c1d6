//! The JSON schemas of the OpenAPI document: what bodies may hold, and what answers hold.

use flowerbed_protocol::limits;
use serde_json::{Map, Value, json};

use crate::endpoints::Answer;
use crate::form::{Form, Takes};

/// An object with these and no other fields.
pub(crate) fn object(required: &[&str], properties: &Value) -> Value {
    json!({
        "type": "object", "required": required, "properties": properties,
        "additionalProperties": false,
    })
}

fn list(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}

/// A list that a request may send.
fn inputs_list(items: &Value) -> Value {
    json!({"type": "array", "items": items, "minItems": 1, "maxItems": limits::MAX_INPUTS})
}

pub(crate) fn body(form: &Form) -> Value {
    let mut properties = properties(form.fields);
    properties[form.inputs] = inputs(form.takes);
    if !form.parameters.is_empty() {
        let mut parameters = object(&[], &self::properties(form.parameters));
        parameters["type"] = json!(["object", "null"]);
        properties["parameters"] = parameters;
    }
    object(&[form.inputs], &properties)
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
        forms.extend([text.clone(), inputs_list(&text)]);
    }
    if takes.ids() {
        forms.extend([ids.clone(), inputs_list(&ids)]);
    }
    if takes.comparison() {
        let sentences = json!({"source_sentence": text, "sentences": inputs_list(&text)});
        forms.push(object(&["source_sentence", "sentences"], &sentences));
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
            let description = "base64 is little-endian float32, bytes an octet-stream of it, row \
                after row, its shape in x-flowerbed-shape; only /v1/embeddings gives them.";
            return json!({"enum": ["float", "base64", "bytes", null], "description": description});
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

/// A good answer; none where there is none.
pub(crate) fn good_answer(answer: Answer) -> Option<Value> {
    let vectors = list(&list(&of("number")));
    let cosines = list(&of("number"));
    let (media, schema) = match answer {
        Answer::Never => return None,
        Answer::Empty => return Some(json!({"description": "nothing"})),
        Answer::Metrics => ("text/plain", of("string")),
        Answer::Page => ("text/html", of("string")),
        Answer::Document | Answer::Status => (JSON, of("object")),
        Answer::Embeddings => (JSON, embeddings()),
        Answer::Models => (JSON, models()),
        Answer::Vectors => (JSON, vectors),
        Answer::Cosines => (JSON, cosines),
        Answer::VectorsOrCosines => (JSON, json!({"oneOf": [vectors, cosines]})),
        Answer::TokenVectors => (JSON, list(&vectors)),
        Answer::Texts => (JSON, list(&of("string"))),
        Answer::Tokens => (JSON, list(&list(&token()))),
        Answer::Info => (JSON, info()),
    };
    let mut content = json!({media: {"schema": schema}});
    if answer == Answer::Embeddings {
        content["application/octet-stream"] = json!({});
    }
    Some(json!({"description": "the answer", "content": content}))
}

const JSON: &str = "application/json";

/// Any value of this type.
fn of(kind: &str) -> Value {
    json!({"type": kind})
}

fn or_null(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

/// An object whose fields are all there.
fn complete(properties: &Value) -> Value {
    let names: Vec<&str> = properties
        .as_object()
        .into_iter()
        .flat_map(|fields| fields.keys().map(String::as_str))
        .collect();
    object(&names, properties)
}

fn embeddings() -> Value {
    let item = json!({
        "object": {"const": "embedding"}, "index": of("integer"),
        "embedding": {"oneOf": [list(&of("number")), of("string")]},
    });
    let usage = json!({"prompt_tokens": of("integer"), "total_tokens": of("integer")});
    complete(&json!({
        "object": {"const": "list"}, "data": list(&complete(&item)), "model": of("string"),
        "usage": complete(&usage),
    }))
}

fn models() -> Value {
    let model = json!({
        "id": of("string"), "object": {"const": "model"}, "created": of("integer"),
        "owned_by": of("string"),
    });
    complete(&json!({"object": {"const": "list"}, "data": list(&complete(&model))}))
}

fn token() -> Value {
    complete(&json!({
        "id": of("integer"), "text": of("string"), "special": of("boolean"),
        "start": or_null("integer"), "stop": or_null("integer"),
    }))
}

fn info() -> Value {
    let pooling = complete(&json!({"pooling": of("string")}));
    complete(&json!({
        "model_id": of("string"), "model_sha": or_null("string"), "model_dtype": of("string"),
        "served_model_name": of("string"), "model_type": complete(&json!({"embedding": pooling})),
        "max_concurrent_requests": of("integer"), "max_input_length": of("integer"),
        "max_batch_tokens": of("integer"), "max_batch_requests": or_null("integer"),
        "max_client_batch_size": of("integer"), "auto_truncate": of("boolean"),
        "tokenization_workers": of("integer"), "version": of("string"), "sha": or_null("string"),
        "docker_label": or_null("string"), "space": of("string"), "revision": of("string"),
        "tokenizer_sha256": of("string"), "weights_sha256": or_null("string"),
        "dimensions": of("integer"), "allowed_dimensions": list(&of("integer")),
        "truncation_direction": of("string"), "prompts": list(&of("string")),
        "max_body_bytes": of("integer"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::ENDPOINTS;

    #[test]
    fn every_field_of_every_form_is_described() {
        let forms = ENDPOINTS.iter().filter_map(|endpoint| endpoint.form);
        for form in forms {
            for field in form.fields.iter().chain(form.parameters) {
                assert_ne!(property(field)["description"], "", "{field}");
            }
        }
    }
}
