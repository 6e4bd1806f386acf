#!/usr/bin/env python3
"""The reference of the speed benchmark: the same model trained by PyTorch, f32, fused AdamW, in one process.

    LD_PRELOAD=/path/to/libjemalloc.so.2 python tests/bench/torch_train.py --preset 10m --steps 10 --warmup 2

prints one JSON line. LLaMA and BERT are those of `transformers`. Everything that makes PyTorch faster without changing
what it computes is on: scaled_dot_product attention, the fused optimizer, gradients set to none, denormals flushed to
zero. Preloading jemalloc (it saves PyTorch's page faults) is left to the caller, since it must come before the process
starts; the line tells whether it did.
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parity"))
from gpt import Config, Gpt  # noqa: E402  the model whose losses and gradients the parity tests compare

PREDICTIONS = 20  # masked tokens of a sample of BERT


@dataclass(frozen=True)
class Preset:
    """How to make the model, its vocabulary, the batch it is trained with, and its loss of tokens and next tokens."""

    build: Callable[[], nn.Module]
    vocab_size: int
    batch: int
    length: int
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]


def gpt(config: Config, batch: int, length: int) -> Preset:
    def loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())

    return Preset(lambda: Gpt(config).initialise(seed=0), config.vocab_size, batch, length, loss)


def llama_15m() -> Preset:
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=288, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=6, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip

    def loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(ids, use_cache=False).logits.flatten(0, 1), labels.flatten())

    return Preset(lambda: transformers.LlamaForCausalLM(config), config.vocab_size, 8, 256, loss)


class MaskedLanguageModel(nn.Module):
    """BERT whose output layer sees the masked tokens only, as in its own pre-training."""

    def __init__(self, config: transformers.BertConfig) -> None:
        super().__init__()
        self.model = transformers.BertForMaskedLM(config)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.model.bert(input_ids=ids, token_type_ids=torch.zeros_like(ids)).last_hidden_state
        return self.model.cls(rows[:, :PREDICTIONS])


def bert_base() -> Preset:
    config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), labels[:, :PREDICTIONS].flatten())

    return Preset(lambda: MaskedLanguageModel(config), config.vocab_size, 16, 128, loss)


PRESETS = {
    "10m": gpt(Config(vocab_size=256, positions=256, hidden=384, layers=6, heads=6, inner=1536), 16, 256),
    "124m": gpt(Config(vocab_size=50257, positions=1024, hidden=768, layers=12, heads=12, inner=3072), 4, 1024),
    "llama-15m": llama_15m(),
    "bert-base": bert_base(),
}


def corpus(text: Path | None, vocab_size: int, seed: int) -> Tensor:
    """The tokens to draw samples from: the bytes of a file, or a million random ones."""
    if text:
        return torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    return torch.randint(vocab_size, (1 << 20,), generator=torch.Generator().manual_seed(seed))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    groups = [
        {"params": [tensor for tensor in parameters if tensor.dim() > 1], "weight_decay": 0.1},
        {"params": [tensor for tensor in parameters if tensor.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


def train(
    preset: Preset, model: nn.Module, tokens: Tensor, batch: int, steps: int, clip: float
) -> tuple[list[float], list[float]]:
    """Seconds and loss of each step; the time covers forward, backward, clipping and update, not drawing the samples."""
    length = preset.length
    optimizer = optimizer_of(model)
    generator = torch.Generator().manual_seed(1)
    seconds, losses = [], []
    for _ in range(steps):
        starts = torch.randint(len(tokens) - length, (batch,), generator=generator)
        windows = torch.stack([tokens[start : start + length + 1] for start in starts])
        ids, labels = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        begun = time.perf_counter()
        loss = preset.loss(model, ids, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begun)
    return seconds, losses


def status(field: str) -> int:
    """A size in bytes from /proc/self/status. (getrusage would count the parent's peak before exec.)"""
    return 1024 * int(re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)[1])


def cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="10m")
    parser.add_argument("--compile", action="store_true", help="compile the model; it needs a C++ compiler")
    parser.add_argument("--batch", type=int, help="another batch size than the preset's")
    parser.add_argument("--steps", type=int, default=10, help="steps that are measured")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", type=Path, metavar="FILE", help="train on this file's bytes instead of random tokens")
    parser.add_argument("--clip", type=float, default=0.0, help="clip the gradients to this global norm")
    given = parser.parse_args()
    preset = PRESETS[given.preset]
    batch = given.batch or preset.batch

    torch.set_flush_denormal(True)  # before any worker thread is made: they inherit it
    torch.set_num_threads(given.threads)
    model = preset.build().train()
    tokens = corpus(given.text, preset.vocab_size, seed=2)
    trained = torch.compile(model) if given.compile else model
    seconds, losses = train(preset, trained, tokens, batch, given.warmup + given.steps, given.clip)
    measured = seconds[given.warmup :]
    report = {
        "preset": given.preset,
        "parameters": sum(tensor.numel() for tensor in model.parameters()),
        "batch": batch,
        "sequence": preset.length,
        "compiled": given.compile,
        "tokens_per_s": batch * preset.length / statistics.median(measured),
        "seconds": measured,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "peak_rss_bytes": status("VmHWM"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "jemalloc": "libjemalloc" in Path("/proc/self/maps").read_text(),
        "cpu": cpu_model(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
