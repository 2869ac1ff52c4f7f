"""Short versions of the checks of `make faults`, and the files they keep their figures in."""

from __future__ import annotations

import importlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from faults import guided, mutations, openapi, texts
from faults.hostile import SETTINGS, Hostile, check, hostile_requests
from faults.load import ServedCues
from faults.mutants import mutate_bytes, mutate_value
from faults.mutations import Target, limited_time, make_targets, read_mutant
from faults.page import PAGE, format_records, write_page
from faults.plan import CHECKS
from faults.record import Budget, FaultError, Record, read_record, run_trials
from faults.replicas import RetryingClient
from faults.tiny_server import HOST, serve_tiny_cues
from softcue.errors import DataError

ROOT = Path(__file__).parents[2]


def refuse(data: bytes) -> None:
    raise DataError(setting="rows", got=data, expected="others", fix="change them")


# --- records ---


def test_record_is_continued_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "kills.json"
    numbers: list[int] = []

    def trial(number: int) -> tuple[str, int]:
        numbers.append(number)
        if number == 1:
            raise FaultError("differs")
        return "equal", 2

    for count in (3, 7):
        record = read_record("kills", path)
        run_trials(record, Budget(count, 60), trial)
    assert numbers == [0, 1, 2, 3]
    saved = json.loads(path.read_text())
    assert (saved["count"], saved["trials"], saved["num_faults"]) == (7, 4, 1)
    assert saved["outcomes"] == {"equal": 6, "fault": 1}
    assert saved["faults"] == ["trial 1: differs"]
    with pytest.raises(SystemExit, match="of the check 'kills'"):
        read_record("texts", path)


def test_traceback_of_a_trial_is_a_fault_and_the_next_trial_runs() -> None:
    def trial(number: int) -> tuple[str, int]:
        if number == 0:
            raise IndexError("index out of range")
        return "equal", 1

    record = Record("texts")
    run_trials(record, Budget(2, 60), trial)
    assert record.outcomes == {"fault": 1, "equal": 1}
    assert "IndexError" in record.faults[0]


def test_run_ends_when_its_time_is_over() -> None:
    record = Record("kills")
    run_trials(record, Budget(10, 0), lambda number: ("equal", 1))
    assert record.count == 0


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_code(name: str) -> None:
    assert callable(importlib.import_module(CHECKS[name].module).run)


def test_page_is_that_of_the_records() -> None:
    assert write_page() == PAGE.read_text("utf-8"), "run `python -m faults.page`"


def test_page_shows_counts_faults_and_checks_that_were_not_run() -> None:
    record = Record(
        "kills", 12, 5, {"vip bert": 12}, figures={"killed in": {"steps": 12}}, command="python -m faults kills"
    )
    text = format_records({"kills": vars(record)})
    assert "| 12 kills | 200 | 0 |" in text
    assert "vip bert 12; killed in: steps 12" in text
    assert text.count("not run") == len(CHECKS) - 1


# --- damaged files ---


def test_mutants_differ_and_can_be_made_again() -> None:
    value = {"name": "toy", "labels": ["a", "b"], "more": {"x": 1}}
    for make, example in ((mutate_bytes, b"text,label\nhello,a\n"), (mutate_value, value)):
        mutants = [repr(make(example, random.Random(seed))) for seed in range(60)]  # type: ignore[operator]
        assert mutants == [repr(make(example, random.Random(seed))) for seed in range(60)]  # type: ignore[operator]
        assert len(set(mutants)) > 40


def test_damaged_files_of_every_kind_are_read_or_refused(tmp_path: Path) -> None:
    with limited_time():
        for target in make_targets(tmp_path):
            target.read(target.example)  # undamaged, it is read
            outcomes = []
            for target.number in range(10):
                outcomes.append(read_mutant(target))
            assert set(outcomes) <= {"accepted", "refused"}


def divide(data: bytes) -> None:
    1 / 0  # noqa: B018


def hang(data: bytes) -> None:
    while True:
        pass


@pytest.mark.parametrize(("read", "message"), [(divide, "ZeroDivisionError"), (hang, "over 5 s")])
def test_bug_and_hang_of_a_reader_are_faults(read: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "ALARMS", {number: (clock, 0.1) for number, (clock, _) in mutations.ALARMS.items()})
    with limited_time(), pytest.raises(FaultError, match=message):
        read_mutant(Target("rows", b"text", read))


def test_growth_of_memory_in_a_reader_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1 << 20, 3 << 20])  # kilobytes before and after
    monkeypatch.setattr(mutations, "largest_kilobytes", lambda: next(sizes))
    with limited_time(), pytest.raises(FaultError, match="2,048 MB more"):
        read_mutant(Target("rows", b"text", len))


def test_errors_for_users_are_no_faults() -> None:
    with limited_time():
        assert read_mutant(Target("rows", b"text", refuse)) == "refused"


def test_reader_that_dies_is_a_fault_of_the_guided_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    outcome = guided.read_guided("rows.csv", tmp_path, seconds=1, most=10)
    assert "did not end in order" in outcome["faults"][0]


@pytest.mark.processes
def test_guided_files_reach_new_lines(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    outcome = guided.read_guided("public keys", tmp_path, seconds=60, most=300)
    assert outcome["faults"] == []
    assert outcome["accepted"] + outcome["refused"] == 300
    assert outcome["kept"] > 2  # the example, and what reached more than it


# --- texts and requests ---


@pytest.mark.parametrize(("case", "family"), [("prompt-tuning", "bert"), ("m-idpg-phm", "gpt2"), ("lora", "t5")])
def test_extreme_texts_give_the_same_probabilities_alone_and_together(
    case: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {name: text[:3000] for name, text in texts.TEXTS.items()}  # the long ones are for `make faults`
    monkeypatch.setattr(texts, "TEXTS", short)
    assert 0 <= texts.check_texts(case, family) <= texts.TOLERANCE


def test_some_hostile_requests_get_their_status() -> None:
    slow = ("no HTTP 0", "body that does not come")
    requests = [request for request in hostile_requests() if request.name not in slow]
    assert len(requests) > 300
    with serve_tiny_cues(**SETTINGS) as server:
        for request in requests[::4]:
            check(request, server.port)
        with pytest.raises(FaultError, match="404 instead of"):
            check(
                Hostile("a page", (b"GET /v1/nothing HTTP/1.1\r\nAuthorization: Bearer %s\r\n\r\n" % KEY,), (200,)),
                server.port,
            )


KEY = SETTINGS["api_keys"][0].encode()


def test_requests_from_the_openapi_document_get_documented_answers() -> None:
    pytest.importorskip("schemathesis")
    with openapi.documented_server() as schema:
        operations = [result.ok() for result in schema.get_all_operations()]
        assert len(operations) > 20
        for operation in operations:
            assert openapi.check_operation(operation, 3, seed=0) > 0


# --- whole commands ---


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "count"), [("kills", 2), ("disk", 3), ("seeds", 1), ("stopping", 1), ("valid", 64), ("load", 1)]
)
def test_short_version_of_a_check_has_no_fault(name: str, count: int) -> None:
    minutes = "0.02" if name == "load" else "3"
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "faults", name, "--count", str(count), "--minutes", minutes, "--json", f"{folder}/record.json"]
        result = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        record = json.loads(Path(folder, "record.json").read_text())
    assert record["count"] >= count
    assert record["num_faults"] == 0


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*texts were cut:UserWarning")
def test_the_requests_of_replicas_can_all_be_answered(tmp_path: Path) -> None:
    """The whole check needs Ray and minutes; its clients are the same with one server."""
    served = ServedCues(tmp_path, use_minilm=False)
    with served.serve() as server:
        client = RetryingClient(f"http://{HOST}:{server.port}", served, seed=0)
        client.start()
        end = time.monotonic() + 60
        while client.counts["requests"] < 60 and time.monotonic() < end:
            time.sleep(0.1)
        client.stop()
    assert client.counts["requests"] >= 60
    assert client.failures == [] and client.counts["lost"] == client.counts["requests sent again"] == 0
