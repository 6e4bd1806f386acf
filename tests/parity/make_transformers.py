#!/usr/bin/env python3
"""Makes the fixture that `agents/tests/hugging_face.rs` compares with: a tiny GPT-2 as `transformers` itself saves it, and
the logits it computes.

    python tests/parity/make_transformers.py tests/parity/fixtures/transformers

writes `config.json`, `model.safetensors` and `logits.safetensors`: `input_ids` [2, T] int32, `logits` [2, T, vocabulary].
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

SEED, SAMPLES = 11, 2
CONFIG = GPT2Config(vocab_size=64, n_positions=12, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    torch.manual_seed(SEED)
    model = GPT2LMHeadModel(CONFIG).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            # Off the usual zeros, ones and tiny weights, or a test could not see one missing.
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
        input_ids = torch.randint(CONFIG.vocab_size, (SAMPLES, CONFIG.n_positions))
        logits = model(input_ids).logits
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    save_file({"input_ids": input_ids.int(), "logits": logits.contiguous()}, directory / "logits.safetensors")


if __name__ == "__main__":
    main()
