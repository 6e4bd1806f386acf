//! Conversion of generated texts to and from the messages of the reader's protocol.

use millrace_protocol::proto::generate_reply::Reply;
use millrace_protocol::proto::{self, GenerateReply, GenerateRequest, generate_request};

use super::{FinishReason, GenerationEvent, GenerationOptions, GenerationRequest, Prompt, SamplingOptions};
use crate::error::{ApiError, ErrorReason, Result};

impl From<GenerationRequest> for GenerateRequest {
    fn from(request: GenerationRequest) -> Self {
        let GenerationRequest { checkpoint, prompt, options } = request;
        let GenerationOptions { sampling, max_tokens, ignore_end } = options;
        let SamplingOptions { temperature, top_k, top_p, seed } = sampling;
        let prompt = match prompt {
            Prompt::Text(text) => generate_request::Prompt::Text(text),
            Prompt::Tokens(ids) => generate_request::Prompt::Tokens(proto::TokenIds { ids }),
        };
        // A vocabulary has at most 2³² tokens, so this limit has no effect.
        let top_k = top_k.map(|top_k| u32::try_from(top_k).unwrap_or(u32::MAX));
        Self { checkpoint, prompt: Some(prompt), max_tokens, temperature, top_k, top_p, seed, ignore_end }
    }
}

impl TryFrom<GenerateRequest> for GenerationRequest {
    type Error = ApiError;

    fn try_from(message: GenerateRequest) -> Result<Self> {
        let GenerateRequest { checkpoint, prompt, max_tokens, temperature, top_k, top_p, seed, ignore_end } = message;
        let prompt = match prompt {
            Some(generate_request::Prompt::Text(text)) => Prompt::Text(text),
            Some(generate_request::Prompt::Tokens(proto::TokenIds { ids })) => Prompt::Tokens(ids),
            None => {
                let detail = "this file reader does not support the prompt: update its image";
                return Err(ApiError::new(ErrorReason::BadRequest, detail));
            }
        };
        let sampling = SamplingOptions { temperature, top_k: top_k.map(|top_k| top_k as usize), top_p, seed };
        Ok(Self { checkpoint, prompt, options: GenerationOptions { sampling, max_tokens, ignore_end } })
    }
}

impl From<GenerationEvent> for GenerateReply {
    fn from(event: GenerationEvent) -> Self {
        let reply = match event {
            GenerationEvent::Start { checkpoint, prompt_tokens } => {
                Reply::Start(proto::GenerationStart { checkpoint, prompt_tokens })
            }
            GenerationEvent::Token { id, text } => Reply::Token(proto::GeneratedToken { id, text }),
            GenerationEvent::End { text, reason } => {
                Reply::End(proto::GenerationEnd { text, reason: reason_message(reason).into() })
            }
        };
        Self { reply: Some(reply) }
    }
}

/// Returns the event of a reply; `None` if this version does not know it.
pub fn event(message: GenerateReply) -> Option<GenerationEvent> {
    Some(match message.reply? {
        Reply::Start(proto::GenerationStart { checkpoint, prompt_tokens }) => {
            GenerationEvent::Start { checkpoint, prompt_tokens }
        }
        Reply::Token(proto::GeneratedToken { id, text }) => GenerationEvent::Token { id, text },
        Reply::End(end) => {
            let reason = match end.reason() {
                proto::FinishReason::EndOfText => FinishReason::EndOfText,
                proto::FinishReason::MaxTokens => FinishReason::MaxTokens,
                proto::FinishReason::MaxPositions => FinishReason::MaxPositions,
                proto::FinishReason::Unspecified => return None,
            };
            GenerationEvent::End { text: end.text, reason }
        }
    })
}

const fn reason_message(reason: FinishReason) -> proto::FinishReason {
    match reason {
        FinishReason::EndOfText => proto::FinishReason::EndOfText,
        FinishReason::MaxTokens => proto::FinishReason::MaxTokens,
        FinishReason::MaxPositions => proto::FinishReason::MaxPositions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_events_survive_the_wire() {
        let sampling = SamplingOptions { temperature: 0.5, top_k: Some(3), top_p: 0.9, seed: 7 };
        let options = GenerationOptions { sampling, max_tokens: 9, ignore_end: true };
        for prompt in [Prompt::Text("In the".to_owned()), Prompt::Tokens(vec![1, 2])] {
            let request = GenerationRequest { checkpoint: Some(4), prompt, options };
            assert_eq!(GenerationRequest::try_from(GenerateRequest::from(request.clone())).unwrap(), request);
        }
        assert!(GenerationRequest::try_from(GenerateRequest::default()).is_err());
        let text = "é".to_owned();
        for sent in [
            GenerationEvent::Start { checkpoint: 3, prompt_tokens: 2 },
            GenerationEvent::Token { id: 70_000, text: text.clone() },
            GenerationEvent::End { text: text.clone(), reason: FinishReason::EndOfText },
            GenerationEvent::End { text: text.clone(), reason: FinishReason::MaxTokens },
            GenerationEvent::End { text, reason: FinishReason::MaxPositions },
        ] {
            assert_eq!(event(sent.clone().into()), Some(sent));
        }
        assert_eq!(event(GenerateReply::default()), None);
    }
}
