"""Checks exported checkpoints and event files with the packages that users read them with."""

import json
from collections import defaultdict
from pathlib import Path

import torch
from safetensors.torch import load_file


def export(directory: Path, logits_file: Path, tolerance: float) -> int:
    """Loads an exported directory with `transformers` and compares its logits for the file's `input_ids` with the
    file's.
    """
    from transformers import GPT2LMHeadModel

    model, loading = GPT2LMHeadModel.from_pretrained(directory, output_loading_info=True)
    # transformers initializes missing tensors randomly and ignores unknown ones: both are errors here.
    wrong = {kind: sorted(map(str, names)) for kind, names in loading.items() if names}
    if wrong:
        print(f"{directory}: transformers reports {wrong}")
        return 1
    given = load_file(logits_file)
    expected = given["logits"]
    with torch.no_grad():
        computed = model.eval()(given["input_ids"].long()).logits
    if computed.shape != expected.shape:
        print(f"logits of shape {list(expected.shape)}, but transformers computes {list(computed.shape)}")
        return 1
    difference = (computed - expected).abs().max().item()
    allowed = tolerance * max(1.0, computed.abs().max().item())
    verdict = "within" if difference <= allowed else "BEYOND"
    print(f"largest difference of a logit {difference:.2e}, {verdict} the allowed {allowed:.2e}")
    return 0 if difference <= allowed else 1


def tensorboard(directory: Path) -> int:
    """Reads every event file below `directory`; prints the number of points and the last one of each tag."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    points = defaultdict(list)
    for file in sorted(directory.rglob("*tfevents*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.HasField("tensor"):  # the loader turns simple values into tensors
                    points[value.tag].append((event.step, make_ndarray(value.tensor)))
    for tag, series in sorted(points.items()):
        step, value = series[-1]
        last = value.item() if value.size == 1 and value.dtype.kind in "fiu" else None
        print(json.dumps({"tag": tag, "points": len(series), "last_step": step, "last_value": last}))
    if not points:
        print(f"{directory}: no event file with a value")
        return 1
    return 0
