#!/usr/bin/env python3
"""Compares the outputs of exported models with those of the models of `transformers` that their weights come from.

    python tests/parity/check_exports.py --save /tmp/originals
    MILLRACE_HF_EXPORTS=/tmp/exports MILLRACE_HF_ORIGINALS=/tmp/originals \\
        cargo test --locked --workspace --test hugging_face_families
    python tests/parity/check_exports.py /tmp/exports

The weights of the fixtures are those of the models that `make_decoders.py` and the scripts beside it make before they
train them. `--save` writes these models with `save_pretrained`, so that the test imports what `transformers` wrote.
"""

import argparse
from pathlib import Path

import make_decoders
import make_encoders
import make_images
import make_seq2seq
import torch
import transformers
from torch import Tensor

TOLERANCE = 1e-4

Inputs = dict[str, Tensor]


def originals() -> dict[str, tuple[transformers.PreTrainedModel, Inputs]]:
    """The models whose weights are in the fixtures, and inputs for them."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(make_decoders.VOCABULARY, (2, make_decoders.LENGTH), generator=generator)
    image = torch.rand(2, make_images.CHANNELS, make_images.HEIGHT, make_images.WIDTH, generator=generator)
    made: dict[str, tuple[transformers.PreTrainedModel, Inputs]] = {}
    for family in make_decoders.FAMILIES:
        made[family.__name__] = make_decoders.original(family)[0], {"input_ids": tokens, "use_cache": False}
    for task in make_encoders.TASKS:
        model, _, _, inputs, _ = make_encoders.original(task)
        names = ("input_ids", "attention_mask", "token_type_ids")
        made[task.__name__] = model, {name: inputs[name] for name in names if name in inputs}
    made["vision_transformer"] = make_images.original(make_images.vision_transformer)[0], {"pixel_values": image}
    for kind in (make_seq2seq.t5, make_seq2seq.t5_gated):
        inputs = make_seq2seq.inputs() | {"use_cache": False}
        del inputs["labels"]
        made[kind.__name__] = make_seq2seq.original(kind)[0], inputs
    return {name: (model.eval(), inputs) for name, (model, inputs) in made.items()}


def outputs(model: transformers.PreTrainedModel, inputs: Inputs) -> dict[str, Tensor]:
    """Everything that the output layers compute."""
    found = model(**inputs)
    return {name: values for name, values in found.items() if name.endswith("logits")}


def check(directory: Path, model: transformers.PreTrainedModel, inputs: Inputs) -> bool:
    """Loads an export with the class that its configuration names."""
    architecture = transformers.AutoConfig.from_pretrained(directory).architectures[0]
    loaded, report = getattr(transformers, architecture).from_pretrained(directory, output_loading_info=True)
    expected, found = outputs(model, inputs), outputs(loaded.eval(), inputs)
    if expected.keys() != found.keys():
        print(f"{directory.name:20} {architecture:30} computes {list(found)} instead of {list(expected)}")
        return False
    difference = max((found[name] - expected[name]).abs().max().item() for name in expected)
    lacking = [key for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if report[key]]
    print(f"{directory.name:20} {architecture:30} {difference:.1e}", *(f"{key}: {report[key]}" for key in lacking))
    return difference <= TOLERANCE and not lacking


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", type=Path, nargs="?")
    parser.add_argument("--save", type=Path, metavar="DIR", help="save the original models")
    arguments = parser.parse_args()
    made = originals()
    if arguments.save:
        for name, (model, _) in made.items():
            model.save_pretrained(arguments.save / name)
    if arguments.exports:
        with torch.no_grad():
            failed = [name for name, original in made.items() if not check(arguments.exports / name, *original)]
        if failed:
            raise SystemExit(f"different: {', '.join(failed)}")


if __name__ == "__main__":
    main()
