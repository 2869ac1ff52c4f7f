"""`softcue export --to mlflow`: a model folder that MLflow loads and serves, and that predicts as the cue."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from serving_cues import PAIRS, QUESTIONS, STARS, SUBJECTS, TOPICS, save_cue
from tolerance import REORDERED_PROBABILITIES

import softcue
from softcue.interop import export_cue
from softcue.interop.mlflow import CueModel, output_columns
from softcue.tasks import Task

ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("task", [TOPICS, PAIRS, STARS, SUBJECTS, QUESTIONS], ids=lambda task: task.name)
def test_a_table_of_predictions_has_the_columns_of_the_signature(task: Task, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    cue = save_cue(tmp_path / "cue", task)
    rows = pandas.DataFrame({column: ["My invoice is wrong.", "Where is it?"] for column in task.text})
    table = CueModel(cue).predict(rows)
    assert list(table.columns) == [name for name, _ in output_columns(task)]
    expected = [prediction.as_dict() for prediction in cue.predict(rows)]
    for column in {"label", "labels", "value"} & set(table.columns):
        assert table[column].tolist() == [row[column] for row in expected]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_backbone_folder_is_named_by_its_full_path(
    tmp_path: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    save_cue(tmp_path / "cue")
    monkeypatch.chdir(model_folders["bert"].parent)
    report = export_cue(softcue.load(tmp_path / "cue", model_folders["bert"].name), "mlflow", tmp_path / "model")
    record = yaml.safe_load((tmp_path / "model" / "MLmodel").read_text())
    assert record["flavors"]["python_function"]["config"] == {"backbone": str(model_folders["bert"].resolve())}
    assert str(model_folders["bert"].resolve()) in report.notes[0]


@pytest.fixture
def exported(tmp_path: Path, model_folders: dict[str, Path]) -> tuple[softcue.Cue, Path]:
    """A short run on a backbone that is a folder, and its export."""
    pytest.importorskip("mlflow")
    rows = [{"text": "the invoice is wrong", "label": 1}, {"text": "where is my parcel", "label": 2}] * 4
    cue = softcue.train(
        tmp_path / "cue",
        backbone=str(model_folders["bert"]),
        train=rows,
        validation=rows,
        text="text",
        label="label",
        overrides=["training.steps=2", "training.batch_size=4", "training.min_steps=0"],
        progress=False,
    )
    export_cue(cue, "mlflow", tmp_path / "model")
    return cue, tmp_path / "model"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_loads_the_model_and_it_predicts_as_the_cue(exported: tuple[softcue.Cue, Path]) -> None:
    import mlflow.pyfunc
    from pandas import DataFrame

    cue, folder = exported
    model = mlflow.pyfunc.load_model(str(folder))
    texts = ["the invoice is wrong", "where is it"]
    table: Any = model.predict(DataFrame({"text": texts}))
    predictions = cue.predict(texts)
    assert table["label"].tolist() == [prediction.label for prediction in predictions]  # integers, as they were
    assert table["score"].tolist() == REORDERED_PROBABILITIES.approx([one.score for one in predictions])
    assert model.metadata.signature.inputs.input_names() == ["text"]
    assert not list(folder.rglob("*.pkl"))
    assert cue.path is not None and cue.path.name == "cue"
    with pytest.raises(mlflow.exceptions.MlflowException, match="text"):
        model.predict(DataFrame({"other": texts}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_serves_the_model(exported: tuple[softcue.Cue, Path], tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    cue, folder = exported
    (tmp_path / "bin").mkdir()
    uvicorn = tmp_path / "bin" / "uvicorn"  # MLflow starts it by name
    uvicorn.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m uvicorn "$@"\n')
    uvicorn.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, **ENVIRONMENT, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(folder), "--env-manager", "local"]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        answer = _ask(port, {"dataframe_records": [{"text": "the invoice is wrong"}]}, server)
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)
    (predicted,) = cue.predict("the invoice is wrong")
    assert answer["predictions"][0]["label"] == predicted.label
    assert answer["predictions"][0]["score"] == REORDERED_PROBABILITIES.approx(predicted.score)


def _ask(port: int, rows: dict[str, Any], server: subprocess.Popen[bytes]) -> Any:
    """Ask as soon as the server answers, for at most four minutes."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", json.dumps(rows).encode(), {"Content-Type": "application/json"}
    )
    for _ in range(240):
        assert server.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    raise AssertionError("the server never answered")
