"""How predictions print and how they become JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from softcue.types import Prediction, Span, label_text


@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        (Prediction("billing", scores={"billing": 0.9312, "hardware": 0.0688}), "Prediction('billing', 0.93)"),
        (Prediction(0, scores={0: 0.75, 1: 0.25}), "Prediction(0, 0.75)"),
        (Prediction(False, scores={False: 1.0, True: 0.0}), "Prediction(False, 1.00)"),
        (Prediction("A title"), "Prediction('A title')"),
        (Prediction(None, value=3.2), "Prediction(value=3.2)"),
        (Prediction(None, value=0.0), "Prediction(value=0)"),
        (Prediction("n/a", is_illegal=True), "Prediction('n/a', is_illegal=True)"),
        (Prediction("Rome", spans=(Span(3, 7),), strength=-1.5), "Prediction('Rome', spans=[(3, 7)])"),
        (
            Prediction("Ada ! person", spans=(Span(0, 3, "PER"),)),
            "Prediction('Ada ! person', spans=[(0, 3, 'PER')])",
        ),
        (Prediction("", spans=()), "Prediction('', spans=[])"),
        (Prediction(None), "Prediction()"),
    ],
)
def test_a_prediction_prints_only_what_it_has(prediction: Prediction, text: str) -> None:
    assert repr(prediction) == str(prediction) == text


@pytest.mark.parametrize(
    ("label", "scores", "keys"),
    [
        ("a", {"a": 0.75, "b": 0.25}, ["a", "b"]),
        (1, {1: 0.75, 0: 0.25}, ["1", "0"]),
        (True, {True: 0.75, False: 0.25}, ["true", "false"]),
        (1.0, {1.0: 0.75, 0.5: 0.25}, ["1", "0.5"]),
    ],
)
def test_json_has_the_label_in_its_type_and_text_as_keys(label: Any, scores: Any, keys: list[str]) -> None:
    fields = json.loads(json.dumps(Prediction(label, scores=scores).as_dict()))
    assert fields["label"] == label and type(fields["label"]) is type(label)
    assert list(fields["scores"]) == keys
    assert fields["scores"][label_text(label)] == 0.75
