//! Continues a text with the model of a job's checkpoint: as one document of JSON, or token by token as server-sent
//! events.
//!
//! ```text
//! event: start    data: {"checkpoint": 1100, "promptTokens": 3}
//! event: token    data: {"id": 617, "text": " the"}
//! event: end      data: {"text": "", "finishReason": "MaxTokens"}
//! ```

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt, stream};
use millrace_protocol::error_chain;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::body::read_json;
use super::files::files_of;
use super::live_stream::{KEEP_ALIVE_INTERVAL, wants_event_stream};
use super::{AppState, JobPath, JobSelector, ValidPath, ValidQuery};
use crate::error::{ApiError, FieldError, Result};
use crate::generation::{
    FinishReason, GenerationEvent, GenerationOptions, GenerationRequest, GenerationStream, MAX_GENERATED_TOKENS,
    Prompt, SamplingError, SamplingOptions,
};

/// Body of a request to continue a text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GenerateRequest {
    /// Step of the checkpoint; by default the newest.
    #[serde(default)]
    checkpoint: Option<u64>,
    /// Text to continue; by default the beginning of a document.
    #[serde(default)]
    prompt: Option<String>,
    /// Token ids to continue instead of a text. The continuation then consists of token ids only.
    #[serde(default)]
    prompt_tokens: Option<Vec<u32>>,
    /// Maximum number of tokens to generate.
    #[serde(default = "default_max_tokens")]
    #[schemars(range(min = 1, max = MAX_GENERATED_TOKENS))]
    max_tokens: u64,
    /// Divisor of the logits; 0 always chooses the most probable token.
    #[serde(default)]
    #[schemars(range(min = 0))]
    temperature: f64,
    /// Choose from this number of the most probable tokens only.
    #[serde(default)]
    #[schemars(range(min = 1))]
    top_k: Option<u32>,
    /// Choose from the most probable tokens that have this probability together.
    #[serde(default = "default_top_p")]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1))]
    top_p: f64,
    /// Seed of random choices.
    #[serde(default)]
    seed: u64,
    /// Whether to continue after the end of the document.
    #[serde(default)]
    ignore_end: bool,
}

const fn default_max_tokens() -> u64 {
    100
}

const fn default_top_p() -> f64 {
    1.0
}

/// A continued text.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GeneratedText {
    /// Step of the checkpoint.
    checkpoint: u64,
    /// Number of tokens of the prompt.
    prompt_tokens: u64,
    /// The text after the prompt; empty if the prompt consists of token ids.
    text: String,
    /// Its tokens.
    tokens: Vec<u32>,
    /// Why it ended: `EndOfText`, `MaxTokens`, or `MaxPositions` if all positions of the model are used.
    #[schemars(extend("enum" = ["EndOfText", "MaxTokens", "MaxPositions"]))]
    finish_reason: &'static str,
}

const fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfText => "EndOfText",
        FinishReason::MaxTokens => "MaxTokens",
        FinishReason::MaxPositions => "MaxPositions",
    }
}

impl GenerateRequest {
    /// Checks the fields.
    fn check(self) -> Result<GenerationRequest> {
        let invalid = |field: &str, message: String| {
            Err(ApiError::invalid(vec![FieldError { field: field.to_owned(), message }]))
        };
        let Self { checkpoint, max_tokens, temperature, top_k, top_p, seed, ignore_end, .. } = self;
        let prompt = match (self.prompt, self.prompt_tokens) {
            (Some(_), Some(_)) => return invalid("promptTokens", "can't be combined with prompt".to_owned()),
            (None, Some(tokens)) if tokens.is_empty() => {
                return invalid("promptTokens", "must have at least one token".to_owned());
            }
            (None, Some(tokens)) => Prompt::Tokens(tokens),
            (text, None) => Prompt::Text(text.unwrap_or_default()),
        };
        if !(1..=MAX_GENERATED_TOKENS).contains(&max_tokens) {
            return invalid("maxTokens", format!("must be at least 1 and at most {MAX_GENERATED_TOKENS}"));
        }
        let sampling = SamplingOptions { temperature, top_k: top_k.map(|top_k| top_k as usize), top_p, seed };
        let options = GenerationOptions { sampling, max_tokens, ignore_end };
        match options.check() {
            Err(SamplingError::Temperature(_)) => {
                return invalid("temperature", "must be at least 0 and finite".to_owned());
            }
            Err(SamplingError::TopK) => return invalid("topK", "must be at least 1".to_owned()),
            Err(SamplingError::TopP(_)) => return invalid("topP", "must be more than 0 and at most 1".to_owned()),
            Err(SamplingError::NotFinite) | Ok(()) => {}
        }
        Ok(GenerationRequest { checkpoint, prompt, options })
    }
}

/// Continues a text with the model of a checkpoint.
///
/// # Errors
/// No such job or checkpoint, or its files are gone. The body can't be parsed. The model can't continue the prompt:
/// [`ErrorReason::BadRequest`](crate::error::ErrorReason::BadRequest); it is too large:
/// [`ErrorReason::PayloadTooLarge`](crate::error::ErrorReason::PayloadTooLarge). Too many texts are being generated. An
/// error after the first token is the last event of a stream, and otherwise closes the connection.
pub async fn generate(
    State(api): State<Arc<AppState>>,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(selector): ValidQuery<JobSelector>,
    request: Request,
) -> Result<Response> {
    let is_live = wants_event_stream(request.headers());
    let body: GenerateRequest = read_json(request).await?;
    let request = body.check()?;
    let files = files_of(&api, &path, selector.uid.as_deref()).await?;
    let events = files.generate(request).await?;
    Ok(if is_live { event_stream(events) } else { document(events) })
}

/// Responds with server-sent events.
fn event_stream(events: GenerationStream) -> Response {
    let events = events.map(|event| Ok::<_, Infallible>(sse_event(event)));
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)).into_response()
}

fn sse_event(event: Result<GenerationEvent>) -> Event {
    let (name, data) = match event {
        Ok(GenerationEvent::Start { checkpoint, prompt_tokens }) => {
            ("start", json!({"checkpoint": checkpoint, "promptTokens": prompt_tokens}))
        }
        Ok(GenerationEvent::Token { id, text }) => ("token", json!({"id": id, "text": text})),
        Ok(GenerationEvent::End { text, reason }) => {
            ("end", json!({"text": text, "finishReason": finish_reason(reason)}))
        }
        Err(error) => ("error", error_data(&error)),
    };
    Event::default().event(name).data(data.to_string())
}

/// Returns status, reason and detail of an error of a response that has begun.
fn error_data(error: &ApiError) -> Value {
    log_late_error(error);
    json!({"status": error.reason.status(), "reason": error.reason.as_str(), "detail": error.client_detail()})
}

fn log_late_error(error: &ApiError) {
    tracing::error!("the response with a generated text ends early: {}", error_chain(error));
}

/// Responds with one document. The response begins at once, because a text may take minutes.
fn document(events: GenerationStream) -> Response {
    let text = events.try_fold(GeneratedText::default(), |mut text, event| {
        match event {
            GenerationEvent::Start { checkpoint, prompt_tokens } => {
                (text.checkpoint, text.prompt_tokens) = (checkpoint, prompt_tokens);
            }
            GenerationEvent::Token { id, text: more } => {
                text.tokens.push(id);
                text.text.push_str(&more);
            }
            GenerationEvent::End { text: more, reason } => {
                text.text.push_str(&more);
                text.finish_reason = finish_reason(reason);
            }
        }
        std::future::ready(Ok(text))
    });
    let body = async {
        let text = text.await.inspect_err(log_late_error)?;
        serde_json::to_vec(&text).map(Bytes::from).map_err(|error| ApiError::internal("write a text", error))
    };
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(stream::once(body))).into_response()
}
