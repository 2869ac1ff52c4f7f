from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ONE_OF_EACH_KIND, tiny, tiny_model, tiny_tokenizer
from toy import EXAMPLES, make_model

import softcue
from softcue import Cue
from softcue.backbones import Backbone
from softcue.inference import TaskModel, predict
from softcue.inputs.collate import collate
from softcue.tasks import Label, Task
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Example, Prediction

ROWS = [
    {"text": f"{text} {number}", "label": label}
    for number in range(5)
    for text, label in [("my invoice is wrong", "billing"), ("the parcel is late", "delivery")]
]
WORDS = Task(name="words", labels={"a": Label(words="the"), "b": Label(words="is")})
TEXTS = ["the invoice", "where is my parcel now, it should have been here", "ok"]


def state_of(backbone: Backbone) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in backbone.model.state_dict().items()}


def train(folder: Path, backbone: Backbone, method: str = "fine-tuning", **settings: Any) -> Cue:
    rates = {"training.learning_rate": 0.01, "training.network_learning_rate": 0.01}  # whichever the weights take
    overrides = {"training.epochs": 2, "training.batch_size": 4, **rates}
    return softcue.train(
        folder,
        backbone=backbone,
        method=method,
        train=ROWS,
        validation=ROWS,
        text="text",
        label="label",
        overrides={**overrides, **settings.pop("overrides", {})},
        progress=False,
        **settings,
    )


def answers(model: TaskModel, backbone: Backbone) -> list[Prediction]:
    return predict(backbone, [(model, example) for example in EXAMPLES]).predictions


def twin_of(model: TaskModel, backbone: Backbone) -> Any:
    return model.method.view_of(backbone).model


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_the_shared_backbone_stays_the_same_to_the_bit_while_its_twin_learns(family: str, dropout: bool) -> None:
    backbone = tiny(family)
    before = state_of(backbone)
    model = make_model(backbone, "fine-tuning", dropout=dropout)
    started = {name: value.clone() for name, value in model.method.state_dict().items()}
    Trainer(
        backbone,
        [TaskData(model, EXAMPLES, EXAMPLES)],
        TrainingConfig(steps=2, batch_size=3, network_learning_rate=0.01),
    ).run()
    assert all(torch.equal(value, before[name]) for name, value in backbone.model.state_dict().items())
    assert not any(value.requires_grad or value.grad is not None for value in backbone.model.parameters())
    assert not backbone.model.training
    learned = model.method.state_dict()
    assert all(not torch.equal(learned[name], value) for name, value in started.items())
    twin = dict(twin_of(model, backbone).named_parameters())
    for name, value in learned.items():  # what is stored is what answers
        assert torch.equal(twin[name.removeprefix("weights.").replace("/", ".")], value)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_a_new_twin_reads_as_the_backbone_does(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "fine-tuning")
    for name, weight in backbone.weights().items():  # make_model moves them apart
        model.method.weights[name.replace(".", "/")].data.copy_(weight)  # type: ignore[index,union-attr]
    batch = collate(model.rows(backbone, EXAMPLES), backbone.tokenizer.pad_token_id)
    with torch.no_grad():
        hidden = model.read(model.method.view_of(backbone), batch)[0].hidden()
        assert torch.equal(hidden, backbone.read(batch, None, backbone.embed(batch.ids)).hidden())


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_every_weight_that_makes_the_answer_is_trained(family: str) -> None:
    """Word for word: what moves the outcome of the plain model is among the trained weights."""
    backbone = Backbone(tiny_model(family), tiny_tokenizer(family), "fresh")
    model = make_model(backbone, "fine-tuning")
    batch = collate(model.rows(backbone, EXAMPLES, with_target=True), backbone.tokenizer.pad_token_id)
    losses, *_ = model(backbone, batch)
    losses.sum().backward()
    twin = twin_of(model, backbone)
    touched = {name for name, value in twin.named_parameters() if value.grad is not None and bool(value.grad.any())}
    trained = {name.replace("/", ".") for name in model.method.weights}  # type: ignore[union-attr]
    assert touched == trained
    backbone.model.requires_grad_(True)
    forward_pass = backbone.read(batch, None, backbone.embed(batch.ids), model.readout.needs_target)
    model.readout.losses(forward_pass, batch).sum().backward()
    assert {name for name, value in backbone.model.named_parameters() if value.grad is not None} == trained


@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("t5", ["shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head"]),
        ("gpt2", ["transformer.wte", "lm_head"]),
        ("bert", ["bert.embeddings.word_embeddings", "cls.predictions.decoder"]),
    ],
)
def test_tied_weights_stay_tied_in_the_twin(family: str, tied: list[str]) -> None:
    backbone = tiny(family)
    words = backbone.model.get_submodule(tied[0]).weight
    assert all(backbone.model.get_submodule(path).weight is words for path in tied)
    model = make_model(backbone, "fine-tuning")
    Trainer(
        backbone,
        [TaskData(model, EXAMPLES, EXAMPLES)],
        TrainingConfig(steps=1, batch_size=5, network_learning_rate=0.01),
    ).run()
    twin = twin_of(model, backbone)
    tied_weight = twin.get_submodule(tied[0]).weight
    assert tied_weight is not words
    assert all(twin.get_submodule(path).weight is tied_weight for path in tied)
    stored = [value for value in model.method.state_dict().values() if value.shape == words.shape]
    assert len(stored) == 1
    assert torch.equal(stored[0], tied_weight)
    assert not torch.equal(tied_weight, words)


def test_a_label_word_readout_sees_the_trained_words() -> None:
    """BERT's word head is tied to the word embeddings, which fine-tuning moves."""
    backbone = tiny("bert")
    model = make_model(backbone, "fine-tuning", task=WORDS, readout={"name": "label-words"})
    before = answers(model, backbone)
    ids = model.readout.word_ids
    model.method.weights["bert/embeddings/word_embeddings/weight"].data[ids[0]] += 3  # type: ignore[index,union-attr]
    assert answers(model, backbone) != before


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_a_saved_cue_answers_as_the_one_that_was_trained(family: str, tmp_path: Path) -> None:
    backbone = tiny(family)
    cue = train(tmp_path / "cue", backbone)
    loaded = softcue.load(tmp_path / "cue", backbone)
    assert loaded.predict(TEXTS) == cue.predict(TEXTS)
    assert cue.counts.stored == sum(value.numel() for value in backbone.weights().values())
    bare = train(tmp_path / "bare", backbone, "no-prompt", overrides={"readout.name": "classifier"})
    assert bare.predict(TEXTS) != cue.predict(TEXTS)


def test_training_twice_gives_the_same_weights(tmp_path: Path) -> None:
    backbone = tiny("bert")
    first, again = (train(tmp_path / name, backbone, overrides={"method.dropout": True}) for name in ("one", "two"))
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_cues_on_one_backbone_answer_together_as_alone(family: str) -> None:
    backbone = tiny(family)
    models = [
        make_model(backbone, "fine-tuning", seed=1),
        make_model(backbone, "m-idpg-phm", seed=2),
        make_model(backbone, "fine-tuning", seed=3),
    ]
    alone = [answers(model, backbone) for model in models]
    assert alone[0] != alone[2]
    requests = [(model, example) for example in EXAMPLES for model in models]
    together = predict(backbone, requests, batch_size=4).predictions
    for number, answer in enumerate(together):
        wanted = alone[number % 3][number // 3]
        assert answer.scores == pytest.approx(wanted.scores, abs=1e-4)


def test_a_model_moves_to_another_backbone_of_the_same_kind_and_back() -> None:
    """A cue may be given a second copy of its backbone: it answers the same on both."""
    first = tiny("bert")
    second = Backbone(tiny_model("bert"), tiny_tokenizer("bert"), "second")
    model = make_model(first, "fine-tuning")
    assert answers(model, first) == answers(model, second) == answers(model, first)


def test_dropout_is_on_in_training_only_and_only_if_asked() -> None:
    backbone = tiny("bert")
    batch = collate(make_model(backbone, "fine-tuning").rows(backbone, EXAMPLES, with_target=True), 0)
    for dropout in (False, True):
        model = make_model(backbone, "fine-tuning", readout={"dropout": 0.0}, dropout=dropout)
        with torch.no_grad():
            model.train()
            losses = {float(model(backbone, batch)[0].sum()) for _ in range(4)}
            model.eval()
            quiet = {float(model(backbone, batch)[0].sum()) for _ in range(4)}
        assert (len(losses) == 4) == dropout
        assert len(quiet) == 1


@pytest.mark.parametrize("readout", ["classifier", "label-words"])
def test_a_bfloat16_backbone_is_fine_tuned_in_float32(readout: str) -> None:
    backbone = Backbone(tiny_model("bert").to(torch.bfloat16), tiny_tokenizer("bert"), "bfloat16")
    model = make_model(backbone, "fine-tuning", task=WORDS, readout={"name": readout})
    assert {value.dtype for value in model.method.parameters()} == {torch.float32}
    rows = [Example(example.texts, "ab"[number % 2]) for number, example in enumerate(EXAMPLES)]
    Trainer(backbone, [TaskData(model, rows, rows)], TrainingConfig(steps=1, batch_size=5)).run()
    assert backbone.dtype == torch.bfloat16
    assert len(answers(model, backbone)) == len(EXAMPLES)
