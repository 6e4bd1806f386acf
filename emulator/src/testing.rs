//! Model sizes for tests.

use millrace_params::{LinkSpec, ModelSize, ModelSpec, Precision};

use crate::compile::{BatchSpec, CompileError, CompileRequest, compile};
use crate::families;
use crate::graph::Graph;
use crate::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding, StreamPlan};

/// A GPT by its dimensions.
#[derive(Clone, Debug)]
pub struct Size {
    pub name: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub vocabulary: usize,
    pub sequence: usize,
    pub batch: usize,
    pub tied: bool,
    pub mixed: bool,
}

const fn size(name: &'static str, layers: usize, hidden: usize, heads: usize, batch: usize) -> Size {
    let (vocabulary, sequence) = (50_257, 2048);
    Size { name, layers, hidden, heads, vocabulary, sequence, batch, tied: true, mixed: true }
}

pub const GPT2_117M: Size = size("GPT-2 117M", 12, 768, 12, 112);
pub const GPT2_124M: Size = Size { sequence: 1024, batch: 4, mixed: false, ..size("GPT-2 124M", 12, 768, 12, 0) };
pub const GPT3_1_3B: Size = size("GPT-3 1.3B", 24, 2048, 16, 528);
pub const GPT3_6_7B: Size = size("GPT-3 6.7B", 32, 4096, 32, 1040);
pub const GPT3_13B: Size = size("GPT-3 13B", 40, 5120, 40, 1080);
pub const GPT3_175B: Size = size("GPT-3 175B", 96, 12_288, 96, 1536);
pub const GPT_20B: Size = size("20B", 44, 6144, 64, 1024);
/// Two blocks, byte vocabulary.
pub const TINY: Size = Size {
    name: "tiny",
    layers: 2,
    hidden: 64,
    heads: 2,
    vocabulary: 256,
    sequence: 128,
    batch: 16,
    tied: true,
    mixed: false,
};
/// Bytes of a wafer on which [`TINY`] is recomputed and divided into rounds.
pub const TINY_WAFER: u64 = 3 << 20;

/// Bytes of a CS-2's wafer.
pub const CS2: u64 = 40_000_000_000;

/// The default appliance's links, which [`Size::request`] assumes.
pub const LINK: LinkSpec = LinkSpec { chunk_bytes: 4 << 20, window_chunks: 8 };

/// About 1,024 tokens.
pub fn leaf_bound(size: &Size) -> usize {
    (1024 / size.sequence).max(1)
}

impl Size {
    pub fn spec(&self) -> ModelSpec {
        ModelSpec {
            share_embedding_weights: self.tied,
            precision: if self.mixed { Precision::Bf16 } else { Precision::F32 },
            ..ModelSpec::gpt2(ModelSize {
                vocab_size: self.vocabulary,
                hidden_size: self.hidden,
                num_hidden_layers: self.layers,
                num_heads: self.heads,
                max_position_embeddings: self.sequence,
            })
        }
    }

    pub fn graph(&self) -> Graph {
        families::decoder(&self.spec(), self.sequence).unwrap()
    }

    pub fn request(&self, samples: usize, leaf_bound: usize, wafer_memory: u64) -> CompileRequest {
        CompileRequest {
            graph: self.graph(),
            train: BatchSpec { samples, leaf_bound },
            trains: true,
            eval: None,
            encoding: if self.mixed { Encoding::Bf16 } else { Encoding::F32 },
            wafer_memory,
            chunk_elements: DEFAULT_CHUNK_ELEMENTS,
            window_chunks: LINK.window_chunks,
            memoryx_memory: 2_400_000_000_000_000,
            whole_tensor_state: None,
            extra_state_tensors: 0,
        }
    }

    pub fn plan(&self, samples: usize, leaf_bound: usize, wafer_memory: u64) -> Result<StreamPlan, CompileError> {
        compile(self.request(samples, leaf_bound, wafer_memory))
    }
}
