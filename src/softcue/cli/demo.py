"""`softcue demo`: three cues on one frozen model, and a table that compares them with baselines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from softcue.backbones import Backbone

TASKS = ("reply-form", "tickets", "urgency")
METHOD = "p-tuning-v2"
EPOCHS = 6  # fewer than the preset has: nine runs should take minutes


def demo(
    output_dir: Annotated[Path, typer.Option("--output-dir", help="Where the three cue folders go.")] = Path("cues"),
    seeds: Annotated[
        int, typer.Option(min=1, help="Train with seeds 0 to N-1 and show mean and standard deviation.")
    ] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train three sample tasks on the frozen MiniLM and compare them with simple baselines."""
    import time

    from softcue.backbones import load_backbone
    from softcue.cli.output import print_json, print_table

    started = time.monotonic()
    backbone = load_backbone("minilm")
    results = [_compare(name, backbone, output_dir, seeds, progress=not as_json) for name in TASKS]
    if as_json:
        print_json({"rows": results, "num_seeds": seeds, "seconds": round(time.monotonic() - started, 1)})
        return
    title = "accuracy on test rows; one frozen MiniLM, three cues"
    columns, rows = _table(results)
    print_table(title, columns, rows, numbers_from=2)
    if seeds > 1:
        typer.echo(f"mean and sample standard deviation over {seeds} seeds; the linear probe draws nothing at random")
    else:
        typer.echo("one run per task: runs differ by several points; --seeds 3 shows mean and spread")
    typer.echo(f"Cues are in {output_dir}/. Try next:")
    cues = " ".join(f"{output_dir}/{name}" for name in TASKS)
    typer.echo(f"  softcue predict {cues} 'My parcel never came. Whom do I call?'")
    typer.echo(f"  softcue inspect {output_dir}/reply-form")
    flags = "--text COLUMN --label COLUMN --backbone minilm --method auto --output-dir cues/yours"
    typer.echo(f"  softcue train --train YOUR.csv {flags}")


def _compare(name: str, backbone: Backbone, output_dir: Path, num_seeds: int, progress: bool) -> dict[str, Any]:
    """Train one task with each seed, and score the baselines on the same test rows."""
    import json
    from statistics import fmean, stdev

    from softcue.api import train
    from softcue.evaluation import constant_prediction, linear_probe, predict_baselines, score
    from softcue.tasks import examples_from, library_task

    task = library_task(name)
    rows = {split: examples_from(getattr(task, split), task) for split in ("train", "validation", "test")}
    scores, seconds = [], 0.0
    for seed in range(num_seeds):
        # Seeds after the first are below a folder of their own: `softcue serve FOLDER` serves the first.
        folder = output_dir / name if seed == 0 else output_dir / f"seed-{seed}" / name
        cue = train(
            folder,
            task=name,
            method=METHOD,
            epochs=EPOCHS,
            backbone=backbone,
            seed=seed,
            resume=True,
            progress=progress,
        )
        assert cue.path is not None
        scores.append(cue.scores["test"][task.main_metric])
        seconds += json.loads((cue.path / "metrics.json").read_text("utf-8"))["seconds"]
    probe_score = linear_probe(backbone, task, rows["train"], rows["validation"], rows["test"]).main  # needs no seed
    constant = constant_prediction(task, rows["train"])
    guesses = predict_baselines(backbone, task, constant, rows["test"])
    baseline_scores = {key: score(task, predictions, rows["test"]).main for key, predictions in guesses.items()}
    result = {
        "task": name,
        "method": cue.cue_file.method["name"],
        "rows": cue.cue_file.num_rows("test"),
        "score": fmean(scores),
        "majority class": baseline_scores["majority_class"],
        "no training": baseline_scores["zero_shot"],
        "linear probe": probe_score,
        "trained numbers": cue.counts.gradient + cue.counts.head,
        "cue KB": round((output_dir / name / "cue.safetensors").stat().st_size / 1024, 1),
        "seconds": round(seconds, 1),
    }
    if num_seeds > 1:
        result |= {"scores": scores, "standard deviation": stdev(scores)}
    return result


def _table(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of the table; scores of several seeds are written as mean \u00b1 standard deviation."""
    from softcue.cli.output import format_cell
    from softcue.evaluation import count_rows

    # The JSON keys stay as they were in version 0.1.
    headings = {
        "task": "task",
        "method": "method",
        "rows": "test rows",
        "score": "softcue",
        "linear probe": "linear probe",
        "no training": "zero-shot",
        "majority class": "majority class",
        "trained numbers": "parameters with head",
        "cue KB": "cue KB",
        "seconds": "seconds",
    }
    lines = []
    for result in results:
        cells = {key: format_cell(result[key]) for key in headings}
        cells["rows"] = count_rows(result["rows"], unit="")
        if "standard deviation" in result:
            cells["score"] += f" \u00b1 {result['standard deviation']:.1f}"
        lines.append(list(cells.values()))
    return list(headings.values()), lines
