"""Files in shards: one line for each row, whatever dies, and the lines of a single process."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import check_error, run
from ray_nodes import Process, running_cluster
from serving_cues import TEXTS

from softcue.errors import MissingExtraError, RunError
from softcue.serving import shards
from softcue.serving.shards import ShardFolder, ShardSettings, ShardWorker, predict_on_ray
from softcue.types import Example

NUM_ROWS = 23


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": f"{TEXTS[number % len(TEXTS)]} {number}"}) for number in range(NUM_ROWS)]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def settings(rows: Path, folder: Path, model_folders: dict[str, Path]) -> ShardSettings:
    return ShardSettings(
        cues=(str(folder / "topics"),), source=str(rows), backbone=str(model_folders["bert"]), shard_rows=5
    )


@pytest.fixture
def laid_out(settings: ShardSettings, tmp_path: Path) -> ShardFolder:
    shard_folder = ShardFolder(tmp_path / "out.jsonl.shards")
    shard_folder.lay_out(settings, lambda: examples(settings))
    return shard_folder


def examples(settings: ShardSettings) -> Iterator[tuple[Example, ...]]:
    for line in Path(settings.source).read_text().splitlines():
        yield (Example((json.loads(line)["text"],)),)


def finish(shard_folder: ShardFolder) -> list[dict[str, Any]]:
    worker = ShardWorker(str(shard_folder.path))
    for shard in shard_folder.missing():
        assert worker({"shard": shard}) == {"shard": shard, "truncated": 0, "error": ""}
    return [line for lines in shard_folder.lines() for line in lines]


def words_of(settings: ShardSettings, *more: object) -> list[object]:
    assert settings.backbone is not None
    return ["predict", *settings.cues, "--input", settings.source, "--backbone", settings.backbone, *more]


def test_shards_have_the_lines_of_one_process(laid_out: ShardFolder, settings: ShardSettings, tmp_path: Path) -> None:
    assert (laid_out.num_rows, laid_out.num_shards, laid_out.missing()) == (NUM_ROWS, 5, [0, 1, 2, 3, 4])
    lines = finish(laid_out)
    assert run(*words_of(settings, "--output", tmp_path / "plain.jsonl")).code == 0
    plain = [json.loads(line) for line in (tmp_path / "plain.jsonl").read_text().splitlines()]
    assert [(line["text"], line["label"]) for line in lines] == [(line["text"], line["label"]) for line in plain]


def test_a_shard_that_died_half_way_leaves_nothing_and_is_run_again(
    laid_out: ShardFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "ROWS_AT_ONCE", 2)
    worker = ShardWorker(str(laid_out.path))
    predictor = worker._predictor
    plain, calls = predictor.lines, iter(range(100))

    def die_at_the_second_chunk(chunk: Any) -> list[dict[str, Any]]:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return plain(chunk)

    monkeypatch.setattr(predictor, "lines", die_at_the_second_chunk)
    with pytest.raises(KeyboardInterrupt):
        worker({"shard": 0})
    assert laid_out.missing() == [0, 1, 2, 3, 4] and not list(laid_out.path.glob("*.partial"))
    assert len(finish(laid_out)) == NUM_ROWS


def test_the_same_command_goes_on_with_missing_shards(laid_out: ShardFolder, settings: ShardSettings) -> None:
    ShardWorker(str(laid_out.path))({"shard": 3})
    again = ShardFolder(laid_out.path)
    again.lay_out(settings, lambda: pytest.fail("the rows are laid out already"))
    assert again.missing() == [0, 1, 2, 4]


@pytest.mark.parametrize("change", ["option", "input"])
def test_another_command_is_refused_in_the_folder_of_an_unfinished_one(
    laid_out: ShardFolder, settings: ShardSettings, change: str
) -> None:
    if change == "option":
        settings = settings.model_copy(update={"batch_size": 3})
    else:
        Path(settings.source).write_text('{"text": "another"}\n')
    with pytest.raises(RunError, match="unfinished command with the same cues, input and options"):
        ShardFolder(laid_out.path).lay_out(settings, lambda: examples(settings))


def test_rows_that_were_half_laid_out_are_laid_out_again(settings: ShardSettings, tmp_path: Path) -> None:
    shard_folder = ShardFolder(tmp_path / "out.jsonl.shards")

    def broken() -> Iterator[tuple[Example, ...]]:
        yield from list(examples(settings))[:12]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shard_folder.lay_out(settings, broken)
    shard_folder.lay_out(settings, lambda: examples(settings))
    assert shard_folder.num_rows == NUM_ROWS


def test_a_lost_line_is_noticed(laid_out: ShardFolder) -> None:
    finish(laid_out)
    (laid_out.path / "lines-00002.jsonl").write_text("{}\n")
    with pytest.raises(RunError, match=r"19 lines in .*expected 23, one for each row"):
        list(laid_out.lines())


def test_an_error_of_a_worker_keeps_its_words(laid_out: ShardFolder, folder: Path) -> None:
    plan = json.loads((laid_out.path / "plan.json").read_text())
    plan["settings"]["cues"] = [str(folder / "no-such-cue")]
    (laid_out.path / "plan.json").write_text(json.dumps(plan))
    outcome = ShardWorker(str(laid_out.path))({"shard": 0})
    with pytest.raises(RunError, match=r"no-such-cue"):
        shards._check_outcome(outcome)


def test_examples_keep_what_predictions_need() -> None:
    row = (Example(("a\nb", "ü"), group="g", options=("x", "y"), offset=3), Example(("c",)))
    assert shards._parse_row(shards._dump_row(row).decode()) == row


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", 2), "--engine processes"),
        (("--shard-rows", 2), "--engine processes"),
        (("--ray-address", "auto"), "--engine ray"),
        (("--engine", "processes"), "--output FILE"),
        (("--engine", "vllm"), "--vllm-url"),
        (("--engine", "vllm", "--vllm-url", "http://8.8.8.8:80"), "private network"),
        (("--engine", "vllm", "--vllm-url", "http://127.0.0.1:80", "--vllm-arguments", "-x"), "runs already"),
        (("--vllm-url", "http://127.0.0.1:80"), "--engine vllm"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    settings: ShardSettings, options: tuple[object, ...], message: str
) -> None:
    check_error(run(*words_of(settings, *options)), message)


def test_workers_that_die_again_and_again_end_the_command(
    laid_out: ShardFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(ThreadPoolExecutor):
        def submit(self, *_: Any) -> Any:  # type: ignore[override]
            future: Future[Any] = Future()
            future.set_exception(BrokenProcessPool())
            return future

    monkeypatch.setattr(shards, "ProcessPoolExecutor", lambda num, *_: Dying(num))
    with pytest.raises(RunError, match=r"3 processes that died one after the other.*lower --workers or --batch-size"):
        shards.predict_in_processes(laid_out)


def test_ray_says_what_to_install(laid_out: ShardFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\.\[ray\]"):
        predict_on_ray(laid_out, None, "auto")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed")
def test_a_killed_worker_of_ray_data_costs_no_row_and_no_line_comes_twice(
    settings: ShardSettings, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    words = words_of(settings, "--output", output, "--engine", "ray", "--workers", 2, "--shard-rows", 1)
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as ray_folder,
        running_cluster(Path(ray_folder), num_cpus=3, environment={}) as cluster,
    ):
        words += ["--ray-address", cluster.address]
        command = Process([sys.executable, "-m", "softcue", *words], cluster.environment)
        command.wait_for("shard 1 of 23")
        workers = [member for member in cluster.head.family() if "ray::" in "".join(member.cmdline()[:1])]
        actors = [member for member in workers if "MapWorker" in "".join(member.cmdline()[:1])]
        assert actors, [member.cmdline()[:1] for member in workers]
        actors[0].kill()
        assert command.end() == 0, "".join(command.lines)
    texts = [json.loads(line)["text"] for line in output.read_text().splitlines()]
    assert texts == [json.loads(line)["text"] for line in Path(settings.source).read_text().splitlines()]
    assert not output.with_name("out.jsonl.shards").exists()


@pytest.mark.processes
def test_a_killed_process_costs_no_row_and_no_line_comes_twice(settings: ShardSettings, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    words = words_of(settings, "--output", output, "--engine", "processes", "--workers", 2, "--shard-rows", 2)
    command = [sys.executable, "-m", "softcue", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        assert lines == ["shard 1 of 12\n"]
        workers = [
            child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
        workers[0].kill()
        lines += process.stderr.readlines()
    assert process.returncode == 0, lines
    texts = [row["text"] for row in csv.DictReader(output.read_text().splitlines())]
    assert texts == [json.loads(line)["text"] for line in Path(settings.source).read_text().splitlines()]
    assert not output.with_name("out.csv.shards").exists()


@pytest.mark.processes
def test_a_killed_command_goes_on_where_it_was(settings: ShardSettings, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    words = words_of(settings, "--output", output, "--engine", "processes", "--shard-rows", 2)
    command = [sys.executable, "-m", "softcue", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stderr.readline()
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert not psutil.wait_procs(family, 30)[1]  # workers end with their command
    shard_folder = ShardFolder(tmp_path / "out.jsonl.shards")
    finished = {path.name: path.stat().st_mtime_ns for path in shard_folder.path.glob("lines-*.jsonl")}
    assert finished and shard_folder.missing()
    time.sleep(0.01)
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, ended.stderr
    assert len(output.read_text().splitlines()) == NUM_ROWS
