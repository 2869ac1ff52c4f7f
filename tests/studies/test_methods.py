from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas
import pytest
import yaml
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
    assert [line for line in lines if ", seed " in line] == lines[3:] and len(lines[3:]) == len(comparison.runs) == 4
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


def sample_seeds(folder: Path, methods: list[str]) -> list[int]:
    """The seeds of the samples that the runs with seeds 0 and 1 were trained on."""
    configs = [folder / "bert" / method / f"seed-{seed}" / "config.yaml" for method in methods for seed in (0, 1)]
    return [yaml.safe_load(config.read_text("utf-8"))["task"]["sample_seed"] for config in configs]


@pytest.mark.parametrize(
    "given",
    [
        {"few_shot": 4, "overrides": ["training.epochs=1"]},
        {"shots_per_class": 2, "overrides": ["training.epochs=1"]},
        {"overrides": ["training.epochs=1", "task.few_shot=4"]},
        {"overrides": iter(["training.epochs=1", "task.few_shot=4"])},
        {"overrides": {"training.epochs": 1, "task.shots_per_class": 2}},
        {"overrides": {"training.epochs": 1}, "config": {"task": {"few_shot": 4}}},
    ],
    ids=["option", "option per class", "words", "words that are read once", "mapping", "config"],
)
def test_each_seed_has_its_own_few_rows_and_methods_share_them(
    backbone: str, files: dict[str, str], tmp_path: Path, given: dict[str, Any]
) -> None:
    methods = ["prompt-tuning", "linear-probe"]
    comparison = compare_methods(tmp_path, methods, 2, [backbone], **files, **COLUMNS, **given)
    assert sample_seeds(tmp_path, methods) == [0, 1, 0, 1]
    assert "Each seed trains on a sample of its own, the same for all methods." in comparison.notes


def test_a_sample_seed_of_the_user_gives_all_seeds_the_same_few_rows(
    backbone: str, files: dict[str, str], tmp_path: Path
) -> None:
    for name, sampling in (("few", {"task.few_shot": 4}), ("some", {"task.train_rows": 8})):
        overrides = {**QUICK, "task.sample_seed": 7, **sampling}
        settings: dict[str, Any] = {**files, **COLUMNS, "overrides": overrides}
        comparison = compare_methods(tmp_path / name, ["prompt-tuning"], 2, [backbone], **settings)
        assert sample_seeds(tmp_path / name, ["prompt-tuning"]) == [7, 7]
        assert "All seeds train on the same sample of rows (task.sample_seed=7)." in comparison.notes


def test_baselines_stand_below_the_methods_as_the_runs_recorded_them(
    backbone: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {**files, **COLUMNS, "overrides": QUICK}
    softcue.compare(methods=["prompt-tuning"], output_dir=tmp_path, backbones=[backbone], **settings)
    passes: list[str] = []
    monkeypatch.setattr("softcue.evaluation.baselines.zero_shot_predictions", lambda *_, **__: passes.append("pass"))
    comparison = softcue.compare(methods=["prompt-tuning"], output_dir=tmp_path, backbones=[backbone], **settings)
    assert not passes
    recorded = softcue.load(tmp_path / "bert" / "prompt-tuning" / "seed-0").cue_file.baselines["test"]
    expected = {name: pytest.approx(scores["accuracy"]) for name, scores in recorded.items()}
    assert dict(zip(comparison.baselines["baseline"], comparison.baselines["mean"], strict=True)) == expected
    assert comparison.baselines["name"] == ["majority class", "zero-shot"]
    assert len(comparison) == 1 and comparison.as_dict()["baselines"] == comparison.baselines.to_dict("records")
    for shown in (repr(comparison), comparison._repr_html_(), comparison.page()):
        assert shown.index("prompt-tuning") < shown.index("majority class") < shown.index("zero-shot")


def test_baselines_of_few_rows_are_means_over_seeds(backbone: str, tmp_path: Path) -> None:
    tables: dict[str, Any] = {"train": ROWS, "validation": ROWS, "test": [*ROWS[:3], *ROWS[4:6]]}  # 4 of 5 are billing
    settings: dict[str, Any] = {**tables, **COLUMNS, "few_shot": 9, "overrides": QUICK}
    comparison = compare_methods(tmp_path, ["prompt-tuning"], 4, [backbone], **settings)
    by_seed = [run.baselines["majority_class"] for run in comparison.runs]
    assert set(by_seed) == {20.0, 80.0}
    assert comparison.baselines["mean"][0] == pytest.approx(fmean(score for score in by_seed if score is not None))


def test_each_backbone_has_a_zero_shot_score(backbone: str, files: dict[str, str], tmp_path: Path) -> None:
    tiny("gpt2").save(tmp_path / "gpt2")
    settings: dict[str, Any] = {**files, **COLUMNS, "overrides": QUICK}
    backbones = [backbone, str(tmp_path / "gpt2")]
    comparison = compare_methods(tmp_path / "runs", ["prompt-tuning"], 1, backbones, **settings)
    zero_shot = [f"zero-shot, {name}" for name in backbones]
    assert comparison.baselines["name"] == ["majority class", *zero_shot]


def test_a_regression_has_the_mean_target_and_says_why_there_is_no_zero_shot_score(
    backbone: str, tmp_path: Path
) -> None:
    rows = [{"text": row["text"], "label": number / 3} for number, row in enumerate(ROWS)]
    tables: dict[str, Any] = {"train": rows, "validation": rows, "test": rows}
    overrides = {**QUICK, "task.kind": "regression"}
    comparison = compare_methods(tmp_path, ["prompt-tuning"], 1, [backbone], **tables, overrides=overrides)
    assert comparison.baselines["name"] == ["mean target"]
    assert any(note.startswith("no zero-shot score: ") for note in comparison.notes)


def test_warnings_of_runs_stand_below_the_table_once(backbone: str, files: dict[str, str], tmp_path: Path) -> None:
    settings: dict[str, Any] = {**files, **COLUMNS, "overrides": {"training.epochs": 1}}
    methods = ["prompt-tuning", "linear-probe"]
    compare_methods(tmp_path, methods, 2, [backbone], **settings)
    for run_folder, warnings in (("prompt-tuning/seed-0", ["a", "b"]), ("prompt-tuning/seed-1", ["a"])):
        file = tmp_path / "bert" / run_folder / "metrics.json"
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "warnings": warnings}))
    comparison = compare_methods(tmp_path, methods, 2, [backbone], **settings)
    assert comparison.notes[-2:] == ["prompt-tuning, seed 0; prompt-tuning, seed 1: a", "prompt-tuning, seed 0: b"]
    assert comparison.notes[-1] in comparison.page() and comparison.as_dict()["notes"] == comparison.notes


def test_backbone_and_rows_are_named_once_before_the_first_run(
    backbone: str, files: dict[str, str], tmp_path: Path
) -> None:
    lines: list[str] = []
    settings: dict[str, Any] = {**files, **COLUMNS, "overrides": {"training.epochs": 1}}
    compare_methods(tmp_path, ["linear-probe", "prompt-tuning"], 2, [backbone], lines.append, **settings)
    assert lines[:2] == [
        f"{backbone}: encoder, cpu, float32, sdpa attention",
        "rows: 12 training, 4 validation, 12 test",
    ]
    assert lines[2].startswith("settings of each run: ") and lines[3].startswith("linear-probe, seed 0: ")
    assert len([line for line in lines if "attention" in line or line.startswith("rows: ")]) == 2


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


def test_common_settings_are_options(backbone: str, files: dict[str, str], tmp_path: Path) -> None:
    rows = [word for split, path in files.items() for word in (f"--{split}", path)]
    words = ["compare", "--methods", "prompt-tuning", "--seeds", "1", "--backbones", backbone, *rows]
    words += ["--text", "text", "--label", "team", "--output-dir", tmp_path, "--epochs", "2", "--prompt-length", "3"]
    words += ["--learning-rate", "0.02", "--batch-size", "4", "--shots-per-class", "3"]
    assert run(*words).code == 0
    config = yaml.safe_load((tmp_path / "bert" / "prompt-tuning" / "seed-0" / "config.yaml").read_text("utf-8"))
    training = {name: config["training"][name] for name in ("epochs", "learning_rate", "batch_size")}
    assert training == {"epochs": 2, "learning_rate": 0.02, "batch_size": 4}
    assert (config["method"]["prompt_length"], config["task"]["shots_per_class"]) == (3, 3)
    others = [*words, "training.patience=1"]
    refused = run(*others)
    assert refused.code == 2 and refused.err.endswith("choose another folder, or pass --overwrite\n")
    assert run(*others, "--overwrite").code == 0


def test_options_of_the_wrong_form_are_errors(tmp_path: Path) -> None:
    check_error(run("compare", "--methods", "vip", "--task", "tickets"), "--output-dir")
    check_error(run("compare", "a", "b", "--task", "tickets"), "--methods")
    check_error(run("compare"), "at least two cues")
