"""`softcue compare`: finished cues of one task on the same rows, or methods that are trained for it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli.completion import complete_backbone, complete_method, complete_task
from softcue.cli.config import KindOfRecipe
from softcue.cli.options import AllowPickle, Columns, SkipBadRows

if TYPE_CHECKING:
    from softcue.studies import PredictionComparison


def compare(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CUE CUE ...] [section.key=value ...]",
            help="Finished cues of one task; or, with --methods, settings for all runs.",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Train these methods, A,B,..., and compare them.", autocompletion=complete_method)
    ] = None,
    backbones: Annotated[
        str | None, typer.Option(help="On these backbones, A,B,...", autocompletion=complete_backbone)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method, with seeds 0, 1, ...")] = 3,
    recipe: Annotated[KindOfRecipe | None, typer.Option(help="default: presets. paper: the papers' settings.")] = None,
    task: Annotated[
        str | None,
        typer.Option(help="A name from `softcue tasks`, or a task file (.yaml).", autocompletion=complete_task),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Rows with targets for finished cues; with --methods, a folder with the task's files."),
    ] = None,
    train: Annotated[str | None, typer.Option(help="Training rows.")] = None,
    validation: Annotated[str | None, typer.Option(help="Validation rows.")] = None,
    test: Annotated[str | None, typer.Option(help="Test rows, on which methods are compared.")] = None,
    text: Annotated[str | None, typer.Option(help="The column to read, or several: COL,COL.")] = None,
    label: Annotated[str | None, typer.Option(help="The column with the target.")] = None,
    few_shot: Annotated[
        int | None, typer.Option("--few-shot", help="Train on this many rows only; each seed has its own sample.")
    ] = None,
    split: Annotated[str, typer.Option(help="Finished cues: a split of the task's own rows.")] = "",
    rows: Annotated[int, typer.Option(min=0, help="Finished cues: a sample of this many rows; 0 takes all.")] = 0,
    columns: Columns = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Finished cues: rows per forward pass.")] = 64,
    allow_pickle: AllowPickle = False,
    skip_bad_rows: SkipBadRows = False,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", help="A folder for index.html, tables and, with --methods, the cues.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare finished cues on the same rows, or train methods and compare those (--methods)."""
    from softcue.errors import ConfigurationError

    words = words or []
    if methods is None:
        training_options = {"backbones": backbones, "task": task, "train": train, "text": text, "few_shot": few_shot}
        for name, value in training_options.items():
            if value is not None:
                raise ConfigurationError(
                    setting=name,
                    got=value,
                    expected="`methods` beside it",
                    fix="name methods to train, or leave it out",
                )
        _compare_cues(
            [Path(word) for word in words],
            (data, split, rows, skip_bad_rows, columns or []),
            (batch_size, allow_pickle),
            output_dir,
            as_json,
        )
        return
    if output_dir is None:
        raise ConfigurationError(
            setting="output_dir", got=None, expected="a folder for the cues", fix="pass `output_dir=runs/NAME`"
        )
    arguments = {
        "recipe": recipe and recipe.value,
        "task": task,
        "data": data,
        "train": train,
        "validation": validation,
        "test": test,
        "text": text,
        "label": label,
        "few_shot": few_shot,
        "skip_bad_rows": skip_bad_rows or None,
        "allow_pickle": allow_pickle or None,
        "overrides": words,
    }
    given = {name: value for name, value in arguments.items() if value is not None}
    _compare_methods(output_dir, _split(methods), seeds, _split(backbones or ""), given, as_json)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _compare_methods(
    output_dir: Path, methods: list[str], seeds: int, backbones: list[str], arguments: dict[str, Any], as_json: bool
) -> None:
    from softcue.cli.output import print_json, print_table
    from softcue.files import convert_write_errors, write_atomically
    from softcue.studies.methods import compare_methods
    from softcue.studies.methods_page import methods_page

    chosen = {"backbones": backbones} if backbones else {}
    comparison = compare_methods(
        output_dir, methods, seeds, report=lambda line: typer.echo(line, err=True), **chosen, **arguments
    )
    title = f"{len(methods)} methods on {arguments.get('task') or arguments.get('train') or 'rows'}"
    command = shlex.join(["softcue", *sys.argv[1:]])
    with convert_write_errors("output_dir", output_dir):
        write_atomically(output_dir / "index.html", methods_page(title, comparison, command).encode())
        write_atomically(output_dir / "comparison.json", json.dumps(comparison.as_dict(), indent=1).encode())
    if as_json:
        print_json(comparison.as_dict())
        return
    print_table(f"{title}: {comparison.metric} on {comparison.split} rows", *comparison.table(), numbers_from=1)
    for sentence in (*(pair.sentence for pair in comparison.pairs), *comparison.notes):
        typer.echo(sentence)
    typer.echo(f"saved: {output_dir / 'index.html'}, {output_dir / 'comparison.json'}")


def _compare_cues(
    cues: list[Path],
    source: tuple[str | None, str, int, bool, list[str]],
    loading: tuple[int, bool],
    output_dir: Path | None,
    as_json: bool,
) -> None:
    from softcue.cli.output import print_json, print_table
    from softcue.cue.cue_file import read_cue_file
    from softcue.evaluation import read_evaluation_set
    from softcue.studies.cue_loading import check_several, load_cues_of_one_task
    from softcue.studies.predictions import compare_predictions
    from softcue.tasks.columns import parse_columns, rename_columns

    check_several(cues)
    data, split, num_rows, skip_bad_rows, columns = source
    batch_size, allow_pickle = loading
    [row_task] = rename_columns([read_cue_file(cues[0]).task], parse_columns(columns))
    evaluation_set = read_evaluation_set(row_task, data, "", split, num_rows, skip_bad_rows)
    loaded = load_cues_of_one_task(cues, allow_pickle)
    predictions = {
        name: cue.evaluate_set(evaluation_set, batch_size, baselines=False)[1] for name, cue in loaded.items()
    }
    comparison = compare_predictions(loaded, evaluation_set, predictions)
    if output_dir is not None:
        _write(comparison, output_dir)
    if as_json:
        print_json(comparison.as_dict())
        return
    print_table(f"{len(loaded)} cues on {comparison.data}", *comparison.score_table())
    print_table("", *comparison.pair_table())
    for pair in comparison.pairs:
        typer.echo(pair.sentence)
    typer.echo(f"the cues differ on {len(comparison.different_rows):,} of {comparison.num_rows:,} rows")
    if output_dir is not None:
        typer.echo(f"saved: {output_dir / 'index.html'}, {output_dir / 'different-rows.csv'}")


def _write(comparison: PredictionComparison, folder: Path) -> None:
    import csv
    import io

    from softcue.files import convert_write_errors, write_atomically
    from softcue.studies.prediction_page import prediction_page

    names = list(comparison.evaluations)
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(["row", "text", "true", *names, "right"])
    for row in comparison.different_rows:
        predicted = [row.predictions[name] for name in names]
        writer.writerow([row.number, " / ".join(row.texts), row.true, *predicted, " ".join(row.right)])
    with convert_write_errors("output_dir", folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "index.html", prediction_page(comparison).encode())
        write_atomically(folder / "different-rows.csv", lines.getvalue().encode())
