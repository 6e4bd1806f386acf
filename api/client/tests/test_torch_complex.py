"""Complex numbers and Fourier transforms are traced to graphs with the same loss and gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from safetensors.torch import load_file
from torch import nn

from millrace.torch import UnsupportedModelError, UnsupportedOptimizerError, trace
from millrace.torch.optimizer import optimizer_params
from millrace.torch.training import state_of
from torch_reference import SAMPLES, check_loss_and_gradients, in_double

ROWS, WIDTH, HEADS = 6, 8, 2


class Rotary(nn.Module):
    """Turns pairs of elements by angles, as the code of LLaMA does."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        angles = torch.outer(torch.arange(2.0 * ROWS), 100.0 ** -torch.arange(0, 1, HEADS / WIDTH * 2))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Any) -> Any:
        heads = self.project(x).view(x.shape[0], ROWS, HEADS, WIDTH // HEADS)
        pairs = torch.view_as_complex(heads.reshape(*heads.shape[:-1], -1, 2))
        turned = torch.view_as_real(pairs * self.turns[1 : ROWS + 1].view(1, ROWS, 1, -1)).flatten(3)
        scores = torch.einsum("bthd,bshd->bhts", turned, heads)
        return (scores.softmax(-1) * scores).square().mean()


class Spectral(nn.Module):
    """Multiplies low frequencies of an image by weights, as Fourier neural operators do."""

    def __init__(self, norm: str | None, width: int) -> None:
        super().__init__()
        self.lift = nn.Linear(WIDTH, 4 * width)
        self.weights = nn.Parameter(torch.randn(4, 3, 3, 2, dtype=torch.cfloat))
        self.norm, self.width = norm, width

    def forward(self, x: Any) -> Any:
        x = self.lift(x).view(-1, ROWS, self.width, 4).permute(0, 3, 1, 2)
        found = torch.fft.rfft2(x, norm=self.norm)
        kept = torch.zeros(
            x.shape[0], 3, ROWS, self.width // 2 + 1, dtype=self.weights.dtype, device=x.device
        )
        kept[:, :, :3, :2] = torch.einsum("bixy,ioxy->boxy", found[:, :, :3, :2], self.weights)
        kept[:, :, -3:, :2] = torch.einsum("bixy,ioxy->boxy", found[:, :, -3:, :2], self.weights.conj())
        y = torch.fft.irfft2(kept, s=(ROWS, self.width), norm=self.norm)
        return y.square().mean() + kept.abs().mean()


class Global(nn.Module):
    """Filters all frequencies; the weights are pairs of real numbers, as in GFNet."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.weights = nn.Parameter(torch.randn(ROWS, WIDTH // 2 + 1, 2))

    def forward(self, x: Any) -> Any:
        found = torch.fft.rfft2(self.project(x), dim=(1, 2), norm="ortho")
        y = torch.fft.irfft2(
            found * torch.view_as_complex(self.weights), s=(ROWS, WIDTH), dim=(1, 2), norm="ortho"
        )
        return y.square().mean()


class Mixing(nn.Module):
    """Mixes tokens and elements, as FNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH - 1)

    def forward(self, x: Any) -> Any:
        y = self.project(x)
        y = y + torch.fft.fft(torch.fft.fft(y, dim=-1), dim=-2).real
        shifted = torch.fft.ifft(torch.fft.fftshift(torch.fft.fft(y, norm="forward"), dim=-1))
        return (
            (shifted.real * shifted.imag + torch.fft.hfft(shifted, n=5).sum(-1, keepdim=True)).square().mean()
        )


class Arithmetic(nn.Module):
    """Computes with complex numbers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 2 * WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH, dtype=torch.cfloat)
        self.scale = nn.Parameter(torch.randn(WIDTH, dtype=torch.cfloat))

    def forward(self, x: Any) -> Any:
        a, b = self.project(x).chunk(2, -1)
        z = torch.complex(a, b)
        w = self.inner(z) * self.scale - x + 2 * z.conj()
        w = torch.where(a > 0, w, w**2) / (z + 2j) + torch.polar(b.exp(), a) * (0.1 + 0.2j)
        w = w + torch.zeros_like(w) + 0.1 * torch.sgn(z) + torch.full_like(z, 1 + 1j)
        w = w + z.angle() / 3 + torch.log(z + 4)
        w = torch.cat([w, w.flip(1), torch.exp(1j * a)], 1) @ torch.stack([z, 1 / (z + 3)], 1).sum(1).mT
        # At 0, the gradient of abs is 0.
        return (w.abs() + (w * (w.real > 0)).abs()).mean() + (w.mean(-1) - w.sum(2)).abs().square().mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "rotary": Rotary,
    "spectral": lambda: Spectral(None, 5),
    "spectral of even size": lambda: Spectral("ortho", 4),
    "global": Global,
    "mixing": Mixing,
    "arithmetic": Arithmetic,
}


def rows() -> Any:
    return torch.randn(SAMPLES, ROWS, WIDTH)


def to_double(model: Any) -> Any:
    """Convert all numbers to 64 bits: `Module.double` leaves complex ones as they are."""
    model.double()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and parameter.is_complex():
                parameter.data = parameter.data.to(torch.complex128)
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer.to(torch.complex128) if buffer.is_complex() else buffer
    return model


@pytest.mark.parametrize("name", MODELS)
def test_complex_numbers_are_computed_as_in_pytorch(name: str) -> None:
    torch.manual_seed(1)
    model, x = MODELS[name](), rows()
    traced = trace(model, {"x": x[:4]})
    model, double = to_double(model), in_double({"x": x})
    document = json.loads(json.dumps(traced.document))
    check_loss_and_gradients(traced, document, model, double, model(double["x"]))


def test_complex_parameters_are_stored_as_pairs_of_numbers(tmp_path: Path) -> None:
    model = Spectral(None, 4)
    traced = trace(model, {"x": rows()})
    traced.save_weights(model, tmp_path / "weights")
    stored = load_file(tmp_path / "weights")
    assert stored["weights"].shape == (4, 3, 3, 2, 2)
    other = Spectral(None, 4)
    traced.load_weights(other, tmp_path / "weights")
    assert torch.equal(other.weights, model.weights)
    state = state_of(other, {name: tensor + 1 for name, tensor in stored.items()}, {})
    assert torch.equal(state["weights"], model.weights.detach() + (1 + 1j))


def test_complex_operators_without_translation_are_rejected() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(UnsupportedModelError, match=r"sqrt .* not supported for complex numbers: write it"):
        trace(model, {"x": rows()}, call=lambda model, x: torch.fft.fft(model(x)).sqrt().abs().mean())


def test_adafactor_of_complex_parameters_is_rejected() -> None:
    """PyTorch's own step would fail."""
    model = Spectral(None, 4)
    optimizer = torch.optim.Adafactor(model.parameters(), eps=(1e-30, 1e-3))
    with pytest.raises(UnsupportedOptimizerError, match="does not support complex parameters"):
        optimizer_params(optimizer, model, trace(model, {"x": rows()}), steps=1)
