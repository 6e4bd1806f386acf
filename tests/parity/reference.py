#!/usr/bin/env python3
"""The parity reference: trains a GPT in PyTorch from given weights on given samples, and records what happened.

    python tests/parity/reference.py --weights DIR --samples FILE --spec spec.json --out DIR
    python tests/parity/reference.py --check-export DIR --logits FILE
    python tests/parity/reference.py --check-tensorboard DIR

The first form reads a Hugging Face GPT-2 directory, a samples file (`input_ids` and `labels`, each [steps, batch, T]
int32, a negative label is ignored) and the training settings, and writes `fixture.json` and `fixture.safetensors`; see
README.md for both. Tests compare with the fixture and need no torch. The other two check, with the packages that users
have, an exported checkpoint and the event files of a run.

Exit codes: 0 done, 1 a check failed, 2 bad input.
"""

import argparse
import json
import math
import sys
import zlib
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import checks
from gpt import Gpt, hf_tensors, load_directory

FORMAT = 1
SPEC_KEYS = {"steps", "loss_scaling", "loss_weight", "optimizer"}
OPTIMIZER_KEYS = {"betas", "eps", "weight_decay", "max_gradient_norm", "learning_rate"}


def learning_rate(schedule, step: int) -> float:
    """The rate of `step` (the first is 0). A list is a sequence: each part but the last lasts its `total_iters` and
    counts from its own beginning; after its end a part keeps its last value."""
    if isinstance(schedule, (int, float)):
        return float(schedule)
    parts = schedule if isinstance(schedule, list) else [schedule]
    for part in parts[:-1]:
        if step < part["total_iters"]:
            return _part(part, step)
        step -= part["total_iters"]
    return _part(parts[-1], step)


def _part(part: dict, step: int) -> float:
    if part["scheduler"] == "Constant":
        return part["learning_rate"]
    first, last = part["initial_learning_rate"], part["end_learning_rate"]
    share = min(step / part["total_iters"], 1.0)
    if part["scheduler"] == "Linear":
        return first + (last - first) * share
    if part["scheduler"] == "CosineDecay":
        return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * share))
    raise SystemExit(f"scheduler {part['scheduler']!r} is none of Constant, Linear, CosineDecay")


def batch_loss(logits: Tensor, labels: Tensor, spec: dict) -> Tensor:
    """Cross-entropy, summed, then divided by the labels counted (`num_tokens`) or by the batch (`batch_size`, times
    `loss_weight`). Computed in f32 at least, whatever the model's precision."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    flat = logits.flatten(0, 1).to(wide)
    total = F.cross_entropy(flat, labels.clamp(min=-1).flatten(), ignore_index=-1, reduction="sum")
    if spec.get("loss_scaling", "num_tokens") == "num_tokens":
        return total / (labels >= 0).sum()
    return total * spec.get("loss_weight", 1.0) / labels.shape[0]


@dataclass
class Run:
    """The results of one training run; `gradients` are those of step 0 before clipping, in Hugging Face layout."""

    loss: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)


def train(model: Gpt, samples: dict[str, Tensor], spec: dict, autocast: bool = False) -> Run:
    """Runs the steps of `spec` on `model` in place, in the model's precision or under bf16 autocast."""
    settings = spec["optimizer"]
    decayed = [tensor for tensor in model.parameters() if tensor.dim() > 1]
    plain = [tensor for tensor in model.parameters() if tensor.dim() == 1]  # biases and layer norms
    groups = [{"params": decayed, "weight_decay": settings["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=tuple(settings["betas"]), eps=settings["eps"])
    limit = settings.get("max_gradient_norm") or math.inf
    run = Run()
    for step in range(spec["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings["learning_rate"], step)
        with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext():
            logits = model(samples["input_ids"][step])
        loss = batch_loss(logits, samples["labels"][step], spec)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            run.gradients = {name: grad.clone() for name, grad in hf_tensors(model, lambda p: p.grad).items()}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        run.loss.append(shortest(loss))
        run.grad_norm.append(shortest(norm))
    return run


def shortest(value: Tensor) -> float:
    """The float whose shortest decimal reads back to the same value of the tensor's own type."""
    return float(str(value.detach().numpy()[()]))


def norms(tensors: dict[str, Tensor]) -> dict[str, float]:
    """The Euclidean norm of each tensor. The key third of `c_attn.bias` is left out: it shifts every score of a row
    alike, so the loss does not depend on it, its gradient is rounding noise, and AdamW makes whole steps of noise."""

    def measured(name: str, tensor: Tensor) -> Tensor:
        if not name.endswith("c_attn.bias"):
            return tensor
        query, _key, value = tensor.chunk(3)
        return torch.cat([query, value])

    return {name: measured(name, tensor).double().norm().item() for name, tensor in tensors.items()}


def relative(values: list[float], truth: list[float]) -> float:
    return max(abs(value - true) / abs(true) for value, true in zip(values, truth, strict=True))


def checksum(tensors: dict[str, Tensor]) -> int:
    """CRC-32 over the little-endian bytes of the tensors, in order of name; detects inputs of another fixture."""
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].contiguous().numpy().tobytes(), crc)
    return crc


def make_fixture(weights: Path, samples_file: Path, spec_file: Path, out: Path) -> None:
    spec = read_spec(spec_file)
    raw = load_file(samples_file)
    samples = read_samples(raw, spec["steps"])
    model = load_directory(weights)
    initial = hf_tensors(model)
    inputs = {
        "parameters": sum(tensor.numel() for tensor in initial.values()),
        "weights_crc32": checksum(initial),
        "weights_norm": norms(initial),
        "samples_crc32": checksum(raw),
        "samples_shape": list(raw["input_ids"].shape),
    }

    exact = train(load_directory(weights).double(), samples, spec)
    cast = train(load_directory(weights), samples, spec, autocast=True)
    run = train(model, samples, spec)
    with torch.no_grad():
        logits = model(samples["input_ids"][0, :1])[0]

    gradient_norm = norms(run.gradients)
    difference = {name: cast.gradients[name] - gradient for name, gradient in run.gradients.items()}
    fixture = {
        "format": FORMAT,
        "torch": torch.__version__.split("+")[0],
        "config": json.loads((weights / "config.json").read_text()),
        "spec": spec,
        "inputs": inputs,
        "tokens": [int(count) for count in (samples["labels"] >= 0).sum(dim=(1, 2))[: spec["steps"]]],
        "learning_rate": [learning_rate(spec["optimizer"]["learning_rate"], step) for step in range(spec["steps"])],
        "loss": run.loss,
        "grad_norm": run.grad_norm,
        "gradient_norm": gradient_norm,
        "final_norm": norms(hf_tensors(model)),
        "f64": {
            "loss": exact.loss,
            "grad_norm": exact.grad_norm,
            "max_relative_loss": relative(run.loss, exact.loss),
        },
        "autocast_bf16": {
            "loss": cast.loss,
            "grad_norm": cast.grad_norm,
            "max_relative_loss": relative(cast.loss, run.loss),
            "relative_gradient": {name: norm / gradient_norm[name] for name, norm in norms(difference).items()},
        },
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file({f"grad.{name}": t for name, t in run.gradients.items()} | {"logits": logits}, out / "fixture.safetensors")
    (out / "fixture.json").write_text(json.dumps(fixture, indent=1) + "\n")
    print(
        f"loss {run.loss[0]} to {run.loss[-1]} in {spec['steps']} steps; largest relative difference of a loss: "
        f"f64 {fixture['f64']['max_relative_loss']:.1e}, bf16 autocast {fixture['autocast_bf16']['max_relative_loss']:.1e}"
    )


def read_spec(path: Path) -> dict:
    spec = json.loads(path.read_text())
    unknown = (set(spec) - SPEC_KEYS) | (set(spec.get("optimizer", {})) - OPTIMIZER_KEYS)
    if unknown:
        raise SystemExit(f"{path}: unknown key {', '.join(sorted(unknown))}")
    if spec.get("loss_scaling", "num_tokens") not in ("num_tokens", "batch_size"):
        raise SystemExit(f"{path}: loss_scaling must be num_tokens or batch_size")
    return spec


def read_samples(raw: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
    ids, labels = raw["input_ids"], raw["labels"]
    if ids.dim() != 3 or ids.shape != labels.shape or ids.dtype != torch.int32 or labels.dtype != torch.int32:
        raise SystemExit("samples: input_ids and labels must both be int32 of one shape [steps, batch, T]")
    if ids.shape[0] < steps:
        raise SystemExit(f"samples: {ids.shape[0]} steps of samples, but the spec trains {steps}")
    return {"input_ids": ids.long(), "labels": labels.long()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--weights", type=Path, metavar="DIR", help="train from this Hugging Face GPT-2 directory")
    mode.add_argument("--check-export", type=Path, metavar="DIR", help="load with transformers and compare logits")
    mode.add_argument("--check-tensorboard", type=Path, metavar="DIR", help="print every tag's last value, one JSON line each")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="samples.safetensors")
    parser.add_argument("--spec", type=Path, metavar="FILE", help="training settings, JSON")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the fixture goes")
    parser.add_argument("--logits", type=Path, metavar="FILE", help="safetensors: input_ids [batch, T], logits [batch, T, vocab]")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of the logits, relative above a largest logit of 1")
    given = parser.parse_args()
    needed = ("samples", "spec", "out") if given.weights else ("logits",) if given.check_export else ()
    missing = [f"--{name}" for name in needed if getattr(given, name) is None]
    if missing:
        parser.error(f"this mode also needs {', '.join(missing)}")
    return given


def main() -> int:
    given = arguments()
    torch.set_num_threads(1)  # one order of summation, on any machine
    try:
        if given.check_export:
            return checks.export(given.check_export, given.logits, given.tolerance)
        if given.check_tensorboard:
            return checks.tensorboard(given.check_tensorboard)
        make_fixture(given.weights, given.samples, given.spec, given.out)
    except (OSError, KeyError, json.JSONDecodeError) as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except SystemExit as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
