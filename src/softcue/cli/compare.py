"""`softcue compare`: finished cues of one task on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from softcue.studies import PredictionComparison


def compare(
    cues: Annotated[list[Path], typer.Argument(help="Cue folders of one task.")],
    data: Annotated[
        str | None, typer.Option(help="Rows with targets; without it, the test rows of the first cue's task.")
    ] = None,
    split: Annotated[str, typer.Option(help="A split of the task's own rows: train, validation or test.")] = "",
    rows: Annotated[int, typer.Option(min=0, help="Compare on a sample of this many rows; 0 takes all.")] = 0,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help="FILE=CUE: the file's column for one the cue reads; may be repeated."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per forward pass.")] = 64,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Open a backbone whose weights are a pickle; only if you trust it.")
    ] = False,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read.")] = False,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", help="Write index.html and different-rows.csv into this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare finished cues on the same rows: scores, agreement, and whether they can be told apart."""
    from softcue.cli.output import print_json, print_table
    from softcue.cue.cue_file import read_cue_file
    from softcue.evaluation import read_evaluation_set
    from softcue.studies.cue_loading import load_cues_of_one_task
    from softcue.studies.predictions import compare_predictions
    from softcue.tasks.columns import parse_columns, rename_columns

    [row_task] = rename_columns([read_cue_file(cues[0]).task], parse_columns(columns or []))
    evaluation_set = read_evaluation_set(row_task, data, "", split, rows, skip_bad_rows)
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
