"""benchmarks/write_benchmarks.py: measurements that were kept become tables between marks; the rest stays."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ABOUT = {"command": "softcue bench train --json", "date": "2026-01-01", "machine": "2 cores"}
FIGURE = {"ratio": 1.5, "target": 1.7, "comparison": ">=", "met": False, "spread": 0.1, "runs": 8, "meaning": "x / y"}
EMPTY = "<!-- bench growth -->\n<!-- end -->\n"
PAGE = f"# Title\nwritten by hand\n<!-- bench train -->\nold\n<!-- end -->\nbehind\n{EMPTY}"


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.delitem(sys.modules, "write_benchmarks", raising=False)
    import write_benchmarks

    return write_benchmarks


def written(writer: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, **saved: dict[str, Any]) -> str:
    docs = folder / "benchmarks.md"
    docs.write_text(PAGE, "utf-8")
    for name, found in saved.items():
        (folder / f"{name}.json").write_text(json.dumps(ABOUT | found), "utf-8")
    monkeypatch.setattr(sys, "argv", ["write", "--saved", str(folder), "--docs", str(docs)])
    writer.main()
    return docs.read_text("utf-8")


def test_a_table_takes_the_place_of_the_old_one(
    writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"speed": FIGURE, "size": FIGURE | {"met": True, "comparison": "<=", "runs": 1}}
    page = written(writer, tmp_path, monkeypatch, train={"figures": figures})
    assert "old" not in page
    assert page.startswith("# Title\nwritten by hand\n<!-- bench train -->\n")
    assert page.endswith(f"<!-- end -->\nbehind\n{EMPTY}")  # nobody measured growth
    assert "`softcue bench train --json`, 2026-01-01; 2 cores." in page
    assert "| speed | at least 1.7 | 1.500 | 0.100 | 8 | **missed by 0.200** (12 %) | x / y |" in page
    assert "| size | at most 1.7 | 1.500 | exact | 1 | yes | x / y |" in page


def test_writing_twice_changes_nothing(writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = written(writer, tmp_path, monkeypatch, train={"figures": {"speed": FIGURE}})
    assert writer.rewritten(page, "train", writer.section(ABOUT | {"figures": {"speed": FIGURE}})) == page


def test_growth_becomes_small_pictures_and_a_table(
    writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    page = written(writer, tmp_path, monkeypatch, growth={"growth": curves})
    assert "| prompt 2 | 2.000 | 8.000 | 4.00 | 4.00 |" in page
    for name in ("growth-steps.png", "growth-cues.png"):
        assert f"(plots/{name})" in page
        assert 1000 < (tmp_path / "plots" / name).stat().st_size < 80_000


def test_few_shot_contestants_are_told(writer: ModuleType) -> None:
    one = {"seconds": 9.5, "seconds_to_score": [4.25, None], "wanted": [80.0, 81.0], "validation": 82.0, "test": 79.0}
    found = writer.section(ABOUT | {"figures": {}, "contestants": {"SetFit": one}})
    assert "| SetFit | 9.5 | 4.2, - | 80.0, 81.0 | 82.0 | 79.0 |" in found


def test_marks_that_are_missing_are_named(writer: ModuleType) -> None:
    with pytest.raises(SystemExit, match="bench predict"):
        writer.rewritten(PAGE, "predict", "table")


def test_the_docs_have_a_place_for_every_bench(writer: ModuleType) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    for name in writer.BENCHES:
        writer.rewritten(page, name, "table")


def test_a_measurement_is_kept_with_what_it_was_made_by(
    writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(words: list[str], **options: object) -> Any:
        assert words[1:] == ["-m", "softcue", "bench", "predict", "--json", "--data", "here"]
        return type("Ended", (), {"stdout": b'{"figures": {}}'})

    monkeypatch.setattr(writer.subprocess, "run", run)
    writer.measure("predict", Path("here"), tmp_path)
    kept = json.loads((tmp_path / "predict.json").read_text("utf-8"))
    assert kept["figures"] == {}
    assert kept["command"] == "softcue bench predict --json --data here"
    assert "cores" in kept["machine"] and "peft" in kept["machine"]
