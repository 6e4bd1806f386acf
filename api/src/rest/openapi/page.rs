//! The API documentation as HTML.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::response::Html;
use bytes::Bytes;
use serde_json::Value;

use super::super::routes::all;
use super::operation;

/// Serves the document as a page: every route, the access that it requires, and its parameters.
pub async fn page() -> Html<Bytes> {
    static PAGE: LazyLock<Bytes> = LazyLock::new(|| render().into());
    Html(PAGE.clone())
}

const HEAD: &str = "<!doctype html><html lang=en><meta charset=utf-8><title>Millrace</title><style>\
     body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
     code,pre{background:#eee;padding:.1em .3em}pre{padding:1em;overflow-x:auto}table{border-collapse:collapse}\
     td{padding:.1em 1em .1em 0;vertical-align:top}\
     @media(prefers-color-scheme:dark){body{background:#111;color:#ddd}code,pre{background:#333}a{color:#8cf}}</style>";

/// Serves the page at `/`: what this server is, and how to use it.
pub async fn home() -> Html<String> {
    let version = env!("CARGO_PKG_VERSION");
    Html(format!(
        "{HEAD}<h1>Millrace {version}</h1>\
         <p>The REST server of a training appliance: it takes training jobs, shows how they go on, and serves what they \
         have written.\
         <p>From a terminal or a notebook, with the Python client (<code>pip install ./api/client</code> in the \
         repository); the address is the one of this page:\
         <pre>millrace login ADDRESS\nmillrace train -p params.yaml --num_csx 2\nmillrace get jobs</pre>\
         <p>From other programs: <a href=/docs>what can be requested</a>, and the same as \
         <a href=/openapi.json>OpenAPI</a>. <a href=/v1/version>/v1/version</a> says which server this is."
    ))
}

fn render() -> String {
    let mut text = format!(
        "{HEAD}<h1>Millrace REST</h1><p>The whole of it, with every schema: <a href=/openapi.json>openapi.json</a>, \
         OpenAPI 3.1."
    );
    for route in all() {
        let operation = operation(&route);
        // Writing into a string can't fail. Nothing is escaped because the page has no input of users.
        let _ = write!(
            text,
            "<h3><code>{} {}</code></h3><p>{}. {}",
            route.method.to_uppercase(),
            route.path,
            route.summary,
            operation["description"].as_str().unwrap_or_default()
        );
        let listed: Vec<&Value> =
            operation["parameters"].as_array().into_iter().flatten().filter(|it| it["in"] != "path").collect();
        if !listed.is_empty() {
            text.push_str("<table>");
            for parameter in listed {
                let field = |key: &str| parameter[key].as_str().unwrap_or_default().to_owned();
                let _ = write!(text, "<tr><td><code>{}</code><td>{}", field("name"), field("description"));
            }
            text.push_str("</table>");
        }
    }
    text
}
