"""`python -m benchmarks classifiers`: many classifiers on one MiniLM, against what else a user would run for them.

That is sentence-transformers with one logistic regression per task behind FastAPI (servers.py). Both servers have the
same tasks, training rows, threads and load: one text a request, tasks in turn. Accuracy is on the same test rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import softcue
from benchmarks import servers
from benchmarks.load import Input, Load, LoadProcess
from benchmarks.measuring import interleave_values, make_figure, median_ratio
from benchmarks.peers import import_peer, labels_of, predictions_of, texts_of
from benchmarks.plan import Plan, report_seconds
from benchmarks.texts import PUBLISHED_TASKS
from softcue.backbones import Backbone, load_backbone
from softcue.evaluation import score
from softcue.tasks.splits import TaskConfig, read_splits

SAMPLES = ("reply-form", "tickets", "urgency")
METHOD = "p-tuning-v2"
FEW_SHOTS, VALIDATION_ROWS, TEST_ROWS = 100, 200, 500  # of published tasks; the samples are taken whole
CLIENTS = (1, 32)
NUM_REQUESTS = 384


def classifier_figures(plan: Plan, threads: int, num_requests: int = NUM_REQUESTS) -> dict[str, Any]:
    """Measure the figures of `python -m benchmarks classifiers`, and the accuracy of both on each task.

    Example:
        classifier_figures(Plan(3), threads=1)["figures"]["serve32_vs_logistic_regression"]["ratio"]
    """
    servers.check_extras()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        backbone, tasks = load_backbone("minilm"), _tasks(plan)
        with report_seconds("cues and logistic regressions"):
            accuracy = [_train_both(folder / "cues", backbone, task) for task in tasks]
        requests = _requests(tasks, num_requests)
        load_process = stack.enter_context(LoadProcess())
        ports: dict[str, int] = {}
        for server, make_command in (("ours", servers.softcue_command), ("theirs", servers.probes_command)):
            ports[server] = servers.free_port()
            command = make_command(folder / "cues", "minilm", ports[server])
            log = folder / f"{server}.log"
            stack.enter_context(servers.run_server(command, ports[server], log, threads))

        def make_step(port: int, clients: int) -> Callable[[], float]:
            def rate() -> float:
                responses = load_process.run(Load(port, requests, clients=clients))
                assert all(response.status == 200 for response in responses)
                return len(requests) / max(response.ended for response in responses)

            return rate

        figures, table = {}, []
        for clients in CLIENTS:
            steps = {server: make_step(port, clients) for server, port in ports.items()}
            rates = interleave_values(steps, plan.repeats, warmup=1)
            ratio, spread = median_ratio(rates, "ours", "theirs")
            meaning = f"rows a second: ours / sentence-transformers with logistic regressions, clients: {clients}"
            figures[f"serve{clients}_vs_logistic_regression"] = make_figure(
                ratio, 1.0, spread, plan.repeats, meaning, ">="
            )
            table += [
                {"clients": clients, "server": server, "rows_per_second": round(fmean(values), 1)}
                for server, values in rates.items()
            ]
    return {"figures": figures, "accuracy": accuracy, "throughput": table, "torch_threads": threads}


def _tasks(plan: Plan) -> list[TaskConfig]:
    if plan.data is None:
        return [TaskConfig(name=task) for task in SAMPLES]
    rows = {"few_shot": FEW_SHOTS, "validation_rows": VALIDATION_ROWS, "test_rows": TEST_ROWS}
    return [TaskConfig.model_validate({"name": task, "data": str(plan.data), **rows}) for task in PUBLISHED_TASKS]


def _train_both(cues: Path, backbone: Backbone, task: TaskConfig) -> dict[str, Any]:
    """Train a cue and a logistic regression on the same rows; returns the accuracy of each on the same test rows."""
    import numpy
    from sklearn.linear_model import LogisticRegression

    cue = softcue.train(
        cues / task.name,
        task=task.name,
        method=METHOD,
        backbone=backbone,
        progress=False,
        overrides={f"task.{key}": value for key, value in task.model_dump(exclude_unset=True).items() if key != "name"},
    )
    splits = read_splits(task, {})
    model = import_peer("sentence_transformers").SentenceTransformer(str(backbone.folder), device="cpu")
    train, test = (model.encode(texts_of(rows), show_progress_bar=False) for rows in (splits.train, splits.test))
    head = LogisticRegression(max_iter=1000).fit(train, labels_of(splits.train))
    numpy.savez(cues / task.name / servers.HEAD_FILE, weights=head.coef_, biases=head.intercept_, labels=head.classes_)
    theirs = score(splits.task, predictions_of(head.predict(test)), splits.test).main
    ours = cue.cue_file.scores["test"]["accuracy"]
    return {"task": task.name, "ours": round(ours, 1), "theirs": round(theirs, 1), "test_rows": len(splits.test)}


def _requests(tasks: Sequence[TaskConfig], num_requests: int) -> list[Sequence[Input]]:
    """Requests of one test row each; tasks in turn."""
    inputs = [[(task.name, text) for text in texts_of(read_splits(task, {}).test)] for task in tasks]
    return [
        [(rows := inputs[number % len(inputs)])[number // len(inputs) % len(rows)]] for number in range(num_requests)
    ]
