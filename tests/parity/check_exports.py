#!/usr/bin/env python3
"""Compares the logits of exported models with those of the models of `transformers` that their weights come from.

    MILLRACE_HF_EXPORTS=/tmp/exports cargo test --locked --workspace --test hugging_face_families
    python tests/parity/check_exports.py /tmp/exports

The weights in `fixtures/decoders` are those of the models that `make_decoders.py` makes before it trains them.
"""

import argparse
from pathlib import Path

import make_decoders
import torch
import transformers

TOLERANCE = 1e-4


def original(family: str) -> transformers.PreTrainedModel:
    """The model whose weights are in the fixture."""
    torch.manual_seed(make_decoders.SEED)
    model, _, _ = getattr(make_decoders, family)()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", type=Path)
    exports = parser.parse_args().exports
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(make_decoders.VOCABULARY, (2, make_decoders.LENGTH), generator=generator)
    failed = []
    for family in make_decoders.FAMILIES:
        name = family.__name__
        expected = original(name)(tokens, use_cache=False).logits
        loaded, report = transformers.AutoModelForCausalLM.from_pretrained(exports / name, output_loading_info=True)
        found = loaded.eval()(tokens, use_cache=False).logits
        difference = (found - expected).abs().max().item()
        lacking = [key for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if report[key]]
        print(f"{name:12} {type(loaded).__name__:24} {difference:.1e}", *(f"{key}: {report[key]}" for key in lacking))
        if difference > TOLERANCE or lacking:
            failed.append(name)
    if failed:
        raise SystemExit(f"different: {', '.join(failed)}")


if __name__ == "__main__":
    main()
