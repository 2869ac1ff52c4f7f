from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from study_results import write_study
from typer.testing import CliRunner

from softcue.cli.study_report import report
from softcue.errors import ConfigurationError

STUDY = {"tasks": ["tickets", "urgency"], "methods": ["prompt-tuning", "vip"], "seeds": 3, "title": "Two methods"}


@pytest.fixture
def app() -> typer.Typer:
    commands = typer.Typer()
    commands.command()(report)
    return commands


def test_the_command_prints_the_table_and_writes_all_files(app: typer.Typer, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    write_study(folder, STUDY, failed={"minilm/urgency/vip/seed-2": "out of memory"})
    shown = CliRunner().invoke(app, [str(folder)])
    assert shown.exit_code == 0, shown.output
    assert "Two methods" in shown.stdout and "mean" in shown.stdout and "(2 of 3 runs)" in shown.stdout
    assert "11 of 12 runs are finished, 1 failed" in shown.stdout
    assert "failed: minilm/urgency/vip/seed-2: out of memory" in shown.stderr
    names = {path.name for path in (folder / "report").iterdir()}
    assert {"index.html", "report.md", "report.tex", "table.csv", "scores.csv", "differences.csv"} <= names


def test_json_is_one_object_with_the_files(app: typer.Typer, tmp_path: Path) -> None:
    write_study(tmp_path / "study", STUDY)
    shown = CliRunner().invoke(app, [str(tmp_path / "study"), "--output-dir", str(tmp_path / "out"), "--json"])
    values = json.loads(shown.stdout)
    assert values["tables"][0]["rows"]["vip"][0]["runs"] == 3
    assert all(Path(path).is_file() for path in values["files"])
    assert values["runs"] == {"planned": 12, "done": 12, "failed": {}}


def test_a_study_at_a_url_needs_a_folder_for_its_report(app: typer.Typer) -> None:
    shown = CliRunner().invoke(app, ["s3://bucket/study"])
    assert isinstance(shown.exception, ConfigurationError) and "output_dir" in str(shown.exception)
