//! A text that the model of a checkpoint continues: the request, and the events of the response. Texts are generated
//! where the [files](crate::files) of the job are.

pub mod wire;

use futures::stream::BoxStream;
pub use millrace_agents::generation::{FinishReason, GenerationOptions, Prompt, SamplingError, SamplingOptions};

use crate::error::Result;

/// Limit on the tokens of one text.
pub const MAX_GENERATED_TOKENS: u64 = 65_536;

/// A text to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationRequest {
    /// Step of the checkpoint; `None` for the newest.
    pub checkpoint: Option<u64>,
    /// What the model continues.
    pub prompt: Prompt,
    /// How it continues.
    pub options: GenerationOptions,
}

/// A part of a text, in this order: one start, the tokens, one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GenerationEvent {
    /// The model has read the prompt.
    Start {
        /// Step of the checkpoint.
        checkpoint: u64,
        /// Number of tokens of the prompt.
        prompt_tokens: u64,
    },
    /// The next token.
    Token {
        /// The token.
        id: u32,
        /// The text that it completes; empty if the prompt consists of token ids.
        text: String,
    },
    /// The end.
    End {
        /// The rest of the text: replacement characters for incomplete ones.
        text: String,
        /// Why it ended.
        reason: FinishReason,
    },
}

/// The events of one text. After an error it ends.
pub type GenerationStream = BoxStream<'static, Result<GenerationEvent>>;
