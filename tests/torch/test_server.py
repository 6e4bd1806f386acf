"""Trains PyTorch modules on a real server, beside PyTorch's own training loop."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F  # noqa: N812 (its usual name)
from torch.utils.data import TensorDataset

from millrace import Appliance, Job, errors
from millrace.torch import UnsupportedModelError

STEPS = 20
BATCH = 16
SAMPLES = 64


class Convolutional(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 6, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 6)
        self.output = torch.nn.Linear(6 * 36, 5)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.convolution(image * self.scale)))
        return self.output(hidden.flatten(1))


def finish(job: Job) -> list[float]:
    """Waits for a job; returns its losses."""
    assert job.wait(timeout=300) == "Succeeded"
    return [point.loss for point in job.metrics() if point.loss is not None]


def pytorch_losses(
    module: torch.nn.Module,
    loss_of: Any,
    data: list[torch.Tensor],
    optimizer: Any,
    scheduler: Any = None,
    observe: Any = lambda *batch: None,
) -> list[float]:
    """Trains with PyTorch, with the samples in their order. Calls `observe` with each batch before its step."""
    losses = []
    for step in range(STEPS):
        first = step * BATCH % SAMPLES
        batch = [tensor[first : first + BATCH] for tensor in data]
        observe(*batch)
        loss = loss_of(module, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


def images() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(SAMPLES, 1, 6, 6), torch.randint(0, 5, (SAMPLES,))


def test_module_trains_as_with_pytorch(appliance: Appliance) -> None:
    """Two parameter groups, a scheduler, buffers, a metric; the weights come back into the module."""
    image, labels = images()
    module = Convolutional()
    reference = copy.deepcopy(module)

    def optimizer_of(of: Convolutional) -> tuple[Any, Any]:
        groups = [
            {"params": of.convolution.parameters(), "lr": 2e-3, "weight_decay": 0.0},
            {"params": [*of.norm.parameters(), *of.output.parameters()]},
        ]
        optimizer = torch.optim.AdamW(groups, lr=5e-3, weight_decay=0.1)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(
            optimizer, [2e-3, 5e-3], total_steps=STEPS + 1, cycle_momentum=False
        )

    def accuracy(x: Any, y: Any) -> Any:
        return (x.detach().argmax(-1) == y).float().mean()

    optimizer, scheduler = optimizer_of(module)
    options: Any = {
        "loss": lambda x, y: (F.cross_entropy(x, y), {"accuracy": accuracy(x, y)}),
        "data": TensorDataset(image, labels),
        "eval_data": TensorDataset(image, labels),
        "optimizer": optimizer,
        "scheduler": scheduler,
        "batch_size": BATCH,
        "max_steps": STEPS,
        "shuffle": False,
    }
    plan = appliance.plan(module, num_csx=2, **options)
    assert plan.fits
    assert any("not uploaded yet" in note for note in plan.notes)
    job = appliance.train(module, num_csx=2, **options)
    finish(job)
    optimizer, scheduler = optimizer_of(reference)
    accuracies: list[float] = []
    expected = pytorch_losses(
        reference,
        lambda model, x, y: F.cross_entropy(model(x), y),
        [image, labels],
        optimizer,
        scheduler,
        lambda x, y: accuracies.append(float(accuracy(reference(x), y))),
    )
    points = [point for point in job.metrics() if point.mode == "train"]
    assert [point.loss for point in points] == pytest.approx(expected, rel=1e-4)
    assert [point.metrics["train/accuracy"] for point in points] == pytest.approx(accuracies, rel=1e-6)
    evaluation = next(point for point in job.metrics(mode="eval"))
    assert evaluation.metrics["eval/accuracy"] == pytest.approx(float(accuracy(reference(image), labels)))
    module.load_state_dict(job.state_dict())
    for (name, trained), other in zip(module.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(trained, other, rtol=1e-3, atol=1e-5, msg=name)
    # A later program finds the job by its name.
    again = appliance.job(job.name)
    with pytest.raises(errors.DownloadError, match="give its module"):
        again.state_dict()
    state = again.state_dict(Convolutional())
    assert torch.equal(state["output.weight"], module.output.weight)


def one_cycle(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=STEPS + 1)


def two_momenta(of: Convolutional) -> list[dict[str, Any]]:
    others = [*of.norm.parameters(), *of.output.parameters()]
    return [{"params": of.convolution.parameters(), "momentum": 0.0}, {"params": others}]


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "nesterov": (lambda m: torch.optim.SGD(m.parameters(), 0.05, 0.9, nesterov=True), one_cycle),
    "dampening": (lambda m: torch.optim.SGD(two_momenta(m), 0.05, 0.9, dampening=0.5), None),
    "maximize": (lambda m: torch.optim.SGD(m.parameters(), 0.01, maximize=True, weight_decay=0.1), None),
    "amsgrad": (lambda m: torch.optim.AdamW(m.parameters(), amsgrad=True), one_cycle),
    "nadam": (
        lambda m: torch.optim.NAdam(m.parameters(), weight_decay=0.1, decoupled_weight_decay=True),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 1e-3, 5e-3, 4),
    ),
    "radam": (
        lambda m: torch.optim.RAdam(m.parameters(), weight_decay=0.1, decoupled_weight_decay=True),
        one_cycle,
    ),
    "rmsprop": (lambda m: torch.optim.RMSprop(m.parameters(), 1e-3, momentum=0.5, centered=True), None),
    "adamax": (lambda m: torch.optim.Adamax(m.parameters(), weight_decay=0.1), one_cycle),
    "adadelta": (lambda m: torch.optim.Adadelta(m.parameters(), 1.0, weight_decay=0.1), None),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_trains_as_that_of_pytorch(appliance: Appliance, name: str) -> None:
    """On two systems; on one, it has the same bits."""
    create, scheduler = OPTIMIZERS[name]
    image, labels = images()
    module = Convolutional()
    optimizer = create(module)
    options: Any = {
        "loss": F.cross_entropy,
        "data": {"image": image, "labels": labels},
        "optimizer": optimizer,
        "scheduler": scheduler and scheduler(optimizer),
        "batch_size": BATCH,
        "max_steps": STEPS,
        "shuffle": False,
    }
    jobs = [appliance.train(module, num_csx=systems, **options) for systems in (2, 1)]
    losses = [finish(job) for job in jobs]

    def loss_of(of: Convolutional, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(of(x), y)

    optimizer = create(module)
    expected = pytorch_losses(
        module, loss_of, [image, labels], optimizer, scheduler and scheduler(optimizer)
    )
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[1] == losses[0]
    assert jobs[0].checkpoints()[-1].digest == jobs[1].checkpoints()[-1].digest


def test_model_of_transformers_has_the_same_bits_on_any_number_of_systems(appliance: Appliance) -> None:
    """GPT-2 has transposed and tied weights, and returns its loss itself."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=24,
        n_layer=2,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    reference = copy.deepcopy(model)
    tokens = torch.randint(0, 50, (SAMPLES, 16))
    data = {"input_ids": tokens, "labels": tokens}
    digests = set()
    for systems in (1, 2, 4):
        job = appliance.train(
            model,
            num_csx=systems,
            data=data,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
            batch_size=BATCH,
            max_steps=STEPS,
            shuffle=False,
        )
        losses = finish(job)
        digests.add(job.checkpoints()[-1].digest)
    assert len(digests) == 1
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-3)

    def loss_of(module: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = module(input_ids=inputs, labels=inputs).loss
        return loss

    assert losses == pytest.approx(pytorch_losses(reference, loss_of, [tokens], optimizer), rel=1e-4)
    model.load_state_dict(job.state_dict())
    assert model.lm_head.weight is model.transformer.wte.weight


class ThreeMeans(torch.nn.Module):
    """A mean with weights of classes, and two that different masks select."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.output = torch.nn.Linear(6, 16), torch.nn.Linear(16, 5)
        self.classes = torch.nn.CrossEntropyLoss(torch.tensor([0.2, 1.0, 3.0, 0.5, 2.0]))

    def forward(self, x: Any, labels: Any, first: Any, second: Any) -> Any:
        hidden = torch.tanh(self.body(x))
        squares = hidden.square().mean(-1)
        means = (squares * first).sum() / first.sum() - (squares * second).sum() / second.sum() / 3
        return self.classes(self.output(hidden).flatten(0, 1), labels.flatten()) + means


def rows() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    labels = torch.randint(0, 5, (SAMPLES, 7))
    labels[torch.rand(labels.shape) < 0.5] = -100
    masks = {
        name: (torch.rand(SAMPLES, 7) < share).float() for name, share in (("first", 0.8), ("second", 0.2))
    }
    return {"x": torch.randn(SAMPLES, 7, 6), "labels": labels, **masks}


def pretraining() -> torch.nn.Module:
    sizes = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 48, "max_position_embeddings": 16}
    config = transformers.BertConfig(
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **sizes,
    )
    return transformers.BertForPreTraining(config)


def sentences() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (SAMPLES, 16))
    labels = ids.where(torch.rand(ids.shape) < 0.15, -100)
    return {"input_ids": ids, "labels": labels, "next_sentence_label": torch.randint(0, 2, (SAMPLES,))}


@pytest.mark.parametrize(("build", "data_of"), [(ThreeMeans, rows), (pretraining, sentences)])
def test_losses_with_divisors_of_their_own_train_as_with_pytorch(
    appliance: Appliance, build: Any, data_of: Any
) -> None:
    """The divisors are those of the whole batch, which two systems compute; of an evaluation, those of all samples."""
    module, data = build(), data_of()
    reference = copy.deepcopy(module)
    names = list(data)

    def loss_of(model: Any, *batch: Any) -> Any:
        result = model(**dict(zip(names, batch, strict=True)))
        return result if isinstance(result, torch.Tensor) else result.loss

    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    options: Any = {
        "data": data,
        "eval_data": data,
        "optimizer": torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9),
        "batch_size": BATCH,
        "max_steps": STEPS,
        "shuffle": False,
    }
    job = appliance.train(module, num_csx=2, **options)
    finish(job)
    expected = pytorch_losses(reference, loss_of, list(data.values()), optimizer)
    points = [point for point in job.metrics() if point.mode == "train"]
    assert [point.loss for point in points] == pytest.approx(expected, rel=1e-4)
    evaluation = next(point for point in job.metrics(mode="eval"))
    with torch.no_grad():
        assert evaluation.loss == pytest.approx(float(loss_of(reference, *data.values())), rel=1e-4)


class MeanOfRandomRows(torch.nn.Module):
    """The loss is the parameter, as long as the divisor belongs to the random numbers of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.level = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (torch.rand(x.shape) < 0.3).float()
        noisy = torch.nn.functional.dropout(kept)
        return (self.level * noisy).sum() / noisy.sum()


def test_divisor_may_depend_on_random_numbers(appliance: Appliance) -> None:
    module = MeanOfRandomRows()
    options: Any = {"data": {"x": torch.zeros(SAMPLES, 7)}, "batch_size": BATCH, "max_steps": STEPS}
    job = appliance.train(
        module, num_csx=2, optimizer=torch.optim.SGD(module.parameters(), lr=0.02), **options
    )
    losses = finish(job)
    assert losses == pytest.approx([1 - 0.02 * step for step in range(STEPS)], rel=1e-5)


class Spectral(torch.nn.Module):
    """Turns the rows of a signal by angles, and multiplies its low frequencies by complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = torch.nn.Linear(1, 8)
        self.weights = torch.nn.Parameter(0.3 * torch.randn(4, 4, 5, dtype=torch.cfloat))
        self.output = torch.nn.Linear(4, 1)
        angles = torch.outer(torch.arange(12.0), torch.tensor([1.0, 0.5, 0.2, 0.1]))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(self.lift(x.unsqueeze(-1)).unflatten(-1, (4, 2)))
        found = torch.fft.rfft((pairs * self.turns).real, dim=1)
        kept = torch.zeros_like(found)
        kept[:, :5] = torch.einsum("bki,iok->bko", found[:, :5], self.weights)
        return self.output(torch.tanh(torch.fft.irfft(kept, n=12, dim=1))).squeeze(-1)


def test_module_with_complex_numbers_trains_as_with_pytorch(appliance: Appliance) -> None:
    torch.manual_seed(0)
    module, x = Spectral(), torch.randn(SAMPLES, 12)
    data = [x, x.cumsum(1).tanh()]
    reference = copy.deepcopy(module)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (module, reference)]
    options: Any = {"batch_size": BATCH, "max_steps": STEPS, "shuffle": False, "num_csx": 2}
    job = appliance.train(
        module, loss=F.mse_loss, data=TensorDataset(*data), optimizer=optimizers[0], **options
    )
    losses = finish(job)
    expected = pytorch_losses(reference, lambda model, x, y: F.mse_loss(model(x), y), data, optimizers[1])
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < 0.9 * losses[0]
    module.load_state_dict(job.state_dict())
    torch.testing.assert_close(module.weights, reference.weights, rtol=1e-3, atol=1e-4)


def test_module_that_cannot_be_trained_is_rejected_before_anything_is_sent(appliance: Appliance) -> None:
    image, labels = images()
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(32, 5)
    )
    jobs = len(list(appliance.jobs()))
    with pytest.raises(UnsupportedModelError, match="batch norm"):
        appliance.train(
            module,
            loss=F.cross_entropy,
            data={"image": image, "labels": labels},
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            batch_size=BATCH,
            max_steps=1,
        )
    assert len(list(appliance.jobs())) == jobs


def test_label_beyond_the_classes_ends_the_job(appliance: Appliance) -> None:
    """The same sample fails in every attempt, so there is no other."""
    image, labels = images()
    labels[20] = 5
    module = Convolutional()
    job = appliance.train(
        module,
        loss=F.cross_entropy,
        data={"image": image, "labels": labels},
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        batch_size=BATCH,
        max_steps=STEPS,
        shuffle=False,
    )
    assert job.wait(timeout=100, check=False) == "BadData"
    with pytest.raises(
        errors.JobFailed, match=r"labels of leaf \d+ is 5 at position \d+, but must be less than 5"
    ):
        job.check()


NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(self.linear(x), labels)

def data():
    return {"x": torch.randn(32, 4), "labels": torch.randint(0, 3, (32,))}
"""
PARAMS = """
train_input: {batch_size: 16}
optimizer: {optimizer_type: AdamW, learning_rate: 1e-3}
runconfig: {max_steps: 3}
"""


def test_module_is_trained_from_the_command_line(appliance: Appliance, tmp_path: Path) -> None:
    """The flags name functions of modules in the working directory."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "params.yaml").write_text(PARAMS)

    def millrace(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "millrace", "--url", appliance.url, *arguments, "-p", "params.yaml"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    named = ["--model", "net:Net", "--data", "net:data"]
    planned = millrace("plan", *named)
    assert planned.returncode == 0 and "Fits:           yes" in planned.stdout, planned.stderr
    trained = millrace("train", *named, "--num_csx", "2")
    assert trained.returncode == 0 and "Succeeded: step 3 of 3" in trained.stdout + trained.stderr
    for arguments, says in [
        (["--model", "net:data", "--data", "net:data"], "is of type dict, not a torch.nn.Module or keras.Model"),
        (["--model", "net:Other", "--data", "net:data"], "--model net:Other can't be imported"),
        (["--data", "net:data"], "--data needs a module as --model"),
        (["--model", "net:Net"], "data is missing"),
    ]:
        rejected = millrace("train", *arguments)
        assert rejected.returncode == 2 and f"error: {says}" in rejected.stderr.replace(
            "--model net:data ", ""
        )
