#!/usr/bin/env python3
"""Makes the fixtures that `emulator/tests/encoders.rs` compares with: a small BERT of `transformers` for each task,
trained for ten steps of AdamW.

    python tests/parity/make_encoders.py tests/parity/fixtures/encoders

writes for each task, and for a small RoBERTa and ESM-2, `NAME.safetensors`, the initial weights with Millrace's names
and layout, and `NAME.json`: `encoder` and `positions` (the options of a resolved job), the `inputs` of the batch, and
the `loss` of each step: the sum of all losses, divided by the number of samples. All steps train on the same batch.
Samples are padded, one of them from its second token on.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from make_decoders import both
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

SEED, STEPS, BATCH, LENGTH, POSITIONS, PREDICTIONS = 5, 10, 4, 40, 50, 7
HIDDEN, HEADS, LAYERS, VOCABULARY, FILTER, EPSILON, CLASSES = 36, 3, 2, 53, 60, 1e-5, 5
LEARNING_RATE, BETAS, ADAM_EPSILON, WEIGHT_DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1
MASKED_TOKEN_WEIGHT = 0.3

CONFIG = transformers.BertConfig(
    vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
    intermediate_size=FILTER, hidden_act="gelu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    max_position_embeddings=POSITIONS, layer_norm_eps=EPSILON, num_labels=CLASSES,
    # Otherwise the gradient of this token's embedding is zero, even where it is not padding.
    pad_token_id=None,
)  # fmt: skip

# The head of answers has as many outputs as there are labels.
QA_CONFIG = transformers.BertConfig(**CONFIG.to_dict() | {"num_labels": 2})
ROBERTA_PAD_TOKEN = 1
ROBERTA_CONFIG = transformers.RobertaConfig(
    **CONFIG.to_dict()
    | {"pad_token_id": ROBERTA_PAD_TOKEN, "type_vocab_size": 1}
    | {"max_position_embeddings": POSITIONS + ROBERTA_PAD_TOKEN + 1}
)
# No sample has the token of padding, whose embedding `transformers` does not train.
MASK_TOKEN, PAD_TOKEN = 7, VOCABULARY - 1
ESM_CONFIG = transformers.EsmConfig(
    vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
    intermediate_size=FILTER, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    max_position_embeddings=POSITIONS, layer_norm_eps=EPSILON, position_embedding_type="rotary", token_dropout=True,
    emb_layer_norm_before=False, mask_token_id=MASK_TOKEN, pad_token_id=PAD_TOKEN, tie_word_embeddings=True,
)  # fmt: skip

Inputs = dict[str, Tensor]
Names = dict[str, str]


def encoder(base: str = "bert") -> Names:
    names = {
        "wte.weight": f"{base}.embeddings.word_embeddings.weight",
        "wpe.weight": f"{base}.embeddings.position_embeddings.weight",
        "wse.weight": f"{base}.embeddings.token_type_embeddings.weight",
    } | both("ln_embed", f"{base}.embeddings.LayerNorm")
    for i in range(LAYERS):
        theirs, ours = f"{base}.encoder.layer.{i}", f"h.{i}"
        names |= both(f"{ours}.attn.proj", f"{theirs}.attention.output.dense")
        names |= both(f"{ours}.ln_1", f"{theirs}.attention.output.LayerNorm")
        names |= both(f"{ours}.mlp.fc", f"{theirs}.intermediate.dense")
        names |= both(f"{ours}.mlp.proj", f"{theirs}.output.dense")
        names |= both(f"{ours}.ln_2", f"{theirs}.output.LayerNorm")
    return names


def masked_token_head() -> Names:
    names = both("head.dense", "cls.predictions.transform.dense") | both("ln_f", "cls.predictions.transform.LayerNorm")
    return names | {"lm_head.bias": "cls.predictions.bias"}


def padded_inputs() -> Inputs:
    """Tokens, padding and segments."""
    lengths = torch.tensor([LENGTH, 1, 23, 31])[:, None]
    places = torch.arange(LENGTH)[None, :]
    return {
        "input_ids": torch.randint(VOCABULARY, (BATCH, LENGTH)),
        "attention_mask": (places < lengths).long(),
        "token_type_ids": (places >= lengths // 2).long(),
    }


def run(model: transformers.PreTrainedModel, inputs: Inputs) -> transformers.utils.ModelOutput:
    return model(**{name: inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")})


def sum_of_losses(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100, reduction="sum")


def pretraining() -> tuple:
    """Both losses; masked tokens at given positions, fewer of them in the second sample."""
    inputs = padded_inputs()
    inputs["masked_lm_positions"] = torch.stack([torch.randperm(LENGTH)[:PREDICTIONS] for _ in range(BATCH)])
    inputs["labels"] = torch.randint(VOCABULARY, (BATCH, PREDICTIONS))
    inputs["masked_lm_positions"][1, 2:], inputs["labels"][1, 2:] = 0, -100
    inputs["next_sentence_label"] = torch.tensor([0, 1, 1, 0])

    def loss(model: transformers.PreTrainedModel) -> Tensor:
        output = run(model, inputs)
        rows = inputs["masked_lm_positions"][:, :, None].expand(-1, -1, VOCABULARY)
        masked = sum_of_losses(output.prediction_logits.gather(1, rows), inputs["labels"])
        next_sentence = sum_of_losses(output.seq_relationship_logits, inputs["next_sentence_label"])
        return MASKED_TOKEN_WEIGHT * masked + next_sentence

    task = {
        "name": "pretraining", "max_predictions": PREDICTIONS, "masked_token_weight": MASKED_TOKEN_WEIGHT,
        "nonlinearity": "gelu", "predicts_next_sentence": True,
    }  # fmt: skip
    names = encoder() | masked_token_head() | both("pooler", "bert.pooler.dense") | both("nsp", "cls.seq_relationship")
    return transformers.BertForPreTraining(CONFIG), task, names, inputs, loss


def masked_tokens() -> tuple:
    """One loss; labels at all positions."""
    inputs = padded_inputs()
    inputs["labels"] = torch.where(torch.rand(BATCH, LENGTH) < 0.2, inputs["input_ids"], -100)

    def loss(model: transformers.PreTrainedModel) -> Tensor:
        return sum_of_losses(run(model, inputs).logits, inputs["labels"])

    task = {
        "name": "pretraining", "max_predictions": None, "masked_token_weight": 1.0, "nonlinearity": "gelu",
        "predicts_next_sentence": False,
    }  # fmt: skip
    return transformers.BertForMaskedLM(CONFIG), task, encoder() | masked_token_head(), inputs, loss


def classifier() -> tuple:
    inputs = padded_inputs() | {"labels": torch.tensor([3, 0, 4, 3])}

    def loss(model: transformers.PreTrainedModel) -> Tensor:
        return sum_of_losses(run(model, inputs).logits, inputs["labels"])

    names = encoder() | both("pooler", "bert.pooler.dense") | both("classifier", "classifier")
    task = {"name": "classifier", "classes": CLASSES, "dropout_rate": 0.0}
    return transformers.BertForSequenceClassification(CONFIG), task, names, inputs, loss


def token_classifier() -> tuple:
    inputs = padded_inputs() | {"labels": torch.randint(CLASSES, (BATCH, LENGTH))}
    inputs["labels"][inputs["attention_mask"] == 0] = -100

    def loss(model: transformers.PreTrainedModel) -> Tensor:
        return sum_of_losses(run(model, inputs).logits, inputs["labels"])

    task = {"name": "token_classifier", "classes": CLASSES, "dropout_rate": 0.0}
    names = encoder() | both("classifier", "classifier")
    return transformers.BertForTokenClassification(CONFIG), task, names, inputs, loss


def question_answering() -> tuple:
    """First and last position of an answer; the first one of the second sample does not count."""
    inputs = padded_inputs() | {"labels": torch.tensor([[3, 7], [-100, 0], [22, 22], [0, 30]])}

    def loss(model: transformers.PreTrainedModel) -> Tensor:
        output = run(model, inputs)
        logits = torch.stack([output.start_logits, output.end_logits], dim=1)
        return sum_of_losses(logits, inputs["labels"]) / 2

    names = encoder() | both("classifier", "qa_outputs")
    return transformers.BertForQuestionAnswering(QA_CONFIG), {"name": "question_answering"}, names, inputs, loss


def roberta() -> tuple:
    """No segments, and positions that are counted from the token of padding, which no sample has."""
    inputs = padded_inputs()
    del inputs["token_type_ids"]
    inputs["input_ids"][inputs["input_ids"] == ROBERTA_PAD_TOKEN] = 0
    inputs["labels"] = torch.where(torch.rand(BATCH, LENGTH) < 0.2, inputs["input_ids"], -100)

    def loss(model: transformers.PreTrainedModel) -> Tensor:
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        return sum_of_losses(logits, inputs["labels"])

    model = transformers.RobertaForMaskedLM(ROBERTA_CONFIG)
    # Published models have zeros here, and so does a model without segments.
    segments = model.roberta.embeddings.token_type_embeddings.weight
    segments.requires_grad_(False).zero_()
    names = encoder("roberta") | both("head.dense", "lm_head.dense") | both("ln_f", "lm_head.layer_norm")
    names["lm_head.bias"] = "lm_head.bias"
    del names["wse.weight"]
    return model, masked_tokens()[1], names, inputs, loss


def esm2() -> tuple:
    """Rotary positions, blocks that normalize their input, and no embeddings of masked tokens."""
    inputs = padded_inputs()
    del inputs["token_type_ids"]
    inputs["input_ids"] %= PAD_TOKEN
    # The sample of one token has no mask, because `transformers` divides by the share of the other tokens.
    chosen = (torch.rand(BATCH, LENGTH) < 0.2) & (inputs["attention_mask"] == 1)
    chosen[1] = False
    inputs["labels"] = torch.where(chosen, inputs["input_ids"], -100)
    inputs["input_ids"][chosen] = MASK_TOKEN

    def loss(model: transformers.PreTrainedModel) -> Tensor:
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        return sum_of_losses(logits, inputs["labels"])

    names = {"wte.weight": "esm.embeddings.word_embeddings.weight", "lm_head.bias": "lm_head.bias"}
    names |= both("ln_out", "esm.encoder.emb_layer_norm_after")
    names |= both("head.dense", "lm_head.dense") | both("ln_f", "lm_head.layer_norm")
    for i in range(LAYERS):
        theirs, ours = f"esm.encoder.layer.{i}", f"h.{i}"
        names |= both(f"{ours}.attn.proj", f"{theirs}.attention.output.dense")
        names |= both(f"{ours}.ln_1", f"{theirs}.attention.LayerNorm") | both(f"{ours}.ln_2", f"{theirs}.LayerNorm")
        names |= both(f"{ours}.mlp.fc", f"{theirs}.intermediate.dense")
        names |= both(f"{ours}.mlp.proj", f"{theirs}.output.dense")
    options = masked_tokens()[1]
    return transformers.EsmForMaskedLM(ESM_CONFIG), options, names, inputs, loss


TASKS = [pretraining, masked_tokens, classifier, token_classifier, question_answering, roberta, esm2]
ESM_POSITIONS = {"rotary": {"dimensions": HIDDEN // HEADS, "base": 10000.0, "is_adjacent": False, "scaling": None}}
# What the options of a resolved job differ in from those of BERT.
OPTIONS = {
    "roberta": {"use_segment_embedding": False},
    "esm2": {
        "use_segment_embedding": False, "norm_first": True, "is_embedding_plain": True, "mask_token": MASK_TOKEN,
        "has_token_dropout": True,
    },
}  # fmt: skip


def train(
    model: transformers.PreTrainedModel, loss_of: Callable[[transformers.PreTrainedModel], Tensor]
) -> list[float]:
    """Trains on a batch. Vectors do not decay, as in Millrace."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=ADAM_EPSILON)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model) / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def original(task: Callable[[], tuple]) -> tuple:
    """Returns what the task returns, with a model whose weights are those of the fixture."""
    torch.manual_seed(SEED)
    made = task()
    with torch.no_grad():
        for tensor in made[0].parameters():
            # Off the usual zeros, ones and tiny weights, or a test could not see one missing.
            if tensor.requires_grad:
                tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return made


def make(directory: Path, task: Callable[[], tuple]) -> None:
    model, options, names, inputs, loss_of = original(task)
    model.train()
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    ours = {name: weights[source] for name, source in names.items()}
    for i in range(LAYERS):
        for kind in ("weight", "bias"):
            theirs = f"{model.base_model_prefix}.encoder.layer.{i}.attention.self"
            parts = [f"{theirs}.{part}.{kind}" for part in ("query", "key", "value")]
            ours[f"h.{i}.attn.qkv.{kind}"] = torch.cat([weights[part] for part in parts])
    if "wpe.weight" in ours:
        # Those of RoBERTa follow rows that no token uses.
        ours["wpe.weight"] = ours["wpe.weight"][-POSITIONS:]
    losses = train(model, loss_of)
    save_file({name: tensor.contiguous() for name, tensor in ours.items()}, directory / f"{task.__name__}.safetensors")
    record = {
        "encoder": {"use_segment_embedding": True, "pooler_nonlinearity": "tanh", "task": options}
        | OPTIONS.get(task.__name__, {}),
        "positions": ESM_POSITIONS if task is esm2 else "learned",
        "inputs": {name: values.tolist() for name, values in inputs.items()},
        "loss": losses,
    }
    (directory / f"{task.__name__}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    print(task.__name__, [round(loss, 4) for loss in losses])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        make(directory, task)


if __name__ == "__main__":
    main()
