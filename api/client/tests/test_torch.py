"""Modules of PyTorch are traced to graphs with the same loss and gradients, or rejected with a reason.

Needs PyTorch; the models of transformers, transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import nn

from millrace.torch import UnsupportedModelError, trace
from torch_reference import SAMPLES, check_loss_and_gradients, in_double, results_of

CLASSES, WORDS, LENGTH = 10, 50, 12


class Rows(nn.Module):
    """Predicts a word for each word, by a transformer's layer of PyTorch."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 24, padding_idx=0)
        with torch.no_grad():
            # As after a step: the output has a gradient for the row of the padding.
            self.embedding.weight[0] = 0.3
        self.layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=batch_first)
        self.batch_first = batch_first

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        x = self.layer(x) if self.batch_first else self.layer(x.transpose(0, 1)).transpose(0, 1)
        return x @ self.embedding.weight.t()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(24), nn.RMSNorm(24)
        self.qkv, self.proj = nn.Linear(24, 72, bias=False), nn.Linear(24, 24)
        self.up, self.gate, self.down = nn.Linear(24, 40), nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, x: Any) -> Any:
        parts = self.qkv(self.norm_1(x)).unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4)
        rate = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True, dropout_p=rate)
        x = x + F.dropout(self.proj(mixed.transpose(1, 2).flatten(2)), 0.1, self.training)
        rows = self.norm_2(x)
        return x + self.down(F.silu(self.gate(rows)) * self.up(rows))


class Decoder(nn.Module):
    """A GPT with its own loss, and tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, 24), nn.Embedding(LENGTH, 24)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(24, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Any, labels: Any) -> Any:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=3)


class Recurrent(nn.Module):
    """An LSTM, unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Any) -> Any:
        hidden = state = x.new_zeros(x.shape[0], 12)
        for step in range(x.shape[1]):
            hidden, state = self.cell(x[:, step], (hidden, state))
        return self.head(hidden)


def images() -> dict[str, Any]:
    return {"image": torch.randn(SAMPLES, 1, 12, 12), "labels": torch.randint(0, CLASSES, (SAMPLES,))}


def words() -> dict[str, Any]:
    return {name: torch.randint(0, WORDS, (SAMPLES, LENGTH)) for name in ("input_ids", "labels")}


def sequences() -> dict[str, Any]:
    return {"x": torch.randn(SAMPLES, 16, 8), "labels": torch.randint(0, CLASSES, (SAMPLES,))}


def pairs() -> dict[str, Any]:
    return {"x": torch.randn(SAMPLES, 8), "y": torch.randn(SAMPLES, 3)}


def mlp() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 20), nn.ReLU(), nn.Linear(20, CLASSES))


def with_batch_norm() -> Any:
    return nn.Sequential(mlp(), nn.BatchNorm1d(CLASSES))


def cnn() -> Any:
    first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.MaxPool2d(2))
    second = nn.Sequential(nn.Conv2d(8, 6, 3, stride=2, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(first, second, nn.Linear(6, CLASSES))


def regression() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def of_rows(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits.transpose(1, 2), labels)


def of_sum(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits, labels, reduction="sum")


def two_losses(logits: Any, labels: Any) -> Any:
    return 0.5 * F.cross_entropy(logits, labels) + logits.square().mean() / 3


def of_each_label(logits: Any, labels: Any) -> Any:
    """A sum divided by the number of labels, as a tensor."""
    losses = F.cross_entropy(logits, labels, reduction="none")
    return losses.sum() / torch.tensor(losses.shape[0], dtype=torch.float32)


def of_likelihoods(logits: Any, labels: Any) -> Any:
    return F.nll_loss(logits.softmax(1).log(), labels, reduction="none").mean()


class Projection(nn.Module):
    """Kernels of three and of four dimensions, in the order that Keras has."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 3, 1, 4))
        self.queries, self.output = (
            nn.Parameter(torch.randn(4, 2, 3)),
            nn.Parameter(torch.randn(2, 3, CLASSES)),
        )

    def forward(self, image: Any) -> Any:
        x = F.conv2d(image, self.kernel.permute(3, 2, 0, 1)).flatten(2).transpose(1, 2)
        heads = torch.einsum("abc,cde->abde", x, self.queries).tanh()
        return torch.einsum("abcd,cde->abe", heads, self.output).mean(1)


def of_transformers(name: str, **sizes: Any) -> Callable[[], Any]:
    def build() -> Any:
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        common = {"vocab_size": WORDS, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 24}
        config = transformers.AutoConfig.for_model(name, **(common | sizes))
        classes = {"t5": transformers.AutoModelForSeq2SeqLM, "bert": transformers.AutoModelForMaskedLM}
        return classes.get(name, transformers.AutoModelForCausalLM).from_config(config)

    return build


def with_labels(model: Any, ids: Any, labels: Any) -> Any:
    options = {} if model.config.model_type == "bert" else {"use_cache": False}
    return model(input_ids=ids, labels=labels, **options).loss


T5 = {"d_model": 24, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
LLAMA = {"num_key_value_heads": 2, "intermediate_size": 48}
CASES: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], dict[str, Any]]] = {
    "mlp": (mlp, images, {"loss": F.cross_entropy}),
    "cnn": (cnn, images, {"loss": two_losses}),
    "lstm": (Recurrent, sequences, {"loss": F.cross_entropy}),
    "sum": (mlp, images, {"loss": of_sum}),
    "sum of elements": (regression, pairs, {"loss": lambda x, y: 0.5 * (x - y).abs().sum()}),
    "each label": (mlp, images, {"loss": of_each_label}),
    "likelihoods": (mlp, images, {"loss": of_likelihoods}),
    "projection": (Projection, images, {"loss": F.cross_entropy}),
    "regression": (regression, pairs, {"loss": F.mse_loss}),
    "gpt": (Decoder, words, {}),
    "rows": (lambda: Rows(batch_first=True), words, {"loss": of_rows}),
    "columns": (lambda: Rows(batch_first=False), words, {"loss": of_rows}),
    "gpt2": (of_transformers("gpt2"), words, {"call": with_labels}),
    "llama": (of_transformers("llama", **LLAMA), words, {"call": with_labels}),
    "bert": (of_transformers("bert", intermediate_size=48), words, {"call": with_labels}),
    "t5": (of_transformers("t5", **T5), words, {"call": with_labels}),
}


def loss_by_pytorch(model: Any, batch: dict[str, Any], how: dict[str, Any]) -> Any:
    if "call" in how:
        return how["call"](model, *batch.values())
    if "loss" not in how:
        return model(*batch.values())
    *inputs, labels = batch.values()
    return how["loss"](model(*inputs), labels)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_pytorch(name: str, tmp_path: Path) -> None:
    """Also those of other samples than the traced ones, in another number."""
    build, batch, how = CASES[name]
    torch.manual_seed(1)
    model = build()
    traced = trace(model, {key: data[:4] for key, data in batch().items()}, **how)
    traced.save(tmp_path / "graph.json")
    document = json.loads((tmp_path / "graph.json").read_text())

    model, other = model.double().eval(), in_double(batch())
    check_loss_and_gradients(traced, document, model, other, loss_by_pytorch(model, other, how))
    stored = {data.data_ptr() for data in model.parameters()}
    assert len(document["tensors"]) == len(stored), "a parameter is missing, or is there twice"


def test_mean_of_the_losses_of_labels_is_one_operator() -> None:
    nodes = trace(mlp(), images(), of_each_label).document["nodes"]
    operators = [node["op"]["op"] for node in nodes]
    assert operators[-1] == "logits_cross_entropy" and "gather" not in operators


def test_parameters_of_more_dimensions_are_weights_of_linear_operators() -> None:
    nodes = trace(Projection(), images(), F.cross_entropy).document["nodes"]
    assert sum(node["op"]["op"] == "linear" for node in nodes) == 2


@pytest.mark.parametrize("name", ["gpt", "gpt2"])
def test_weights_are_saved_by_the_names_and_shapes_of_the_graph_and_loaded_again(
    name: str, tmp_path: Path
) -> None:
    build, batch, how = CASES[name]
    first, second = build(), build()
    traced = trace(first, batch(), **how)
    traced.save_weights(first, tmp_path / "w")
    saved = {name: list(data.shape) for name, data in load_file(tmp_path / "w").items()}
    assert saved == {tensor["name"]: tensor["shape"] for tensor in traced.document["tensors"]}
    assert any(traced.transposed.values()) == (name == "gpt2")

    traced.load_weights(second, tmp_path / "w")
    for (_, expected), (found_name, found) in zip(
        first.named_parameters(), second.named_parameters(), strict=True
    ):
        assert torch.equal(found, expected), found_name
    with pytest.raises(ValueError, match="is not of this module: only one of them has 1"):
        trace(mlp(), images(), F.cross_entropy).load_weights(second, tmp_path / "w")


def contrastive(x: Any, labels: Any) -> Any:
    return F.cross_entropy(x @ x.t(), labels * 0)


def by_data(x: Any, labels: Any) -> Any:
    return F.cross_entropy(x, labels) if bool(x.sum() > 0) else x.mean()


def skipping(x: Any, labels: Any) -> Any:
    layerdrop = 0.1
    return F.cross_entropy(x, labels) if torch.rand([]) >= layerdrop else x.mean()


def centered(x: Any, _: Any) -> Any:
    return (x - x.mean(0)).square().mean()


def of_singular_values(x: Any, _: Any) -> Any:
    return torch.linalg.svdvals(x.unflatten(1, (2, 5))).mean()


@pytest.mark.parametrize(
    ("model", "loss", "part"),
    [
        (with_batch_norm, F.cross_entropy, "use GroupNorm or LayerNorm"),
        (mlp, contrastive, "combines each sample of a batch with each other"),
        (mlp, by_data, "control flow must not depend on data"),
        (mlp, skipping, "set layerdrop to 0"),
        (mlp, centered, "its mean is over the samples of a batch"),
        (mlp, of_singular_values, "svd of PyTorch is not supported"),
        (mlp, lambda x, _: x, "not a mean over the samples"),
        (mlp, lambda x, _: (x * torch.tensor(x.shape[0])).mean(), "computes with the size of the batch"),
    ],
)
def test_modules_that_can_not_be_trained_are_rejected(model: Any, loss: Any, part: str) -> None:
    with pytest.raises(UnsupportedModelError, match=part):
        trace(model(), images(), loss)


class Classifier(nn.Module):
    """Returns its loss and metrics: means, a sum over labels divided by their number, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, tokens: Any, labels: Any) -> Any:
        logits = self.body(tokens) / self.temperature
        with torch.no_grad():
            correct = (logits.detach().argmax(-1) == labels).float()
            counted = (labels >= 0).float()
            metrics = {
                "accuracy": (correct * counted).sum() / counted.sum(),
                "confidence": logits.softmax(-1).amax(-1).mean(),
                "temperature": self.temperature.clone(),
            }
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        smooth = logits.square().mean()
        return {"loss": loss, **metrics, "logits": logits, "nested/entropy": loss.detach(), "smooth": smooth}


def test_metrics_are_those_of_pytorch() -> None:
    """Also those of another batch. What is no number is left out."""
    torch.manual_seed(3)
    model = Classifier()
    labels = torch.randint(0, 5, (6, 4))
    labels[1:, 2] = -100
    batch = {"tokens": torch.randn(6, 4, 6), "labels": labels}
    traced = trace(model, {name: data[:2] for name, data in batch.items()})
    loss, metrics = results_of(traced.document, in_double(batch), traced.tensors(model.double()))
    expected = model(**in_double(batch))
    assert sorted(metrics) == ["accuracy", "confidence", "nested/entropy", "smooth", "temperature"]
    for name, value in {"loss": loss, **metrics}.items():
        torch.testing.assert_close(value, expected[name].double(), rtol=1e-6, atol=0.0, msg=name)


@pytest.mark.parametrize(
    ("metrics", "part"),
    [
        (lambda x: {"spread": x.std()}, "computes over the samples of a batch"),
        (lambda x: {"root": x.square().mean().sqrt()}, "multiplied by numbers"),
        (lambda x: {"total": x.sum()}, "the metric total: it is not a mean"),
        (lambda x: {"my metric": x.mean()}, "a metric is called 'my metric'"),
        (lambda x: {"loss": x.mean()}, "rename it"),
        (lambda x: {"number": x.mean().item()}, "the result of item()"),
    ],
)
def test_metrics_that_are_no_means_are_rejected(metrics: Any, part: str) -> None:
    with pytest.raises(UnsupportedModelError, match=part):
        trace(mlp(), images(), lambda x, y: (F.cross_entropy(x, y), metrics(x)))


def test_mapping_without_loss_is_rejected() -> None:
    with pytest.raises(UnsupportedModelError, match="returns logits and no 'loss'"):
        trace(mlp(), images(), lambda x, _: {"logits": x})


class Inner(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.special.bessel_j0(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, image: Any) -> Any:
        return self.inner(image.flatten(1))


def test_rejections_name_module_file_and_line() -> None:
    line = Inner.forward.__code__.co_firstlineno + 1
    expected = rf"inner \(.*test_torch\.py:{line}\): the operator special_bessel_j0"
    with pytest.raises(UnsupportedModelError, match=expected):
        trace(Net(), images(), F.cross_entropy)


def test_parameters_and_examples_that_can_not_be_used_are_rejected() -> None:
    infinite = mlp()
    infinite[1].bias.data[0] = math.inf
    one = {"image": torch.randn(1, 1, 12, 12), "labels": torch.tensor([1])}
    for model, batch, part in [
        (mlp().double(), images(), "use model.float"),
        (infinite, images(), "1.bias has no elements, or some that are not finite"),
        (mlp(), one, "two or more samples"),
        (mlp(), images() | {"labels": torch.tensor([1, 2])}, "labels has 2"),
        (mlp(), dict(reversed(images().items())), "the module fails with the example: check names, order"),
    ]:
        with pytest.raises(UnsupportedModelError, match=part):
            trace(model, batch, F.cross_entropy)


def test_frozen_parameters_are_not_trained() -> None:
    model = mlp()
    model[1].requires_grad_(False)
    traced, other = trace(model, images(), F.cross_entropy), in_double(images())
    model = model.double()
    expected = F.cross_entropy(model(other["image"]), other["labels"])
    check_loss_and_gradients(traced, traced.document, model, other, expected)
    tensors = traced.document["tensors"]
    assert {tensor["name"]: tensor.get("trained", True) for tensor in tensors} == {
        "1.weight": False,
        "1.bias": False,
        "3.weight": True,
        "3.bias": True,
    }


def test_cell_of_ipython_is_code_of_the_user() -> None:
    """In a terminal, the name of its file begins with `<`, as that of generated code."""
    source = (
        "class Curved(nn.Linear):\n  def forward(self, x):\n"
        "    return torch.special.bessel_j0(super().forward(x)).mean()"
    )
    namespace: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(compile(source, "<ipython-input-3-abc>", "exec"), namespace)
    with pytest.raises(
        UnsupportedModelError, match=r"\(<ipython-input-3-abc>:3\): the operator special_bessel_j0"
    ):
        trace(namespace["Curved"](4, 3), {"x": torch.randn(4, 4)})
