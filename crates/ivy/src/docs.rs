//! `GET /openapi.json` and `/docs`: the routes, for programs and for people.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};

use crate::endpoints::{ENDPOINTS, Endpoint};
use crate::error::{Dialect, json_bytes};
use crate::form::Form;
use crate::openapi::document;

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
static PAGE: LazyLock<Bytes> = LazyLock::new(|| render().into());

/// The page holds everything that it shows.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
    code{font-family:ui-monospace,monospace}td,th{text-align:left;vertical-align:top;padding:.3rem 1rem .3rem 0}\
    table{border-collapse:collapse}tr{border-top:1px solid #ccc}";

/// `GET /openapi.json`.
pub(crate) async fn openapi() -> Response {
    json_bytes(StatusCode::OK, DOCUMENT.clone())
}

/// `GET /docs`.
pub(crate) async fn page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
    ];
    (headers, PAGE.clone()).into_response()
}

/// Nothing of it comes from a request or a model, so nothing has to be escaped.
fn render() -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>flowerbed</title>\
         <style>{STYLE}</style><h1>flowerbed {}</h1><p>Schemas, headers and errors: \
         <a href=\"openapi.json\">openapi.json</a>. Unknown fields are refused.</p>",
        env!("CARGO_PKG_VERSION")
    );
    for (dialect, title) in [
        (Dialect::OpenAi, "OpenAI's dialect, and the server itself"),
        (Dialect::Tei, "The dialect of text-embeddings-inference"),
    ] {
        // Writing to a string cannot fail.
        let _ = write!(
            html,
            "<h2>{title}</h2><table><tr><th>route<th>what<th>fields"
        );
        for endpoint in ENDPOINTS.iter().filter(|one| one.dialect == dialect) {
            let Endpoint {
                method,
                path,
                summary,
                form,
                ..
            } = endpoint;
            let method = method.to_uppercase();
            let fields = form.map(fields).unwrap_or_default();
            let _ = write!(
                html,
                "<tr><td><code>{method} {path}</code><td>{summary}<td>{fields}"
            );
        }
        html += "</table>";
    }
    html + "</html>"
}

fn fields(form: &Form) -> String {
    let mut fields = format!("<b>{}</b>: {}", form.inputs, form.takes.forms());
    if !form.fields.is_empty() {
        let _ = write!(fields, "; {}", form.fields.join(", "));
    }
    if !form.parameters.is_empty() {
        let _ = write!(fields, "; in parameters: {}", form.parameters.join(", "));
    }
    fields
}
