"""Sentinel targets: `<extra_id_0>` before every target, and answers read behind it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny, tiny_model, tiny_tokenizer
from toy import EXAMPLES, TASK, make_model

import softcue
from softcue.backbones import Backbone
from softcue.errors import BackboneError, ConfigurationError, SoftcueError
from softcue.evaluation import read_evaluation_set
from softcue.evaluation.baselines import zero_shot_predictions
from softcue.inputs.collate import collate
from softcue.readouts import ReadoutConfig, make_readout
from softcue.readouts.generation import Generation
from softcue.readouts.sentinel import Sentinels
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import Options, ServedPrediction
from softcue.tasks import Label, Task
from softcue.types import Example

ROWS = [{"text": row.texts[0], "label": row.target} for row in EXAMPLES]
QUESTION = Task(name="answers", kind="span", text=("question", "context"))
TITLES = Task(name="titles", kind="generation")
QUICK = {"training.steps": 40, "training.batch_size": 5, "training.learning_rate": 0.01, "training.optimizer": "adamw"}


@cache
def sentinel_t5() -> Backbone:
    """A tiny T5 whose tokenizer has sentinels."""
    tokenizer, model = tiny_tokenizer("t5"), tiny_model("t5")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra_id_1>", "<extra_id_0>"]})
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return Backbone(model, tokenizer, "t5-with-sentinels")


def sentinel_id(number: int = 0) -> int:
    return int(sentinel_t5().tokenizer.convert_tokens_to_ids(f"<extra_id_{number}>"))


def generation(task: Task, **config: Any) -> Generation:
    readout = make_readout(ReadoutConfig(name="generation", sentinel=True, **config), task, sentinel_t5())
    assert isinstance(readout, Generation)
    return readout


@pytest.mark.parametrize(
    ("task", "example"),
    [
        (TASK, EXAMPLES[0]),
        (QUESTION, Example(("Who came?", "Ann came."), "Ann")),
        (TITLES, Example(("A long text",), "A title")),
    ],
    ids=["labels", "spans", "text"],
)
def test_every_target_begins_with_the_sentinel(task: Task, example: Example) -> None:
    model = make_model(sentinel_t5(), task=task, readout={"sentinel": True})
    plain = make_model(sentinel_t5(), task=task)
    [row], [plain_row] = (each.rows(sentinel_t5(), [example], with_target=True) for each in (model, plain))
    assert row.target_ids == (sentinel_id(), *plain_row.target_ids)
    assert model.readout.max_target_length == plain.readout.max_target_length + 1
    assert model.readout.num_losses([row]) == plain.readout.num_losses([plain_row]) + 1


def test_labels_are_ranked_behind_the_sentinel() -> None:
    model = make_model(sentinel_t5(), readout={"sentinel": True})
    assert isinstance(model.readout, Generation)
    assert all(int(candidate[0]) == sentinel_id() for candidate in model.readout.candidates)
    batch = collate(model.rows(sentinel_t5(), EXAMPLES), sentinel_t5().tokenizer.pad_token_id)
    with torch.no_grad():
        forward_pass, _ = model.eval().read(sentinel_t5(), batch)
        predictions = model.readout.predict(forward_pass)
        for place, candidate in enumerate(model.readout.candidates):
            target = candidate.expand(len(EXAMPLES), -1)
            log_probabilities = forward_pass.target_logits(target).log_softmax(-1)[:, 1:]  # all but the sentinel
            scores = log_probabilities.gather(2, target[:, 1:].unsqueeze(2)).sum((1, 2))
            for row, prediction in enumerate(predictions):
                assert prediction.scores is not None
                label, other = TASK.label_names[place], TASK.label_names[0]
                if place == 0:
                    first = scores
                ratio = torch.tensor(prediction.scores[label] / prediction.scores[other])
                torch.testing.assert_close(ratio, (scores[row] - first[row]).exp(), rtol=1e-3, atol=1e-5)


def test_label_words_are_scored_behind_the_sentinel() -> None:
    task = Task(name="words", labels={"a": {"words": "account"}, "b": {"words": "billing"}})  # type: ignore[dict-item]
    model = make_model(sentinel_t5(), task=task, readout={"name": "label-words", "sentinel": True}).eval()
    batch = collate(model.rows(sentinel_t5(), EXAMPLES), sentinel_t5().tokenizer.pad_token_id)
    with torch.no_grad():
        forward_pass, _ = model.read(sentinel_t5(), batch)
        start = torch.tensor([[sentinel_t5().start_id, sentinel_id()]]).expand(5, -1)
        output = sentinel_t5().model(
            encoder_outputs=(forward_pass.hidden(),),
            attention_mask=forward_pass.layout.mask.long(),
            decoder_input_ids=start,
        )
        expected = output.logits[:, 1][:, model.readout.word_ids]  # type: ignore[index]
        torch.testing.assert_close(model.readout.logits(forward_pass), expected)  # type: ignore[operator]


def test_an_answer_is_between_the_sentinel_and_the_next() -> None:
    class Generated:
        def generate(self, decoding: object) -> list[list[int]]:
            words = sentinel_t5().tokenizer("my order", add_special_tokens=False)["input_ids"]
            end = sentinel_t5().tokenizer.eos_token_id
            return [
                [sentinel_id(), *words, end],
                [*words, sentinel_id(), *words, sentinel_id(1), *words],
                [*words, end],  # without a sentinel it is the answer
                [sentinel_id(), end],
            ]

    for task, names in ((TASK, ["c", "c", "c", ""]), (TITLES, ["my order", "my order", "my order", ""])):
        predictions = generation(task, decoding="greedy").predict(Generated())  # type: ignore[arg-type]
        assert [prediction.label for prediction in predictions] == names
    readout = generation(QUESTION, decoding="greedy")
    prediction = readout.predict(Generated())[1]  # type: ignore[arg-type]
    merged = readout.merge(Example(("What?", "It is my order.")), [prediction])
    assert merged.spans is not None and (merged.spans[0].start, merged.spans[0].end) == (6, 14)


def test_of_an_unfinished_text_nothing_is_known_before_the_sentinel() -> None:
    sentinels = Sentinels(9, frozenset([8, 9]))
    assert list(sentinels.answer([1, 2], is_complete=False)) == []
    assert list(sentinels.answer([1, 9, 2], is_complete=False)) == [2]


@pytest.mark.parametrize("decoding", ["rank", "greedy", "beam"])
def test_a_cue_learns_and_serves_answers_behind_the_sentinel(decoding: str, tmp_path: Path) -> None:
    backbone = sentinel_t5()
    cue = softcue.train(
        tmp_path / "cues" / "toy",
        method="fine-tuning",
        train=ROWS,
        validation=ROWS,
        text="text",
        label="label",
        backbone=backbone,
        progress=False,
        overrides={**QUICK, "readout.sentinel": True, "readout.decoding": decoding},
    )
    assert cue.cue_file.readout.sentinel
    texts = [str(row["text"]) for row in ROWS]
    assert [prediction.label for prediction in cue.predict(texts)] == [row["label"] for row in ROWS]
    loaded = softcue.load(tmp_path / "cues" / "toy", backbone)
    assert [prediction.label for prediction in loaded.predict(texts)] == [row["label"] for row in ROWS]
    if loaded.model.readout.decoding is not None:
        batch = collate(loaded.model.rows(backbone, loaded.examples(texts)), backbone.tokenizer.pad_token_id)
        with torch.no_grad():
            forward_pass, _ = loaded.model.read(loaded.model.method.view_of(backbone), batch)
            generated = forward_pass.generate(loaded.model.readout.decoding)
        assert {ids[0] for ids in generated} == {sentinel_id()}  # it has learned to write it
    with Engine(backbone, tmp_path / "cues") as engine:
        pieces: list[str] = []
        [pending] = engine.submit([("toy", texts[3])], Options(), on_text=lambda _, text: pieces.append(text))
        result = pending.result.result(30)
        assert isinstance(result, ServedPrediction)
        assert result.prediction.label == ROWS[3]["label"]
        if decoding == "greedy":
            assert "extra_id" not in "".join(pieces) and "".join(pieces)


@torch.no_grad()
def untrained_label(text: str, words: dict[str, str], with_sentinel: bool) -> str:
    """The label whose words transformers' own T5 thinks likeliest, with or without a sentinel before them."""
    tokenizer, model = sentinel_t5().tokenizer, sentinel_t5().model
    scores = {}
    for name, label_words in words.items():
        target = [sentinel_id()] * with_sentinel + tokenizer(label_words)["input_ids"]
        shifted = torch.tensor([[sentinel_t5().start_id, *target[:-1]]])
        logits = model(input_ids=tokenizer(text, return_tensors="pt")["input_ids"], decoder_input_ids=shifted).logits[0]
        scores[name] = sum(float(row.log_softmax(0)[token]) for row, token in zip(logits, target, strict=True))
    return max(scores, key=scores.__getitem__)


def test_zero_shot_ranks_behind_the_sentinel_if_the_cue_does(tmp_path: Path) -> None:
    words = {"a": "account", "b": "invoice", "c": "phone"}
    task = Task(name="words", labels={name: Label(words=label_words) for name, label_words in words.items()})
    texts = [str(row["text"]) for row in ROWS]
    ranked = {with_it: [untrained_label(text, words, with_it) for text in texts] for with_it in (False, True)}
    assert ranked[False] != ranked[True]
    one_step = {"training.steps": 1, "method.prompt_length": 3}
    one_step |= {f"task.label_words.{name}": label_words for name, label_words in words.items()}
    for with_it, labels in ranked.items():
        predictions = zero_shot_predictions(sentinel_t5(), task, EXAMPLES, sentinel=with_it)
        assert [prediction.label for prediction in predictions] == labels
        cue = softcue.train(
            tmp_path / f"cue {with_it}",
            train=ROWS,
            validation=ROWS,
            text="text",
            label="label",
            backbone=sentinel_t5(),
            progress=False,
            overrides={**one_step, "readout.sentinel": with_it},
        )
        accuracy = 100 * sum(map(str.__eq__, labels, [str(row["label"]) for row in ROWS])) / len(ROWS)
        assert cue.cue_file.baselines["validation"]["zero_shot"]["accuracy"] == pytest.approx(accuracy)
        guesses = cue.baseline_predictions(read_evaluation_set(cue.task, ROWS))
        assert [prediction.label for prediction in guesses["zero_shot"]] == labels


@pytest.mark.parametrize(
    ("family", "config", "error", "reason"),
    [
        ("bert", {"name": "classifier"}, ConfigurationError, "head"),
        ("gpt2", {}, BackboneError, "encoder-decoder"),
        ("t5", {}, BackboneError, "<extra_id_0>"),
        ("bart", {}, BackboneError, "<extra_id_0>"),
        ("t5", {"name": "classifier"}, ConfigurationError, "generation or label-words"),
    ],
)
def test_a_sentinel_is_refused_where_there_is_none(
    family: str, config: dict[str, Any], error: type[SoftcueError], reason: str
) -> None:
    with pytest.raises(error, match=reason) as caught:
        make_readout(ReadoutConfig(sentinel=True, **config), TASK, tiny(family))
    assert "readout.sentinel" in str(caught.value)
