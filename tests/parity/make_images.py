#!/usr/bin/env python3
"""Makes the fixtures that `emulator/tests/images.rs` compares with: a small vision transformer of `transformers`, and a
plain network, trained for ten steps of AdamW.

    python tests/parity/make_images.py tests/parity/fixtures/images

writes for each model `NAME.safetensors`, the initial weights with Millrace's names and layout, and `NAME.json`: `image`
(the image options of a resolved job), the `inputs` of the batch, and the `loss` of each step, divided by the number of
samples. All steps train on the same batch. The images are not square, and neither are their patches.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from make_decoders import both
from make_encoders import BATCH, train
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SEED, CHANNELS, HEIGHT, WIDTH, PATCH, CLASSES = 5, 3, 12, 15, 3, 5
HIDDEN, HEADS, LAYERS, FILTER, EPSILON = 36, 3, 2, 60, 1e-5
HIDDEN_SIZES = [23, 17, 11]

Names = dict[str, str]


def vision_transformer() -> tuple[nn.Module, dict, Names, Callable[[nn.Module, Tensor], Tensor]]:
    config = transformers.ViTConfig(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=FILTER,
        hidden_act="gelu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=EPSILON,
        image_size=(HEIGHT, WIDTH), patch_size=PATCH, num_channels=CHANNELS, num_labels=CLASSES,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    network = {"name": "transformer", "patch_size": [PATCH, PATCH], "has_projection_bias": True}
    return model, network | {"pooler_nonlinearity": None}, {}, lambda model, image: model(image).logits


def transformer_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights with Millrace's names. Those of `transformers` differ between its versions: they are found by
    their ends."""

    def of(*ends: str) -> Tensor:
        found = [name for name in weights if any(name.endswith(end) for end in ends)]
        assert len(found) == 1, (ends, found)
        return weights[found[0]]

    ours = {
        "cls.weight": of("cls_token").reshape(1, HIDDEN),
        "wpe.weight": of("position_embeddings")[0],
        "patch.weight": of("projection.weight").reshape(HIDDEN, -1),
        "patch.bias": of("projection.bias"),
    }
    for kind in ("weight", "bias"):
        ours[f"ln_f.{kind}"] = of(f"vit.layernorm.{kind}")
        ours[f"classifier.{kind}"] = of(f"classifier.{kind}")
        for i in range(LAYERS):
            parts = [
                of(
                    *(f"layer{s}.{i}.attention.attention.{part}.{kind}" for s in ("", "s")),
                    f"layers.{i}.attention.{short}_proj.{kind}",
                )
                for part, short in (("query", "q"), ("key", "k"), ("value", "v"))
            ]
            ours[f"h.{i}.attn.qkv.{kind}"] = torch.cat(parts)
            for name, ends in {
                "attn.proj": ("attention.output.dense", "attention.o_proj"),
                "mlp.fc": ("intermediate.dense", "mlp.fc1"),
                "mlp.proj": (f"{i}.output.dense", "mlp.fc2"),
                "ln_1": ("layernorm_before",),
                "ln_2": ("layernorm_after",),
            }.items():
                ends = [f".{i}.{end.removeprefix(f'{i}.')}.{kind}" for end in ends]
                ours[f"h.{i}.{name}.{kind}"] = of(*ends)
    return ours


def fc_mnist() -> tuple[nn.Module, dict, Names, Callable[[nn.Module, Tensor], Tensor]]:
    """The public model zoo's network, with its activations."""
    sizes = [CHANNELS * HEIGHT * WIDTH, *HIDDEN_SIZES, CLASSES]
    layers: list[nn.Module] = [nn.Flatten()]
    names: Names = {}
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        ours = f"fc.{i}" if i < len(HIDDEN_SIZES) else "classifier"
        names |= both(ours, str(len(layers)))
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    network = {"name": "mlp", "hidden_sizes": HIDDEN_SIZES}
    return nn.Sequential(*layers[:-1]), network, names, lambda model, image: model(image)


def original(task: Callable[[], tuple]) -> tuple:
    """Returns what `task` returns, with a model whose weights are those of the fixture."""
    torch.manual_seed(SEED)
    made = task()
    with torch.no_grad():
        for tensor in made[0].parameters():
            # Off the usual zeros, ones and tiny weights, or a test could not see one missing.
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return made


def make(directory: Path, task: Callable[[], tuple]) -> None:
    model, network, names, logits = original(task)
    model.train()
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    ours = {name: weights[source] for name, source in names.items()} or transformer_weights(weights)
    # Multiples of 1/256, which JSON and f32 represent exactly.
    image = torch.randint(-256, 257, (BATCH, CHANNELS, HEIGHT, WIDTH)) / 256
    labels = torch.tensor([3, 0, 4, 3])
    losses = train(model, lambda model: cross_entropy(logits(model, image), labels, reduction="sum"))
    save_file({name: tensor.contiguous() for name, tensor in ours.items()}, directory / f"{task.__name__}.safetensors")
    record = {
        "image": {"shape": {"channels": CHANNELS, "height": HEIGHT, "width": WIDTH}, "network": network},
        "inputs": {"image": image.tolist(), "labels": labels.tolist()},
        "loss": losses,
    }
    (directory / f"{task.__name__}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    print(task.__name__, [round(loss, 4) for loss in losses])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for task in (vision_transformer, fc_mnist):
        make(directory, task)


if __name__ == "__main__":
    main()
