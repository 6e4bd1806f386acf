"""A compact GPT in PyTorch, with the tensor names and layouts of Hugging Face's GPT-2.

Learned positions, pre-layer-norm blocks, one fused query/key/value projection, causal attention, an MLP with GELU, an
output head that shares the token embedding or has weights of its own. The parity reference and the speed benchmark both
train this model, so what is timed is what is proven equal.

Module names are the tensor names of Hugging Face; only the layout of the four projections of a block differs: there
`Conv1D` stores [in, out], here `nn.Linear` stores [out, in]. `load_directory` and `hf_tensors` turn them.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

PROJECTIONS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
# `activation_function` of config.json -> `approximate` of torch's GELU.
GELUS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
# Constant masks that old exports of Hugging Face carry along: no parameters.
MASKS = (".attn.bias", ".attn.masked_bias")


@dataclass(frozen=True)
class Config:
    """The shape of a model; `biases` names the projections (and `lm_head`) that have one."""

    vocab_size: int
    positions: int
    hidden: int
    layers: int
    heads: int
    inner: int
    epsilon: float = 1e-5
    gelu: str = "tanh"
    tied: bool = True
    biases: frozenset = frozenset(PROJECTIONS)

    def linear(self, role: str, inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=role in self.biases)


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.c_attn = config.linear("attn.c_attn", config.hidden, 3 * config.hidden)
        self.c_proj = config.linear("attn.c_proj", config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, hidden = x.shape
        query, key, value = (
            part.view(batch, time, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(hidden, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, time, hidden))


class Mlp(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.c_fc = config.linear("mlp.c_fc", config.hidden, config.inner)
        self.c_proj = config.linear("mlp.c_proj", config.inner, config.hidden)
        self.gelu = nn.GELU(config.gelu)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden, config.epsilon)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.hidden, config.epsilon)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """`forward` takes token ids [batch, T] and returns logits [batch, T, vocab]."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            OrderedDict(
                wte=nn.Embedding(config.vocab_size, config.hidden),
                wpe=nn.Embedding(config.positions, config.hidden),
                h=nn.ModuleList(Block(config) for _ in range(config.layers)),
                ln_f=nn.LayerNorm(config.hidden, config.epsilon),
            )
        )
        self.lm_head = config.linear("lm_head", config.hidden, config.vocab_size)
        if config.tied:
            self.lm_head.weight = self.transformer.wte.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1])
        x = self.transformer.wte(input_ids) + self.transformer.wpe(positions)
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))

    def initialise(self, seed: int, deviation: float = 0.02) -> "Gpt":
        """Initializes like GPT-2: normal weights, zero biases, unit norms, narrower residual projections."""
        generator = torch.Generator().manual_seed(seed)
        narrow = deviation / (2 * self.config.layers) ** 0.5
        with torch.no_grad():
            for name, tensor in self.named_parameters():
                if tensor.dim() > 1:
                    tensor.normal_(0.0, narrow if "c_proj" in name else deviation, generator=generator)
                elif name.endswith("bias"):
                    tensor.zero_()
        return self


def hf_layout(name: str, tensor: Tensor) -> Tensor:
    """Turns a tensor between this model's layout and Hugging Face's: each is the other's transpose, or the same."""
    projection = name.endswith(tuple(f"{role}.weight" for role in PROJECTIONS))
    return tensor.t().contiguous() if projection else tensor.contiguous()


def hf_tensors(model: Gpt, of=lambda parameter: parameter) -> dict[str, Tensor]:
    """`of(parameter)` for every parameter, by Hugging Face name and in its layout; a tied head appears once, as wte."""
    return {name: hf_layout(name, of(parameter).detach()) for name, parameter in model.named_parameters()}


def load_directory(directory: Path) -> Gpt:
    """Reads `config.json` and `model.safetensors`. Which biases exist, and all sizes, are told by the tensors; anything
    that this model would compute differently is refused."""
    raw = json.loads((directory / "config.json").read_text())
    tensors = {
        name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor.float()
        for name, tensor in load_file(directory / "model.safetensors").items()
        if not name.endswith(MASKS)
    }
    config = _config(raw, tensors)
    model = Gpt(config)
    if config.tied:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    try:
        model.load_state_dict({name: hf_layout(name, tensor) for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise SystemExit(f"{directory}: the tensors do not make the GPT-2 that config.json describes: {error}") from None
    return model


def _config(raw: dict, tensors: dict[str, Tensor]) -> Config:
    if raw.get("scale_attn_by_inverse_layer_idx") or not raw.get("scale_attn_weights", True):
        raise SystemExit("config.json asks for an attention scale other than 1/sqrt(head size); the reference has no other")
    activation = raw.get("activation_function", "gelu_new")
    if activation not in GELUS:
        raise SystemExit(f"config.json: activation_function {activation!r} is none of {', '.join(GELUS)}")
    vocab_size, hidden = tensors["transformer.wte.weight"].shape
    biases = {role for role in PROJECTIONS if f"transformer.h.0.{role}.bias" in tensors}
    return Config(
        vocab_size=vocab_size,
        positions=tensors["transformer.wpe.weight"].shape[0],
        hidden=hidden,
        layers=raw["n_layer"],
        heads=raw["n_head"],
        inner=tensors["transformer.h.0.mlp.c_fc.weight"].shape[1],
        epsilon=raw.get("layer_norm_epsilon", 1e-5),
        gelu=GELUS[activation],
        tied=raw.get("tie_word_embeddings", True),
        biases=frozenset(biases | ({"lm_head"} if "lm_head.bias" in tensors else set())),
    )
