"""The adapters with the packages themselves, without network. A package that is not installed is passed over."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from softcue.training.trackers import EndState, Reports, TrackedRun

NOWHERE = "http://127.0.0.1:9"  # no one listens there: a package that wants the network fails
SETTINGS = {"training.epochs": 3, "task.label_words.0": "bad", "training.report_to": '["x"]', "task.text": ""}
TAGS = {"method": "vip", "backbone": "b" * 100, "task": "tickets"}
FIRST, SECOND = [1, 2, 3, 4], [3, 4, 5]  # steps of a run that stopped, and of the same run after it was resumed


@dataclass
class Shown:
    """A run as its tracker has it."""

    steps: list[int]
    losses: list[float]
    scores: dict[str, float]
    state: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    group: str = ""


@pytest.fixture(autouse=True)
def _without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, NOWHERE)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no settings of the user
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def report(folder: Path, name: str, step: int, steps: list[int], state: EndState) -> list[str]:
    """Report steps after a checkpoint of `step`; returns warnings."""
    run = TrackedRun(folder, "minilm/vip/seed-0", "study", SETTINGS, TAGS)
    reports = Reports(run, [name])
    [line] = reports.start(step)
    assert line.startswith(f"reports to {name}: ")
    warnings = []
    for number in steps:
        warnings += reports.log("step", {"step": number, "loss": 1 / number})
        warnings += reports.log("evaluation", {"step": number, "prompt (variation)": 0.5})
    return warnings + reports.finish({"test/accuracy": 75.0} if state == "finished" else {}, state)


def report_twice(folder: Path, name: str, first_state: EndState = "killed") -> None:
    """A run that stops after step 4 and is resumed from its checkpoint of step 2."""
    folder.mkdir()
    assert report(folder, name, 0, FIRST, first_state) == []
    assert report(folder, name, 2, SECOND, "finished") == []


def check(shown: Shown) -> None:
    assert shown.steps == [1, 2, 3, 4, 5]
    assert shown.losses == pytest.approx([1 / step for step in shown.steps])
    assert shown.scores == pytest.approx({"final/test/accuracy": 75.0})


def test_tensorboard_shows_a_resumed_run_as_one(tmp_path: Path) -> None:
    report_twice(tmp_path / "cue", "tensorboard")
    check(read_tensorboard(tmp_path / "cue"))


def test_tensorboard_hides_the_run_that_was_overwritten(tmp_path: Path) -> None:
    report_twice(tmp_path / "cue", "tensorboard")
    assert report(tmp_path / "cue", "tensorboard", 0, [1, 2], "finished") == []
    assert read_tensorboard(tmp_path / "cue").steps == [1, 2]


def test_wandb_keeps_a_resumed_run_offline_under_one_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb")
    report_twice(tmp_path / "cue", "wandb")
    parts = [read_wandb(path) for path in sorted((tmp_path / "cue/wandb").glob("offline-run-*/*.wandb"))]
    assert len({path.name for path in (tmp_path / "cue/wandb").glob("offline-run-*/*.wandb")}) == 1
    assert [(part.name, part.group) for part in parts] == [("minilm/vip/seed-0", "study")] * 2
    assert [part.state for part in parts] == ["255", "0"]
    assert parts[0].params["training.epochs"] == "3"
    steps, losses = parts[0].steps + parts[1].steps, parts[0].losses + parts[1].losses
    check(Shown(steps, losses, parts[1].scores))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("state", "shown"), [("failed", "FAILED"), ("killed", "KILLED")])
def test_mlflow_shows_a_resumed_run_as_one(
    tmp_path: Path, state: EndState, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    (tmp_path / "first").mkdir()
    assert report(tmp_path / "first", "mlflow", 0, FIRST, state) == []
    [run] = read_mlflow()
    assert (run.state, run.steps, run.scores) == (shown, FIRST, {})
    report_twice(tmp_path / "cue", "mlflow", state)
    run = read_mlflow()[0]  # the newest
    check(run)
    assert (run.state, run.name, run.group) == ("FINISHED", "minilm/vip/seed-0", "study")
    assert (run.params["training.epochs"], run.params["task.label_words.0"]) == ("3", "bad")
    assert len(read_mlflow()) == 2
    assert capsys.readouterr().out == ""


def test_runs_that_start_together_share_a_new_store_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    make, is_first = mlflow.MlflowClient, True

    def interrupted(address: str) -> Any:
        nonlocal is_first
        client = make(address)
        if is_first:  # another run comes first while the tables are made
            is_first = False
            assert report(tmp_path / "fast", "mlflow", 0, [1, 2], "finished") == []
        return client

    monkeypatch.setattr(mlflow, "MlflowClient", interrupted)
    for name in ("fast", "slow"):
        (tmp_path / name).mkdir()
    assert report(tmp_path / "slow", "mlflow", 0, FIRST, "finished") == []
    assert sorted(run.steps for run in read_mlflow()) == [[1, 2], FIRST]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fast", "mlflow.db", "slow"]


def test_mlflow_begins_again_if_its_store_has_lost_the_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    (tmp_path / "cue").mkdir()
    (tmp_path / "cue/trackers.json").write_text('{"mlflow": {"run": "0123456789abcdef", "last_steps": {"step": 4}}}')
    assert report(tmp_path / "cue", "mlflow", 2, SECOND, "finished") == []
    assert read_mlflow()[0].steps == SECOND


def test_a_server_of_mlflow_that_is_not_there_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from softcue.errors import RunError

    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(RunError, match="report_to: got 'mlflow'; expected a tracker that can start"):
        report(tmp_path, "mlflow", 0, FIRST, "finished")


def test_trackio_shows_a_resumed_run_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "trackio" not in sys.modules  # it reads its folder when it is imported
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    report_twice(tmp_path / "cue", "trackio")
    [shown] = read_trackio()
    check(shown)
    assert shown.name.startswith("minilm/vip/seed-0-")
    assert (shown.group, shown.params["training.epochs"]) == ("study", 3)
    assert capsys.readouterr().out == ""


# --- what the trackers have, read with their own tools where there are any ---


def read_tensorboard(folder: Path) -> Shown:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    losses = events.Scalars("step/loss")
    final = [tag for tag in events.Tags()["scalars"] if tag.startswith("final/")]
    scores = {tag: events.Scalars(tag)[-1].value for tag in final}
    return Shown([event.step for event in losses], [event.value for event in losses], scores)


def read_mlflow() -> list[Shown]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("softcue")
    shown = []
    for run in client.search_runs([experiment.experiment_id]):
        losses = client.get_metric_history(run.info.run_id, "step/loss")
        final = {name: value for name, value in run.data.metrics.items() if name.startswith("final/")}
        shown.append(
            Shown(
                [metric.step for metric in losses],
                [metric.value for metric in losses],
                final,
                run.info.status,
                run.data.params,
                run.info.run_name,
                run.data.tags["group"],
            )
        )
    return shown


def read_trackio() -> list[Shown]:
    from trackio.sqlite_storage import SQLiteStorage

    shown = []
    for name in SQLiteStorage.get_runs("softcue"):
        lines = SQLiteStorage.get_logs("softcue", name)
        losses = [line for line in lines if "step/loss" in line]
        scores = {key: value for line in lines for key, value in line.items() if key.startswith("final/")}
        params = SQLiteStorage.get_run_config("softcue", name)
        values = [line["step/loss"] for line in losses]
        shown.append(Shown([line["step"] for line in losses], values, scores, "", params, name, params["_Group"]))
    return shown


def read_wandb(path: Path) -> Shown:
    from wandb.proto import wandb_internal_pb2

    shown = Shown([], [], {})
    for data in read_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        values = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        if "step/loss" in values:
            shown.steps.append(int(values["step"]))
            shown.losses.append(float(values["step/loss"]))
        for item in record.summary.update:
            if (item.key or item.nested_key[0]).startswith("final/"):
                shown.scores[item.key or item.nested_key[0]] = float(item.value_json)
        if record.WhichOneof("record_type") == "run":
            shown.name, shown.group = record.run.display_name, record.run.run_group
            shown.params = {item.key or item.nested_key[0]: item.value_json for item in record.run.config.update}
        if record.WhichOneof("record_type") == "exit":
            shown.state = str(record.exit.exit_code)
    return shown


def read_records(data: bytes, block_size: int = 32768) -> Iterator[bytes]:
    """The records of an offline file of wandb, which has LevelDB's log format after a header of seven bytes."""
    position, record = 7, b""
    while position + 7 <= len(data):
        left = block_size - position % block_size
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        record += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""
