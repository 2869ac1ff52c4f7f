"""The load must be honest and the checks must be able to fail. Speed itself is never tested."""

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

from softcue.backbones import load_backbone
from softcue.benchmarks import load, servers, serving, workloads
from softcue.benchmarks.load import Load, Loader, Reply, sent
from softcue.benchmarks.parts import Plan
from softcue.benchmarks.workloads import Asked, Sample, Sizes, Stock, copied, judged, real_texts, verdict
from softcue.errors import MissingExtraError, RunError
from softcue.serving.engine.engine import Engine
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service
from softcue.serving.settings import ServerSettings

OK, BUSY = "200 OK", "429 Too Many Requests\r\nRetry-After: 7"
Answer = Callable[[int, list[Any]], Awaitable[str | None]]  # number of the request, its inputs -> head, None: hang up


class Fake:
    """A server in the loop of the load itself: it says what it is told to, and notes what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.texts: list[str] = []
        self.handlers: list[Any] = []
        self.num_connections = self.at_once = self.most_at_once = 0
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.handlers.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().split(b"content-length:")[1].split()[0])
                inputs = json.loads(await reader.readexactly(size))["inputs"]
                self.texts += [one["text"] for one in inputs]
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                told = await self._answer(len(self.texts), inputs)
                self.at_once -= 1
                if told is None:
                    break
                body = json.dumps({"results": [{"task": one["task"], "label": one["text"]} for one in inputs]}).encode()
                writer.write(f"HTTP/1.1 {told}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def loaded(answer: Answer, num: int, **settings: Any) -> tuple[Fake, list[Reply]]:
    """So many requests to a fake server, and what came back."""

    async def both() -> tuple[Fake, list[Reply]]:
        fake = Fake(answer)
        server = await asyncio.start_server(fake.serve, load.HOST, 0)
        port = server.sockets[0].getsockname()[1]
        replies = await sent(Load(port, [[("cue", f"text {number}")] for number in range(num)], **settings))
        server.close()
        await asyncio.gather(*fake.handlers)
        return fake, replies

    return asyncio.run(both())


# --- the load ---


def test_closed_loop_sends_each_request_once_over_kept_connections() -> None:
    async def after_a_moment(number: int, inputs: list[Any]) -> str:
        await asyncio.sleep(0.001)
        return OK

    fake, replies = loaded(after_a_moment, 20, clients=3)
    assert sorted(fake.texts) == sorted(f"text {number}" for number in range(20))
    assert [reply.results[0]["label"] for reply in replies] == [f"text {number}" for number in range(20)]
    assert {(reply.status, reply.attempts) for reply in replies} == {(200, 1)}
    assert fake.most_at_once == fake.num_connections == 3


def test_open_loop_does_not_wait_for_answers() -> None:
    everybody = asyncio.Event()

    async def when_all_have_come(number: int, inputs: list[Any]) -> str:
        if number == 10:
            everybody.set()
        await everybody.wait()
        return OK

    fake, replies = loaded(when_all_have_come, 10, rate=1000.0)
    assert fake.most_at_once == 10
    assert all(reply.status == 200 for reply in replies)


def test_open_loop_counts_latency_from_when_a_request_was_due() -> None:
    stalled: list[float] = []

    async def stalling(number: int, inputs: list[Any]) -> str:
        if number == 1:  # nobody can send anything now: the load is in this loop
            time.sleep(0.3)
            stalled.append(0.3)
        return OK

    _, replies = loaded(stalling, 30, rate=300.0, seed=4)
    draws, due = random.Random(4), 0.0
    for reply in replies:  # the schedule stands, whenever a request could be sent
        due += draws.expovariate(300.0)
        assert reply.due == pytest.approx(due, abs=1e-6)
    assert stalled
    end_of_stall = min(reply.ended for reply in replies)
    kept_waiting = [reply for reply in replies if replies[0].due < reply.due < end_of_stall]
    assert len(kept_waiting) > 5  # of 30 requests in a tenth of a second, most were due during the stall
    assert all(reply.latency >= end_of_stall - reply.due for reply in kept_waiting)


def test_a_request_comes_again_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    plain = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await plain(0)

    async def busy_twice(number: int, inputs: list[Any]) -> str:
        return OK if number == 3 else BUSY

    monkeypatch.setattr(load.asyncio, "sleep", noted)
    fake, [reply] = loaded(busy_twice, 1, clients=1)
    assert waits[:2] == [7.0, 7.0]
    assert (reply.status, reply.attempts, len(fake.texts)) == (200, 3, 3)

    async def always_busy(number: int, inputs: list[Any]) -> str:
        return BUSY

    fake, [reply] = loaded(always_busy, 1, clients=1, attempts=4)
    assert (reply.status, reply.attempts, len(fake.texts), reply.results) == (429, 4, 4, [])


def test_a_request_without_an_answer_has_status_0() -> None:
    async def hang_up_first(number: int, inputs: list[Any]) -> str | None:
        return None if number == 1 else OK

    _, replies = loaded(hang_up_first, 3, clients=1)
    assert [reply.status for reply in replies] == [0, 200, 200]

    async def never(number: int, inputs: list[Any]) -> str:
        await asyncio.sleep(0.2)
        return OK

    _, [reply] = loaded(never, 1, clients=1, patience=0.02)
    assert reply.status == 0
    [reply] = asyncio.run(sent(Load(servers.free_port(), [[("cue", "x")]], clients=1)))
    assert reply.status == 0


def test_a_load_is_of_one_kind() -> None:
    for settings in ({}, {"clients": 1, "rate": 1.0}):
        with pytest.raises(ValueError, match="clients or a rate"):
            Load(1, [], **settings)  # type: ignore[arg-type]


def test_a_load_process_that_dies_is_told() -> None:
    with Loader() as loader:
        loader._process.kill()
        with pytest.raises(RuntimeError, match="ended"):
            loader.replies()


# --- what is asked ---


def stock(num_names: int = 60) -> Stock:
    texts = [f"text {number}" for number in range(4)]
    samples = [Sample(texts, [{"label": f"{kind} {text}"} for text in texts]) for kind in "abc"]
    return Stock(samples, [f"{'abc'[number % 3]}-{number}" for number in range(num_names)])


@pytest.mark.parametrize("popularity", ["identical", "uniform", "skewed", "distinct"])
def test_loads_differ_in_names_only(popularity: Any) -> None:
    found = stock().questions(popularity, 60, 120)
    plain = stock().questions("distinct", 60, 120)
    assert [(one.text, one.wanted) for one in found] == [(one.text, one.wanted) for one in plain]
    for one in found:
        assert one.wanted is not None and one.wanted["label"] == f"{one.task[0]} {one.text}"


def test_popularities_are_what_they_are_called() -> None:
    def names(popularity: Any, num_cues: int) -> Counter[str]:
        return Counter(one.task for one in stock().questions(popularity, num_cues, 600))

    assert set(names("identical", 1)) == {"a-0", "b-1", "c-2"}
    assert set(names("distinct", 60).values()) == {10}
    assert set(names("distinct", 8)) == set(names("uniform", 8)) == set(stock(8).names)
    assert max(names("skewed", 60).values()) > 2 * max(names("uniform", 60).values())
    static = stock().questions("distinct", 60, 20, only=0)
    assert len({one.task for one in static}) == 20 and {one.task[0] for one in static} == {"a"}


def test_copies_share_their_files(tmp_path: Path) -> None:
    cues = [save_cue(tmp_path / name, seed=number) for number, name in enumerate(("one", "two"))]
    for _ in range(2):  # a second time takes the first one's place
        assert copied(cues, tmp_path / "many", 3) == ["one-0000", "two-0001", "one-0002"]
    path = cues[0].path
    assert path is not None
    assert (tmp_path / "many" / "one-0002" / "cue.json").samefile(path / "cue.json")


def test_texts_are_different_ones() -> None:
    found = real_texts(None, 50)
    assert len(set(found)) == 50


# --- wrong answers are found ---

ASKED = [
    Asked("a-0", "x", {"label": "one", "scores": {"one": 0.9, "two": 0.1}}),
    Asked("b-1", "y", {"label": "two", "scores": {"one": 0.2, "two": 0.8}}),
]
RIGHT = [{"task": one.task, **(one.wanted or {}), "version": "1"} for one in ASKED]


def tallied(*results: Any, status: int = 200, may_refuse: bool = False) -> dict[str, int]:
    statistics: Counter[str] = Counter()
    judged([ASKED], [Reply(status, 0.0, 1.0, 1, results)], statistics, may_refuse)
    return dict(statistics)


def test_right_answers_are_right() -> None:
    assert tallied(*RIGHT) == {"right": 2}
    nearly = {"one": 0.90005, "two": 0.09995}
    assert tallied({**RIGHT[0], "scores": nearly}, RIGHT[1]) == {"right": 2}


def test_planted_wrong_answers_are_found() -> None:
    for change in (
        {"label": "two"},
        {"scores": {"one": 0.9002, "two": 0.0998}},
        {"scores": {"one": 0.9}},
        {"scores": None},
    ):
        assert tallied({**RIGHT[0], **change}, RIGHT[1]) == {"wrong": 1, "right": 1}, change


def test_planted_crossed_answers_are_found() -> None:
    assert tallied(*reversed(RIGHT)) == {"crossed": 2}
    others = {**RIGHT[1], "task": "a-0"}  # under the right name, but what the other should get
    assert tallied(others, RIGHT[1]) == {"crossed": 1, "right": 1}
    assert tallied({**RIGHT[0], "task": "a-3"}, RIGHT[1]) == {"crossed": 1, "right": 1}


def test_lost_answers_are_found() -> None:
    assert tallied(status=0) == {"lost": 2}
    assert tallied(RIGHT[0]) == {"lost": 2}  # one answer to two questions: whose it is, nobody knows
    assert tallied({"error": {"code": "deadline"}}, RIGHT[1]) == {"lost": 1, "right": 1}
    assert tallied(status=429) == {"lost": 2}
    assert tallied(status=429, may_refuse=True) == {"refused": 2}


def test_another_products_answer_needs_the_right_name_only() -> None:
    asked = ASKED[0]._replace(wanted=None)
    assert verdict(asked, {"task": "a-0", "label": "whatever"}, [asked]) == "right"
    assert verdict(asked, {"task": "a-1", "label": "whatever"}, [asked]) == "wrong"


def test_rates_count_right_answers_only() -> None:
    replies = [Reply(200, 0.0, 1.0, 1, [RIGHT[0]]), Reply(200, 1.0, 4.0, 1, [RIGHT[0]])]
    found = judged([[ASKED[0]], [ASKED[1]]], replies, Counter())
    assert found.rate == 0.25
    assert found.latencies == [1.0]


# --- servers ---


def test_a_server_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    words, port = ["-c", "raise SystemExit('no room today')"], servers.free_port()
    with pytest.raises(RunError, match="no room today"), servers.running(words, port, tmp_path / "log"):
        pass


def test_a_server_in_a_process_of_its_own(model_folders: dict[str, Path], tmp_path: Path) -> None:
    names = copied([save_cue(tmp_path / "cue")], tmp_path / "many", 2)
    port = servers.free_port()
    words = servers.softcue_words(tmp_path / "many", str(model_folders["bert"]), port)
    with servers.running(words, port, tmp_path / "log") as server, Loader() as loader:
        assert server.reload(names, 2) > 0
        assert server.resident_bytes() > 2**20
        [reply] = loader.run(Load(port, [[(name, "Where is it") for name in names]], clients=1))
        assert [result["task"] for result in reply.results] == names
    assert server.process.returncode == 0
    log = (tmp_path / "log").read_text("utf-8")
    assert '"cue unloaded"' in log and "Where is it" not in log


def test_batches_of_one_cue() -> None:
    request_rows = [SimpleNamespace(loaded_cue=cue) for cue in (object(), object())]
    rows = [SimpleNamespace(request_row=request_rows[number]) for number in (0, 1, 0, 1)]
    assert servers.of_one_cue(lambda waiting, now: waiting)(rows, 0.0) == [rows[0], rows[2]]


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
    several=3,
    warm_cycles=2,
    cycles=20,
    meanwhile=4,
)
NAMES = {
    "serve_vs_offline",
    "serve7_vs_identical",
    "p99_vs_p50",
    "overload_vs_peak",
    "serve_vs_switching",
    "serve_vs_switching_static",
    "serve_vs_one_cue_batches",
    "reload_memory",
    "wrong_answers",
}


def in_this_process(backbone: Path) -> Any:
    """`servers.running` without processes, which take seconds to start."""

    @contextlib.contextmanager
    def running(words: Sequence[str], port: int, log: Path, threads: int = 1) -> Iterator[servers.Running]:
        is_peft = "peft" in words
        folder = Path(words[3])
        settings = ServerSettings(port=port, admin_keys=("key",), max_in_flight=16)  # type: ignore[arg-type]
        model = load_backbone(str(backbone))
        service = Service(settings, lambda on_batch: Engine(model, folder, settings.limits, on_batch=on_batch))
        app = servers.adapter_app(folder, str(backbone)) if is_peft else create_app(service)
        server = uvicorn.Server(uvicorn.Config(app, host=load.HOST, port=port, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started or (not is_peft and service.state != "ready"):
            time.sleep(0.01)
        yield servers.Running(SimpleNamespace(pid=os.getpid()), port, "key")  # type: ignore[arg-type]
        server.should_exit = True
        thread.join(20)

    return running


@pytest.fixture
def bench_folder(model_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(servers, "running", in_this_process(model_folders["bert"]))
    monkeypatch.setattr(workloads, "SAMPLES", {"tickets": "prompt-tuning", "same-request": "vip"})
    return tmp_path


def test_the_whole_bench(bench_folder: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    found = serving.serving_figures(Plan(repeats=2), bench_folder, 1, str(model_folders["bert"]), SIZES)
    assert set(found["figures"]) == NAMES
    for one in found["figures"].values():
        assert set(one) == {"ratio", "target", "comparison", "met", "spread", "runs", "meaning"}
    assert found["figures"]["wrong_answers"]["ratio"] == 0
    assert found["figures"]["wrong_answers"]["met"]
    assert found["answers"]["compared"] > 100
    assert [(row["popularity"], row["cues"], row["inputs"]) for row in found["throughput"]] == [
        ("identical", 1, 1),
        ("uniform", 3, 1),
        ("skewed", 3, 1),
        ("distinct", 3, 1),
        ("uniform", 7, 1),
        ("skewed", 7, 1),
        ("distinct", 7, 1),
        ("uniform", 7, 3),
    ]
    assert [row["load"] for row in found["latency"]] == list(serving.SHARES)
    assert len(found["memory_mb"]) == len(found["memory_mb_while_asked"]) == serving.CHECKS + 1
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from write_benchmarks import section

    table = section(json.loads(json.dumps(found)) | {"command": "x", "date": "y", "machine": "z"})
    assert "| uniform | 7 | 3 |" in table and "| 70% |" in table and "| one cue |" in table
    found["figures"]["wrong_answers"] |= {"ratio": 2, "met": False}
    assert "**missed by 2.000** |" in section(found | {"command": "x", "date": "y", "machine": "z"})


def test_a_server_that_answers_wrongly_is_found_out(
    bench_folder: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from softcue.serving.engine import engine

    plain, first = engine.predict_mixed, []

    def always_the_first(backbone: Any, rows: Any, *rest: Any) -> list[Any]:
        first.extend(plain(backbone, rows, *rest))
        return [first[0]] * len(rows)

    monkeypatch.setattr(engine, "predict_mixed", always_the_first)
    with serving.running_bench(Plan(2), bench_folder, 1, str(model_folders["bert"]), SIZES) as bench:
        bench.ask(bench.hardest(12), clients=4)
        [figure] = bench.answer_figures(bench.plan).values()
    assert not figure["met"]
    assert bench.statistics["crossed"] == figure["ratio"] == 12 - bench.statistics["right"] > 0
