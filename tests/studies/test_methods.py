from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas
import pytest
from command import check_error, run
from tiny import tiny

import softcue
from softcue.errors import ConfigurationError
from softcue.studies import compare_methods

ROWS = [
    {"text": f"{text} {number}", "team": team}
    for number in range(3)
    for text, team in (
        ("The invoice is wrong", "billing"),
        ("Charged twice", "billing"),
        ("The parcel never came", "shipping"),
        ("Where is my order", "shipping"),
    )
]
COLUMNS: dict[str, Any] = {"text": "text", "label": "team"}
QUICK = {"training.epochs": 1, "method.prompt_length": 2}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "bert"
    tiny("bert").save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("rows")
    paths = {}
    for split, rows in (("train", ROWS), ("validation", ROWS[:4]), ("test", ROWS)):
        path = folder / f"{split}.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "team"])
            writer.writeheader()
            writer.writerows(rows)
        paths[split] = str(path)
    return paths


def test_lines_have_mean_and_spread_of_ordinary_cues(backbone: str, files: dict[str, str], tmp_path: Path) -> None:
    lines: list[str] = []
    methods = ["prompt-tuning", "linear-probe"]
    settings: dict[str, Any] = {**files, **COLUMNS, "overrides": {"training.epochs": 1}}
    comparison = compare_methods(tmp_path, methods, 2, [backbone], lines.append, **settings)
    assert (comparison.metric, comparison.split) == ("accuracy", "test")
    assert len(lines) == len(comparison.runs) == 4
    for line in comparison.lines:
        scores = [
            softcue.load(tmp_path / "bert" / line.name / f"seed-{seed}").scores["test"]["accuracy"] for seed in (0, 1)
        ]
        assert line.mean == pytest.approx(fmean(scores))
        assert line.spread == pytest.approx(stdev(scores))
        assert (line.seeds, line.rows) == (2, 12)
    [pair] = comparison.differences
    means = [line.mean for line in comparison.lines]
    assert pair.difference.value == pytest.approx(means[1] - means[0])
    assert "prompt-tuning" in repr(comparison) and "<table" in comparison._repr_html_()


def test_a_comparison_goes_on_where_it_was(backbone: str, files: dict[str, str], tmp_path: Path) -> None:
    settings: dict[str, Any] = {**files, **COLUMNS, "overrides": QUICK}
    first = compare_methods(tmp_path, ["prompt-tuning"], 2, [backbone], **settings)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cue.json")}
    second = compare_methods(tmp_path, ["prompt-tuning"], 3, [backbone], **settings)
    assert {path: path.stat().st_mtime_ns for path in times} == times  # nothing is trained twice
    assert [run.score for run in second.runs[:2]] == [run.score for run in first.runs]
    assert len(second.runs) == 3


def test_each_seed_has_its_own_few_rows_and_methods_share_them(
    backbone: str, files: dict[str, str], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {**files, **COLUMNS, "few_shot": 4, "overrides": ["training.epochs=1"]}
    compare_methods(tmp_path, ["prompt-tuning", "linear-probe"], 2, [backbone], **settings)
    seeds = [
        re.search(r"sample_seed: (\d)", (tmp_path / "bert" / method / f"seed-{seed}" / "config.yaml").read_text())
        for method in ("prompt-tuning", "linear-probe")
        for seed in (0, 1)
    ]
    assert [match[1] for match in seeds if match] == ["0", "1", "0", "1"]


@pytest.mark.parametrize(
    "overrides", [{"backbone.dtype": "bfloat16", **QUICK}, ["backbone.dtype=bfloat16", "training.epochs=1"]]
)
def test_settings_of_the_backbone_count(backbone: str, files: dict[str, str], tmp_path: Path, overrides: Any) -> None:
    compare_methods(tmp_path, ["prompt-tuning"], 1, [backbone], **files, **COLUMNS, overrides=overrides)
    assert softcue.load(tmp_path / "bert" / "prompt-tuning" / "seed-0").cue_file.backbone.dtype == "bfloat16"


def test_tables_in_memory_are_compared_too(backbone: str, tmp_path: Path) -> None:
    frame = pandas.DataFrame(ROWS)
    comparison = compare_methods(
        tmp_path,
        ["prompt-tuning"],
        1,
        [backbone],
        train=frame,
        validation=frame,
        test=frame,
        **COLUMNS,
        overrides=QUICK,
    )
    assert (comparison.split, comparison.lines[0].rows, comparison.lines[0].spread) == ("test", 12, None)
    assert any("at least three" in note for note in comparison.notes)


def test_without_test_rows_validation_rows_are_compared_with_a_note(
    backbone: str, files: dict[str, str], tmp_path: Path
) -> None:
    rows = {split: files[split] for split in ("train", "validation")}
    comparison = compare_methods(tmp_path, ["prompt-tuning"], 1, [backbone], **rows, **COLUMNS, overrides=QUICK)
    assert comparison.split == "validation"
    assert any("too high" in note for note in comparison.notes)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"methods": []}, "methods"),
        ({"methods": ["vip", "vip"]}, "methods"),
        ({"seeds": 0}, "seeds"),
        ({"method": "vip"}, "method"),
        ({"seed": 1}, "seed"),
        ({"epoch": 1}, "epoch"),
        ({"task": None, "train": ROWS, "text": "text", "label": "team"}, "test"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_is_trained(
    changes: dict[str, Any], setting: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{setting}: "):
        compare_methods(tmp_path / "runs", **{"methods": ["vip"], "task": "tickets", **changes})
    assert not (tmp_path / "runs").exists()


def test_the_command_prints_a_table_and_writes_a_page(backbone: str, files: dict[str, str], tmp_path: Path) -> None:
    rows = [word for split, path in files.items() for word in (f"--{split}", path)]
    words = ["compare", "--methods", "prompt-tuning,linear-probe", "--seeds", "2", "--backbones", backbone, *rows]
    words += ["--text", "text", "--label", "team", "--output-dir", str(tmp_path / "runs"), "training.epochs=1"]
    shown = run(*words)
    assert shown.code == 0, shown.err
    for part in ("2 methods on", "linear-probe", "spread", "95 % interval", "Spread is the standard deviation"):
        assert part in shown.out
    assert "prompt-tuning, seed 1: " in shown.err
    page = (tmp_path / "runs" / "index.html").read_text("utf-8")
    assert page.count("<rect") >= 4 and "seed-1" in page and "Repeat it" in page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    printed = run(*words, "--json").json
    assert [entry["name"] for entry in printed["methods"]] == ["prompt-tuning", "linear-probe"]
    assert len(printed["runs"]) == 4


def test_options_of_the_wrong_form_are_errors(tmp_path: Path) -> None:
    check_error(run("compare", "--methods", "vip", "--task", "tickets"), "--output-dir")
    check_error(run("compare", "a", "b", "--task", "tickets"), "--methods")
    check_error(run("compare"), "at least two cues")
