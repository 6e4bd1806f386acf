#!/usr/bin/env python3
"""Makes the fixtures that `emulator/tests/decoders.rs` compares with: a small model of each decoder family of
`transformers`, trained for ten steps of AdamW.

    python tests/parity/make_decoders.py tests/parity/fixtures/decoders

writes for each family `NAME.safetensors`, the initial weights with Millrace's names and layout, and `NAME.json`:
`model` (the section of a params document), `input_ids` and `labels` of the batch, and the `loss` of each step. All
steps train on the same batch: the loss falls, and depends much more on each detail of the model than that of other
samples. Sizes are odd: 3 heads of 12,
40 tokens, a vocabulary of 53, an output layer of its own if the family has one.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

SEED, STEPS, BATCH, LENGTH = 5, 10, 2, 40
HIDDEN, HEADS, LAYERS, VOCABULARY, FILTER, EPSILON = 36, 3, 2, 53, 60, 1e-5
LEARNING_RATE, BETAS, ADAM_EPSILON, WEIGHT_DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1
HEAD = HIDDEN // HEADS

# The part of `model` that all families have.
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_heads": HEADS,
    "filter_size": FILTER,
    "max_position_embeddings": LENGTH,
    "dropout_rate": 0.0,
    "layer_norm_epsilon": EPSILON,
}

Weights = dict[str, Tensor]
Names = dict[str, str | Callable[[Weights], Tensor]]


def llama_like(config_class: type, name: str, **options: object) -> tuple[transformers.PreTrainedModel, dict, Names]:
    """LLaMA and Mistral: RMS norm, SwiGLU, rotated halves, grouped keys and values, no biases."""
    config = config_class(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=FILTER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=1, max_position_embeddings=LENGTH, rms_norm_eps=EPSILON,
        tie_word_embeddings=False, **options,
    )  # fmt: skip
    params = {
        **COMMON, "name": name, "position_embedding_type": "rotary", "rotary_dim": HEAD, "norm_type": "rmsnorm",
        "share_embedding_weights": False, "nonlinearity": "swiglu", "attention_module": "multiquery_attention",
        "extra_attention_params": {"num_kv_groups": 1}, "use_projection_bias_in_attention": False,
        "use_ffn_bias_in_attention": False, "use_ffn_bias": False,
    }  # fmt: skip

    def qkv(block: str) -> Callable[[Weights], Tensor]:
        return lambda weights: torch.cat([weights[f"{block}.self_attn.{part}_proj.weight"] for part in "qkv"])

    names: Names = {"wte.weight": "model.embed_tokens.weight", "ln_f.weight": "model.norm.weight"}
    names["lm_head.weight"] = "lm_head.weight"
    for i in range(LAYERS):
        theirs, ours = f"model.layers.{i}", f"h.{i}"
        names |= {
            f"{ours}.ln_1.weight": f"{theirs}.input_layernorm.weight",
            f"{ours}.attn.qkv.weight": qkv(theirs),
            f"{ours}.attn.proj.weight": f"{theirs}.self_attn.o_proj.weight",
            f"{ours}.ln_2.weight": f"{theirs}.post_attention_layernorm.weight",
            f"{ours}.mlp.gate.weight": f"{theirs}.mlp.gate_proj.weight",
            f"{ours}.mlp.fc.weight": f"{theirs}.mlp.up_proj.weight",
            f"{ours}.mlp.proj.weight": f"{theirs}.mlp.down_proj.weight",
        }
    return transformers.AutoModelForCausalLM.from_config(config), params, names


def llama() -> tuple[transformers.PreTrainedModel, dict, Names]:
    """LLaMA 3: frequencies scaled for long contexts."""
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 32
    model, params, names = llama_like(
        transformers.LlamaConfig, "llama", rope_parameters={"rope_theta": 500.0, **rope}
    )
    params |= {"rope_theta": 500.0, "pos_scaling_factor": 8.0, "pos_scaling_type": "llama3"}
    keys = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    params["pos_scaling_extra_args"] = {key: rope[key] for key in keys}
    return model, params, names


def mistral() -> tuple[transformers.PreTrainedModel, dict, Names]:
    """Mistral: a sliding window."""
    model, params, names = llama_like(transformers.MistralConfig, "mistral", sliding_window=7)
    return model, params | {"attention_sliding_window_length": 7}, names


def both(ours: str, theirs: str) -> Names:
    """The weight and the bias of a layer."""
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}


def by_head(name: str) -> Callable[[Weights], Tensor]:
    """Rows of queries, keys, values for each head, as rows of all queries, all keys, all values."""

    def reordered(weights: Weights) -> Tensor:
        rows = weights[name]
        return rows.view(HEADS, 3, HEAD, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)

    return reordered


def gptj() -> tuple[transformers.PreTrainedModel, dict, Names]:
    """GPT-J: adjacent elements rotated, parallel blocks with one norm, a bias in the output layer."""
    config = transformers.GPTJConfig(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, rotary_dim=8,
        n_inner=FILTER, activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        layer_norm_epsilon=EPSILON, tie_word_embeddings=False,
    )  # fmt: skip
    params = {
        **COMMON, "name": "gptj", "position_embedding_type": "rotary", "rotary_dim": 8, "nonlinearity": "gelu_new",
        "share_embedding_weights": False, "use_projection_bias_in_attention": False,
        "use_ffn_bias_in_attention": False, "use_bias_in_output": True,
    }  # fmt: skip
    names: Names = {"wte.weight": "transformer.wte.weight"}
    names |= both("ln_f", "transformer.ln_f") | both("lm_head", "lm_head")
    for i in range(LAYERS):
        theirs, ours = f"transformer.h.{i}", f"h.{i}"

        def qkv(weights: Weights, theirs: str = theirs) -> Tensor:
            return torch.cat([weights[f"{theirs}.attn.{part}_proj.weight"] for part in "qkv"])

        names |= both(f"{ours}.ln_1", f"{theirs}.ln_1")
        names |= both(f"{ours}.mlp.fc", f"{theirs}.mlp.fc_in") | both(f"{ours}.mlp.proj", f"{theirs}.mlp.fc_out")
        names[f"{ours}.attn.qkv.weight"] = qkv
        names[f"{ours}.attn.proj.weight"] = f"{theirs}.attn.out_proj.weight"
    return transformers.AutoModelForCausalLM.from_config(config), params, names


def gpt_neox() -> tuple[transformers.PreTrainedModel, dict, Names]:
    """GPT-NeoX: a third of each head rotated, parallel blocks with two norms."""
    config = transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=FILTER, hidden_act="gelu", max_position_embeddings=LENGTH, layer_norm_eps=EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1 / 3},
        tie_word_embeddings=False, use_parallel_residual=True,
    )  # fmt: skip
    params = {
        **COMMON, "name": "gptj", "position_embedding_type": "rotary", "rotary_dim": HEAD // 3,
        "use_untied_layer_norm": True, "share_embedding_weights": False,
    }  # fmt: skip
    names: Names = {"wte.weight": "gpt_neox.embed_in.weight", "lm_head.weight": "lm_head.weight"}
    names |= both("ln_f", "gpt_neox.final_layer_norm")
    for i in range(LAYERS):
        theirs, ours = f"gpt_neox.layers.{i}", f"h.{i}"
        names |= both(f"{ours}.ln_1", f"{theirs}.input_layernorm")
        names |= both(f"{ours}.ln_2", f"{theirs}.post_attention_layernorm")
        names |= both(f"{ours}.attn.proj", f"{theirs}.attention.dense")
        names |= both(f"{ours}.mlp.fc", f"{theirs}.mlp.dense_h_to_4h")
        names |= both(f"{ours}.mlp.proj", f"{theirs}.mlp.dense_4h_to_h")
        for part in ("weight", "bias"):
            names[f"{ours}.attn.qkv.{part}"] = by_head(f"{theirs}.attention.query_key_value.{part}")
    return transformers.AutoModelForCausalLM.from_config(config), params, names


def falcon() -> tuple[transformers.PreTrainedModel, dict, Names]:
    """Falcon 7B: one head of keys and values, parallel blocks with one norm, a tied output layer."""
    config = transformers.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        ffn_hidden_size=FILTER, layer_norm_epsilon=EPSILON, multi_query=True, parallel_attn=True, bias=False,
        alibi=False, new_decoder_architecture=False, max_position_embeddings=LENGTH, attention_dropout=0.0,
        hidden_dropout=0.0, tie_word_embeddings=True,
    )  # fmt: skip
    params = {
        **COMMON, "name": "falcon", "position_embedding_type": "rotary", "rotary_dim": HEAD,
        "attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 1},
        "use_projection_bias_in_attention": False, "use_ffn_bias_in_attention": False, "use_ffn_bias": False,
    }  # fmt: skip
    names: Names = {"wte.weight": "transformer.word_embeddings.weight"} | both("ln_f", "transformer.ln_f")
    for i in range(LAYERS):
        theirs, ours = f"transformer.h.{i}", f"h.{i}"
        names |= both(f"{ours}.ln_1", f"{theirs}.input_layernorm")
        names |= {
            f"{ours}.attn.qkv.weight": f"{theirs}.self_attention.query_key_value.weight",
            f"{ours}.attn.proj.weight": f"{theirs}.self_attention.dense.weight",
            f"{ours}.mlp.fc.weight": f"{theirs}.mlp.dense_h_to_4h.weight",
            f"{ours}.mlp.proj.weight": f"{theirs}.mlp.dense_4h_to_h.weight",
        }
    return transformers.AutoModelForCausalLM.from_config(config), params, names


def bloom() -> tuple[transformers.PreTrainedModel, dict, Names]:
    """BLOOM: ALiBi and a norm after the embedding, a tied output layer. Its network is always four times as wide."""
    config = transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, n_layer=LAYERS, n_head=HEADS, layer_norm_epsilon=EPSILON,
        attention_dropout=0.0, hidden_dropout=0.0, tie_word_embeddings=True,
    )  # fmt: skip
    params = {
        **COMMON, "name": "bloom", "filter_size": 4 * HIDDEN, "position_embedding_type": "alibi",
        "embedding_layer_norm": True, "nonlinearity": "gelu_new",
    }  # fmt: skip
    names: Names = {"wte.weight": "transformer.word_embeddings.weight"}
    names |= both("ln_embed", "transformer.word_embeddings_layernorm") | both("ln_f", "transformer.ln_f")
    for i in range(LAYERS):
        theirs, ours = f"transformer.h.{i}", f"h.{i}"
        names |= both(f"{ours}.ln_1", f"{theirs}.input_layernorm")
        names |= both(f"{ours}.ln_2", f"{theirs}.post_attention_layernorm")
        names |= both(f"{ours}.attn.proj", f"{theirs}.self_attention.dense")
        names |= both(f"{ours}.mlp.fc", f"{theirs}.mlp.dense_h_to_4h")
        names |= both(f"{ours}.mlp.proj", f"{theirs}.mlp.dense_4h_to_h")
        for part in ("weight", "bias"):
            names[f"{ours}.attn.qkv.{part}"] = by_head(f"{theirs}.self_attention.query_key_value.{part}")
    return transformers.AutoModelForCausalLM.from_config(config), params, names


def mpt() -> tuple[transformers.PreTrainedModel, dict, Names]:
    """MPT: ALiBi, layer norms without an offset, no biases, a tied output layer. The network is 4 times as wide."""
    config = transformers.MptConfig(
        d_model=HIDDEN, n_heads=HEADS, n_layers=LAYERS, max_seq_len=LENGTH, vocab_size=VOCABULARY,
        layer_norm_epsilon=EPSILON, no_bias=True, tie_word_embeddings=True,
    )  # fmt: skip
    params = {
        **COMMON, "name": "mpt", "filter_size": 4 * HIDDEN, "position_embedding_type": "alibi",
        "norm_type": "biasless-layernorm", "use_projection_bias_in_attention": False,
        "use_ffn_bias_in_attention": False, "use_ffn_bias": False,
    }  # fmt: skip
    names: Names = {"wte.weight": "transformer.wte.weight", "ln_f.weight": "transformer.norm_f.weight"}
    for i in range(LAYERS):
        theirs, ours = f"transformer.blocks.{i}", f"h.{i}"
        names |= {
            f"{ours}.ln_1.weight": f"{theirs}.norm_1.weight",
            f"{ours}.attn.qkv.weight": f"{theirs}.attn.Wqkv.weight",
            f"{ours}.attn.proj.weight": f"{theirs}.attn.out_proj.weight",
            f"{ours}.ln_2.weight": f"{theirs}.norm_2.weight",
            f"{ours}.mlp.fc.weight": f"{theirs}.ffn.up_proj.weight",
            f"{ours}.mlp.proj.weight": f"{theirs}.ffn.down_proj.weight",
        }
    return transformers.AutoModelForCausalLM.from_config(config), params, names


def starcoder() -> tuple[transformers.PreTrainedModel, dict, Names]:
    """StarCoder and SantaCoder: learned positions, one head of keys and values, a tied output layer."""
    config = transformers.GPTBigCodeConfig(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_inner=FILTER,
        activation_function="gelu_pytorch_tanh", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        layer_norm_epsilon=EPSILON, multi_query=True, tie_word_embeddings=True,
    )  # fmt: skip
    params = {
        **COMMON, "name": "starcoder", "position_embedding_type": "learned", "nonlinearity": "gelu_new",
        "attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 1},
    }  # fmt: skip
    names: Names = {"wte.weight": "transformer.wte.weight", "wpe.weight": "transformer.wpe.weight"}
    names |= both("ln_f", "transformer.ln_f")
    for i in range(LAYERS):
        theirs, ours = f"transformer.h.{i}", f"h.{i}"
        names |= both(f"{ours}.ln_1", f"{theirs}.ln_1") | both(f"{ours}.ln_2", f"{theirs}.ln_2")
        names |= both(f"{ours}.attn.qkv", f"{theirs}.attn.c_attn") | both(f"{ours}.attn.proj", f"{theirs}.attn.c_proj")
        names |= both(f"{ours}.mlp.fc", f"{theirs}.mlp.c_fc") | both(f"{ours}.mlp.proj", f"{theirs}.mlp.c_proj")
    return transformers.AutoModelForCausalLM.from_config(config), params, names


def gemma2() -> tuple[transformers.PreTrainedModel, dict, Names]:
    """Gemma 2: norms around each part of a block, a window in every other block, soft-capped scores and logits. The
    caps are low enough to matter. Its norms have gains that begin at 0, to which 1 is added."""
    scalar, window, attention_cap, logits_cap = 20, 7, 1.5, 2.5
    config = transformers.Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=FILTER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=1, head_dim=HEAD, max_position_embeddings=LENGTH,
        rms_norm_eps=EPSILON, hidden_activation="gelu", query_pre_attn_scalar=scalar, sliding_window=window,
        attn_logit_softcapping=attention_cap, final_logit_softcapping=logits_cap, attn_implementation="eager",
        tie_word_embeddings=True, pad_token_id=None,
    )  # fmt: skip
    params = {
        **COMMON, "name": "gemma2", "position_embedding_type": "rotary", "rotary_dim": HEAD, "norm_type": "rmsnorm",
        "nonlinearity": "geglu", "attention_module": "multiquery_attention",
        "extra_attention_params": {"num_kv_groups": 1}, "use_projection_bias_in_attention": False,
        "use_ffn_bias_in_attention": False, "use_ffn_bias": False, "norm_first_sandwich": True,
        "sliding_window_every_other_decoder_layer": True, "attention_sliding_window_length": window,
        "attention_logit_softcapping": attention_cap, "final_logit_softcapping": logits_cap,
        "embeddings_scale": HIDDEN**0.5, "attention_logits_alpha": (HEAD / scalar) ** 0.5,
    }  # fmt: skip

    def gain(name: str) -> Callable[[Weights], Tensor]:
        return lambda weights: 1 + weights[name]

    def qkv(block: str) -> Callable[[Weights], Tensor]:
        return lambda weights: torch.cat([weights[f"{block}.self_attn.{part}_proj.weight"] for part in "qkv"])

    names: Names = {"wte.weight": "model.embed_tokens.weight", "ln_f.weight": gain("model.norm.weight")}
    for i in range(LAYERS):
        theirs, ours = f"model.layers.{i}", f"h.{i}"
        names |= {
            f"{ours}.ln_1.weight": gain(f"{theirs}.input_layernorm.weight"),
            f"{ours}.attn.qkv.weight": qkv(theirs),
            f"{ours}.attn.proj.weight": f"{theirs}.self_attn.o_proj.weight",
            f"{ours}.ln_1_post.weight": gain(f"{theirs}.post_attention_layernorm.weight"),
            f"{ours}.ln_2.weight": gain(f"{theirs}.pre_feedforward_layernorm.weight"),
            f"{ours}.mlp.gate.weight": f"{theirs}.mlp.gate_proj.weight",
            f"{ours}.mlp.fc.weight": f"{theirs}.mlp.up_proj.weight",
            f"{ours}.mlp.proj.weight": f"{theirs}.mlp.down_proj.weight",
            f"{ours}.ln_2_post.weight": gain(f"{theirs}.post_feedforward_layernorm.weight"),
        }
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager"), params, names


FAMILIES = [llama, mistral, gptj, gpt_neox, falcon, bloom, mpt, starcoder, gemma2]


def train(model: transformers.PreTrainedModel, inputs: Tensor, labels: Tensor) -> list[float]:
    """Trains on a batch. Vectors do not decay, as in Millrace."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=ADAM_EPSILON)
    losses = []
    for _ in range(STEPS):
        logits = model(inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def original(family: Callable[[], tuple]) -> tuple:
    """Returns what `family` returns, with a model whose weights are those of the fixture."""
    torch.manual_seed(SEED)
    made = family()
    with torch.no_grad():
        for tensor in made[0].parameters():
            # Off the usual zeros, ones and tiny weights, or a test could not see one missing.
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return made


def make(directory: Path, family: Callable[[], tuple[transformers.PreTrainedModel, dict, Names]]) -> None:
    model, params, names = original(family)
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    ours = {name: (weights[source] if isinstance(source, str) else source(weights)) for name, source in names.items()}
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    inputs, labels = tokens[:, :-1], tokens[:, 1:].clone()
    labels[:, ::7] = -100
    losses = train(model, inputs, labels)
    weights = {name: tensor.float().contiguous() for name, tensor in ours.items()}
    save_file(weights, directory / f"{family.__name__}.safetensors")
    record = {"model": params, "input_ids": inputs.tolist(), "labels": labels.tolist(), "loss": losses}
    (directory / f"{family.__name__}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    print(family.__name__, [round(loss, 4) for loss in losses])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        make(directory, family)


if __name__ == "__main__":
    main()
