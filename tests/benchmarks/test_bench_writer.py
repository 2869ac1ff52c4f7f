"""Saved measurements become tables between the marks of docs/benchmarks.md; the rest of the page stays."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tables import write_benchmarks
from benchmarks.tables.write_benchmarks import BENCHMARKS, format_section, replace_section

ROOT = Path(__file__).parents[2]
ABOUT = {"command": "python -m benchmarks train --json", "date": "2026-01-01", "machine": "2 cores"}
FIGURE = {"ratio": 1.5, "target": 1.7, "comparison": ">=", "met": False, "spread": 0.1, "runs": 8, "meaning": "x / y"}
EMPTY = "<!-- bench growth -->\n<!-- end -->\n"
PAGE = f"# Title\nwritten by hand\n<!-- bench train -->\nold\n<!-- end -->\nbehind\n{EMPTY}"


def write_page(folder: Path, monkeypatch: pytest.MonkeyPatch, **saved: dict[str, Any]) -> str:
    """The page after writing the tables of these measurements."""
    docs = folder / "benchmarks.md"
    docs.write_text(PAGE, "utf-8")
    for name, measurements in saved.items():
        (folder / f"{name}.json").write_text(json.dumps(ABOUT | measurements), "utf-8")
    monkeypatch.setattr(sys, "argv", ["write", "--saved", str(folder), "--docs", str(docs)])
    write_benchmarks.main()
    return docs.read_text("utf-8")


def test_a_table_takes_the_place_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"speed": FIGURE, "size": FIGURE | {"met": True, "comparison": "<=", "runs": 1}}
    page = write_page(tmp_path, monkeypatch, train={"figures": figures})
    assert "old" not in page
    assert page.startswith("# Title\nwritten by hand\n<!-- bench train -->\n")
    assert page.endswith(f"<!-- end -->\nbehind\n{EMPTY}")  # nobody measured growth
    assert "`python -m benchmarks train --json`, 2026-01-01; 2 cores." in page
    assert "| speed | at least 1.7 | 1.500 | 0.100 | 8 | **missed by 0.200** (12 %) | x / y |" in page
    assert "| size | at most 1.7 | 1.500 | exact | 1 | yes | x / y |" in page


def test_writing_twice_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = write_page(tmp_path, monkeypatch, train={"figures": {"speed": FIGURE}})
    assert replace_section(page, "train", format_section(ABOUT | {"figures": {"speed": FIGURE}})) == page


def test_growth_becomes_small_pictures_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def point(axis: str, value: int) -> dict[str, Any]:
        pair = {"ours": value, "peft": 4 * value}
        return {
            axis: value,
            "seconds": pair,
            "bytes": pair,
            "operations": pair,
            "positions": pair,
            "words": {"ours": 1, "peft": value},
        }

    curves = {axis: [point(axis, value) for value in (1, 2, 5)] for axis in ("prompt", "text", "rows")}
    curves["cues"] = [{"cues": value, "seconds": {"ours": 1.0}} for value in (1, 10)]
    page = write_page(tmp_path, monkeypatch, growth={"growth": curves})
    assert "| prompt 2 | 2.000 | 8.000 | 4.00 | 4.00 |" in page
    for name in ("growth-steps.png", "growth-cues.png"):
        assert f"(plots/{name})" in page
        assert 1000 < (tmp_path / "plots" / name).stat().st_size < 80_000


def test_few_shot_contestants_have_a_table() -> None:
    contestant = {
        "seconds": 9.5,
        "seconds_to_score": [4.25, None],
        "wanted": [80.0, 81.0],
        "validation": 82.0,
    }
    section = format_section(ABOUT | {"figures": {}, "contestants": {"SetFit": contestant}})
    assert "| SetFit | 9.5 | 4.2, - | 80.0, 81.0 | 82.0 |" in section


def test_many_classifiers_have_rates_and_accuracy() -> None:
    table = [
        {"clients": 32, "server": server, "rows_per_second": rate} for server, rate in (("ours", 95.04), ("x", 50.0))
    ]
    accuracy = [{"task": "urgency", "ours": 89.7, "theirs": 81.7, "test_rows": 126}]
    section = format_section(ABOUT | {"figures": {}, "accuracy": accuracy, "throughput": table})
    assert "| 32 | softcue | 95.0 |\n| 32 | logistic regressions | 50.0 |" in section
    assert "| urgency | 89.7 | 81.7 | 126 |" in section


def test_runtimes_say_what_runs_where() -> None:
    report = {"runtime": "openvino int8", "speeds": {"int8": 2.5}, "compared": {"a": "400 rows"}, "in_torch": {}}
    section = format_section(ABOUT | {"figures": {}, "runtimes": {"minilm": report}})
    assert "| minilm | openvino int8 | int8: 2.5 | a: 400 rows | - |" in section


def test_marks_that_are_missing_are_named() -> None:
    with pytest.raises(SystemExit, match="bench predict"):
        replace_section(PAGE, "predict", "table")


def test_the_docs_have_a_place_for_every_benchmark() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    for name in BENCHMARKS:
        replace_section(page, name, "table")


def test_a_measurement_is_saved_with_its_command_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: object) -> Any:
        assert command[1:] == ["-m", "benchmarks", "predict", "--json", "--data", "here"]
        return type("Ended", (), {"stdout": b'{"figures": {}}'})

    monkeypatch.setattr(write_benchmarks.subprocess, "run", run)
    write_benchmarks.measure("predict", tmp_path, Path("here"))
    saved = json.loads((tmp_path / "predict.json").read_text("utf-8"))
    assert saved["figures"] == {}
    assert saved["command"] == "python -m benchmarks predict --json --data here"
    assert "cores" in saved["machine"] and "peft" in saved["machine"]
