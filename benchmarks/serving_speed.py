"""`python -m benchmarks serve`: a server under load, against the offline engine and against switching between cues.

This process is the offline engine. It is idle while the server predicts, and the server while it runs. Both have the
same number of torch threads. The load comes from a third process, which runs beside the server.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import servers
from benchmarks.load import Load, LoadProcess
from benchmarks.measuring import interleave_values, make_figure, median_ratio, torch_threads
from benchmarks.plan import Figures, Plan, choose_parts, measure_parts, report_seconds
from benchmarks.workloads import (
    LoadResult,
    Popularity,
    Question,
    QuestionPool,
    Sizes,
    as_requests,
    compare_responses,
    copy_cues,
    make_sample,
    real_texts,
    train_sample_cues,
)
from softcue import Cue, Engine, Limits
from softcue.backbones import load_backbone

OUTPUT = Path("runs/bench/serving")
LOAD_SHARES = (0.3, 0.5, 0.7)  # of the peak, for latency; the last one has the figure
NUM_MEMORY_CHECKS = 20


@dataclass
class ServingBenchmark:
    """The running processes, and the measurements so far."""

    plan: Plan
    sizes: Sizes
    folder: Path
    backbone: str
    threads: int
    cues: Sequence[Cue]
    pool: QuestionPool
    engine: Engine
    load_process: LoadProcess
    server: servers.RunningServer  # with all cues
    verdict_counts: Counter[str] = field(default_factory=Counter)
    tables: dict[str, Any] = field(default_factory=dict)
    questions_per_turn: int = 1
    peak_rate: float = 0.0  # predictions per second

    # --- sending questions ---

    def send(
        self,
        questions: Sequence[Question],
        port: int = 0,
        clients: int = 0,
        rate: float = 0.0,
        per_request: int = 1,
        seed: int = 0,
        verdict_counts: Counter[str] | None = None,
        may_reject: bool = False,
    ) -> LoadResult:
        """Send questions in closed loop (`clients`) or open loop (`rate`), and compare every result."""
        groups = [questions[first : first + per_request] for first in range(0, len(questions), per_request)]
        load = Load(port or self.server.port, as_requests(groups), clients, rate, seed)
        counts = self.verdict_counts if verdict_counts is None else verdict_counts
        return compare_responses(groups, self.load_process.run(load), counts, may_reject)

    def predict_offline(self, questions: Sequence[Question]) -> float:
        """Predictions per second of the engine without a server."""
        items = [(question.task, question.text) for question in questions]
        started = time.perf_counter()
        results = self.engine.predict(items)
        return sum(not isinstance(result, Exception) for result in results) / (time.perf_counter() - started)

    def questions_to_all_cues(self, num_questions: int) -> list[Question]:
        """Questions to all cues in turn."""
        return self.pool.draw("distinct", self.sizes.cues[-1], num_questions)

    @contextlib.contextmanager
    def run_another_server(
        self, make_command: Callable[[Path, str, int], list[str]], cues: Path
    ) -> Iterator[servers.RunningServer]:
        """Run a further server on a folder of cues."""
        port = servers.free_port()
        log = self.folder / f"{make_command.__name__}-{cues.name}.log"
        with servers.run_server(make_command(cues, self.backbone, port), port, log, self.threads) as server:
            yield server

    # --- parts ---

    def offline_figures(self, plan: Plan) -> Figures:
        """The server at its peak against the offline engine, on the same questions."""
        sizes = self.sizes
        first_questions = self.questions_to_all_cues(sizes.clients)
        self.predict_offline(first_questions)
        num_questions = round(sizes.seconds * self.predict_offline(first_questions))
        self.questions_per_turn = max(len(self.pool.samples), num_questions)
        questions = self.questions_to_all_cues(self.questions_per_turn)
        steps = {
            "server": lambda: self.send(questions, clients=sizes.clients).rate,
            "offline": lambda: self.predict_offline(questions),
        }
        rates = interleave_values(steps, plan.repeats, warmup=1)
        self.peak_rate = statistics.median(rates["server"])
        self.tables["peak"] = {name: round(statistics.median(values), 1) for name, values in rates.items()}
        meaning = f"answers a second: server, {sizes.clients} clients / offline engine, {sizes.cues[-1]} cues in turn"
        return {"serve_vs_offline": _compare_rates(rates, "server", "offline", 0.9, meaning)}

    def popularity_figures(self, plan: Plan) -> Figures:
        """Many cues in several popularities against one cue at a time."""
        sizes, num_questions = self.sizes, self.questions_per_turn
        steps: dict[tuple[str, int, int], Callable[[], float]] = {
            ("identical", 1, 1): lambda: self._single_cue_rate(num_questions)
        }

        def make_step(popularity: Popularity, num_cues: int, per_request: int = 1) -> Callable[[], float]:
            questions = self.pool.draw(popularity, num_cues, num_questions)
            clients = -(-sizes.clients // per_request)
            return lambda: self.send(questions, clients=clients, per_request=per_request).rate

        popularities: tuple[Popularity, ...] = ("uniform", "skewed", "distinct")
        for num_cues in sizes.cues:
            steps |= {(popularity, num_cues, 1): make_step(popularity, num_cues) for popularity in popularities}
        most_cues, several = sizes.cues[-1], sizes.inputs_per_request
        steps["uniform", most_cues, several] = make_step("uniform", most_cues, several)
        rates = interleave_values(steps, plan.repeats)
        columns = ("popularity", "cues", "inputs")
        self.tables["throughput"] = [
            dict(zip(columns, key, strict=True)) | _summarize(values) for key, values in rates.items()
        ]
        meaning = f"answers a second of the server: {most_cues} cues in turn / one cue, each sample cue alone"
        figure = _compare_rates(rates, ("distinct", most_cues, 1), ("identical", 1, 1), 0.9, meaning)
        return {f"serve{most_cues}_vs_identical": figure}

    def _single_cue_rate(self, num_questions: int) -> float:
        """Each sample cue alone, one after the other: the same work on average as a load of many cues."""
        results = [
            self.send(self.pool.draw("identical", 1, num_questions, only_sample=index), clients=self.sizes.clients)
            for index in range(len(self.pool.samples))
        ]
        return sum(sum(result.num_right) for result in results) / sum(result.seconds for result in results)

    def latency_figures(self, plan: Plan) -> Figures:
        """Latency in open loop below the peak."""
        table: list[dict[str, float]] = []
        for share in LOAD_SHARES:
            turns = range(plan.repeats if share == LOAD_SHARES[-1] else 1)
            latencies = [self._measure_latency(share, seed) for seed in turns]
            medians = {key: statistics.median(turn[key] for turn in latencies) for key in latencies[0]}
            table.append({"load": share} | medians)
        self.tables["latency"] = [{key: round(value, 3) for key, value in row.items()} for row in table]
        percentiles = {key: [turn[key] for turn in latencies] for key in ("p99_ms", "p50_ms")}
        meaning = f"latency at {LOAD_SHARES[-1]:.0%} of the peak, open loop, from when a request was due: p99 / p50"
        return {"p99_vs_p50": _compare_rates(percentiles, "p99_ms", "p50_ms", 3.0, meaning, "<=")}

    def _measure_latency(self, share: float, seed: int) -> dict[str, float]:
        rate = share * self.peak_rate
        questions = self.questions_to_all_cues(max(10, round(rate * self.sizes.latency_seconds)))
        latencies = self.send(questions, rate=rate, seed=seed).latencies
        percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
        milliseconds = {f"p{part}_ms": 1000 * percentiles[part - 1] for part in (50, 90, 99)}
        return {"rate": rate, **milliseconds, "max_ms": 1000 * max(latencies)}

    def passes_figures(self, plan: Plan) -> Figures:
        """Two batches at a time, each on half of the threads, against one batch on all of them."""
        sizes, num_cues = self.sizes, self.sizes.cues[min(1, len(self.sizes.cues) - 1)]
        folder = self.folder / "passes"
        copy_cues(self.cues, folder, num_cues)
        questions = self.pool.draw("distinct", num_cues, max(sizes.few_clients, self.questions_per_turn // 2))
        with (
            self.run_another_server(servers.one_pass_command, folder) as one_pass,
            self.run_another_server(servers.softcue_command, folder) as usual,
        ):
            steps: dict[tuple[str, int], Callable[[], float]] = {}
            for clients in (1, 4, sizes.few_clients):
                steps["usual", clients] = partial(self._rate_of, questions, usual.port, clients)
                steps["one pass", clients] = partial(self._rate_of, questions, one_pass.port, clients)
            rates = interleave_values(steps, plan.repeats, warmup=1)
        self.tables["passes"] = [
            {"server": server, "clients": clients} | _summarize(values) for (server, clients), values in rates.items()
        ]
        return {
            f"passes_at_once_{clients}_clients": _compare_rates(
                rates,
                ("usual", clients),
                ("one pass", clients),
                1.0,
                f"answers a second: usual server / with --passes-at-once 1, {clients} clients, {num_cues} cues in turn",
            )
            for clients in (1, 4, sizes.few_clients)
        }

    def _rate_of(self, questions: Sequence[Question], port: int, clients: int) -> float:
        asked = questions[: max(10, len(questions) * clients // self.sizes.few_clients)]
        return self.send(asked, port, clients).rate

    def overload_figures(self, plan: Plan) -> Figures:
        """Requests at twice the peak rate, which are sent again after the Retry-After time."""
        rate, sizes = 2 * self.peak_rate, self.sizes
        seconds_until_full = self.server.admin.info()["limits"]["max_in_flight"] / self.peak_rate
        num_questions = max(10, round(rate * (seconds_until_full + sizes.overload_seconds)))
        overload_questions = self.questions_to_all_cues(num_questions)
        peak_questions = self.questions_to_all_cues(self.questions_per_turn)
        overload_counts: Counter[str] = Counter()
        attempts: list[int] = []

        def overload_rate() -> float:
            seed = len(attempts)
            result = self.send(
                overload_questions, rate=rate, seed=seed, verdict_counts=overload_counts, may_reject=True
            )
            attempts.extend(response.attempts for response in result.responses)
            return result.rate_between(seconds_until_full, max(response.due for response in result.responses))

        steps = {
            "overload": overload_rate,
            "peak": lambda: self.send(peak_questions, clients=sizes.clients).rate,
        }
        rates = interleave_values(steps, plan.repeats)
        self.verdict_counts += overload_counts
        self.tables["overload"] = {
            "asked": len(attempts),
            "answered": overload_counts["right"],
            "gave_up": overload_counts["rejected"],
            "mean_attempts": round(statistics.fmean(attempts), 2),
            **_summarize(rates["overload"]),
        }
        meaning = f"right answers a second at {rate:.0f} requests a second, Retry-After honoured / at the peak"
        return {"overload_vs_peak": _compare_rates(rates, "overload", "peak", 0.9, meaning)}

    def switching_figures(self, plan: Plan) -> Figures:
        """Mixed batches against servers that run one cue at a time."""
        sizes = self.sizes
        num_cues = sizes.cues[min(1, len(sizes.cues) - 1)]
        folder = self.folder / "few"
        copy_cues(self.cues, folder, num_cues)
        num_questions = max(sizes.few_clients, self.questions_per_turn // 2)
        mixed = self.pool.draw("distinct", num_cues, num_questions)
        static = self.pool.draw("distinct", num_cues, num_questions, only_sample=0)

        uncompared_counts: Counter[str] = Counter()

        def make_step(port: int, questions: Sequence[Question], is_compared: bool = True) -> Callable[[], float]:
            counts = self.verdict_counts
            if not is_compared:  # any result under the right name will do
                questions = [question._replace(expected=None) for question in questions]
                counts = uncompared_counts
            return lambda: self.send(questions, port, sizes.few_clients, verdict_counts=counts).rate

        with (
            self.run_another_server(servers.one_cue_command, folder) as one_cue,
            self.run_another_server(servers.peft_command, folder) as peft,  # its prompts are untrained
            self.run_another_server(servers.runtime_command, folder) as runtime,  # compares labels with torch by itself
        ):
            steps = {
                "ours": make_step(self.server.port, mixed),
                "ours, runtime": make_step(runtime.port, mixed, is_compared=False),
                "peft": make_step(peft.port, mixed, is_compared=False),
                "one cue": make_step(one_cue.port, mixed),
                "ours, static": make_step(self.server.port, static),
                "ours, runtime, static": make_step(runtime.port, static, is_compared=False),
                "peft, static": make_step(peft.port, static, is_compared=False),
            }
            rates = interleave_values(steps, plan.repeats, warmup=1)
            runtime_name = runtime.admin.info()["backbone"]["runtime"]
        self.tables["switching"] = {name: _summarize(values) for name, values in rates.items()}
        self.tables["uncompared_answers"] = dict(uncompared_counts)
        load = f"{sizes.few_clients} clients, {num_cues} cues in turn"
        cues = "all three sample cues"
        return {
            "serve_vs_switching": _compare_rates(
                rates, "ours", "peft", 3.0, f"answers a second: ours / PEFT server with set_adapter, {load}, {cues}"
            ),
            "serve_vs_switching_static": _compare_rates(
                rates, "ours, static", "peft, static", 3.0, "the same with prompt tuning alone, which is all PEFT runs"
            ),
            "serve_runtime_vs_switching": _compare_rates(
                rates, "ours, runtime", "peft", 3.0, f"ours in {runtime_name} / the same PEFT server, {load}, {cues}"
            ),
            "serve_runtime_vs_switching_static": _compare_rates(
                rates, "ours, runtime, static", "peft, static", 3.0, "the same with prompt tuning alone"
            ),
            "serve_vs_one_cue_batches": _compare_rates(
                rates, "ours", "one cue", 3.0, f"answers a second: ours / our server with a cue a batch, {load}, {cues}"
            ),
        }

    def memory_figures(self, plan: Plan) -> Figures:
        """Memory of a server while cues are unloaded and loaded, first without and then with requests to other cues.

        The figure is that of the server without requests. Memory of forward passes varies with the shapes of batches
        and does not belong to the cues.
        """
        sizes, num_samples = self.sizes, len(self.cues)
        names = copy_cues(self.cues, self.folder / "changing", 2 * num_samples)
        reloaded_names = names[num_samples:]
        pool = QuestionPool(self.pool.samples, names)
        questions = pool.draw("distinct", num_samples, sizes.questions_while_reloading)
        with self.run_another_server(servers.softcue_command, self.folder / "changing") as server:
            self.send(questions, server.port, sizes.few_clients)
            warm_seconds = server.reload(reloaded_names, sizes.warm_cycles)

            def measure_memory() -> list[int]:
                resident_bytes = [server.resident_bytes()]
                for _ in range(NUM_MEMORY_CHECKS):
                    server.reload(reloaded_names, -(-sizes.cycles // NUM_MEMORY_CHECKS))
                    resident_bytes.append(server.resident_bytes())
                return resident_bytes

            idle_memory = measure_memory()
            rate = len(questions) * sizes.warm_cycles / (warm_seconds * sizes.cycles)  # spread over all cycles
            groups = [[question] for question in questions]
            self.load_process.start(Load(server.port, as_requests(groups), rate=rate))
            busy_memory = measure_memory()
            compare_responses(groups, self.load_process.wait(), self.verdict_counts)
        self.tables["memory_mb"] = [round(value / 2**20, 1) for value in idle_memory]
        self.tables["memory_mb_while_asked"] = [round(value / 2**20, 1) for value in busy_memory]
        return {"reload_memory": servers.memory_growth_figure(idle_memory, sizes.cycles)}

    def result_figures(self, plan: Plan) -> Figures:
        """The verdicts on all questions so far."""
        counts = self.verdict_counts
        bad = {verdict: counts[verdict] for verdict in ("wrong", "lost", "crossed")}
        num_compared = counts["right"] + sum(bad.values())
        self.tables["answers"] = {"compared": num_compared, **bad, "told to come later": counts["rejected"]}
        bad_counts = ", ".join(f"{number} {verdict}" for verdict, number in bad.items())
        tolerance = max(sample.tolerance for sample in self.pool.samples)
        meaning = (
            f"{bad_counts} of {num_compared} answers; label, task and order as offline, scores within {tolerance:g}"
        )
        return {"wrong_answers": make_figure(sum(bad.values()), 0, 0.0, 1, meaning)}


def serving_figures(
    plan: Plan,
    folder: Path = OUTPUT,
    threads: int = 1,
    backbone: str = "minilm",
    sizes: Sizes | None = None,
    names: Collection[str] = (),
) -> dict[str, Any]:
    """Measure the figures and tables of `python -m benchmarks serve`, or those of some parts by name.

    Example:
        serving_figures(Plan(repeats=3))["figures"]["serve_vs_offline"]["ratio"]
    """
    servers.check_extras()
    with start_benchmark(plan, folder, threads, backbone, sizes or Sizes()) as benchmark:
        parts = (
            benchmark.popularity_figures,
            benchmark.latency_figures,
            benchmark.passes_figures,
            benchmark.overload_figures,
            benchmark.switching_figures,
            benchmark.memory_figures,
        )
        # The first part finds the peak that others need, the last one judges all answers.
        chosen = [benchmark.offline_figures, *choose_parts(parts, names), benchmark.result_figures]
        figures = measure_parts(chosen, plan)
    setting = {
        "backbone": backbone,
        "torch_threads": threads,
        "texts": "published files" if plan.data else "the samples",
        "questions_per_turn": benchmark.questions_per_turn,
    }
    return {"figures": figures, "setting": setting, **benchmark.tables}


@contextlib.contextmanager
def start_benchmark(plan: Plan, folder: Path, threads: int, backbone: str, sizes: Sizes) -> Iterator[ServingBenchmark]:
    """Train the cues, predict offline, and start the engine, the server with all cues and the load process."""
    with ExitStack() as stack:
        stack.enter_context(torch_threads(threads))
        loaded = load_backbone(backbone)
        with report_seconds("three sample cues"):
            cues = train_sample_cues(folder / "samples", loaded, sizes.steps)
        stack.enter_context(patch.dict(os.environ, servers.WITHOUT_CACHE))
        many = folder / "many"
        names = copy_cues(cues, many, sizes.cues[-1])
        with report_seconds("predictions offline"):
            texts = real_texts(plan.data, sizes.texts)
            pool = QuestionPool([make_sample(cue, texts) for cue in cues], names)
        with report_seconds(f"engine and server with {len(names)} cues"):
            engine = stack.enter_context(Engine(loaded, many, Limits(passes_at_once=None)))  # as the server has it
            port = servers.free_port()
            command = servers.softcue_command(many, backbone, port)
            server = stack.enter_context(servers.run_server(command, port, folder / "server.log", threads))
        load_process = stack.enter_context(LoadProcess())
        yield ServingBenchmark(plan, sizes, folder, backbone, threads, cues, pool, engine, load_process, server)


def _compare_rates(
    rates: Mapping[Any, list[float]],
    numerator: Any,
    denominator: Any,
    target: float,
    meaning: str,
    comparison: str = ">=",
) -> dict[str, Any]:
    ratio, spread = median_ratio(rates, numerator, denominator)
    return make_figure(ratio, target, spread, len(rates[numerator]), meaning, comparison)


def _summarize(rates: Sequence[float]) -> dict[str, float]:
    return {
        "answers_per_second": round(statistics.median(rates), 1),
        "least": round(min(rates), 1),
        "most": round(max(rates), 1),
    }
