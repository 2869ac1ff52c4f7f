"""The figures of runtimes: ratios of processor seconds, and the share of equal labels."""

from __future__ import annotations

from benchmarks.plan import Plan
from benchmarks.runtime_speed import make_figures
from softcue.types import Prediction


def test_figures_are_ratios_of_seconds_and_shares_of_labels() -> None:
    seconds = {"runtime": [1.0, 2.0], "float32": [3.0, 8.0], "bfloat16": [1.0, 2.0]}
    expected = [[Prediction("a"), Prediction("b")], [Prediction("a"), Prediction("a")]]
    got = [[Prediction("a"), Prediction("b")], [Prediction("a"), Prediction("b")]]
    figures = make_figures("minilm", Plan(repeats=2), seconds, "openvino int8", "vip, lora", expected, got)
    assert figures["serve_runtime_vs_torch_float32_minilm"]["ratio"] == 3.5
    assert figures["serve_runtime_vs_torch_float32_minilm"]["met"]
    assert not figures["serve_runtime_vs_torch_bfloat16_minilm"]["met"]
    assert figures["serve_runtime_equal_labels_minilm"]["ratio"] == 0.75
