#!/usr/bin/env python3
"""Tests of the reference itself: against `transformers`, torch's own schedules, and the committed fixtures.

    python tests/parity/test_reference.py
"""

import io
import json
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

import checks
import reference
from gpt import hf_tensors, load_directory

FIXTURES = Path(__file__).parent / "fixtures"


def saved(directory: Path, activation: str, tied: bool) -> GPT2LMHeadModel:
    """A small random GPT-2 of transformers, saved to `directory`; no bias is zero and no norm is one."""
    torch.manual_seed(11)
    config = GPT2Config(
        vocab_size=97, n_positions=24, n_embd=48, n_layer=3, n_head=4, n_inner=100, activation_function=activation,
        tie_word_embeddings=tied, bos_token_id=None, eos_token_id=None, layer_norm_epsilon=1e-4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor += 0.1 * torch.randn(tensor.shape)
    model.save_pretrained(directory)
    return model


def quiet(check, *given) -> tuple[int, str]:
    with redirect_stdout(io.StringIO()) as output:
        code = check(*given)
    return code, output.getvalue()


class Scratch(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.directory = Path(holder.name)


class Model(Scratch):
    def test_logits_and_gradients_are_those_of_transformers(self):
        ids = torch.randint(97, (2, 24), generator=torch.Generator().manual_seed(3))
        for activation, tied in [("gelu_new", True), ("gelu_new", False), ("gelu", True), ("gelu", False)]:
            with self.subTest(activation=activation, tied=tied):
                theirs, ours = saved(self.directory, activation, tied), load_directory(self.directory)
                expected, computed = theirs(ids).logits, ours(ids)
                torch.testing.assert_close(computed, expected, rtol=1e-5, atol=1e-5)
                for logits in (expected, computed):
                    F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
                gradients = hf_tensors(ours, lambda parameter: parameter.grad)
                named = dict(theirs.named_parameters())
                self.assertEqual(set(gradients), set(named))
                for name, gradient in gradients.items():
                    torch.testing.assert_close(gradient, named[name].grad, rtol=1e-4, atol=1e-6)

    def test_what_the_reference_cannot_compute_is_refused(self):
        saved(self.directory, "gelu_new", True)
        config = self.directory / "config.json"
        described = json.loads(config.read_text())
        for change in [{"activation_function": "relu"}, {"scale_attn_weights": False}, {"n_layer": 2}]:
            config.write_text(json.dumps(described | change))
            with self.subTest(change), self.assertRaises(SystemExit):
                load_directory(self.directory)


class Training(Scratch):
    def test_a_sequence_of_schedules_is_torchs(self):
        schedule = [
            {"scheduler": "Linear", "initial_learning_rate": 0.1, "end_learning_rate": 0.4, "total_iters": 4},
            {"scheduler": "CosineDecay", "initial_learning_rate": 0.4, "end_learning_rate": 0.04, "total_iters": 6},
        ]
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=4)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6, eta_min=0.04)
        torchs = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[4])
        for step in range(11):
            self.assertAlmostEqual(reference.learning_rate(schedule, step), torchs.get_last_lr()[0], places=12)
            optimizer.step()
            torchs.step()
        self.assertEqual(reference.learning_rate(schedule, 500), 0.04)

    def test_masked_labels_and_both_scalings(self):
        logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(5))
        labels = torch.tensor([[1, -100, 4], [-1, 0, 2]])
        total = sum(-logits[row, column].log_softmax(0)[labels[row, column]] for row, column in [(0, 0), (0, 2), (1, 1), (1, 2)])
        by_tokens = reference.batch_loss(logits, labels, {"loss_scaling": "num_tokens"})
        by_batch = reference.batch_loss(logits, labels, {"loss_scaling": "batch_size", "loss_weight": 0.25})
        torch.testing.assert_close(by_tokens, total / 4)
        torch.testing.assert_close(by_batch, total * 0.25 / 2)

    def test_committed_fixtures_are_made_from_what_lies_beside_them(self):
        for case in sorted(path.name for path in FIXTURES.iterdir()):
            with self.subTest(case):
                kept, made = FIXTURES / case, self.directory / case
                quiet(reference.make_fixture, kept / "weights", kept / "samples.safetensors", kept / "spec.json", made)
                old, new = (json.loads((place / "fixture.json").read_text()) for place in (kept, made))
                for part in ("spec", "config", "inputs", "tokens", "learning_rate"):
                    self.assertEqual(old[part], new[part])
                for part in ("loss", "grad_norm"):
                    self.assertLess(reference.relative(new[part], old[part]), 1e-5)
                old, new = (load_file(place / "fixture.safetensors") for place in (kept, made))
                torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-5)


class Checks(Scratch):
    def test_export(self):
        model, file = saved(self.directory, "gelu_new", True), self.directory / "logits.safetensors"
        ids = torch.randint(97, (2, 9), generator=torch.Generator().manual_seed(7), dtype=torch.int32)
        logits = model(ids.long()).logits.detach().contiguous()
        save_file({"input_ids": ids, "logits": logits}, file)
        self.assertEqual(quiet(checks.export, self.directory, file, 1e-4)[0], 0)
        logits[1, 4, 30] += 0.01
        save_file({"input_ids": ids, "logits": logits}, file)
        self.assertEqual(quiet(checks.export, self.directory, file, 1e-4)[0], 1)
        weights = load_file(self.directory / "model.safetensors")
        del weights["transformer.h.1.ln_2.bias"]
        save_file(weights, self.directory / "model.safetensors", metadata={"format": "pt"})
        code, said = quiet(checks.export, self.directory, file, 1e-4)
        self.assertEqual(code, 1)
        self.assertIn("missing", said)

    def test_tensorboard(self):
        from torch.utils.tensorboard import SummaryWriter

        self.assertEqual(quiet(checks.tensorboard, self.directory)[0], 1)
        with SummaryWriter(str(self.directory / "train")) as writer:
            for step in range(3):
                writer.add_scalar("loss", 2.0**-step, step)
        code, said = quiet(checks.tensorboard, self.directory)
        self.assertEqual(code, 0)
        self.assertEqual(json.loads(said), {"tag": "loss", "points": 3, "last_step": 2, "last_value": 0.25})


if __name__ == "__main__":
    unittest.main()
