"""Table 8 of Bhardwaj et al. 2022 and its ablations on T5-base, as `softcue params` counts them.

The table prints some 18 thousand more for every mixture that has VIP tokens; part of that is a layer its authors'
code registers and never runs. Here is what the method's own formulas give.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from command import run

WIDTH, INNER, LENGTH, CODES = 768, 32, 100, 10  # d, d', n, codes per VIP token
PROJECTION = WIDTH * INNER + INNER
BACK = INNER * WIDTH + WIDTH
ATTENTION = 3 * (INNER * INNER + INNER) + INNER * INNER + INNER
FEED_FORWARD = INNER * 2 * INNER + 2 * INNER + 2 * INNER * INNER + INNER
LAYER = ATTENTION + FEED_FORWARD + 2 * 2 * INNER  # two norms, each with a scale and a shift
NETWORK = PROJECTION + 2 * LAYER + BACK
PROMPT = LENGTH * WIDTH
# row -> soft tokens, VIP tokens, stored
MIXTURES = {
    "vip-80-20": (80, 20, 297_440),
    "vip-50-50": (50, 50, 527_840),
    "vip-10-90": (10, 90, 835_040),
    "vip": (0, 100, 911_840),
}


@cache
def counted() -> dict[str, dict[str, Any]]:
    output = run("params", "--like", "t5-base", "--recipe", "paper", "--json").json
    assert output["backbone"] == "t5-base"
    return {row["name"]: row for row in output["methods"]}


def test_the_blocks_are_those_of_the_notes() -> None:
    assert LAYER == 8 * INNER**2 + 11 * INNER == 8_544
    assert (PROJECTION, BACK, NETWORK, PROMPT) == (24_608, 25_344, 67_040, 76_800)


@pytest.mark.parametrize("row", MIXTURES)
def test_a_mixture_stores_prompt_network_and_ten_codes_per_vip_token(row: str) -> None:
    soft, forward_pass, stored = MIXTURES[row]
    codebook = CODES * forward_pass * WIDTH
    assert soft + forward_pass == LENGTH
    assert stored == PROMPT + NETWORK + codebook
    counts = counted()[row]
    assert (counts["stored"], counts["gradient"], counts["ema"]) == (stored, 143_840, codebook)
    assert counts["gradient"] == PROMPT + NETWORK
    assert counts["ema"] == counts["stored"] - counts["gradient"]
    assert counts["head"] == 0


def test_without_vip_tokens_there_is_a_plain_prompt() -> None:
    counts = counted()["vip-100-0"]
    assert (counts["stored"], counts["gradient"], counts["ema"]) == (76_800, PROMPT, 0)


def test_the_ablations_have_no_codebook() -> None:
    context, projected = counted()["vip-c"], counted()["vip-idp"]
    assert (context["stored"], context["gradient"], context["ema"]) == (143_840, PROMPT + NETWORK, 0)
    bottleneck = 12
    without_biases = WIDTH * bottleneck + bottleneck * LENGTH * WIDTH
    assert without_biases == 12 * 768 * 101
    assert (projected["stored"], projected["gradient"], projected["ema"]) == (930_816, without_biases, 0)


@pytest.mark.parametrize(
    ("settings", "stored"),
    [
        (["method.codes=400"], PROMPT + NETWORK + 400 * WIDTH),
        (["method.width=64"], PROMPT + 64 * WIDTH + 64 + 2 * (8 * 64**2 + 11 * 64) + 64 * WIDTH + WIDTH + 1000 * WIDTH),
        (["method.layers=3"], PROMPT + NETWORK + LAYER + 1000 * WIDTH),
        (
            ["method.hard_prompt='frozen words'", "method.scale=0", "method.codes_from=context"],
            PROMPT + NETWORK + 1000 * WIDTH,
        ),
    ],
)
def test_settings_change_the_count_as_the_formula_says(settings: list[str], stored: int) -> None:
    (counts,) = run("params", "--like", "t5-base", "--recipe", "paper", "--method", "vip", *settings, "--json").json[
        "methods"
    ]
    assert counts["stored"] == stored
    assert counts["stored"] == counts["gradient"] + counts["ema"]
