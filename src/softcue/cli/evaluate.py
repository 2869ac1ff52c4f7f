"""`softcue evaluate`: scores of one cue, or of an ensemble and each of its cues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from softcue.evaluation import Evaluation


def evaluate(
    cues: Annotated[list[Path], typer.Argument(help="A cue folder, or several with --vote or --mean.")],
    data: Annotated[
        str | None, typer.Option(help="Rows with targets, or a folder with a task's published files.")
    ] = None,
    task: Annotated[str, typer.Option(help="Score on the rows of this other task (out of domain).")] = "",
    split: Annotated[str, typer.Option(help="A split of the task's own rows: train, validation or test.")] = "",
    rows: Annotated[int, typer.Option(min=0, help="Score a sample of this many rows only; 0 scores all.")] = 0,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help="FILE=CUE: the file's column for one the cue reads; may be repeated."),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per forward pass.")] = 64,
    by_vote: Annotated[bool, typer.Option("--vote", help="Score a vote of the cues, and each cue.")] = False,
    by_mean: Annotated[bool, typer.Option("--mean", help="Score their mean probabilities, and each cue.")] = False,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a cue, or an ensemble of several, on rows with known targets."""
    from softcue.cli.predict import choose_join, load_together
    from softcue.cue.cue_file import read_cue_file
    from softcue.errors import ConfigurationError
    from softcue.evaluation import read_evaluation_set
    from softcue.inference import predict
    from softcue.tasks.columns import parse_columns, rename_columns

    join = choose_join(by_vote, by_mean)
    if len(cues) > 1 and join is None:
        raise ConfigurationError(
            setting="cues",
            got=", ".join(map(str, cues)),
            expected="one cue",
            fix="pass --vote or --mean to score them together",
        )
    if columns and (task or data is None or Path(data).is_dir()):
        raise ConfigurationError(
            setting="column",
            got=columns[0],
            expected="a file with rows in --data",
            fix="leave it out for a task's rows",
        )
    [row_task] = rename_columns([read_cue_file(cues[0]).task], parse_columns(columns or []))
    evaluation_set = read_evaluation_set(row_task, data, task, split, rows, skip_bad_rows)
    loaded = load_together(cues, backbone, is_ensemble=join is not None)
    requests = [(cue.model, example) for cue in loaded for example in evaluation_set.examples]
    predicted = predict(loaded[0].backbone, requests, batch_size)
    num_rows = len(evaluation_set.examples)
    evaluations = {
        str(path): evaluation_set.score(predicted.predictions[number * num_rows : (number + 1) * num_rows])
        for number, path in enumerate(cues)
    }
    ensemble = None if join is None else "vote" if by_vote else "mean"
    if join is not None and ensemble is not None:
        evaluations[ensemble] = evaluation_set.score(
            [join(predicted.predictions[row::num_rows]) for row in range(num_rows)]
        )
    if as_json:
        _print_json(evaluation_set.name, evaluations, ensemble, predicted.num_truncated)
        return
    _print_tables(evaluation_set.name, evaluations, num_rows)
    if predicted.num_truncated:
        typer.echo(f"{predicted.num_truncated} texts were cut to {loaded[0].model.formatter.limit} tokens", err=True)


def _print_json(data: str, evaluations: dict[str, Evaluation], ensemble: str | None, num_truncated: int) -> None:
    from softcue.cli.output import print_json

    rows = next(iter(evaluations.values())).num_rows
    if ensemble is None:
        [(cue, evaluation)] = evaluations.items()
        print_json({"cue": cue, "data": data, "rows": rows, "truncated": num_truncated, **_as_dict(evaluation)})
        return
    print_json(
        {
            "data": data,
            "rows": rows,
            ensemble: _as_dict(evaluations.pop(ensemble)),
            "truncated": num_truncated,
            "cues": {path: _as_dict(evaluation) for path, evaluation in evaluations.items()},
        }
    )


def _print_tables(data: str, evaluations: dict[str, Evaluation], num_rows: int) -> None:
    from softcue.cli.output import print_table

    metrics = list(next(iter(evaluations.values())).scores)
    if len(evaluations) == 1:
        [(cue, evaluation)] = evaluations.items()
        print_table(f"{cue} on {data}", ["rows", *metrics], [[num_rows, *evaluation.scores.values()]])
    else:
        rows = [[name, num_rows, *evaluation.scores.values()] for name, evaluation in evaluations.items()]
        print_table(f"{len(evaluations) - 1} cues on {data}", ["predictions of", "rows", *metrics], rows)
    for name, evaluation in evaluations.items():
        if evaluation.num_illegal:
            share = f"{evaluation.num_illegal} predictions of {name} ({100 * evaluation.illegal_share:.1f} %)"
            typer.echo(f"{share} are not allowed by the task and count as wrong", err=True)
        if evaluation.has_collapsed:
            typer.echo(f"every row got the same label from {name}: this cue has learned nothing", err=True)


def _as_dict(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "scores": evaluation.scores,
        "main": evaluation.main,
        "illegal": evaluation.num_illegal,
        "illegal_share": evaluation.illegal_share,
        "predicted_labels": evaluation.predicted_labels,
    }
