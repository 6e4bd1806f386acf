#!/usr/bin/env python3
"""Makes the inputs of a parity fixture, seeded: a small model's weights and samples that it can learn.

    python tests/parity/make_inputs.py {tied,untied} DIR

writes `DIR/weights/` (a Hugging Face GPT-2 directory) and `DIR/samples.safetensors`. Biases and norms are moved off
their usual zeros and ones, or a test could not see them missing.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from gpt import Config, Gpt, hf_tensors

STEPS, BATCH, TIME, VOCAB = 20, 8, 64, 256
SIZES = {"vocab_size": VOCAB, "positions": TIME, "hidden": 32, "layers": 2, "heads": 2, "inner": 128}
CASES = {
    "tied": Config(**SIZES),
    # All options that GPT-2 does not use: exact GELU, an untied head with a bias, no query/key/value bias.
    "untied": Config(**SIZES, gelu="none", tied=False, biases=frozenset({"attn.c_proj", "mlp.c_fc", "mlp.c_proj", "lm_head"})),
}


def make_weights(config: Config, directory: Path, seed: int) -> None:
    model = Gpt(config).initialise(seed, deviation=0.08)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() == 1:
                tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(hf_tensors(model), directory / "model.safetensors", metadata={"format": "pt"})
    described = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new" if config.gelu == "tanh" else "gelu",
        "vocab_size": config.vocab_size,
        "n_positions": config.positions,
        "n_embd": config.hidden,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.inner,
        "layer_norm_epsilon": config.epsilon,
        "tie_word_embeddings": config.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    (directory / "config.json").write_text(json.dumps(described, indent=1) + "\n")


def make_samples(path: Path, seed: int, masked: float) -> None:
    """Each token follows from the one before by a fixed permutation, three times in four; `masked` of the labels are -100."""
    generator = torch.Generator().manual_seed(seed)
    follows = torch.randperm(VOCAB, generator=generator)
    tokens = torch.randint(VOCAB, (STEPS, BATCH, TIME + 1), generator=generator)
    regular = torch.rand(tokens.shape, generator=generator) < 0.75
    for time in range(1, TIME + 1):
        tokens[..., time] = torch.where(regular[..., time], follows[tokens[..., time - 1]], tokens[..., time])
    ids, labels = tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()
    labels[torch.rand(labels.shape, generator=generator) < masked] = -100
    save_file({"input_ids": ids.int(), "labels": labels.int()}, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    seed = list(CASES).index(given.case) + 1
    make_weights(CASES[given.case], given.directory / "weights", seed)
    make_samples(given.directory / "samples.safetensors", seed, masked=0.0 if given.case == "tied" else 0.1)


if __name__ == "__main__":
    main()
