"""A server under load: against the engine offline, against switching between cues, and against itself.

This process is the offline engine; it rests while the server answers, and the server while it runs. Both have the same
number of torch threads. The load comes from a third process, which asks while the server answers.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from softcue.backbones import load_backbone
from softcue.benchmarks import servers
from softcue.benchmarks.load import Load, Loader
from softcue.benchmarks.measuring import figure, interleaved_values, ratio_of
from softcue.benchmarks.parts import Figures, Plan, measured, told
from softcue.benchmarks.workloads import (
    TOLERANCE,
    Asked,
    Outcome,
    Popularity,
    Sizes,
    Stock,
    answered_offline,
    copied,
    judged,
    real_texts,
    sample_cues,
)
from softcue.cue.cue import Cue
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import ServedPrediction

OUTPUT = Path("runs/bench/serving")
SHARES = (0.3, 0.5, 0.7)  # of the peak, at which latency is measured; the figure is that of the last
CHECKS = 20  # of memory


@dataclass
class Bench:
    """Everything that is running, and what was found so far."""

    plan: Plan
    sizes: Sizes
    folder: Path
    backbone: str
    threads: int
    cues: Sequence[Cue]
    stock: Stock
    engine: Engine
    loader: Loader
    server: servers.Running  # with all cues
    statistics: Counter[str] = field(default_factory=Counter)
    tables: dict[str, Any] = field(default_factory=dict)
    per_turn: int = 1  # questions
    peak: float = 0.0  # answers a second

    # --- asking ---

    def ask(
        self,
        asked: Sequence[Asked],
        port: int = 0,
        clients: int = 0,
        rate: float = 0.0,
        per_request: int = 1,
        seed: int = 0,
        statistics: Counter[str] | None = None,
        may_refuse: bool = False,
    ) -> Outcome:
        """Questions to a server, in closed loop (`clients`) or open loop (`rate`), every answer compared."""
        groups = [asked[first : first + per_request] for first in range(0, len(asked), per_request)]
        load = Load(port or self.server.port, _questions(groups), clients, rate, seed)
        return judged(groups, self.loader.run(load), self.statistics if statistics is None else statistics, may_refuse)

    def offline(self, asked: Sequence[Asked]) -> float:
        """Answers a second of the engine without a server."""
        items = [(one.task, one.text) for one in asked]
        began = time.perf_counter()
        results = self.engine.predict(items)
        return sum(isinstance(result, ServedPrediction) for result in results) / (time.perf_counter() - began)

    def hardest(self, num_questions: int) -> list[Asked]:
        """Questions to all cues in turn."""
        return self.stock.questions("distinct", self.sizes.cues[-1], num_questions)

    @contextlib.contextmanager
    def another(self, words: Callable[[Path, str, int], list[str]], cues: Path) -> Iterator[servers.Running]:
        """A further server."""
        port = servers.free_port()
        log = self.folder / f"{words.__name__}-{cues.name}.log"
        with servers.running(words(cues, self.backbone, port), port, log, self.threads) as found:
            yield found

    # --- parts ---

    def offline_figures(self, plan: Plan) -> Figures:
        """The server at its peak against the engine offline, on the same questions."""
        sizes = self.sizes
        first = self.hardest(sizes.clients)
        self.offline(first)
        self.per_turn = max(len(self.stock.samples), round(sizes.seconds * self.offline(first)))
        asked = self.hardest(self.per_turn)
        steps = {
            "server": lambda: self.ask(asked, clients=sizes.clients).rate,
            "offline": lambda: self.offline(asked),
        }
        rates = interleaved_values(steps, plan.repeats, warmup=1)
        self.peak = statistics.median(rates["server"])
        self.tables["peak"] = {name: round(statistics.median(found), 1) for name, found in rates.items()}
        meaning = f"answers a second: server, {sizes.clients} clients / offline engine, {sizes.cues[-1]} cues in turn"
        return {"serve_vs_offline": _figure(rates, "server", "offline", 0.9, meaning)}

    def popularity_figures(self, plan: Plan) -> Figures:
        """Many cues, asked for in several ways, against one cue at a time."""
        sizes, num = self.sizes, self.per_turn
        steps: dict[tuple[str, int, int], Callable[[], float]] = {("identical", 1, 1): lambda: self._identical(num)}

        def rate(popularity: Popularity, num_cues: int, per_request: int = 1) -> Callable[[], float]:
            asked = self.stock.questions(popularity, num_cues, num)
            clients = -(-sizes.clients // per_request)
            return lambda: self.ask(asked, clients=clients, per_request=per_request).rate

        popularities: tuple[Popularity, ...] = ("uniform", "skewed", "distinct")
        for num_cues in sizes.cues:
            steps |= {(popularity, num_cues, 1): rate(popularity, num_cues) for popularity in popularities}
        steps["uniform", sizes.cues[-1], sizes.several] = rate("uniform", sizes.cues[-1], sizes.several)
        rates = interleaved_values(steps, plan.repeats)
        keys = ("popularity", "cues", "inputs")
        self.tables["throughput"] = [
            dict(zip(keys, key, strict=True)) | _summary(found) for key, found in rates.items()
        ]
        many = sizes.cues[-1]
        meaning = f"answers a second of the server: {many} cues in turn / one cue, each sample cue alone"
        return {f"serve{many}_vs_identical": _figure(rates, ("distinct", many, 1), ("identical", 1, 1), 0.9, meaning)}

    def _identical(self, num_questions: int) -> float:
        """Each sample cue alone, one after the other: on average the work of a load of many cues."""
        kinds = range(len(self.stock.samples))
        found = [
            self.ask(self.stock.questions("identical", 1, num_questions, only=kind), clients=self.sizes.clients)
            for kind in kinds
        ]
        return sum(sum(one.num_right) for one in found) / sum(one.seconds for one in found)

    def latency_figures(self, plan: Plan) -> Figures:
        """Latency in open loop below the peak."""
        table: list[dict[str, float]] = []
        for share in SHARES:
            turns = range(plan.repeats if share == SHARES[-1] else 1)
            found = [self._latency(share, seed) for seed in turns]
            table.append({"load": share} | {key: statistics.median(one[key] for one in found) for key in found[0]})
        self.tables["latency"] = [{key: round(value, 3) for key, value in row.items()} for row in table]
        ends = {key: [one[key] for one in found] for key in ("p99_ms", "p50_ms")}
        meaning = f"latency at {SHARES[-1]:.0%} of the peak, open loop, from when a request was due: p99 / p50"
        return {"p99_vs_p50": _figure(ends, "p99_ms", "p50_ms", 3.0, meaning, "<=")}

    def _latency(self, share: float, seed: int) -> dict[str, float]:
        rate = share * self.peak
        asked = self.hardest(max(10, round(rate * self.sizes.latency_seconds)))
        latencies = self.ask(asked, rate=rate, seed=seed).latencies
        cuts = statistics.quantiles(latencies, n=100, method="inclusive")
        milliseconds = {f"p{part}_ms": 1000 * cuts[part - 1] for part in (50, 90, 99)}
        return {"rate": rate, **milliseconds, "max_ms": 1000 * max(latencies)}

    def overload_figures(self, plan: Plan) -> Figures:
        """Twice as many requests as can be answered, which come again when they are told to."""
        rate, sizes = 2 * self.peak, self.sizes
        full = self.server.admin.info()["limits"]["max_in_flight"] / self.peak  # seconds until it has to refuse
        flood = self.hardest(max(10, round(rate * (full + sizes.overload_seconds))))
        asked = self.hardest(self.per_turn)
        given_up: Counter[str] = Counter()
        attempts: list[int] = []

        def overloaded() -> float:
            found = self.ask(flood, rate=rate, seed=len(attempts), statistics=given_up, may_refuse=True)
            attempts.extend(reply.attempts for reply in found.replies)
            return found.rate_between(full, max(reply.due for reply in found.replies))

        steps = {"overload": overloaded, "peak": lambda: self.ask(asked, clients=sizes.clients).rate}
        rates = interleaved_values(steps, plan.repeats)
        self.statistics += given_up
        self.tables["overload"] = {
            "asked": len(attempts),
            "answered": given_up["right"],
            "gave_up": given_up["refused"],
            "mean_attempts": round(statistics.fmean(attempts), 2),
            **_summary(rates["overload"]),
        }
        meaning = f"right answers a second at {rate:.0f} requests a second, Retry-After honoured / at the peak"
        return {"overload_vs_peak": _figure(rates, "overload", "peak", 0.9, meaning)}

    def switching_figures(self, plan: Plan) -> Figures:
        """Mixed batches against servers that take one cue at a time."""
        sizes = self.sizes
        few = sizes.cues[min(1, len(sizes.cues) - 1)]
        copied(self.cues, self.folder / "few", few)
        num = max(sizes.few_clients, self.per_turn // 2)
        mixed = self.stock.questions("distinct", few, num)
        static = self.stock.questions("distinct", few, num, only=0)

        def rate(port: int, asked: Sequence[Asked], is_ours: bool = True) -> Callable[[], float]:
            if not is_ours:  # its numbers are its own: any answer under the right name
                asked = [one._replace(wanted=None) for one in asked]
            return lambda: (
                self.ask(asked, port, sizes.few_clients, statistics=self.statistics if is_ours else Counter()).rate
            )

        with (
            self.another(servers.one_cue_words, self.folder / "few") as one_cue,
            self.another(servers.peft_words, self.folder / "few") as peft,
        ):
            rates = interleaved_values(
                {
                    "ours": rate(self.server.port, mixed),
                    "peft": rate(peft.port, mixed, is_ours=False),
                    "one cue": rate(one_cue.port, mixed),
                    "ours, static": rate(self.server.port, static),
                    "peft, static": rate(peft.port, static, is_ours=False),
                },
                plan.repeats,
                warmup=1,
            )
        self.tables["switching"] = {name: _summary(found) for name, found in rates.items()}
        load = f"{sizes.few_clients} clients, {few} cues in turn"
        cues = "all three sample cues"
        return {
            "serve_vs_switching": _figure(
                rates, "ours", "peft", 3.0, f"answers a second: ours / PEFT server with set_adapter, {load}, {cues}"
            ),
            "serve_vs_switching_static": _figure(
                rates, "ours, static", "peft, static", 3.0, "the same with prompt tuning alone, which is all PEFT runs"
            ),
            "serve_vs_one_cue_batches": _figure(
                rates, "ours", "one cue", 3.0, f"answers a second: ours / our server with a cue a batch, {load}, {cues}"
            ),
        }

    def memory_figures(self, plan: Plan) -> Figures:
        """Memory of a server while cues are unloaded and loaded; then, for the answers, while others are asked too.

        What passes take is not the cues': it comes and goes with the shapes of batches. It is told beside.
        """
        sizes, kinds = self.sizes, len(self.cues)
        names = copied(self.cues, self.folder / "changing", 2 * kinds)
        asked = Stock(self.stock.samples, names).questions("distinct", kinds, sizes.meanwhile)
        with self.another(servers.softcue_words, self.folder / "changing") as server:
            self.ask(asked, server.port, sizes.few_clients)
            seconds = server.reload(names[kinds:], sizes.warm_cycles)

            def held() -> list[int]:
                found = [server.resident_bytes()]
                for _ in range(CHECKS):
                    server.reload(names[kinds:], -(-sizes.cycles // CHECKS))
                    found.append(server.resident_bytes())
                return found

            idle = held()
            rate = len(asked) * sizes.warm_cycles / (seconds * sizes.cycles)  # over all cycles
            self.loader.begin(Load(server.port, _questions([[one] for one in asked]), rate=rate))
            busy = held()
            judged([[one] for one in asked], self.loader.replies(), self.statistics)
        self.tables["memory_mb"] = [round(value / 2**20, 1) for value in idle]
        self.tables["memory_mb_while_asked"] = [round(value / 2**20, 1) for value in busy]
        return {"reload_memory": servers.flatness(idle, sizes.cycles)}

    def answer_figures(self, plan: Plan) -> Figures:
        """What became of all questions so far."""
        statistics = self.statistics
        bad = {kind: statistics[kind] for kind in ("wrong", "lost", "crossed")}
        compare_texts = statistics["right"] + sum(bad.values())
        self.tables["answers"] = {"compared": compare_texts, **bad, "told to come later": statistics["refused"]}
        named = ", ".join(f"{number} {kind}" for kind, number in bad.items())
        meaning = f"{named} of {compare_texts} answers; label, task and order as offline, scores within {TOLERANCE:g}"
        return {"wrong_answers": figure(sum(bad.values()), 0, 0.0, 1, meaning)}


def serving_figures(
    plan: Plan, folder: Path = OUTPUT, threads: int = 1, backbone: str = "minilm", sizes: Sizes | None = None
) -> dict[str, Any]:
    """Everything `softcue bench serve` tells.

    Example:
        serving_figures(Plan(repeats=3))["figures"]["serve_vs_offline"]["ratio"]
    """
    servers.check_extras()
    with running_bench(plan, folder, threads, backbone, sizes or Sizes()) as bench:
        parts = (
            bench.offline_figures,
            bench.popularity_figures,
            bench.latency_figures,
            bench.overload_figures,
            bench.switching_figures,
            bench.memory_figures,
            bench.answer_figures,
        )
        figures = measured(parts, plan)
    texts = "published files" if plan.data else "the samples"
    about = {"backbone": backbone, "torch_threads": threads, "texts": texts, "questions_per_turn": bench.per_turn}
    return {"figures": figures, "setting": about, **bench.tables}


@contextlib.contextmanager
def running_bench(plan: Plan, folder: Path, threads: int, backbone: str, sizes: Sizes) -> Iterator[Bench]:
    """Cues, offline answers, the engine, the server with all cues and the load process."""
    with ExitStack() as stack:
        stack.enter_context(_torch_threads(threads))
        loaded = load_backbone(backbone)
        with told("three sample cues"):
            cues = sample_cues(folder / "samples", loaded, sizes.steps)
        stack.enter_context(patch.dict(os.environ, servers.WITHOUT_CACHE))
        names = copied(cues, folder / "many", sizes.cues[-1])
        with told("answers offline"):
            texts = real_texts(plan.data, sizes.texts)
            stock = Stock([answered_offline(cue, texts) for cue in cues], names)
        with told(f"engine and server with {len(names)} cues"):
            engine = stack.enter_context(Engine(loaded, folder / "many"))
            port = servers.free_port()
            words = servers.softcue_words(folder / "many", backbone, port)
            server = stack.enter_context(servers.running(words, port, folder / "server.log", threads))
        yield Bench(plan, sizes, folder, backbone, threads, cues, stock, engine, stack.enter_context(Loader()), server)


def _figure(
    rates: Mapping[Any, list[float]], ours: Any, theirs: Any, target: float, meaning: str, comparison: str = ">="
) -> dict[str, Any]:
    ratio, spread = ratio_of(rates, ours, theirs)
    return figure(ratio, target, spread, len(rates[ours]), meaning, comparison)


def _summary(rates: Sequence[float]) -> dict[str, float]:
    return {
        "answers_per_second": round(statistics.median(rates), 1),
        "least": round(min(rates), 1),
        "most": round(max(rates), 1),
    }


def _questions(groups: Sequence[Sequence[Asked]]) -> list[list[tuple[str, Any]]]:
    return [[(one.task, one.text) for one in group] for group in groups]


@contextlib.contextmanager
def _torch_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
