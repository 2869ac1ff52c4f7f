"""The load follows its schedule, and the checks find wrong results. Speed itself is never tested."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from serving_cues import save_cue

from benchmarks import load, servers, serving_speed, workloads
from benchmarks.load import Load, LoadProcess, LoadResponse, send_load
from benchmarks.plan import Plan
from benchmarks.tables.write_benchmarks import format_section
from benchmarks.workloads import (
    BFLOAT16_TOLERANCE,
    FLOAT32_TOLERANCE,
    Question,
    QuestionPool,
    Sample,
    Sizes,
    compare_responses,
    copy_cues,
    judge,
    real_texts,
)
from softcue.backbones import load_backbone
from softcue.errors import MissingExtraError, RunError
from softcue.serving.engine.engine import Engine
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service
from softcue.serving.settings import ServerSettings

OK, BUSY = "200 OK", "429 Too Many Requests\r\nRetry-After: 7"
Respond = Callable[[int, list[Any]], Awaitable[str | None]]  # request number, inputs -> head; None: hang up


class FakeServer:
    """A server in the event loop of the load. It responds as a function says and notes the requests."""

    def __init__(self, respond: Respond) -> None:
        self.texts: list[str] = []
        self.handlers: list[Any] = []
        self.num_connections = self.at_once = self.most_at_once = 0
        self._respond = respond

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.handlers.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                size = int(request.lower().split(b"content-length:")[1].split()[0])
                inputs = json.loads(await reader.readexactly(size))["inputs"]
                self.texts += [item["text"] for item in inputs]
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                head = await self._respond(len(self.texts), inputs)
                self.at_once -= 1
                if head is None:
                    break
                results = [{"task": item["task"], "label": item["text"]} for item in inputs]
                body = json.dumps({"results": results}).encode()
                writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def send_requests(respond: Respond, num_requests: int, **settings: Any) -> tuple[FakeServer, list[LoadResponse]]:
    """Send requests to a fake server; returns the server and the responses."""

    async def send() -> tuple[FakeServer, list[LoadResponse]]:
        fake = FakeServer(respond)
        server = await asyncio.start_server(fake.serve, load.HOST, 0)
        port = server.sockets[0].getsockname()[1]
        requests = [[("cue", f"text {number}")] for number in range(num_requests)]
        responses = await send_load(Load(port, requests, **settings))
        server.close()
        await asyncio.gather(*fake.handlers)
        return fake, responses

    return asyncio.run(send())


# --- the load ---


def test_closed_loop_sends_each_request_once_over_kept_connections() -> None:
    async def after_a_moment(number: int, inputs: list[Any]) -> str:
        await asyncio.sleep(0.001)
        return OK

    fake, responses = send_requests(after_a_moment, 20, clients=3)
    assert sorted(fake.texts) == sorted(f"text {number}" for number in range(20))
    assert [response.results[0]["label"] for response in responses] == [f"text {number}" for number in range(20)]
    assert {(response.status, response.attempts) for response in responses} == {(200, 1)}
    assert fake.most_at_once == fake.num_connections == 3


def test_open_loop_does_not_wait_for_answers() -> None:
    everybody = asyncio.Event()

    async def when_all_have_come(number: int, inputs: list[Any]) -> str:
        if number == 10:
            everybody.set()
        await everybody.wait()
        return OK

    fake, responses = send_requests(when_all_have_come, 10, rate=1000.0)
    assert fake.most_at_once == 10
    assert all(response.status == 200 for response in responses)


def test_open_loop_counts_latency_from_when_a_request_was_due() -> None:
    stalled: list[float] = []

    async def stalling(number: int, inputs: list[Any]) -> str:
        if number == 1:  # nobody can send anything now: the load is in this loop
            time.sleep(0.3)
            stalled.append(0.3)
        return OK

    _, responses = send_requests(stalling, 30, rate=300.0, seed=4)
    generator, due = random.Random(4), 0.0
    for response in responses:  # the schedule stands, whenever a request could be sent
        due += generator.expovariate(300.0)
        assert response.due == pytest.approx(due, abs=1e-6)
    assert stalled
    end_of_stall = min(response.ended for response in responses)
    kept_waiting = [response for response in responses if responses[0].due < response.due < end_of_stall]
    assert len(kept_waiting) > 5  # of 30 requests in a tenth of a second, most were due during the stall
    assert all(response.latency >= end_of_stall - response.due for response in kept_waiting)


def test_a_request_is_sent_again_after_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    plain = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await plain(0)

    async def busy_twice(number: int, inputs: list[Any]) -> str:
        return OK if number == 3 else BUSY

    monkeypatch.setattr(load.asyncio, "sleep", noted)
    fake, [response] = send_requests(busy_twice, 1, clients=1)
    assert waits[:2] == [7.0, 7.0]
    assert (response.status, response.attempts, len(fake.texts)) == (200, 3, 3)

    async def always_busy(number: int, inputs: list[Any]) -> str:
        return BUSY

    fake, [response] = send_requests(always_busy, 1, clients=1, attempts=4)
    assert (response.status, response.attempts, len(fake.texts), response.results) == (429, 4, 4, [])


def test_a_request_without_an_answer_has_status_0() -> None:
    async def hang_up_first(number: int, inputs: list[Any]) -> str | None:
        return None if number == 1 else OK

    _, responses = send_requests(hang_up_first, 3, clients=1)
    assert [response.status for response in responses] == [0, 200, 200]

    async def never(number: int, inputs: list[Any]) -> str:
        await asyncio.sleep(0.2)
        return OK

    _, [response] = send_requests(never, 1, clients=1, patience=0.02)
    assert response.status == 0
    [response] = asyncio.run(send_load(Load(servers.free_port(), [[("cue", "x")]], clients=1)))
    assert response.status == 0


def test_a_load_is_of_one_kind() -> None:
    for settings in ({}, {"clients": 1, "rate": 1.0}):
        with pytest.raises(ValueError, match="clients or a rate"):
            Load(1, [], **settings)  # type: ignore[arg-type]


def test_a_load_process_that_dies_is_reported() -> None:
    with LoadProcess() as load_process:
        load_process._process.kill()
        with pytest.raises(RuntimeError, match="ended"):
            load_process.wait()


# --- questions ---


def make_pool(num_names: int = 60) -> QuestionPool:
    texts = [f"text {number}" for number in range(4)]
    samples = [Sample(texts, [{"label": f"{kind} {text}"} for text in texts]) for kind in "abc"]
    return QuestionPool(samples, [f"{'abc'[number % 3]}-{number}" for number in range(num_names)])


@pytest.mark.parametrize("popularity", ["identical", "uniform", "skewed", "distinct"])
def test_loads_differ_in_names_only(popularity: Any) -> None:
    questions = make_pool().draw(popularity, 60, 120)
    in_turn = make_pool().draw("distinct", 60, 120)
    assert [question[1:] for question in questions] == [question[1:] for question in in_turn]
    for question in questions:
        assert question.expected is not None
        assert question.expected["label"] == f"{question.task[0]} {question.text}"


def test_popularities_are_what_they_are_called() -> None:
    def names(popularity: Any, num_cues: int) -> Counter[str]:
        return Counter(question.task for question in make_pool().draw(popularity, num_cues, 600))

    assert set(names("identical", 1)) == {"a-0", "b-1", "c-2"}
    assert set(names("distinct", 60).values()) == {10}
    assert set(names("distinct", 8)) == set(names("uniform", 8)) == set(make_pool(8).names)
    assert max(names("skewed", 60).values()) > 2 * max(names("uniform", 60).values())
    static = make_pool().draw("distinct", 60, 20, only_sample=0)
    assert len({question.task for question in static}) == 20
    assert {question.task[0] for question in static} == {"a"}


def test_copies_share_their_files(tmp_path: Path) -> None:
    cues = [save_cue(tmp_path / name, seed=number) for number, name in enumerate(("one", "two"))]
    for _ in range(2):  # the second time replaces the first
        assert copy_cues(cues, tmp_path / "many", 3) == ["one-0000", "two-0001", "one-0002"]
    path = cues[0].path
    assert path is not None
    assert (tmp_path / "many" / "one-0002" / "cue.json").samefile(path / "cue.json")


def test_texts_are_different_ones() -> None:
    assert len(set(real_texts(None, 50))) == 50


# --- wrong results are found ---

QUESTIONS = [
    Question("a-0", "x", {"label": "one", "scores": {"one": 0.9, "two": 0.1}}),
    Question("b-1", "y", {"label": "two", "scores": {"one": 0.2, "two": 0.8}}),
]
RIGHT = [{"task": question.task, **(question.expected or {}), "version": "1"} for question in QUESTIONS]


def count_verdicts(*results: Any, status: int = 200, may_reject: bool = False) -> dict[str, int]:
    counts: Counter[str] = Counter()
    compare_responses([QUESTIONS], [LoadResponse(status, 0.0, 1.0, 1, results)], counts, may_reject)
    return dict(counts)


def test_right_answers_are_right() -> None:
    assert count_verdicts(*RIGHT) == {"right": 2}
    nearly = {"one": 0.90005, "two": 0.09995}
    assert count_verdicts({**RIGHT[0], "scores": nearly}, RIGHT[1]) == {"right": 2}


def test_in_bfloat16_labels_that_are_nearly_as_likely_may_change_places() -> None:
    expected = {"label": "one", "scores": {"one": 0.51, "two": 0.49}}
    question = Question("a-0", "x", expected, BFLOAT16_TOLERANCE)
    other = {"task": "a-0", "label": "two", "scores": {"one": 0.495, "two": 0.505}}
    assert judge(question, other, [question]) == "right"
    assert judge(question._replace(tolerance=FLOAT32_TOLERANCE), other, [question]) != "right"
    far = {**other, "scores": {"one": 0.4, "two": 0.6}}
    assert judge(question, far, [question]) == "wrong"
    sure = question._replace(expected={"label": "one", "scores": {"one": 0.8, "two": 0.2}})
    assert judge(sure, {**other, "scores": {"one": 0.8, "two": 0.2}}, [sure]) == "wrong"


def test_planted_wrong_answers_are_found() -> None:
    for change in (
        {"label": "two"},
        {"scores": {"one": 0.9002, "two": 0.0998}},
        {"scores": {"one": 0.9}},
        {"scores": None},
    ):
        assert count_verdicts({**RIGHT[0], **change}, RIGHT[1]) == {"wrong": 1, "right": 1}, change


def test_planted_crossed_answers_are_found() -> None:
    assert count_verdicts(*reversed(RIGHT)) == {"crossed": 2}
    others = {**RIGHT[1], "task": "a-0"}  # under the right name, but the result of the other question
    assert count_verdicts(others, RIGHT[1]) == {"crossed": 1, "right": 1}
    assert count_verdicts({**RIGHT[0], "task": "a-3"}, RIGHT[1]) == {"crossed": 1, "right": 1}


def test_lost_answers_are_found() -> None:
    assert count_verdicts(status=0) == {"lost": 2}
    assert count_verdicts(RIGHT[0]) == {"lost": 2}  # one result for two questions belongs to neither
    assert count_verdicts({"error": {"code": "deadline"}}, RIGHT[1]) == {"lost": 1, "right": 1}
    assert count_verdicts(status=429) == {"lost": 2}
    assert count_verdicts(status=429, may_reject=True) == {"rejected": 2}


def test_another_products_answer_needs_the_right_name_only() -> None:
    question = QUESTIONS[0]._replace(expected=None)
    assert judge(question, {"task": "a-0", "label": "whatever"}, [question]) == "right"
    assert judge(question, {"task": "a-1", "label": "whatever"}, [question]) == "wrong"


def test_rates_count_right_answers_only() -> None:
    responses = [LoadResponse(200, 0.0, 1.0, 1, [RIGHT[0]]), LoadResponse(200, 1.0, 4.0, 1, [RIGHT[0]])]
    result = compare_responses([[QUESTIONS[0]], [QUESTIONS[1]]], responses, Counter())
    assert result.rate == 0.25
    assert result.latencies == [1.0]


# --- servers ---


def test_a_server_that_does_not_start_is_reported_with_its_last_line(tmp_path: Path) -> None:
    command, port = ["-c", "raise SystemExit('no room today')"], servers.free_port()
    with pytest.raises(RunError, match="no room today"), servers.run_server(command, port, tmp_path / "log"):
        pass


def test_a_server_in_a_process_of_its_own(model_folders: dict[str, Path], tmp_path: Path) -> None:
    names = copy_cues([save_cue(tmp_path / "cue")], tmp_path / "many", 2)
    port = servers.free_port()
    command = servers.softcue_command(tmp_path / "many", str(model_folders["bert"]), port)
    with servers.run_server(command, port, tmp_path / "log") as server, LoadProcess() as load_process:
        assert server.reload(names, 2) > 0
        assert server.resident_bytes() > 2**20
        [response] = load_process.run(Load(port, [[(name, "Where is it") for name in names]], clients=1))
        assert [result["task"] for result in response.results] == names
    assert server.process.returncode == 0
    log = (tmp_path / "log").read_text("utf-8")
    assert '"cue unloaded"' in log and "Where is it" not in log


def test_batches_of_one_cue() -> None:
    request_rows = [SimpleNamespace(loaded_cue=cue) for cue in (object(), object())]
    rows = [SimpleNamespace(request_row=request_rows[number]) for number in (0, 1, 0, 1)]
    assert servers.only_one_cue(lambda waiting, now: waiting)(rows, 0.0) == [rows[0], rows[2]]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_spec", lambda package: None if package == "peft" else package)
    with pytest.raises(MissingExtraError, match="peft"):
        servers.check_extras()


# --- all of it, on a tiny model ---

SIZES = Sizes(
    cues=(3, 7),
    steps=2,
    texts=6,
    seconds=0.05,
    latency_seconds=0.05,
    overload_seconds=0.1,
    clients=4,
    few_clients=2,
    inputs_per_request=3,
    warm_cycles=2,
    cycles=20,
    questions_while_reloading=4,
)
NAMES = {
    "serve_vs_offline",
    "serve7_vs_identical",
    "p99_vs_p50",
    "passes_at_once_1_clients",
    "passes_at_once_2_clients",
    "passes_at_once_4_clients",
    "overload_vs_peak",
    "serve_vs_switching",
    "serve_vs_switching_static",
    "serve_runtime_vs_switching",
    "serve_runtime_vs_switching_static",
    "serve_vs_one_cue_batches",
    "reload_memory",
    "wrong_answers",
}


def run_server_in_this_process(backbone: Path) -> Any:
    """`servers.run_server` without processes, which take seconds to start."""

    @contextlib.contextmanager
    def run_server(command: Sequence[str], port: int, log: Path, threads: int = 1) -> Iterator[servers.RunningServer]:
        is_peft = "peft" in command
        folder = Path(command[3])
        settings = ServerSettings(port=port, admin_keys=("key",), max_in_flight=16)  # type: ignore[arg-type]
        model = load_backbone(str(backbone))
        service = Service(settings, lambda on_batch: Engine(model, folder, settings.limits, on_batch=on_batch))
        app = servers.make_adapter_app(folder, str(backbone)) if is_peft else create_app(service)
        server = uvicorn.Server(uvicorn.Config(app, host=load.HOST, port=port, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started or (not is_peft and service.state != "ready"):
            time.sleep(0.01)
        yield servers.RunningServer(SimpleNamespace(pid=os.getpid()), port, "key")  # type: ignore[arg-type]
        server.should_exit = True
        thread.join(20)

    return run_server


@pytest.fixture
def bench_folder(model_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(servers, "run_server", run_server_in_this_process(model_folders["bert"]))
    monkeypatch.setattr(workloads, "SAMPLES", {"tickets": "prompt-tuning", "same-request": "vip"})
    return tmp_path


def test_the_whole_benchmark(bench_folder: Path, model_folders: dict[str, Path]) -> None:
    pytest.importorskip("peft")
    measurements = serving_speed.serving_figures(Plan(repeats=2), bench_folder, 1, str(model_folders["bert"]), SIZES)
    assert set(measurements["figures"]) == NAMES
    for figure in measurements["figures"].values():
        assert set(figure) == {"ratio", "target", "comparison", "met", "spread", "runs", "meaning"}
    assert measurements["figures"]["wrong_answers"]["ratio"] == 0
    assert measurements["figures"]["wrong_answers"]["met"]
    assert measurements["answers"]["compared"] > 100
    assert [(row["popularity"], row["cues"], row["inputs"]) for row in measurements["throughput"]] == [
        ("identical", 1, 1),
        ("uniform", 3, 1),
        ("skewed", 3, 1),
        ("distinct", 3, 1),
        ("uniform", 7, 1),
        ("skewed", 7, 1),
        ("distinct", 7, 1),
        ("uniform", 7, 3),
    ]
    assert [row["load"] for row in measurements["latency"]] == list(serving_speed.LOAD_SHARES)
    assert (
        len(measurements["memory_mb"])
        == len(measurements["memory_mb_while_asked"])
        == serving_speed.NUM_MEMORY_CHECKS + 1
    )
    about = {"command": "x", "date": "y", "machine": "z"}
    table = format_section(json.loads(json.dumps(measurements)) | about)
    assert "| uniform | 7 | 3 |" in table and "| 70% |" in table and "| one cue |" in table
    measurements["figures"]["wrong_answers"] |= {"ratio": 2, "met": False}
    assert "**missed by 2.000** |" in format_section(measurements | about)


def test_a_server_with_wrong_results_is_detected(
    bench_folder: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from softcue.serving.engine import engine

    plain, first = engine.predict_mixed, []

    def always_the_first(backbone: Any, rows: Any, *rest: Any) -> list[Any]:
        first.extend(plain(backbone, rows, *rest))
        return [first[0]] * len(rows)

    monkeypatch.setattr(engine, "predict_mixed", always_the_first)
    with serving_speed.start_benchmark(Plan(2), bench_folder, 1, str(model_folders["bert"]), SIZES) as benchmark:
        benchmark.send(benchmark.questions_to_all_cues(12), clients=4)
        [figure] = benchmark.result_figures(benchmark.plan).values()
    assert not figure["met"]
    counts = benchmark.verdict_counts
    assert counts["crossed"] == figure["ratio"] == 12 - counts["right"] > 0
