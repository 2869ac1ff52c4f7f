"""Labels of all cues of a batch are ranked in one pass, and prompts that are not kept yet run in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tiny import tiny
from tolerance import REORDERED_PROBABILITIES
from torch import nn
from toy import EXAMPLES, TASK, make_model

from softcue.backbones import Backbone
from softcue.backbones.passes import forward_pass as forward_pass_module
from softcue.backbones.structure import layers_of
from softcue.inference import TaskModel, predict, predict_mixed, tokenize_requests
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction

WORDS = ("account", "my order", "a bill that I paid twice", "x")
# Prompts of every place: in front, as keys and values, read from the input, in deeper layers, beside the text.
METHODS = [
    "prompt-tuning",
    "p-tuning-v2 kv",
    "p-tuning-v2 replace",
    "prefix-tuning",
    "p-tuning-v2 parallel",
    "m-idpg-phm",
    "m-idpg-phm kv",
    "vip",
    "manual-prompt",
    "toy-add",
]


def task_of(number: int) -> Task:
    """A task of two to four labels, of one to several tokens."""
    words = WORDS[number % 3 :] if number % 2 else WORDS[: 2 + number % 4]
    return Task(name=f"task{number}", labels={f"label{place}": Label(words=text) for place, text in enumerate(words)})


def alone(backbone: Backbone, requests: list[tuple[TaskModel, Example]]) -> list[Prediction]:
    return [predict(backbone, [request]).predictions[0] for request in requests]


def predict_in_one_batch(backbone: Backbone, requests: list[tuple[TaskModel, Example]]) -> list[Prediction]:
    rows = tokenize_requests(backbone, requests)
    return predict_mixed(backbone, [(model.eval(), row) for (model, _), row in zip(requests, rows, strict=True)])


def check_same(together: list[Prediction], apart: list[Prediction]) -> None:
    assert len(together) == len(apart)
    for ours, expected in zip(together, apart, strict=True):
        assert ours.scores == REORDERED_PROBABILITIES.approx(expected.scores)
        assert (ours.label is None) == (expected.label is None)


@contextmanager
def count_runs(layer: nn.Module) -> Iterator[list[int]]:
    """The rows of each run of a layer."""
    runs: list[int] = []
    hook = layer.register_forward_pre_hook(
        lambda module, args, kwargs: runs.append(len(args[0] if args else kwargs["hidden_states"])), with_kwargs=True
    )
    yield runs
    hook.remove()


def test_64_rows_of_64_cues_are_ranked_in_one_decoder_pass_of_an_encoder_decoder() -> None:
    backbone = tiny("t5")
    models = [make_model(backbone, task=task_of(number % 3), seed=number) for number in range(64)]
    requests = [(model, EXAMPLES[number % len(EXAMPLES)]) for number, model in enumerate(models)]
    assert backbone.structure.decoder is not None
    decoder_layer = layers_of(backbone.model, backbone.structure.decoder)[0]
    with count_runs(backbone.layers[0]) as encoder_runs, count_runs(decoder_layer) as decoder_runs:
        predict_in_one_batch(backbone, requests)
    assert encoder_runs == [64]
    assert decoder_runs == [sum(len(model.task.labels) for model in models)]


def test_64_rows_of_64_cues_take_a_pass_each_for_prompts_texts_and_labels_on_a_decoder() -> None:
    backbone = tiny("llama").with_weights()
    models = [make_model(backbone, task=task_of(number % 3), seed=number) for number in range(64)]
    requests = [(model, EXAMPLES[number % len(EXAMPLES)]) for number, model in enumerate(models)]
    with count_runs(backbone.layers[0]) as runs:
        first = predict_in_one_batch(backbone, requests)
        assert runs == [64, 64, sum(len(model.task.labels) for model in models)]
        second = predict_in_one_batch(backbone, requests)
    assert runs[3:] == runs[1:3]  # the prompts are kept
    check_same(first, second)


@pytest.mark.parametrize("family", ["t5", "bart", "gpt2", "llama", "opt", "bloom"])
def test_ranked_together_is_ranked_alone_whatever_the_labels_and_methods(family: str) -> None:
    backbone = tiny(family)
    models = [make_model(backbone, case, task_of(number), seed=number) for number, case in enumerate(METHODS)]
    models += [make_model(backbone, task=task_of(2), seed=9, prompt_length=7)]
    requests = [(model, example) for example in EXAMPLES[:2] for model in models]
    check_same(predict(backbone, requests).predictions, alone(backbone, requests))


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_late_prompts_are_ranked_together(family: str) -> None:
    backbone = tiny(family)
    models = [make_model(backbone, "prompt-tuning late", task_of(number), seed=number) for number in range(4)]
    requests = [(model, example) for example in EXAMPLES[:2] for model in models]
    check_same(predict(backbone, requests).predictions, alone(backbone, requests))


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_heads_label_words_and_rankings_share_a_batch(family: str) -> None:
    backbone = tiny(family)
    one_word = TASK.model_copy(update={"labels": {name: Label(words=name) for name in TASK.labels}})
    readouts = [{"name": "classifier"}, {"name": "label-words"}, {"name": "generation"}, {"name": "regression"}]
    stars = Task(name="stars", kind="regression", scale=(1.0, 5.0, 1.0))
    models = [
        make_model(backbone, case, stars if readout["name"] == "regression" else one_word, readout, seed)
        for seed, readout in enumerate(readouts)
        for case in ("prompt-tuning", "m-idpg-phm kv", "manual-prompt")
        if case != "manual-prompt" or readout["name"] in ("generation", "label-words")
    ]
    requests = [(model, example) for example in EXAMPLES[:2] for model in models]
    together, apart = predict(backbone, requests).predictions, alone(backbone, requests)
    check_same([one for one in together if one.scores], [one for one in apart if one.scores])
    values = [[one.value for one in predictions if one.value is not None] for predictions in (together, apart)]
    assert values[0] == REORDERED_PROBABILITIES.approx(values[1])


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_pairs_that_do_not_fit_into_one_pass_are_divided_by_length(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny(family)
    models = [make_model(backbone, task=task_of(number), seed=number) for number in range(5)]
    requests = list(zip(models, EXAMPLES, strict=True))
    whole = predict(backbone, requests).predictions
    monkeypatch.setattr(forward_pass_module, "RANKED_AT_ONCE", 4)
    check_same(predict(backbone, requests).predictions, whole)


def test_label_words_of_many_cues_take_one_pass() -> None:
    backbone = tiny("gpt2").with_weights()
    one_word = TASK.model_copy(update={"labels": {name: Label(words=name) for name in TASK.labels}})
    models = [make_model(backbone, task=one_word, readout={"name": "label-words"}, seed=seed) for seed in range(5)]
    requests = list(zip(models, EXAMPLES, strict=True))
    with count_runs(backbone.layers[0]) as runs:
        together = predict(backbone, requests).predictions
    assert runs == [5, 5]  # prompts, texts
    check_same(together, alone(backbone, requests))


def test_prompts_of_several_lengths_run_in_one_batch_and_are_kept_one_by_one() -> None:
    backbone = tiny("llama").with_weights()
    models = [
        make_model(backbone, case, seed=seed, prompt_length=length)
        for seed, (case, length) in enumerate(
            [("prompt-tuning", 3), ("p-tuning-v2 kv", 7), ("prompt-tuning", 5), ("p-tuning-v2 replace", 4)]
        )
    ]
    requests = list(zip(models, EXAMPLES, strict=False))
    with count_runs(backbone.layers[0]) as runs:
        together = predict(backbone, requests).predictions
        assert runs[0] == len(models)
        kept = [states for _, _, states in backbone.prefixes._entries.values()]
        assert sorted(states.cache[0][0].shape[2] for states in kept) == [3, 4, 5, 7]
        runs.clear()
        check_same(together, alone(backbone, requests))
    assert len(runs) == 2 * len(models)  # texts and labels: no prompt runs again
