from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tiny import tiny_model

from softcue.cli.app import main
from softcue.methods import METHODS

ROWS = [
    "fine-tuning",
    "adapter",
    "compacter",
    "prompt-tuning",
    "prompt-tuning-134",
    "p-tuning-v2",
    "prefix-tuning",
    "s-idpg-phm",
    "s-idpg-dnn",
    "m-idpg-phm",
    "m-idpg-phm-s",
    "m-idpg-phm-l",
    "m-idpg-phm-glove",
    "m-idpg-dnn",
    "efl",
    "linear-probe",
    "no-prompt",
]


def run(*words: str) -> tuple[int, str, str]:
    """`softcue params --recipe paper` in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    recipe = [] if "--recipe" in words else ["--recipe", "paper"]
    with (
        patch.object(sys, "argv", ["softcue", "params", *recipe, *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return int(end.value.code or 0), out.getvalue(), err.getvalue()


def printed(*words: str) -> Any:
    code, out, err = run(*words, "--json")
    assert code == 0, err
    assert out.count("\n") == 1
    return json.loads(out)


def test_json_has_the_backbone_and_four_numbers_for_every_method() -> None:
    everything = printed("--like", "roberta-large")
    assert set(everything) == {"backbone", "recipe", "methods"}
    assert everything["backbone"] == "roberta-large"
    names = [row["name"] for row in everything["methods"]]
    assert len(names) == len(set(names))
    assert set(names) >= {*ROWS, *(name for name, method in METHODS.items() if "encoder" in method.kinds)}
    for row in everything["methods"]:
        assert list(row) == ["name", "gradient", "ema", "stored", "head"]
        assert all(type(row[key]) is int for key in list(row)[1:])


def test_one_method_is_counted_with_the_settings_given() -> None:
    everything = printed("--like", "roberta-large", "--method", "m-idpg-phm", "method.prompt_length=10")
    n, m, t, d, layers = 16, 16, 10, 1024, 24
    count = 2 * n**3 + d * m // n + m + m * t * d // n + layers * t * d
    row = {"name": "m-idpg-phm", "gradient": count, "ema": 0, "stored": count, "head": 1_051_650}
    assert everything == {"backbone": "roberta-large", "recipe": "paper", "methods": [row]}


def test_settings_may_come_before_and_after_options() -> None:
    words = ["method.prompt_length=3", "--like", "roberta-base", "--method", "prompt-tuning"]
    assert printed(*words)["methods"][0]["gradient"] == 3 * 768


@pytest.mark.parametrize(("classes", "head"), [(2, 384 * 384 + 384 + 385 * 2), (7, 384 * 384 + 384 + 385 * 7)])
def test_the_head_grows_with_classes_and_the_method_does_not(classes: int, head: int) -> None:
    (row,) = printed("--like", "minilm", "--method", "m-idpg-phm", "--classes", str(classes))["methods"]
    assert row["head"] == head
    assert row["gradient"] == 2 * 16**3 + 384 + 16 + 5 * 384 + 6 * 5 * 384


def test_people_get_a_table() -> None:
    code, out, err = run("--like", "roberta-large", "--method", "m-idpg-phm")
    assert (code, err) == (0, "")
    for part in ("roberta-large", "m-idpg-phm", "gradient", "ema", "stored", "head"):
        assert part in out
    assert "137232" in out.replace(",", "").replace("_", "").replace(" ", "")


def test_a_model_folder_will_do_without_weights(tmp_path: Path) -> None:
    tiny_model("bert").config.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
    (row,) = printed("--like", str(tmp_path), "--method", "p-tuning-v2")["methods"]
    assert row["gradient"] == 3 * 5 * 32


def test_a_method_that_does_not_fit_is_left_out_with_its_reason_and_the_rest_is_counted() -> None:
    for like, left_out in {
        "electra-small": {"m-idpg-phm", "m-idpg-phm-s", "m-idpg-phm-glove", "m-idpg-dnn"},  # two widths
        "deberta-v3-base": {"prefix-tuning"},  # keys serve relative positions
        "qwen2.5-0.5b": set(),
    }.items():
        code, out, err = run("--like", like, "--json")
        assert code == 0, err
        assert out.count("\n") == 1
        names = {row["name"] for row in json.loads(out)["methods"]}
        assert {name for name in ROWS if name not in names} == left_out
        for name in {*ROWS, *METHODS}:
            reasons = [
                line for line in err.splitlines() if line.startswith(f"{name} cannot be built on {like}: method.")
            ]
            assert len(reasons) == (name not in names)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--like", "roberta-huge"], ["roberta-huge", "roberta-large"]),
        (["--like", "/no/such/folder"], ["/no/such/folder"]),
        (["--method", "m-idpg"], ["method.name", "m-idpg-phm"]),
        (["--method", "m-idpg-phm", "method.promt_length=3"], ["method.promt_length", "prompt_length"]),
        (["--method", "m-idpg-phm", "method.prompt_length=0"], ["method.prompt_length"]),
        (["--method", "m-idpg-phm", "method.phm_n=7"], ["method.phm_n", "16"]),
        (["--method", "m-idpg-phm", "method.layers=6"], ["method.layers", "0 to 5"]),
        (["--method", "m-idpg-phm", "method.sharing=XL"], ["method.sharing"]),
        (["--method", "m-idpg-phm", "method.insert_at=5"], ["method.insert_at"]),
        (["--method", "m-idpg-phm", "training.epochs=3"], ["training.epochs=3"]),
        (["--method", "m-idpg-phm", "prompt_length=3"], ["prompt_length=3"]),
        (["method.prompt_length=3"], ["method.prompt_length=3", "--method"]),
        (["--method", "prompt-tuning", "method.prompt_length=600"], ["method.prompt_length"]),
        (["--like", "deberta-v3-base", "--method", "prefix-tuning"], ["method.rule", "add or replace"]),
        (["--like", "electra-small", "--method", "m-idpg-phm"], ["method.sharing", "L with electra-small"]),
        (["--method", "linear-probe", "method.strengths=[]"], ["method.strengths"]),
        (["--method", "m-idpg-phm", "method.name=prompt-tuning"], ["method.name"]),
    ],
)
def test_what_cannot_be_counted_is_one_line_and_exit_2(words: list[str], parts: list[str]) -> None:
    for flags in ([], ["--json"]):
        code, out, err = run(*words, *flags)
        assert code == 2
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        for part in ("got ", "expected ", *parts):
            assert part in err


def test_a_single_class_is_refused() -> None:
    code, out, _ = run("--classes", "1")
    assert (code, out) == (2, "")


def test_the_default_recipe_counts_what_the_preset_trains() -> None:
    counts = {row["name"]: row for row in printed("--recipe", "default", "--like", "roberta-large")["methods"]}
    n, m, t, d, layers = 16, 16, 20, 1024, 24
    keys_and_values = 2 * n**3 + d * m // n + m + m * t * 2 * d // n + layers * t * 2 * d
    assert keys_and_values == 1_033_232
    assert counts["m-idpg-phm"] == {
        "name": "m-idpg-phm",
        "gradient": keys_and_values,
        "ema": 0,
        "stored": keys_and_values,
        "head": 2 * d + 2,
    }
    assert counts["prompt-tuning"]["gradient"] == 20 * d
    assert "prompt-tuning-134" not in counts  # a row of the paper's table
    assert set(counts) == {name for name, method in METHODS.items() if "encoder" in method.kinds}
