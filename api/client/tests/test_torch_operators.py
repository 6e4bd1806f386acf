"""Layers and functions of PyTorch, and losses, are traced to graphs with the same loss and gradients."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from millrace.torch import UnsupportedModelError, trace
from torch_reference import SAMPLES, check_loss_and_gradients, in_double

ROWS, WIDTH, WORDS, CLASSES = 7, 12, 9, 5


class Net(nn.Module):
    """Computes a function of a layer and its input."""

    def __init__(self, layer: Any, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x: Any) -> Any:
        return self.function(self.layer, x)


def images() -> Any:
    return torch.randn(SAMPLES, 4, 7, 9)


def rows() -> Any:
    return torch.randn(SAMPLES, ROWS, WIDTH)


def frames() -> Any:
    return torch.randn(SAMPLES, 3, 4, 6, 7)


def words() -> Any:
    return torch.randint(1, WORDS, (SAMPLES, ROWS))


def squares(layer: Any, x: Any) -> Any:
    return (layer(x) + 0.3).square().mean()


def last_of_each(layer: Any, x: Any) -> Any:
    samples = torch.arange(x.shape[0])
    return (layer(x)[samples, x.argmax(1)] + 2 * layer(x)[samples, (x > 3).sum(1) // 2]).square().mean()


def of_one_hot(layer: Any, x: Any) -> Any:
    return layer(F.one_hot(x, WORDS).to(layer.weight.dtype)).square().mean()


def moved(layer: Any, x: Any) -> Any:
    x = layer(x)
    x = torch.cat([x.flip(1), x.roll((2, -1), (1, 2)), x[:, [0, 3, 3, 1, 6]], x.repeat(1, 2, 1)], 1)
    x = torch.stack([x, F.pad(x, (1, 1), mode="reflect")[:, :, 1:-1]]).sum(0)
    y = torch.zeros_like(x)
    y[:, 1::3, 2] = x[:, 1::3, 3]
    return (x + y.unfold(2, 2, 2).amax(-1).repeat_interleave(2, 2)).square().mean()


def assigned(layer: Any, x: Any) -> Any:
    y = layer(x)
    y[x < 0] = 0.5
    y[x[..., 0] > 1] = 0
    return y.square().mean()


def chosen(layer: Any, x: Any) -> Any:
    x = layer(x)
    values, indices = x.topk(2)
    largest, smallest = x.max(1, keepdim=True).values[..., :2], x.min(-1)[0][..., None]
    return (values * indices + largest - smallest).square().mean()


def composed(layer: Any, x: Any) -> Any:
    x = layer(x)
    functions = [F.elu, F.selu, F.softplus, F.mish, F.leaky_relu, F.hardswish, F.logsigmoid, torch.sinh]
    functions += [torch.asinh, torch.expm1, torch.erfc, torch.exp2]
    results = [function(x) for function in functions]
    y = torch.sigmoid(x) * 0.8 + 0.1
    results += [torch.special.entr(y), torch.log1p(y), torch.tan(y), torch.atanh(y), y % 0.5]
    results += [y * torch.div(y, 0.3, rounding_mode="floor")]
    return torch.cat(results, -1).square().mean() + torch.var_mean(x, -1)[0].mean()


def special(layer: Any, x: Any) -> Any:
    x = layer(x)
    y = torch.tanh(x) * 0.99
    results = [
        torch.atan(5 * x),
        torch.asin(y),
        torch.acos(y),
        torch.atan2(x, y.flip(1)),
        torch.atan2(x, -x * 0),
    ]
    results += [
        torch.lgamma(x.exp()),
        torch.digamma(x.exp()),
        torch.lgamma(20 * x.exp()),
        torch.lgamma(x.abs() + 0.2),
    ]
    return torch.cat(results, -1).square().mean()


def accumulated(layer: Any, x: Any) -> Any:
    x = layer(x)
    y = x.flip(1)
    results = [torch.logcumsumexp(4 * x, 1), torch.hypot(x, y), torch.copysign(x, y)]
    results += [torch.ldexp(x, torch.tensor(2)), torch.fmax(x, y), torch.where(torch.isinf(x / 0), x, y)]
    results += [values * (1 + indices) for values, indices in (x.cummax(1), x.cummin(1))]
    bounds = torch.tensor([-0.5, 0.0, 0.25])
    buckets = torch.bucketize(x, bounds) - torch.searchsorted(bounds, y, right=True)
    squares = x.diagonal(1, 1, 2).sum(-1) + x[:, :4].diagonal(0, 1, 2).square().sum(-1)
    return (
        torch.cat(results, -1).square().mean(1) * (buckets * x).mean((1, 2))[:, None]
    ).mean() + squares.mean()


def overlapped(layer: Any, x: Any) -> Any:
    columns = F.unfold(layer(x), (3, 2), padding=(1, 0), stride=(2, 1))
    folded = F.fold(columns.square(), (7, 9), (3, 2), padding=(1, 0), stride=(2, 1))
    window = torch.hann_window(8, dtype=x.dtype)
    found = torch.stft(folded.flatten(1)[:, :64], 8, 3, window=window, return_complex=True)
    return torch.istft(found * found.abs(), 8, 3, window=window).square().mean() + folded.square().mean()


class Sampled(nn.Module):
    """Samples images at coordinates that are computed from them, as spatial transformers do."""

    def __init__(self, mode: str, padding: str, *, corners: bool) -> None:
        super().__init__()
        self.linear, self.convolution = nn.Linear(9, 2), nn.Conv2d(4, 4, 1)
        # The nearest pixel has no gradient with regard to the coordinates.
        self.linear.requires_grad_(mode != "nearest")
        self.options = {"mode": mode, "padding_mode": padding, "align_corners": corners}

    def forward(self, x: Any) -> Any:
        angles = self.linear(x.mean((1, 2)))
        rows = torch.stack([angles.cos(), angles.sin() * 1.5, angles / 3], 2)
        grid = F.affine_grid(rows, [x.shape[0], 4, 5, 6], align_corners=self.options["align_corners"])
        return F.grid_sample(self.convolution(x), grid, **self.options)


def lstm(layer: Any, x: Any) -> Any:
    output, (hidden, _) = layer(x)
    # PyTorch 2.6 exports the last state with a wrong shape.
    return output.square().mean() + (hidden[-1].square().mean() if torch.__version__ >= "2.7" else 0)


def recurrent(layer: Any, x: Any) -> Any:
    output, hidden = layer(x)
    return output.square().mean() + hidden[-1].square().mean()


def of_steps(layer: Any, x: Any) -> Any:
    """Steps before samples, and an initial state of each sample."""
    start = x[:, :1, :4].transpose(0, 1).contiguous()
    return layer(x.transpose(0, 1), start)[0].transpose(0, 1).square().mean()


def of_frames(layer: Any, x: Any) -> Any:
    """Images whose numbers are merged with those of the samples. No two may be exchanged."""
    y = layer(x.flatten(0, 1))
    weights = torch.arange(1.0, 4, dtype=x.dtype)[:, None]
    return (y.reshape(x.shape[0], 3, -1) * weights).square().mean()


def of_sequences(layer: Any, x: Any) -> Any:
    steps, (last, _) = layer[1](layer[0](x.flatten(0, 1)))
    steps, last = steps.unflatten(0, (-1, 3)), last.unflatten(1, (-1, 3))
    return steps.cumsum(1).square().mean() + last.cumsum(2).square().mean()


def without_gradient(layer: Any, x: Any) -> Any:
    """A target, and a quantized value with the gradient of the value itself."""
    y = layer(x)
    with torch.no_grad():
        target = layer(x).relu() + y
        weight = target.square()
    straight = y + (y.round() - y).detach()
    return ((y - target).square() * weight).mean() + (straight * x).square().mean()


def in_order(layer: Any, x: Any) -> Any:
    y = layer(x)
    values, indices = y.sort(1, descending=True)
    # With equal elements.
    third = y.floor().kthvalue(3, -1, keepdim=True)
    results = [values * indices, y.argsort(-1) * y, y.median(2)[0][..., None] * y, third.values * y]
    return torch.cat([*results, y.topk(3, 1, largest=False)[0], y.topk(12)[0]], 1).square().mean()


def scattered(layer: Any, x: Any) -> Any:
    y, places = layer(x), (x > 0).int().cumsum(1).long() % 5
    result = torch.zeros_like(y).scatter_add(1, places, y) + y.scatter(2, places, 2.5)
    chosen = torch.full_like(y, -torch.inf).scatter(-1, y.topk(3)[1], y.topk(3)[0]).softmax(-1)
    return (result * chosen + y.index_add(1, torch.tensor([3, 3, 1]), y[:, 2:5], alpha=2)).square().mean()


def products(layer: Any, x: Any) -> Any:
    y = layer(x)
    return (
        (y.cumprod(1) + y.prod(1, keepdim=True) + y.prod(-1)[..., None] + y.mul(9).round(decimals=1))
        .square()
        .mean()
    )


def distances(layer: Any, x: Any) -> Any:
    """To each other, and of each sample to the rows of a weight."""
    y = layer(x)
    return (
        torch.cdist(y, y).mean() + torch.cdist(x[:, 0], layer.weight).mean() + torch.cdist(y, x, p=1).mean()
    )


def with_empty_part(layer: Any, x: Any) -> Any:
    """A head whose rotary part is the whole head has a rest without elements."""
    rotary, rest = layer(x).split([WIDTH, 0], dim=-1)
    return torch.cat([rotary.tanh(), rest, x[..., WIDTH:]], dim=-1).square().mean()


def positions_before_samples(layer: Any, x: Any) -> Any:
    """Fixed positions are repeated for the samples, whose dimension comes second."""
    positions = torch.arange(ROWS * WIDTH).view(ROWS, 1, WIDTH).sin().to(x.dtype).expand(-1, x.shape[0], -1)
    keys = torch.einsum("ibh,hd->ibd", positions, layer.weight)
    return (torch.einsum("bih,hd->ibd", x, layer.weight) * keys).square().mean()


class FrozenNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean += torch.arange(4.0)
        self.norm.running_var += torch.arange(4.0)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Any) -> Any:
        return self.norm(x)


def weight_norm(layer: Any) -> Any:
    return nn.utils.parametrizations.weight_norm(layer)


BAGS: list[Any] = [("sum", None), ("mean", None), ("mean", 2), ("max", None)]
CASES: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], Callable[[], Any]]] = {
    "part without elements": (lambda: nn.Linear(WIDTH, WIDTH), with_empty_part, rows),
    "positions before samples": (lambda: nn.Linear(WIDTH, WIDTH), positions_before_samples, rows),
    "convolution of rows": (
        lambda: nn.Sequential(nn.Conv1d(ROWS, 8, 3, padding="same"), nn.ConvTranspose1d(8, 3, 4, 2)),
        squares,
        rows,
    ),
    "transposed convolution": (
        lambda: nn.ConvTranspose2d(4, 6, 3, (2, 1), padding=1, output_padding=(1, 0), groups=2),
        squares,
        images,
    ),
    "convolution in three dimensions": (
        lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Conv3d(2, 4, 2, groups=2, padding=(1, 0, 0))),
        squares,
        images,
    ),
    "computed weights": (
        lambda: nn.Sequential(weight_norm(nn.Conv1d(ROWS, 3, 3)), weight_norm(nn.Linear(10, 2))),
        squares,
        rows,
    ),
    "pooling": (
        lambda: nn.Sequential(nn.Conv2d(4, 3, 1), nn.MaxPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d(3)),
        squares,
        images,
    ),
    "incomplete windows": (
        lambda: nn.Sequential(
            nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
            nn.AvgPool2d(2, (1, 2), ceil_mode=True),
            nn.AvgPool2d(2, 1, divisor_override=3),
            nn.Conv2d(4, 6, 1),
            nn.AdaptiveMaxPool2d((1, 3)),
        ),
        squares,
        lambda: torch.randn(SAMPLES, 4, 8, 16),
    ),
    "three dimensions": (
        lambda: nn.Sequential(
            nn.ConvTranspose3d(3, 4, (2, 3, 2), 2, (0, 1, 0), (0, 0, 1), groups=1),
            nn.MaxPool3d((3, 2, 1), 2, (1, 0, 0), ceil_mode=True),
            nn.AvgPool3d(2, 1, (1, 0, 1), count_include_pad=False),
            nn.AdaptiveAvgPool3d((2, 3, 1)),
        ),
        squares,
        frames,
    ),
    "images of a sample": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, (2, 1), (1, 2), 2),
            nn.GroupNorm(2, 6),
            nn.ConvTranspose2d(6, 4, (1, 3), (2, 1), groups=2),
            nn.MaxPool2d(2, 1),
            nn.InstanceNorm2d(4),
            nn.Upsample(scale_factor=2),
            weight_norm(nn.Conv2d(4, 2, 3, stride=3)),
            nn.Dropout2d(0.1),
            nn.AvgPool2d((1, 2), 1),
        ),
        of_frames,
        frames,
    ),
    "sequences of a sample": (
        lambda: nn.Sequential(
            nn.Conv1d(7, 7, 3), nn.LSTM(WIDTH - 2, 4, bidirectional=True, batch_first=True)
        ),
        of_sequences,
        lambda: torch.randn(SAMPLES, 3, 7, WIDTH),
    ),
    "frozen batch norm": (FrozenNorm, squares, images),
    "interpolation": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 3, 1), nn.Upsample(scale_factor=2), nn.Upsample((5, 20), mode="bilinear")
        ),
        squares,
        images,
    ),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), squares, images),
    "dropout of channels": (
        lambda: nn.Sequential(nn.Conv2d(4, 3, 1), nn.Dropout2d(0.2)),
        squares,
        images,
    ),
    "lstm": (lambda: nn.LSTM(WIDTH, 4, 2, batch_first=True, bidirectional=True), lstm, rows),
    "lstm with projections": (
        lambda: nn.LSTM(WIDTH, 6, 2, batch_first=True, proj_size=4, dropout=0.1, bias=False),
        lstm,
        rows,
    ),
    "gru": (lambda: nn.GRU(WIDTH, 4, 2, batch_first=True, bidirectional=True), recurrent, rows),
    "gru of steps": (lambda: nn.GRU(WIDTH, 4), of_steps, rows),
    "rnn": (lambda: nn.RNN(WIDTH, 4, batch_first=True), recurrent, rows),
    "rnn with relu": (lambda: nn.RNN(WIDTH, 4, nonlinearity="relu", batch_first=True), recurrent, rows),
    "moved": (lambda: nn.Linear(WIDTH, WIDTH), moved, rows),
    "assigned": (lambda: nn.Linear(WIDTH, WIDTH), assigned, rows),
    "chosen": (lambda: nn.Linear(WIDTH, WIDTH), chosen, rows),
    "composed": (lambda: nn.Linear(WIDTH, 4), composed, rows),
    "special": (lambda: nn.Linear(WIDTH, 4), special, rows),
    "accumulated": (lambda: nn.Linear(WIDTH, 4), accumulated, rows),
    "overlapped": (lambda: nn.Conv2d(4, 2, 1), overlapped, images),
    "sampled": (lambda: Sampled("bilinear", "zeros", corners=False), squares, images),
    "sampled at corners": (lambda: Sampled("bilinear", "reflection", corners=True), squares, images),
    "sampled inside": (lambda: Sampled("bilinear", "border", corners=False), squares, images),
    "sampled at pixels": (lambda: Sampled("nearest", "reflection", corners=False), squares, images),
    "last of each": (lambda: nn.Embedding(WORDS, 4), last_of_each, words),
    "one-hot": (lambda: nn.Linear(WORDS, 4), of_one_hot, words),
    "mask": (
        lambda: nn.Embedding(WORDS, 4),
        lambda layer, x: (
            (layer(x) * (x > 3)[torch.arange(x.shape[0])[:, None, None], torch.arange(ROWS)[None, :, None]])
            .square()
            .mean()
        ),
        words,
    ),
    "rows of a table": (
        lambda: nn.Embedding(WORDS, 4),
        lambda layer, x: (layer.weight[x] + layer.weight[torch.arange(ROWS) // 2]).square().mean(),
        words,
    ),
    "weight and its transpose": (
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda layer, x: (layer(x) @ layer.weight).square().mean(),
        rows,
    ),
    "experts": (
        lambda: nn.Bilinear(WIDTH, 3, 4),
        lambda layer, x: torch.einsum("bi,oie,be->bo", x[:, 0], layer.weight, x[:, 1, :3]).square().mean(),
        rows,
    ),
    "without gradient": (lambda: nn.Linear(WIDTH, WIDTH), without_gradient, rows),
    "in order": (lambda: nn.Linear(WIDTH, WIDTH), in_order, rows),
    "scattered": (lambda: nn.Linear(WIDTH, WIDTH), scattered, rows),
    "products": (lambda: nn.Linear(WIDTH, WIDTH), products, rows),
    "distances": (lambda: nn.Linear(WIDTH, WIDTH), distances, rows),
    "bags": (
        lambda: nn.ModuleList(nn.EmbeddingBag(WORDS, 4, mode=m, padding_idx=p) for m, p in BAGS),
        lambda bags, x: torch.cat([bag(x) for bag in bags], 1).square().mean(),
        words,
    ),
    "computed table": (
        lambda: weight_norm(nn.Embedding(WORDS, 4)),
        lambda layer, x: (layer(x) * torch.arange(4)).square().mean(),
        words,
    ),
    "bilinear": (
        lambda: nn.Bilinear(WIDTH, 3, 4),
        lambda layer, x: layer(x, x[..., 2:5].cos()).square().mean(),
        rows,
    ),
    "random depth": (
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda layer, x: (x + layer(x).div(0.8) * floor_of_random(layer, x, 0.8)).square().mean(),
        rows,
    ),
}


def floor_of_random(layer: Any, x: Any, kept: float) -> Any:
    """Random numbers 0 and 1 as models of transformers compute them; in evaluation, their mean."""
    return (kept + torch.rand(x.shape[0], 1, 1)).floor() if layer.training else kept


@pytest.mark.parametrize("name", CASES)
def test_operators_compute_what_pytorch_does(name: str) -> None:
    build, function, batch = CASES[name]
    torch.manual_seed(1)
    model, x = Net(build(), function), batch()
    traced = trace(model, {"x": x[:4]})
    model, double = model.double().eval(), in_double({"x": x})
    document = json.loads(json.dumps(traced.document))
    check_loss_and_gradients(traced, document, model, double, model(double["x"]))


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 4)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        if not self.training:
            return y.square().mean() / 2
        y = y + torch.randn_like(y) * 3 + torch.normal(0.0, 2.0, y.shape) + torch.empty_like(y).normal_()
        y = y * (torch.rand_like(y) > 0.2) + torch.empty_like(y).uniform_(-1, 1)
        return y.square().mean() * 0.5 + 0 * F.gumbel_softmax(y).mean()


def test_random_numbers_are_their_mean_in_evaluations() -> None:
    torch.manual_seed(1)
    model: Any = Noisy()
    traced, double = trace(model, {"x": rows()}), in_double({"x": rows()})
    drawn = [node["op"]["distribution"] for node in traced.document["nodes"] if node["op"]["op"] == "random"]
    assert sorted(drawn) == ["normal"] * 3 + ["uniform"] * 3
    model = model.double().eval()
    check_loss_and_gradients(traced, traced.document, model, double, model(**double))


def by_random(layer: Any, x: Any) -> Any:
    scale = random.random()
    return (layer(x) * scale).mean()


def packed(layer: Any, x: Any) -> Any:
    lengths = torch.full((len(x),), ROWS)
    return layer(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[1].mean()


class Counting(nn.Module):
    """Multiplies by the number of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2)
        self.register_buffer("step", torch.tensor(0.0))

    def forward(self, x: Any) -> Any:
        self.step += 1
        return self.linear(x) * self.step


def by_data(layer: Any, x: Any) -> Any:
    return layer(x).mean() if x.sum() > 0 else layer(x).square().mean()


@pytest.mark.parametrize(
    ("layer", "function", "batch", "part"),
    [
        (nn.Linear(WIDTH, 2), by_data, rows, r"^\S*operators.py:\d+: PyTorch can't export the module"),
        (nn.Linear(WIDTH, 2), by_random, rows, r"^\S*operators.py:\d+: a random number of random"),
        (nn.GRU(WIDTH, 2, batch_first=True), packed, rows, r"^\S*operators.py:\d+: packed sequences"),
        (
            Counting(),
            squares,
            rows,
            r"^layer \(\S*operators.py:\d+\): the loss depends on the buffer layer.step",
        ),
        (nn.Embedding(WORDS, 2, scale_grad_by_freq=True), squares, words, "scale_grad_by_freq"),
        (nn.AlphaDropout(), squares, rows, "use Dropout"),
        (nn.Linear(WIDTH, 2), lambda layer, x: layer(x)[x[..., 0] > 0].mean(), rows, "use torch.where"),
        (
            nn.Linear(WIDTH, 2),
            lambda layer, x: layer(x).mT.repeat(1, 1, 99).sort()[0].mean(),
            rows,
            "693 elements",
        ),
        (nn.Linear(WIDTH, 2), lambda layer, x: torch.special.i0(layer(x)).mean(), rows, "write it with"),
        (nn.Linear(WIDTH, 2), lambda layer, x: layer(x).mean().sqrt(), rows, "nothing else"),
        (nn.Linear(WIDTH, 2), lambda layer, x: (layer(x) * x.shape[0]).mean(), rows, "size of the batch"),
    ],
)
def test_operators_that_the_appliance_does_not_have_are_rejected(
    layer: Any, function: Any, batch: Any, part: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=part):
        trace(Net(layer, function), {"x": batch()})
