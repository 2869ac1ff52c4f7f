from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tiny import ENCODERS, ONE_OF_EACH_KIND, tiny
from tolerance import REORDERED_FLOAT32
from torch.nn import functional
from toy import EXAMPLES, PAIRS, TASK, make_model

from softcue.backbones import compare_texts, pool
from softcue.errors import ConfigurationError
from softcue.inference import TaskModel, predict
from softcue.inputs.collate import collate
from softcue.inputs.formatter import target_tokens
from softcue.readouts import ReadoutConfig, make_readout
from softcue.tasks import Label, Task
from softcue.types import Example

SCORES = Task(name="scores", kind="regression")
WRITING = Task(name="writing", kind="generation")


def reading_of(model: TaskModel, family: str, examples: list[Example], with_target: bool = False):  # type: ignore[no-untyped-def]
    backbone = tiny(family)
    batch = collate(model.rows(backbone, examples, with_target=True), 0)
    return model.read(model.method.view_of(backbone), batch, with_target)[0], batch


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@torch.no_grad()
def test_classifier_loss_is_the_cross_entropy_of_its_head(family: str, pooling: str) -> None:
    model = make_model(tiny(family), readout={"name": "classifier", "pooling": pooling})
    forward_pass, batch = reading_of(model, family, EXAMPLES)
    losses = model.readout.losses(forward_pass, batch)
    vectors = pool(forward_pass.text(), batch.mask, pooling)  # type: ignore[arg-type]
    logits = vectors @ model.readout.head[-1].weight.T + model.readout.head[-1].bias  # type: ignore[index, union-attr]
    expected = sum(-logits[i].log_softmax(0)[TASK.label_names.index(str(e.target))] for i, e in enumerate(EXAMPLES))
    assert float(losses.sum()) == REORDERED_FLOAT32.approx(float(expected))
    assert len(losses) == len(EXAMPLES)


@torch.no_grad()
def test_auto_pooling_follows_the_backbone() -> None:
    names = {family: make_readout(ReadoutConfig(), TASK, tiny(family)).config for family in ONE_OF_EACH_KIND}
    assert (names["bert"].name, names["bert"].pooling) == ("classifier", "cls")
    assert (names["t5"].name, names["t5"].decoding) == ("generation", "rank")
    assert (names["gpt2"].name, names["gpt2"].pooling) == ("generation", "last")


@torch.no_grad()
def test_a_pair_is_compared_by_its_two_texts_only() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, task=PAIRS, readout={"pairs": "compare"})
    examples = [
        Example(("My invoice is wrong", "the bill"), "same"),
        Example(("a b", "where is my parcel today"), "other"),
    ]
    forward_pass, batch = reading_of(model, "bert", examples)
    assert batch.parts is not None
    features = compare_texts(forward_pass.text(), batch.parts)
    for row, example in enumerate(examples):
        ids = batch.ids[row].tolist()
        first, second = (backbone.tokenizer(text, add_special_tokens=False)["input_ids"] for text in example.texts)
        assert ids[1 : 1 + len(first)] == first
        start = 2 + len(first)
        states = forward_pass.text()[row]
        u, v = states[1 : 1 + len(first)].mean(0), states[start : start + len(second)].mean(0)
        u, v = (functional.normalize(x, dim=0) * 32**0.5 for x in (u, v))
        torch.testing.assert_close(features[row], torch.cat([(u - v).abs(), u * v]), rtol=1e-4, atol=1e-4)


def test_comparing_needs_an_encoder_and_two_texts() -> None:
    for family, task in (("bert", TASK), ("gpt2", PAIRS)):
        with pytest.raises(ConfigurationError, match=r"readout\.pairs"):
            make_readout(ReadoutConfig(pairs="compare"), task, tiny(family))


@torch.no_grad()
def test_regression_predicts_in_the_units_of_the_training_scores() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, task=SCORES)
    model.readout.fit_statistics([Example(("x",), 10.0), Example(("y",), 30.0)])
    for parameter in model.readout.parameters():
        parameter.data.zero_()
    answers = predict(backbone, [(model, Example(("hello",)))]).predictions
    assert answers[0].value == pytest.approx(20.0)
    forward_pass, batch = reading_of(model, "bert", [Example(("hello",), 40.0)])
    assert float(model.readout.losses(forward_pass, batch)) == pytest.approx(4.0)  # two standard deviations of 10


@pytest.mark.parametrize(
    "family",
    ["bert", "roberta", "distilbert", "electra", "deberta-v2", "modernbert", "t5", "bart", "gpt2", "llama", "opt"],
)
@torch.no_grad()
def test_label_words_are_a_softmax_over_their_words_alone(family: str) -> None:
    backbone = tiny(family)
    task = Task(name="words", labels={"p": Label(words="the"), "q": Label(words="is")})
    model = make_model(backbone, task=task, readout={"name": "label-words"})
    forward_pass, _ = reading_of(model, family, [Example(example.texts, "p") for example in EXAMPLES])
    if family in ENCODERS:
        logits = forward_pass.first_logits()
        ids = [backbone.tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0] for word in ("the", "is")]
    else:  # where training on the whole answer would predict its first word
        special = set(backbone.tokenizer.all_special_ids)
        answers = [target_tokens(backbone.tokenizer, backbone.kind, word) for word in ("the", "is")]
        place = next(i for i, token in enumerate(answers[0]) if token not in special)
        ids = [answer[place] for answer in answers]
        rows = [replace(row, target_ids=answers[0]) for row in model.rows(backbone, EXAMPLES)]
        forced = collate(rows, 0)
        logits = model.read(backbone, forced, with_target=True)[0].target_logits(forced.target_ids)[:, place]
    expected = logits[:, ids].softmax(-1)
    for row, answer in enumerate(model.readout.predict(forward_pass)):
        assert list((answer.scores or {}).values()) == pytest.approx(expected[row].tolist(), rel=1e-3)


def test_label_words_that_share_a_piece_are_refused() -> None:
    task = Task(name="words", labels={"p": Label(words="the one"), "q": Label(words="the two")})
    for family in ("bert", "gpt2"):
        with pytest.raises(ConfigurationError, match="label_words"):
            make_model(tiny(family), task=task, readout={"name": "label-words"})


@pytest.mark.parametrize("family", ["t5", "bart", "gpt2", "llama"])
@torch.no_grad()
def test_generation_loss_averages_over_target_tokens_and_adds_z_loss(family: str) -> None:
    model = make_model(tiny(family), readout={"z_loss": 0.1})
    forward_pass, batch = reading_of(model, family, EXAMPLES, with_target=True)
    losses = model.readout.losses(forward_pass, batch)
    logits = forward_pass.target_logits(batch.target_ids)
    expected = 0.0
    for row in range(batch.size):
        for position in range(int(batch.target_mask[row].sum())):
            values = logits[row, position]
            normaliser = float(values.logsumexp(0))
            expected += normaliser - float(values[batch.target_ids[row, position]]) + 0.1 * normaliser**2
    assert float(losses.sum()) == pytest.approx(expected, rel=1e-4)
    assert len(losses) == batch.size


@pytest.mark.parametrize("family", ["t5", "gpt2"])
@pytest.mark.parametrize("decoding", ["greedy", "beam"])
def test_free_generation_returns_text(family: str, decoding: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, task=WRITING, readout={"decoding": decoding, "max_new_tokens": 4, "num_beams": 2})
    answers = predict(backbone, [(model, Example(("hello there",))), (model, Example(("x",)))]).predictions
    assert all(isinstance(answer.label, str) and answer.scores is None for answer in answers)


def test_a_readout_that_does_not_fit_the_task_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="fits regression: regression"):
        make_readout(ReadoutConfig(name="classifier"), SCORES, tiny("bert"))
    with pytest.raises(ConfigurationError, match="closed set of labels"):
        make_readout(ReadoutConfig(decoding="rank"), WRITING, tiny("t5"))


@pytest.mark.parametrize("phrase", ["no mask", " {mask} or {mask}", " {mask", " {mask} {other}"])
def test_a_mask_phrase_must_hold_one_mask(phrase: str) -> None:
    with pytest.raises(ValueError, match="mask"):
        ReadoutConfig(mask_phrase=phrase)


@pytest.mark.parametrize("words", [("same", "same"), ("x", " ")])
def test_labels_must_differ_in_their_words(words: tuple[str, str]) -> None:
    task = Task(name="words", labels={name: Label(words=text) for name, text in zip("pq", words, strict=True)})
    with pytest.raises(ConfigurationError, match="label_words"):
        make_readout(ReadoutConfig(), task, tiny("t5"))


def test_a_long_answer_is_cut_but_keeps_its_end_and_is_counted() -> None:
    model = make_model(tiny("t5"), task=WRITING, readout={"max_new_tokens": 4})
    example = Example(("hello",), "a very long answer that does not fit")
    (tokens,) = model.rows(tiny("t5"), [example], with_target=True)
    assert len(tokens.target_ids) == 4
    assert tokens.target_ids[-1] == tiny("t5").tokenizer.eos_token_id
    assert tokens.is_truncated


def test_answers_longer_than_the_decoder_takes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_new_tokens"):
        make_model(tiny("bart"), task=WRITING, readout={"max_new_tokens": 500})


def test_a_checkpoints_own_generation_habits_are_left_out() -> None:
    from softcue.backbones import Backbone

    plain = tiny("bart")
    model = copy.deepcopy(plain.model)
    model.generation_config.no_repeat_ngram_size = 1
    model.generation_config.min_length = 8
    odd = Backbone(model, plain.tokenizer, "odd")
    answers = [
        predict(backbone, [(make_model(backbone, task=WRITING), Example(("hello there",)))]).predictions[0].label
        for backbone in (plain, odd)
    ]
    assert answers[0] == answers[1]
