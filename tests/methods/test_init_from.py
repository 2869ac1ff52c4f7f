"""A run that starts from a finished cue: supplementary training (Wu et al. 2022, appendix A.4)."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tiny import tiny, tiny_model, tiny_tokenizer
from torch import Tensor

import softcue
from softcue import Cue
from softcue.backbones import Backbone
from softcue.cli.app import main
from softcue.errors import ConfigurationError, CueError, RunError, SoftcueError

NLI = [
    {"premise": f"{text} {number}", "hypothesis": other, "label": label}
    for number in range(4)
    for text, other, label in [
        ("my invoice is wrong", "it is about a bill", "entailment"),
        ("the parcel is late", "nothing came", "neutral"),
        ("i cannot sign in", "all is well", "contradiction"),
    ]
]
PAIRS = [
    {"premise": row["premise"], "hypothesis": row["hypothesis"], "label": "yes" if n % 3 == 0 else "no"}
    for n, row in enumerate(NLI)
]
STILL = {  # nothing moves
    "training.learning_rate": 0.0,
    "training.network_learning_rate": 0.0,
    "training.head_learning_rate": 0.0,
    "training.epochs": 1,
    "readout.refit": False,
}
RANDOM_HEAD = {"readout.head_start": "random", "readout.centre": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "prompt-tuning": {"method.prompt_length": 3},
    "m-idpg-phm": {"method.prompt_length": 3, "method.phm_n": 4, "method.bottleneck": 8, "method.rule": "add"},
    "p-tuning-v2": {"method.prompt_length": 3, "method.rule": "add"},
    "prefix-tuning": {"method.prompt_length": 3},
    "adapter": {"method.bottleneck": 8},
    "fine-tuning": {},
}


def train(folder: Path, method: str = "prompt-tuning", rows: Any = None, **settings: Any) -> Cue:
    rows = NLI if rows is None else rows
    overrides = {"training.epochs": 1, "training.batch_size": 4, **SETTINGS.get(method, {})}
    overrides |= settings.pop("overrides", {})
    given = {"text": ["premise", "hypothesis"], "label": "label", "backbone": tiny("bert"), **settings}
    return softcue.train(
        folder, method=method, train=rows, validation=rows, overrides=overrides, progress=False, **given
    )


def numbers(cue: Cue) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return cue.model.method.state_dict(), cue.model.readout.state_dict()


def all_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Cue:
    """A first stage: prompt tuning on NLI rows."""
    return train(tmp_path_factory.mktemp("cues") / "nli")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Cue:
    """A first stage with a generator."""
    return train(tmp_path_factory.mktemp("cues") / "idpg", "m-idpg-phm")


# --- what is taken over ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SETTINGS)
def test_a_methods_numbers_are_taken_over_exactly(method: str, tmp_path: Path) -> None:
    rates = {"training.learning_rate": 0.01, "training.network_learning_rate": 0.01}
    origin = train(tmp_path / "first", method, overrides=rates)
    other = train(tmp_path / "other", method, PAIRS, seed=5, init_from=tmp_path / "first", overrides=STILL)
    fresh = train(tmp_path / "fresh", method, PAIRS, seed=5, overrides=STILL)
    assert all_equal(numbers(other)[0], numbers(origin)[0])
    assert not all_equal(numbers(fresh)[0], numbers(origin)[0])


def test_the_head_is_taken_over_with_equal_labels_only(first: Cue, tmp_path: Path) -> None:
    assert first.path is not None
    same = train(tmp_path / "same", seed=5, init_from=first.path, overrides=STILL)
    assert all_equal(numbers(same)[1], numbers(first)[1])  # with mean and scale of its vectors
    renamed = [{**row, "label": row["label"].upper()} for row in NLI]  # as many labels, other names
    for name, rows in (("fewer", PAIRS), ("renamed", renamed)):
        still = {**STILL, **RANDOM_HEAD}
        other = train(tmp_path / name, rows=rows, seed=5, init_from=first.path, overrides=still)
        fresh = train(tmp_path / f"{name} fresh", rows=rows, seed=5, overrides=still)
        assert all_equal(numbers(other)[0], numbers(first)[0])
        assert all_equal(numbers(other)[1], numbers(fresh)[1])


def test_an_untrained_second_stage_answers_as_the_first(first: Cue, tmp_path: Path) -> None:
    assert first.path is not None
    same = train(tmp_path / "same", seed=5, init_from=first.path, overrides=STILL)
    texts = [("my invoice", "a bill"), ("parcel", "nothing")]
    assert same.predict(texts) == first.predict(texts)


@pytest.mark.parametrize("readout", [{"readout.head": "mlp"}, {"readout.name": "label-words"}])
def test_another_readout_starts_anew_and_the_method_goes_on(
    first: Cue, readout: dict[str, str], tmp_path: Path
) -> None:
    assert first.path is not None
    words = {
        f"task.label_words.{label}": word
        for label, word in {"entailment": "the", "neutral": "is", "contradiction": "my"}.items()
    }
    other = train(tmp_path / "other", init_from=first.path, overrides={**STILL, **readout, **words})
    assert all_equal(numbers(other)[0], numbers(first)[0])


def test_scores_of_a_regression_are_centred_on_the_new_rows(tmp_path: Path) -> None:
    rows = [{**row, "label": float(n)} for n, row in enumerate(NLI)]
    kind = {"task.kind": "regression"}
    origin = train(tmp_path / "first", rows=rows, overrides=kind)
    shifted = [{**row, "label": row["label"] * 2 + 100} for row in rows]
    other = train(tmp_path / "second", rows=shifted, init_from=tmp_path / "first", overrides={**kind, **STILL})
    assert float(numbers(origin)[1]["mean"]) == pytest.approx(5.5)
    assert float(numbers(other)[1]["mean"]) == pytest.approx(111)
    assert torch.equal(numbers(origin)[1]["head.1.weight"], numbers(other)[1]["head.1.weight"])


def test_the_first_cue_is_left_as_it_was(first: Cue, tmp_path: Path) -> None:
    assert first.path is not None
    before = {path.name: path.read_bytes() for path in first.path.iterdir()}
    train(tmp_path / "second", rows=PAIRS, init_from=first.path, overrides={"training.learning_rate": 0.5})
    assert {path.name: path.read_bytes() for path in first.path.iterdir()} == before


def test_nothing_of_the_first_cue_is_needed_to_load_the_second(tmp_path: Path) -> None:
    train(tmp_path / "first")
    second = train(tmp_path / "second", rows=PAIRS, init_from=tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    texts = [("my invoice", "a bill")]
    assert softcue.load(tmp_path / "second", tiny("bert")).predict(texts) == second.predict(texts)


# --- what is an error ------------------------------------------------------------------------------------------------


def expect_error(folder: Path, kind: type[SoftcueError], pattern: str, **settings: Any) -> None:
    with pytest.raises(kind, match=pattern):
        train(folder, **settings)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("p-tuning-v2", {}),
        ("m-idpg-phm", {}),
        ("adapter", {}),
        ("no-prompt", {}),
        ("prompt-tuning", {"method.prompt_length": 4}),
    ],
)
def test_another_method_or_length_is_refused(
    first: Cue, method: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    pattern = r"training\.init_from: got '.*nli \(prompt-tuning\)'; expected a cue of the same method and settings"
    expect_error(tmp_path / "x", ConfigurationError, pattern, method=method, init_from=first.path, overrides=overrides)


@pytest.mark.parametrize(
    "change",
    [
        {"method.bottleneck": 4},
        {"method.phm_n": 8},
        {"method.sharing": "S"},
        {"method.rule": "kv"},
        {"method.rule": "replace"},
        {"method.input": "first"},
        {"method.activation": "relu"},
        {"method.pooling": "mean"},
        {"method.residual": True},
        {"method.layer_norm": True},
        {"method.layers": [0, 1]},
    ],
)
def test_settings_that_give_the_numbers_another_meaning_are_refused(
    change: dict[str, Any], generated: Cue, tmp_path: Path
) -> None:
    expect_error(
        tmp_path / "x",
        ConfigurationError,
        r"training\.init_from",
        method="m-idpg-phm",
        init_from=generated.path,
        overrides=change,
    )


def test_settings_of_training_and_of_first_numbers_are_free(generated: Cue, tmp_path: Path) -> None:
    free = {"method.dropout": 0.3, "method.init_std": 0.5, "method.factor_std": 0.5, "training.batch_size": 2}
    other = train(tmp_path / "x", "m-idpg-phm", init_from=generated.path, overrides={**free, **STILL})
    assert all_equal(numbers(other)[0], numbers(generated)[0])


def test_another_backbone_is_refused(first: Cue, tmp_path: Path) -> None:
    model = tiny_model("bert")
    model.bert.encoder.layer[0].output.dense.weight.data.mul_(1.5)
    other = Backbone(model, tiny_tokenizer("bert"), "other")
    expect_error(tmp_path / "x", CueError, "weights differ", init_from=first.path, backbone=other)
    expect_error(tmp_path / "x", CueError, "differ", init_from=first.path, backbone=tiny("t5"))


def test_what_is_no_cue_is_refused(tmp_path: Path) -> None:
    expect_error(tmp_path / "x", CueError, "cue.json", init_from=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    expect_error(tmp_path / "x", CueError, "cue.json", init_from=tmp_path / "empty")


# --- what makes two runs the same ------------------------------------------------------------------------------------


def test_the_run_depends_on_the_cue_and_not_on_where_it_lies(first: Cue, tmp_path: Path) -> None:
    assert first.path is not None
    other = train(tmp_path / "other origin", seed=9)
    moved = shutil.copytree(first.path, tmp_path / "moved")
    runs = {
        name: train(tmp_path / name, rows=PAIRS, init_from=origin).cue_file.training["run"]
        for name, origin in {"a": first.path, "b": moved, "c": other.path, "d": None}.items()
    }
    assert runs["a"] == runs["b"]
    assert len(set(runs.values())) == 3


def test_a_run_is_resumed_with_its_own_cue_only(first: Cue, tmp_path: Path) -> None:
    assert first.path is not None
    second = train(tmp_path / "second", rows=PAIRS, init_from=first.path)
    again = train(tmp_path / "second", rows=PAIRS, init_from=first.path, resume=True)
    assert all_equal(numbers(again)[0], numbers(second)[0])
    other = train(tmp_path / "other origin", seed=9)
    for origin in (other.path, None):
        with pytest.raises(RunError, match="resume: got"):
            train(tmp_path / "second", rows=PAIRS, init_from=origin, resume=True)


def test_the_configuration_names_the_cue(first: Cue, tmp_path: Path) -> None:
    assert first.path is not None
    second = train(tmp_path / "second", rows=PAIRS, overrides={"training.init_from": str(first.path)})
    assert second.cue_file.training["init_from"] == str(first.path)
    assert f"init_from: {first.path}" in (tmp_path / "second" / "config.yaml").read_text()


# --- the command line, in two stages ---------------------------------------------------------------------------------


def csv_file(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def run(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["softcue", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return int(end.value.code or 0), out.getvalue(), err.getvalue()


def test_two_stages_on_the_command_line_with_swapped_pairs(model_folders: dict[str, Path], tmp_path: Path) -> None:
    nli, pairs = csv_file(tmp_path / "nli.csv", NLI), csv_file(tmp_path / "pairs.csv", PAIRS)
    common = [
        "--backbone",
        model_folders["bert"],
        "--method",
        "s-idpg-phm",
        "--text",
        "premise,hypothesis",
        "--label",
        "label",
        "--json",
        "method.prompt_length=3",
        "method.phm_n=4",
        "method.bottleneck=8",
        "training.epochs=1",
    ]
    code, out, err = run(
        "train",
        "--train",
        nli,
        "--validation",
        nli,
        *common,
        "task.swap_pairs=true",
        "training.schedule=linear",
        "--output-dir",
        tmp_path / "first",
    )
    assert code == 0, err
    assert json.loads(out)["cue"] == str(tmp_path / "first")
    record = softcue.load(tmp_path / "first").cue_file
    assert record.training["train_rows"] == 2 * len(NLI)
    assert record.training["validation_rows"] == len(NLI)
    code, out, err = run(
        "train",
        "--train",
        pairs,
        "--validation",
        pairs,
        *common,
        "--init-from",
        tmp_path / "first",
        "--output-dir",
        tmp_path / "second",
        "training.learning_rate=0",
        "training.network_learning_rate=0",
    )
    assert code == 0, err
    first, second = (softcue.load(tmp_path / name) for name in ("first", "second"))
    assert all_equal(numbers(first)[0], numbers(second)[0])
    assert second.cue_file.training["train_rows"] == len(PAIRS)
    assert second.task.label_names == ("no", "yes")
    for words in (
        ["--init-from", tmp_path / "first", "method.prompt_length=4"],
        ["--init-from", tmp_path / "first", "--method", "prompt-tuning", "method.prompt_length=3"],
        ["--init-from", tmp_path / "nowhere"],
    ):
        given = [*common, *words]
        if "prompt-tuning" in words:
            given = [word for word in given if not str(word).startswith(("method.phm_n", "method.bottleneck"))]
        code, out, err = run("train", "--train", pairs, "--validation", pairs, *given, "--output-dir", tmp_path / "x")
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and err.count("\n") == 1
        assert not (tmp_path / "x").exists()


def test_a_second_stage_measures_in_the_units_of_the_first(tmp_path: Path) -> None:
    parallel = {"method.prompt_length": 3, "method.rule": "parallel"}
    first = train(tmp_path / "first", "p-tuning-v2", overrides=parallel)
    units = [[2.0 * key, 3.0 * value] for key, value in first.cue_file.method["units"]]
    moved = train(tmp_path / "moved", "p-tuning-v2", overrides={**parallel, "method.units": units})
    second = train(tmp_path / "second", "p-tuning-v2", init_from=tmp_path / "moved", overrides={**parallel, **STILL})
    assert second.cue_file.method["units"] == moved.cue_file.method["units"] != first.cue_file.method["units"]


def test_a_head_on_other_vectors_is_not_taken_over(first: Cue, tmp_path: Path) -> None:
    pooled = {"readout.pooling": "mean", "readout.pairs": "joint"}
    other = train(tmp_path / "other", seed=5, init_from=first.path, overrides={**STILL, **pooled})
    assert first.cue_file.readout.pooling != "mean"
    assert not all_equal(numbers(other)[1], numbers(first)[1])


@pytest.mark.parametrize("method", ["prompt-tuning", "p-tuning-v2"])
def test_a_run_that_names_no_method_takes_that_of_the_first_cue(method: str, tmp_path: Path) -> None:
    train(tmp_path / "first", method)
    second = softcue.train(
        tmp_path / "second",
        backbone=tiny("bert"),
        train=NLI,
        validation=NLI,
        text=["premise", "hypothesis"],
        init_from=tmp_path / "first",
        overrides={"training.epochs": 1, **SETTINGS[method]},
        progress=False,
    )
    assert second.cue_file.method["name"] == method
