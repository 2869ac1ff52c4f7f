"""Trained numbers of every method (Wu et al. 2022, table 2 and appendix A.1), by `softcue params`, as integers."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from softcue.cli.app import main

TABLE_2 = {  # RoBERTa-large: what the paper's formulas give before rounding to K = 1024
    "s-idpg-phm": (107_776, "105K"),
    "s-idpg-dnn": (1_578_240, "1.5M"),
    "m-idpg-phm": (137_232, "134K"),
    "m-idpg-phm-glove": (144_704, "141K"),
    "m-idpg-dnn": (221_200, "216K"),
    "prompt-tuning": (5_120, "5K"),
    "prompt-tuning-134": (137_216, "134K"),
    "p-tuning-v2": (122_880, "120K"),
    "adapter": (1_622_784, "1.55M"),
    "compacter": (152_832, "149K"),
}
NOT_PRINTED = {
    "m-idpg-phm-s": 19_472,
    "m-idpg-phm-l": 467_328,
    # ten vectors through a network of 512: table, both layers and their biases
    "prefix-tuning": 10 * 1024 + (1024 + 1) * 512 + (512 + 1) * 2 * 24 * 1024,
    # words, positions, one segment and a norm; then per layer 12 d^2 + 13 d
    "fine-tuning": (50_265 + 514 + 1 + 2) * 1024 + 24 * (12 * 1024**2 + 13 * 1024),
    "efl": (50_265 + 514 + 1 + 2) * 1024 + 24 * (12 * 1024**2 + 13 * 1024),
    "linear-probe": 0,
    "no-prompt": 0,
}
LINEAR_HEADS = ("linear-probe", "no-prompt", "prefix-tuning")  # no paper has them with RoBERTa's head
# width, layers that read, layers in all, keys of one token
SHAPES = {
    "roberta-large": (1024, 24, 24, 1024),
    "bert-base-uncased": (768, 12, 12, 768),
    "minilm": (384, 6, 6, 384),
    "t5-base": (768, 12, 24, 768),
    "gpt2-medium": (1024, 24, 24, 1024),
    "llama-3.2-1b": (2048, 16, 16, 512),
}


def counted(*words: str, recipe: str = "paper") -> dict[str, dict[str, int]]:
    """`softcue params --recipe ... --json` by method."""
    out = io.StringIO()
    with (
        patch.object(sys, "argv", ["softcue", "params", "--recipe", recipe, *words, "--json"]),
        contextlib.redirect_stdout(out),
        pytest.raises(SystemExit) as end,
    ):
        main()
    assert not end.value.code
    return {row["name"]: row for row in json.loads(out.getvalue())["methods"]}


def expected(d: int, n_read: int, n_all: int, keys: int, is_encoder: bool) -> dict[str, int]:
    """The formulas of appendix A.1, t = 5; on other kinds than IDPG's the recipes of other papers."""
    t = 5
    a_sets, m = (2 * n_all, 16) if is_encoder else (1, 24)  # Compacter's own paper: one A, the width of T5-base / 32

    def phm(inputs: int, m: int, n: int, sets: int) -> int:
        """Both layers without the output bias."""
        return sets * n**3 + inputs * m // n + m + m * t * d // n

    return {
        "s-idpg-phm": phm(d, 256, 16, 1) + t * d,
        "s-idpg-dnn": 256 * (d + 1) + t * d * (256 + 1),
        "m-idpg-phm": phm(d, 16, 16, 2) + n_read * t * d,
        "m-idpg-phm-s": phm(d, 16, 16, 2) + t * d,
        "m-idpg-phm-l": n_read * (phm(d, 16, 16, 2) + t * d),
        "m-idpg-phm-glove": phm(300, 16, 4, 2) + n_read * t * d,
        "m-idpg-dnn": d * 16 + 16 + 16 * t * d + n_read * t * d,
        "prompt-tuning": (t if is_encoder else 100) * d,
        "prompt-tuning-134": 134 * d,
        "p-tuning-v2": t * n_read * d,
        "prefix-tuning": 10 * d + (d + 1) * 512 + (512 + 1) * 2 * n_read * keys,
        "adapter": 2 * n_all * (2 * d * 16 + 16 + d),
        "compacter": a_sets * 4**3 + 2 * n_all * (2 * d + 2 * m + m + d),
    }


@pytest.fixture(scope="module")
def roberta_large() -> dict[str, dict[str, int]]:
    return counted("--like", "roberta-large")


@pytest.mark.parametrize("name", TABLE_2)
def test_a_row_of_table_2_has_exactly_the_papers_numbers(name: str, roberta_large: dict[str, dict[str, int]]) -> None:
    row = roberta_large[name]
    wanted, printed = TABLE_2[name]
    assert (row["gradient"], row["ema"], row["stored"]) == (wanted, 0, wanted)
    unit = {"K": 1024, "M": 1024**2}[printed[-1]]  # the paper cuts digits rather than rounds them
    digits = len(printed[:-1].partition(".")[2])
    assert abs(wanted / unit - float(printed[:-1])) < 10**-digits


@pytest.mark.parametrize("name", NOT_PRINTED)
def test_other_rows_have_the_numbers_of_their_formulas(name: str, roberta_large: dict[str, dict[str, int]]) -> None:
    row = roberta_large[name]
    assert (row["gradient"], row["ema"], row["stored"]) == (NOT_PRINTED[name], 0, NOT_PRINTED[name])


def test_the_head_is_reported_apart(roberta_large: dict[str, dict[str, int]]) -> None:
    for name in (*TABLE_2, *NOT_PRINTED):  # dense d -> d, tanh, out; a probe is one layer
        assert roberta_large[name]["head"] == (2 * 1024 + 2 if name in LINEAR_HEADS else 1_051_650)


@pytest.mark.parametrize("like", SHAPES)
def test_the_formulas_hold_on_other_shapes(like: str) -> None:
    counts = counted("--like", like)
    has_head = like in ("roberta-large", "bert-base-uncased", "minilm")
    for name, wanted in expected(*SHAPES[like], is_encoder=has_head).items():
        assert (name, counts[name]["gradient"], counts[name]["stored"]) == (name, wanted, wanted)
    d = SHAPES[like][0]
    assert counts["m-idpg-phm"]["head"] == (d * d + d + 2 * d + 2 if has_head else 0)


def test_the_formulas_give_the_integers_of_table_2() -> None:
    formulas = expected(*SHAPES["roberta-large"], is_encoder=True)
    assert {name: formulas[name] for name in TABLE_2} == {name: count for name, (count, _) in TABLE_2.items()}


def test_compacters_own_form_shares_one_a_among_all_modules() -> None:
    counts = counted("--like", "roberta-large", "--method", "compacter", "method.share_a=all")
    assert counts["compacter"]["gradient"] == counts["compacter"]["stored"] == 149_824


def test_lora_has_the_count_of_its_paper() -> None:
    counts = counted("--like", "roberta-large", "--method", "lora")
    assert counts["lora"]["gradient"] == counts["lora"]["stored"] == 786_432  # Hu et al. 2021, table 2: 0.8M


@pytest.mark.parametrize("like", SHAPES)
@pytest.mark.parametrize(("length", "hidden"), [(5, 512), (7, 96)])
def test_a_reparameterised_prefix_has_table_network_and_biases(like: str, length: int, hidden: int) -> None:
    words = [f"method.reparameterise={hidden}", f"method.prompt_length={length}"]
    counts = counted("--like", like, "--method", "prefix-tuning", *words)
    d, n, _, keys = SHAPES[like]
    outputs = 2 * n * keys
    assert counts["prefix-tuning"]["gradient"] == length * d + d * hidden + hidden + hidden * outputs + outputs


@pytest.mark.parametrize("rule", ["add", "replace", "kv"])
def test_p_tuning_v2_in_its_original_form_has_twice_the_numbers(rule: str) -> None:
    counts = counted("--like", "roberta-large", "--method", "p-tuning-v2", f"method.rule={rule}")
    assert counts["p-tuning-v2"]["gradient"] == (245_760 if rule == "kv" else 122_880)


def test_a_single_layer_generator_with_two_sets_of_a_is_the_released_codes() -> None:
    counts = counted("--like", "roberta-large", "--method", "s-idpg-phm", "method.share_a=false")
    assert counts["s-idpg-phm"]["gradient"] == 111_872


@pytest.mark.parametrize("page", ["README.md", "docs/methods/README.md"])
def test_the_pages_show_what_each_recipe_trains(page: str, roberta_large: dict[str, dict[str, int]]) -> None:
    default = counted("--like", "roberta-large", recipe="default")
    text = (Path(__file__).parents[2] / page).read_text("utf-8")
    # | `name`, on the page of methods a link | what is trained, there | paper | default |
    rows = re.findall(r"\| \[?`([\w-]+)`[^|]*\|(?: [^|]*[a-z] [^|]*\|)? ([\d,]+)[^|]*\| ([\d,]+) \|", text)
    shown = {name: (int(paper.replace(",", "")), int(own.replace(",", ""))) for name, paper, own in rows}
    shown = {name: counts for name, counts in shown.items() if name in TABLE_2 or name in NOT_PRINTED}
    assert len(shown) >= 10
    assert shown == {name: (roberta_large[name]["gradient"], default[name]["gradient"]) for name in shown}
