"""`softcue evaluate`: scores of one cue, or of an ensemble and each of its cues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli.options import (
    AllowPickle,
    AttentionKind,
    Columns,
    Device,
    Dtype,
    QuantizationKind,
    RequireSignature,
    SkipBadRows,
)

if TYPE_CHECKING:
    from softcue.evaluation import Evaluation


def evaluate(
    cues: Annotated[
        list[Path], typer.Argument(help="A cue folder or hub:OWNER/NAME, or several with --vote or --mean.")
    ],
    data: Annotated[
        str | None, typer.Option(help="Rows with targets, or a folder with a task's published files.")
    ] = None,
    task: Annotated[str, typer.Option(help="Score on the rows of this other task (out of domain).")] = "",
    split: Annotated[str, typer.Option(help="A split of the task's own rows: train, validation or test.")] = "",
    rows: Annotated[int, typer.Option(min=0, help="Score a sample of this many rows only; 0 scores all.")] = 0,
    columns: Columns = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    attention: AttentionKind = None,
    quantization: QuantizationKind = None,
    allow_pickle: AllowPickle = False,
    require_signature: RequireSignature = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per forward pass.")] = 64,
    by_vote: Annotated[bool, typer.Option("--vote", help="Score a vote of the cues, and each cue.")] = False,
    by_mean: Annotated[bool, typer.Option("--mean", help="Score their mean probabilities, and each cue.")] = False,
    skip_bad_rows: SkipBadRows = False,
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Score the majority class and zero-shot too.")
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option(help="Save scores per label and the confusion matrix: .json, .html, .csv or .png (matplotlib)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a cue, or an ensemble of several, on rows with known targets; with scores of each label."""
    from softcue.cli.output import print_json
    from softcue.cli.predict import choose_join, load_together
    from softcue.cli.scores import print_evaluations, print_labels
    from softcue.cue.cue import backbone_settings
    from softcue.cue.cue_file import read_cue_file
    from softcue.cue.hub import find_cue_folder
    from softcue.cue.score_table import baseline_notes
    from softcue.cue.signatures import read_public_keys
    from softcue.errors import ConfigurationError
    from softcue.evaluation import read_evaluation_set
    from softcue.inference import predict
    from softcue.inspection import CheckedRows, check_suffix, write_evaluation
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
    folders = [find_cue_folder(cue) for cue in cues]
    signers = None if require_signature is None else read_public_keys(require_signature)
    cue_task = read_cue_file(folders[0], signers).task
    if output is not None:
        check_suffix(output, cue_task.kind)
    [row_task] = rename_columns([cue_task], parse_columns(columns or []))
    evaluation_set = read_evaluation_set(row_task, data, task, split, rows, skip_bad_rows)
    settings = backbone_settings(device, dtype, attention, quantization)
    loaded = load_together(folders, backbone, join is not None, allow_pickle, signers, settings)
    requests = [(cue.model, example) for cue in loaded for example in evaluation_set.examples]
    predicted = predict(loaded[0].backbone, requests, batch_size)
    num_rows = len(evaluation_set.examples)
    predictions = {
        str(path): predicted.predictions[number * num_rows : (number + 1) * num_rows]
        for number, path in enumerate(cues)
    }
    ensemble = None if join is None else "vote" if by_vote else "mean"
    if join is not None and ensemble is not None:
        predictions[ensemble] = [join(predicted.predictions[row::num_rows]) for row in range(num_rows)]
    guesses = loaded[0].baseline_predictions(evaluation_set, batch_size) if baselines else {}
    best = ensemble or str(cues[0])
    evaluations = {
        name: evaluation_set.score(predictions[name], baselines=guesses if name == best else None)
        for name in predictions
    }
    facts = _facts(evaluation_set.name, evaluations, ensemble, predicted.num_truncated)
    if output is not None:
        checked = CheckedRows(evaluation_set.name, evaluations[best], evaluation_set.wrong_rows(predictions[best]))
        write_evaluation(output, best, checked, facts)
    if as_json:
        print_json(facts)
        return
    title = f"{best} on {evaluation_set.name}" if ensemble is None else f"{len(cues)} cues on {evaluation_set.name}"
    notes = baseline_notes(loaded[0].cue_file) if baselines else ()
    print_evaluations(title, evaluations, [*notes, *evaluation_set.labels.task.paper_notes])
    print_labels(f"{best}: scores of each label", evaluations[best])
    _warn(evaluations)
    if predicted.num_truncated:
        typer.echo(f"{predicted.num_truncated} texts were cut to {loaded[0].model.formatter.limit} tokens", err=True)
    if output is not None:
        typer.echo(f"saved: {output}")


def _facts(data: str, evaluations: dict[str, Evaluation], ensemble: str | None, num_truncated: int) -> dict[str, Any]:
    """The content of the JSON object."""
    values = {name: evaluation.as_dict() for name, evaluation in evaluations.items()}
    num_rows = next(iter(evaluations.values())).num_rows
    if ensemble is None:
        [(cue, evaluation)] = values.items()
        return {"cue": cue, "data": data, **evaluation, "truncated": num_truncated}
    for evaluation in values.values():
        del evaluation["truncated"]  # texts are counted over all cues
    guesses = {name: evaluation.pop("baselines") for name, evaluation in values.items()}
    joined = values.pop(ensemble)
    return {
        "data": data,
        "rows": num_rows,
        ensemble: joined,
        "truncated": num_truncated,
        "cues": values,
        "baselines": guesses[ensemble],
    }


def _warn(evaluations: dict[str, Evaluation]) -> None:
    """Say what is odd about predictions."""
    for name, evaluation in evaluations.items():
        if evaluation.num_illegal:
            share = f"{evaluation.num_illegal} predictions of {name} ({100 * evaluation.illegal_share:.1f} %)"
            typer.echo(f"{share} {evaluation.illegal_note}", err=True)
        if evaluation.has_collapsed:
            typer.echo(f"{name}: {evaluation.collapse_note}", err=True)
