#!/usr/bin/env python3
"""Makes the fixtures that `emulator/tests/seq2seq.rs` compares with: small models with an encoder and a decoder,
trained for ten steps of AdamW. T5 is that of `transformers`, the Transformer that of PyTorch.

    python tests/parity/make_seq2seq.py tests/parity/fixtures/seq2seq

writes for each model `NAME.safetensors`, the initial weights with Millrace's names and layout, and `NAME.json`: `model`
(the section of a params document), the `inputs` of the batch, and the `loss` of each step, a mean over the labels. All
steps train on the same batch. Samples are padded, one of them from its second token on. Encoder and decoder differ in
length and number of blocks, and the heads together are narrower than the stream.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from make_decoders import both
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SEED, STEPS, BATCH, SOURCE, TARGET = 5, 10, 3, 40, 23
HIDDEN, HEADS, HEAD, VOCABULARY, FILTER, EPSILON = 36, 3, 10, 53, 60, 1e-5
ENCODER_LAYERS, DECODER_LAYERS, BUCKETS, MAX_DISTANCE, FACTOR = 2, 3, 8, 128, 0.3
LEARNING_RATE, BETAS, ADAM_EPSILON, WEIGHT_DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1

# The part of `model` that all models have.
COMMON = {
    "src_vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "d_ff": FILTER,
    "num_heads": HEADS,
    "encoder_num_hidden_layers": ENCODER_LAYERS,
    "decoder_num_hidden_layers": DECODER_LAYERS,
    "dropout_rate": 0.0,
    "layer_norm_epsilon": EPSILON,
}

Weights = dict[str, Tensor]
Inputs = dict[str, Tensor]
Logits = Callable[[nn.Module, Inputs], Tensor]


def inputs() -> Inputs:
    def mask(lengths: list[int], length: int) -> Tensor:
        return (torch.arange(length)[None, :] < torch.tensor(lengths)[:, None]).long()

    labels = torch.randint(VOCABULARY, (BATCH, TARGET))
    target_mask = mask([TARGET, 17, 5], TARGET)
    shifted = torch.cat([torch.zeros(BATCH, 1, dtype=torch.long), labels[:, :-1]], dim=1)
    labels = torch.where(target_mask == 1, labels, -100)
    return {
        "input_ids": torch.randint(VOCABULARY, (BATCH, SOURCE)),
        "attention_mask": mask([31, SOURCE, 1], SOURCE),
        "decoder_input_ids": shifted,
        "decoder_attention_mask": target_mask,
        "labels": labels,
    }


def t5_like(gated: bool, tied: bool) -> tuple[nn.Module, dict, Callable[[Weights], Weights], Logits]:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=HIDDEN, d_kv=HEAD, d_ff=FILTER, num_layers=ENCODER_LAYERS,
        num_decoder_layers=DECODER_LAYERS, num_heads=HEADS, relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=MAX_DISTANCE, dropout_rate=0.0, layer_norm_epsilon=EPSILON,
        feed_forward_proj="gated-silu" if gated else "relu", tie_word_embeddings=tied, pad_token_id=0,
        decoder_start_token_id=0, initializer_factor=FACTOR, attn_implementation="eager",
    )  # fmt: skip
    params = {
        **COMMON, "name": "t5", "d_kv": HEAD, "relative_attention_num_buckets": BUCKETS,
        "share_embedding_weights": tied, "encoder_nonlinearity": "swiglu" if gated else "relu",
        "mlm_loss_scaling": "num_masked",
    }  # fmt: skip

    def convert(weights: Weights) -> Weights:
        ours = {"encoder.wte.weight": weights["shared.weight"]}
        if not tied:
            ours["lm_head.weight"] = weights["lm_head.weight"]
        for side, layers in (("encoder", ENCODER_LAYERS), ("decoder", DECODER_LAYERS)):
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            ours[f"{side}.relative.weight"] = weights[bias]
            ours[f"{side}.ln_f.weight"] = weights[f"{side}.final_layer_norm.weight"]
            for i in range(layers):
                parts = [("ln_1", "attn", "SelfAttention")]
                parts += [("ln_cross", "cross", "EncDecAttention")] if side == "decoder" else []
                for at, (norm, name, kind) in enumerate(parts):
                    theirs = f"{side}.block.{i}.layer.{at}"
                    ours[f"{side}.h.{i}.{norm}.weight"] = weights[f"{theirs}.layer_norm.weight"]
                    part = {letter: weights[f"{theirs}.{kind}.{letter}.weight"] for letter in "qkvo"}
                    ours[f"{side}.h.{i}.{name}.q.weight"] = part["q"]
                    ours[f"{side}.h.{i}.{name}.kv.weight"] = torch.cat([part["k"], part["v"]])
                    ours[f"{side}.h.{i}.{name}.proj.weight"] = part["o"]
                theirs = f"{side}.block.{i}.layer.{len(parts)}"
                ours[f"{side}.h.{i}.ln_2.weight"] = weights[f"{theirs}.layer_norm.weight"]
                network = f"{theirs}.DenseReluDense"
                ours[f"{side}.h.{i}.mlp.proj.weight"] = weights[f"{network}.wo.weight"]
                if gated:
                    ours[f"{side}.h.{i}.mlp.gate.weight"] = weights[f"{network}.wi_0.weight"]
                    ours[f"{side}.h.{i}.mlp.fc.weight"] = weights[f"{network}.wi_1.weight"]
                else:
                    ours[f"{side}.h.{i}.mlp.fc.weight"] = weights[f"{network}.wi.weight"]
        return ours

    def logits(model: nn.Module, batch: Inputs) -> Tensor:
        return model(**{name: values for name, values in batch.items() if name != "labels"}, use_cache=False).logits

    model = transformers.T5ForConditionalGeneration(config)
    if not tied:
        # transformers ties this weight whatever the configuration says.
        model.lm_head.weight = nn.Parameter(torch.randn(VOCABULARY, HIDDEN) * FACTOR)
    return model, params, convert, logits


def t5() -> tuple[nn.Module, dict, Callable[[Weights], Weights], Logits]:
    """T5: relu, a tied output layer whose logits are scaled."""
    return t5_like(gated=False, tied=True)


def t5_gated() -> tuple[nn.Module, dict, Callable[[Weights], Weights], Logits]:
    """T5 1.1: a gated network, an output layer of its own."""
    return t5_like(gated=True, tied=False)


class Transformer(nn.Module):
    """PyTorch's Transformer with embeddings and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(VOCABULARY + extra, HIDDEN) for extra in (0, 1))
        self.body = nn.Transformer(
            HIDDEN, HEADS, ENCODER_LAYERS, DECODER_LAYERS, FILTER, 0.0, layer_norm_eps=EPSILON, batch_first=True
        )
        self.head = nn.Linear(HIDDEN, VOCABULARY + 1, bias=False)

    def forward(self, batch: Inputs) -> Tensor:
        # Padding of the target needs no mask, because it follows all tokens that have labels.
        padding = batch["attention_mask"] == 0
        source = self.source(batch["input_ids"]) + positions(SOURCE)
        target = self.target(batch["decoder_input_ids"]) + positions(TARGET)
        mask = nn.Transformer.generate_square_subsequent_mask(TARGET)
        output = self.body(
            source, target, tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding
        )
        return self.head(output)


def positions(length: int) -> Tensor:
    pairs = torch.arange(HIDDEN // 2, dtype=torch.float64)
    frequencies = torch.exp(-math.log(10_000) * pairs / (HIDDEN // 2 - 1))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1).float()


def transformer() -> tuple[nn.Module, dict, Callable[[Weights], Weights], Logits]:
    """The Transformer: blocks that normalize their output, sines, biases, embeddings that are not shared."""
    params = {
        **COMMON, "name": "transformer", "tgt_vocab_size": VOCABULARY + 1, "share_encoder_decoder_embedding": False,
        "share_embedding_weights": False, "use_projection_bias_in_attention": True,
        "use_ffn_bias_in_attention": True, "use_ffn_bias": True, "mlm_loss_scaling": "num_masked",
    }  # fmt: skip

    def convert(weights: Weights) -> Weights:
        names = {
            "encoder.wte.weight": "source.weight", "decoder.wte.weight": "target.weight",
            "lm_head.weight": "head.weight",
        }  # fmt: skip
        ours: Weights = {}
        for side, layers in (("encoder", ENCODER_LAYERS), ("decoder", DECODER_LAYERS)):
            names |= both(f"{side}.ln_f", f"body.{side}.norm")
            for i in range(layers):
                theirs, block = f"body.{side}.layers.{i}", f"{side}.h.{i}"
                names |= both(f"{block}.mlp.fc", f"{theirs}.linear1") | both(f"{block}.mlp.proj", f"{theirs}.linear2")
                parts = [("attn", "self_attn")] + ([("cross", "multihead_attn")] if side == "decoder" else [])
                norms = ["ln_1", "ln_cross", "ln_2"] if side == "decoder" else ["ln_1", "ln_2"]
                for at, norm in enumerate(norms):
                    names |= both(f"{block}.{norm}", f"{theirs}.norm{at + 1}")
                for name, attention in parts:
                    names |= both(f"{block}.{name}.proj", f"{theirs}.{attention}.out_proj")
                    for kind in ("weight", "bias"):
                        rows = weights[f"{theirs}.{attention}.in_proj_{kind}"]
                        ours[f"{block}.{name}.q.{kind}"] = rows[:HIDDEN]
                        ours[f"{block}.{name}.kv.{kind}"] = rows[HIDDEN:]
        return ours | {name: weights[source] for name, source in names.items()}

    return Transformer(), params, convert, lambda model, batch: model(batch)


MODELS = [t5, t5_gated, transformer]


def train(model: nn.Module, batch: Inputs, logits: Logits) -> list[float]:
    """Trains on a batch. Vectors do not decay, as in Millrace."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=ADAM_EPSILON)
    losses = []
    for _ in range(STEPS):
        loss = cross_entropy(logits(model, batch).flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def original(kind: Callable[[], tuple]) -> tuple:
    """Returns what `kind` returns, with a model whose weights are those of the fixture."""
    torch.manual_seed(SEED)
    made = kind()
    with torch.no_grad():
        for tensor in made[0].parameters():
            # Off the usual zeros, ones and tiny weights, or a test could not see one missing.
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return made


def make(directory: Path, kind: Callable[[], tuple]) -> None:
    model, params, convert, logits = original(kind)
    model.train()
    batch = inputs()
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    ours = {name: tensor.contiguous().clone() for name, tensor in convert(weights).items()}
    losses = train(model, batch, logits)
    save_file(ours, directory / f"{kind.__name__}.safetensors")
    record = {"model": params, "inputs": {name: values.tolist() for name, values in batch.items()}, "loss": losses}
    (directory / f"{kind.__name__}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    print(kind.__name__, [round(loss, 4) for loss in losses])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for kind in MODELS:
        make(directory, kind)


if __name__ == "__main__":
    main()
