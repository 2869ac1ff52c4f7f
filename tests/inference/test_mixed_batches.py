"""Rows of many cues at once: the same rows as cue by cue, and one pass for what they all read."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES
from toy import EXAMPLES, make_model

from softcue.inference import mixed_batches, predict, tokenize_requests


def test_rows_of_several_cues_are_those_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_CACHE_MB", "0")
    backbone = tiny("bert")
    cases = ["m-idpg-phm", "prompt-tuning", "m-idpg-phm words", "linear-probe", "s-idpg-phm"]
    models = [make_model(backbone, case, seed=seed).eval() for seed, case in enumerate(cases)]
    requests = [(models[number % 5], example) for number, example in enumerate([*EXAMPLES, *EXAMPLES, *EXAMPLES])]
    for (model, example), row in zip(requests, tokenize_requests(backbone, requests), strict=True):
        [alone] = model.rows(backbone, [example])
        assert row == alone
        assert (row.representation is None) == (alone.representation is None) == (model.representation is None)
        if row.representation is not None and alone.representation is not None:
            REORDERED_FLOAT32.assert_close(row.representation, alone.representation)


def test_many_cues_that_read_the_same_ask_for_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny("bert")
    models = [make_model(backbone, "m-idpg-phm", seed=seed) for seed in range(5)]
    calls = []
    original = mixed_batches.sentence_vectors_of

    def counted(*arguments: object, **settings: object) -> torch.Tensor:
        calls.append(arguments)
        return original(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(mixed_batches, "sentence_vectors_of", counted)
    together = predict(backbone, list(zip(models, EXAMPLES, strict=True))).predictions
    assert len(calls) == 1
    for model, example, answer in zip(models, EXAMPLES, together, strict=True):
        [alone] = predict(backbone, [(model, example)]).predictions
        assert answer.label == alone.label
        assert answer.scores == REORDERED_PROBABILITIES.approx(alone.scores)


def test_a_cue_whose_sentence_vectors_have_dropout_in_training_shares_a_decoder_with_others() -> None:
    backbone = tiny("gpt2")
    noisy = make_model(backbone, "s-idpg-phm", representation_dropout=True)
    models = [noisy, make_model(backbone, seed=1), make_model(backbone, seed=2), noisy]
    requests = list(zip(models, EXAMPLES, strict=False))
    for request, prediction in zip(requests, predict(backbone, requests).predictions, strict=True):
        alone = predict(backbone, [request]).predictions[0]
        assert prediction.scores == REORDERED_PROBABILITIES.approx(alone.scores)
