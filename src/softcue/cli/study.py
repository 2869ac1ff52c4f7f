"""`softcue study`: whole tables of runs from one file: list, plan, run, status and report."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli import study_report
from softcue.cli.config import KindOfRecipe
from softcue.cli.options import split_names

if TYPE_CHECKING:
    from softcue.studies.runner import StudyStatus
    from softcue.studies.study import Study

app = typer.Typer(help="Whole tables of runs from one file, resumed, reported and compared.", no_args_is_help=True)
app.command("report")(study_report.report)


class EngineName(enum.StrEnum):
    """Where runs are executed."""

    local = "local"
    ray = "ray"


class Scale(enum.StrEnum):
    """The sizes a study has."""

    full = "full"
    small = "small"


StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="A name of `softcue study list`, or a YAML file.")]
Words = Annotated[list[str] | None, typer.Argument(metavar="[section.key=value ...]", help="Settings for all runs.")]
Backbones = Annotated[str | None, typer.Option("--backbone", help="On these backbones, A,B,..., instead.")]
Tasks = Annotated[str | None, typer.Option(help="These tasks only, A,B,...")]
Methods = Annotated[str | None, typer.Option(help="These methods only, A,B,...")]
Regimes = Annotated[str | None, typer.Option(help="These regimes only, such as K=100.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of each cell of the table.")]
ScaleOption = Annotated[Scale, typer.Option(help="small: fewer rows, steps and seeds, for two cores.")]
Recipe = Annotated[KindOfRecipe | None, typer.Option(help="default: presets. paper: the papers' settings.")]
Data = Annotated[Path | None, typer.Option(help="A folder with the tasks' published files.")]
Text = Annotated[Path | None, typer.Option(help="A folder of plain text, for studies that adapt a backbone.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_all(as_json: AsJson = False) -> None:
    """List the studies that come with softcue."""
    from softcue.cli.output import print_json, print_table
    from softcue.studies.runs import plan_runs
    from softcue.studies.study import list_studies, read_study

    lines = []
    for name in list_studies():
        study = read_study(name)
        sizes = {"runs": plan_runs(study, {}).size}
        if study.small:
            sizes["small"] = plan_runs(read_study(name, scale="small"), {}).size
        lines.append({"name": name, "title": study.heading, **sizes})
    if as_json:
        print_json({"studies": lines})
        return
    rows = [[line["name"], line["title"], line["runs"], line.get("small", "-")] for line in lines]
    print_table("", ["study", "what it shows", "runs", "runs, --scale small"], rows, numbers_from=2)


@app.command()
def run(
    study: StudyName,
    words: Words = None,
    output_dir: Annotated[
        str | None, typer.Option("--output-dir", help="A folder for the runs, or an fsspec URL; default: studies/NAME.")
    ] = None,
    backbone: Backbones = None,
    tasks: Tasks = None,
    methods: Methods = None,
    regimes: Regimes = None,
    seeds: Seeds = None,
    scale: ScaleOption = Scale.full,
    recipe: Recipe = None,
    data: Data = None,
    text: Text = None,
    engine: Annotated[EngineName, typer.Option(help="local: processes of this machine. ray: a Ray cluster.")] = (
        EngineName.local
    ),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: as many as cores or GPUs allow.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each run; default: 1.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a run that crashes is tried again.")] = 1,
    ray_address: Annotated[str | None, typer.Option(help="The Ray cluster, such as auto or HOST:6379.")] = None,
    as_json: AsJson = False,
) -> None:
    """Execute the runs of a study that are not finished. The same command goes on where it was stopped."""
    from softcue.cli.output import print_json
    from softcue.errors import ConfigurationError, RunError
    from softcue.studies.engines import make_engine
    from softcue.studies.progress import StudyProgress
    from softcue.studies.runner import run_study
    from softcue.studies.store import open_study

    if ray_address is not None and engine is not EngineName.ray:
        raise ConfigurationError(
            setting="ray_address", got=ray_address, expected="`engine=ray` beside it", fix="pass `engine=ray`"
        )
    chosen = _read(
        study,
        scale,
        words,
        {"backbones": backbone, "tasks": tasks, "methods": methods, "regimes": regimes},
        {"seeds": seeds, "recipe": recipe and recipe.value, "data": data, "text": text, "threads": threads},
    )
    place = output_dir or f"studies/{chosen.name}"
    folder = open_study(place)
    runs_engine = make_engine(engine.value, place, workers, chosen.threads, ray_address)
    with StudyProgress(chosen.name, runs_engine.num_workers, is_quiet=as_json) as progress:
        status = run_study(chosen, folder, runs_engine, retries=retries, listener=progress)
    if as_json:
        print_json(_status_facts(status, place))
    else:
        _print_status(status, place)
    if status.failed:
        raise RunError(
            setting="study",
            got=f"{len(status.failed)} failed runs",
            expected="all runs to finish",
            fix=f"the reasons are above and in `softcue study status {place}`; the same command tries them again",
        )


@app.command()
def status(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder or URL of a study.")], as_json: AsJson = False
) -> None:
    """Show how far a study is: finished, failed with the reason, and missing runs."""
    from softcue.cli.output import print_json
    from softcue.studies.runner import read_status
    from softcue.studies.store import open_study

    state = read_status(open_study(folder))
    if as_json:
        print_json(_status_facts(state, folder))
    else:
        _print_status(state, folder)


def _read(
    name: str,
    scale: Scale,
    words: Sequence[str] | None,
    lists: Mapping[str, str | None],
    values: Mapping[str, object],
) -> Study:
    """The study with what the command line replaces: lists of names, single values, and settings."""
    from softcue.configuration import parse_overrides
    from softcue.studies.study import read_study

    sections = parse_overrides(words or [])
    settings = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    changes: dict[str, Any] = {key: split_names(names) for key, names in lists.items() if names is not None}
    changes |= {key: str(value.resolve()) if isinstance(value, Path) else value for key, value in values.items()}
    return read_study(name, scale=scale.value, **changes, settings=settings or None)


def _status_facts(status: StudyStatus, place: str) -> dict[str, Any]:
    return {
        "folder": place,
        "runs": status.plan.size,
        "done": len(status.done),
        "failed": status.failed,
        "waiting": status.num_waiting,
    }


def _print_status(status: StudyStatus, place: str) -> None:
    from softcue.cli.output import print_table

    lines: dict[tuple[str, str], dict[str, int]] = {}
    columns: dict[str, None] = {}
    for planned in status.plan.runs:
        column = planned.axes["trained_on"] or "adaptation"
        line = lines.setdefault((planned.axes["backbone"], planned.axes["method"]), {})
        columns[column] = None
        line[f"{column} done"] = line.get(f"{column} done", 0) + (planned.id in status.results)
        line[column] = line.get(column, 0) + 1
    rows = [
        [
            backbone,
            method,
            *(f"{line[column + ' done']}/{line[column]}" if column in line else "-" for column in columns),
        ]
        for (backbone, method), line in lines.items()
    ]
    print_table("finished runs", ["backbone", "method", *columns], rows, numbers_from=2)
    for failed, reason in status.failed.items():
        typer.echo(f"failed: {failed}: {reason}")
    later = f", {status.plan.num_later} of them follow from results" if status.plan.num_later else ""
    typer.echo(
        f"{len(status.done)} of {status.plan.size} runs are done{later}; the report: softcue study report {place}"
    )


@app.command()
def plan(
    study: StudyName,
    words: Words = None,
    backbone: Backbones = None,
    tasks: Tasks = None,
    methods: Methods = None,
    regimes: Regimes = None,
    seeds: Seeds = None,
    scale: ScaleOption = Scale.full,
    recipe: Recipe = None,
    data: Data = None,
    text: Text = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each run; default: 1.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show runs, parameters, hours and memory of a study on this machine, from a few steps of each method."""
    from dataclasses import asdict

    from softcue.cli.output import print_json, print_table
    from softcue.machine import read_memory
    from softcue.studies.engines import default_workers
    from softcue.studies.estimate import estimate_study
    from softcue.studies.report.display import counted

    chosen = _read(
        study,
        scale,
        words,
        {"backbones": backbone, "tasks": tasks, "methods": methods, "regimes": regimes},
        {"seeds": seeds, "recipe": recipe and recipe.value, "data": data, "text": text, "threads": threads},
    )
    estimate = estimate_study(chosen, report=lambda line: typer.echo(line, err=True))
    num_workers = workers or default_workers(chosen.threads)
    hours = estimate.hours(num_workers)
    gigabytes = estimate.megabytes * num_workers / 1024
    if as_json:
        facts = {"study": chosen.name, "runs": estimate.num_runs, "workers": num_workers, "hours": hours}
        lines = [asdict(line) for line in estimate.lines]
        print_json({**facts, "gigabytes": gigabytes, "lines": lines, "problems": estimate.problems})
        return
    rows = [
        [
            line.backbone,
            line.method,
            line.runs,
            "-" if line.trainable is None else f"{line.trainable:,}",
            "-" if line.seconds is None else f"{line.seconds / 60:.1f}",
            "-" if line.megabytes is None else f"{line.megabytes:,.0f}",
        ]
        for line in estimate.lines
    ]
    columns = ["backbone", "method", "runs", "trainable", "minutes per run", "MB"]
    print_table(f"{chosen.heading}: {estimate.num_runs} runs", columns, rows, numbers_from=2)
    for line in estimate.lines:
        if line.problem:
            typer.echo(f"{line.method} on {line.backbone} cannot be estimated: {line.problem}")
    for task, problem in estimate.problems.items():
        typer.echo(f"{task}: its rows cannot be read: {problem}")
    if hours is not None:
        available = read_memory().available
        memory = f"about {gigabytes:.1f} GB of memory" + (f" ({available:.1f} GB are free)" if available else "")
        typer.echo(
            f"about {_duration(hours)} with {counted(num_workers, 'run')} at a time and "
            f"{counted(chosen.threads, 'thread')} each; {memory}"
        )


def _duration(hours: float) -> str:
    minutes = round(60 * hours)
    return f"{hours:.1f} hours" if hours >= 1 else f"{minutes} minutes" if minutes > 1 else "a minute"
