"""Trained numbers of WARP (Hambardzumyan et al. 2021) and of prompt design (Lester et al. 2021, figure 4)."""

from __future__ import annotations

import pytest
from command import run

PAPER = ["params", "--recipe", "paper", "--json"]
T5_SIZES = {"t5-small": 512, "t5-base": 768, "t5-large": 1024, "t5-xl": 2048, "t5-xxl": 4096}  # T5 1.1
FROZEN = (76_961_152, 247_577_856, 783_150_080, 2_849_757_184, 11_135_332_352)


@pytest.mark.parametrize("num_vectors", [8, 20])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_warp_has_vectors_for_prompt_and_classes(num_vectors: int, num_classes: int) -> None:
    words = ["--like", "roberta-large", "--method", "warp", f"method.prompt_length={num_vectors}"]
    (row,) = run(*PAPER, *words, "--classes", str(num_classes)).json["methods"]
    assert (row["gradient"], row["ema"], row["stored"]) == (num_vectors * 1024, 0, num_vectors * 1024)
    assert row["head"] == num_classes * 1024 + num_classes  # the code's linear layer has a bias
    assert row["gradient"] + row["head"] <= 25_000  # the abstract: up to 25K for a task


def test_the_table_has_both_numbers_of_vectors_and_nothing_for_prompt_design() -> None:
    counts = {row["name"]: row for row in run(*PAPER, "--like", "roberta-large").json["methods"]}
    assert (counts["warp"]["gradient"], counts["warp-8"]["gradient"]) == (20_480, 8_192)
    assert "manual-prompt" not in counts
    counts = {row["name"]: row for row in run(*PAPER, "--like", "t5-base").json["methods"]}
    assert {counts["manual-prompt"][key] for key in ("gradient", "ema", "stored", "head")} == {0}
    assert "warp" not in counts


def test_figure_4_has_warp_below_a_thousandth_of_every_t5() -> None:
    for width, frozen in zip(T5_SIZES.values(), FROZEN, strict=True):
        for num_vectors in (1, 100):
            assert (num_vectors + 2) * width / frozen < 0.001
