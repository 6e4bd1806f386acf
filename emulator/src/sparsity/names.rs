//! The names that the public model zoo gives to our parameters.
//!
//! | part of a block here | in the zoo |
//! |---|---|
//! | `attn.qkv` | `self_attn.proj_q_dense_layer`, `proj_k_dense_layer`, `proj_v_dense_layer`: rows of one tensor |
//! | `attn.q`, `attn.kv` | the same, with keys and values in one tensor |
//! | `attn.proj` | `self_attn.proj_output_dense_layer` |
//! | `cross.q`, `cross.kv`, `cross.proj` | the same names below `multihead_attn` |
//! | `mlp.fc`, `mlp.proj` | `ffn.ffn.0.linear_layer`, `ffn.ffn.1.linear_layer` |
//! | `mlp.gate` | `ffn.ffn.0.linear_layer_for_glu` |
//! | `ln_1`, `ln_2` | `norm1`, `norm2` |
//!
//! Blocks are `transformer_decoder.layers.N`; of encoders `bert_encoder.transformer_encoder.layers.N`; of models with
//! both `encoder.layers.N` and `decoder.layers.N`. `docs/reference/sparsity.md` has this table for users.

use std::ops::Range;

use millrace_params::ModelSpec;

/// A parameter of the zoo: its name, and its rows in our tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ZooParameter {
    pub name: String,
    pub rows: Range<usize>,
}

/// Returns the parameters of the zoo that a tensor of ours holds; none if it is not in the table.
pub(super) fn zoo_parameters(model: &ModelSpec, tensor: &str, rows: usize) -> Vec<ZooParameter> {
    let Some((owner, kind)) = tensor.rsplit_once('.') else { return Vec::new() };
    let Some((prefix, part)) = split_block(model, owner) else {
        return top_level(owner)
            .map(|name| ZooParameter { name: format!("{name}.{kind}"), rows: 0..rows })
            .into_iter()
            .collect();
    };
    let attention = |module: &str, letters: &str| -> Vec<(String, usize)> {
        let heads = |letter| if letter == 'q' { model.num_heads } else { key_heads(model) };
        letters.chars().map(|letter| (format!("{module}.proj_{letter}_dense_layer"), heads(letter))).collect()
    };
    let one = |name: &str| vec![(name.to_owned(), 1)];
    let parts = match part {
        "attn.qkv" => attention("self_attn", "qkv"),
        "attn.q" => attention("self_attn", "q"),
        "attn.kv" => attention("self_attn", "kv"),
        "attn.proj" => one("self_attn.proj_output_dense_layer"),
        "cross.q" => attention("multihead_attn", "q"),
        "cross.kv" => attention("multihead_attn", "kv"),
        "cross.proj" => one("multihead_attn.proj_output_dense_layer"),
        "mlp.fc" => one("ffn.ffn.0.linear_layer"),
        "mlp.gate" => one("ffn.ffn.0.linear_layer_for_glu"),
        "mlp.proj" => one("ffn.ffn.1.linear_layer"),
        "ln_1" => one("norm1"),
        "ln_2" => one("norm2"),
        _ => return Vec::new(),
    };
    // Rows are divided as heads are: each head has the same number of rows.
    let heads: usize = parts.iter().map(|(_, heads)| heads).sum();
    let mut before = 0;
    let parameter = |(name, count): (String, usize)| {
        let start = rows * before / heads.max(1);
        before += count;
        ZooParameter { name: format!("{prefix}.{name}.{kind}"), rows: start..rows * before / heads.max(1) }
    };
    parts.into_iter().map(parameter).collect()
}

fn key_heads(model: &ModelSpec) -> usize {
    model.decoder.num_key_heads.unwrap_or(model.num_heads)
}

/// Returns the zoo's name of a block, and our name of a part of it.
fn split_block<'a>(model: &ModelSpec, owner: &'a str) -> Option<(String, &'a str)> {
    let (stack, block) = match owner.split_once(".h.") {
        Some((stack @ ("encoder" | "decoder"), block)) => (stack.to_owned(), block),
        _ => {
            let is_encoder = model.family.is_encoder();
            let stack = if is_encoder { "bert_encoder.transformer_encoder" } else { "transformer_decoder" };
            (stack.to_owned(), owner.strip_prefix("h.")?)
        }
    };
    let (number, part) = block.split_once('.')?;
    Some((format!("{stack}.layers.{number}"), part))
}

/// Returns the zoo's name of a layer outside of the blocks.
fn top_level(owner: &str) -> Option<String> {
    Some(match owner {
        "wte" => "embedding_layer.word_embeddings".to_owned(),
        "wpe" => "embedding_layer.position_embeddings".to_owned(),
        "lm_head" => "lm_head".to_owned(),
        "ln_f" => "transformer_decoder.norm".to_owned(),
        _ => format!("fc_layers.{}", owner.strip_prefix("fc.")?),
    })
}
