"""Score tables of the commands: each score with its number of rows and with the baselines beside it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from softcue.cue.cue import Cue
    from softcue.evaluation import ConfusionMatrix, Evaluation

NUM_MISTAKES = 5  # of the most frequent pairs of labels
MAX_COLUMNS = 12  # of a matrix in a terminal


def print_scores(cue: Cue) -> None:
    """Print the scores that a cue records, beside those of the baselines."""
    from softcue.cli.output import print_table
    from softcue.cue.score_table import score_table

    table = score_table(cue.cue_file)
    title = f"{cue.path}: {cue.cue_file.method['name']} on {cue.cue_file.backbone.name}"
    print_table(title, table.columns, table.rows, numbers_from=3)
    for note in table.notes:
        typer.echo(note)


def print_selection(cue: Cue) -> None:
    """Print which methods were tried for a cue, if its method was chosen among several."""
    from softcue.cli.output import print_table
    from softcue.selection.record import selection_notes, selection_table

    if (selection := cue.selection) is None:
        return
    print_table(f"methods tried: {selection.winner} won", *selection_table(selection))
    for note in selection_notes(selection):
        typer.echo(note)


def score_facts(cue: Cue) -> dict[str, Any]:
    """The scores that a cue records, with rows and baselines, for JSON."""
    cue_file = cue.cue_file
    rows = {split: cue_file.num_rows(split) for split in cue_file.scores}
    return {"scores": cue_file.scores, "rows": rows, "baselines": cue_file.baselines}


def print_evaluations(title: str, evaluations: Mapping[str, Evaluation], notes: Sequence[str] = ()) -> None:
    """Print a line of scores for each evaluation, by name, and for the baselines of the last one; then the notes."""
    from softcue.cli.output import print_table
    from softcue.cue.score_table import few_rows_notes
    from softcue.evaluation.report import compare_rows

    last = list(evaluations.values())[-1]
    columns, rows = compare_rows({name: evaluation.scores for name, evaluation in evaluations.items()}, last)
    print_table(title, columns, rows, numbers_from=1)
    for note in [*few_rows_notes([last.num_rows]), *notes]:
        typer.echo(note)


def print_labels(title: str, evaluation: Evaluation) -> None:
    """Print precision, recall and F1 of each label, and the most frequent mistakes; nothing for other tasks."""
    from softcue.cli.output import print_table
    from softcue.evaluation.report import label_notes, label_rows

    if not evaluation.by_label:
        return
    columns, rows = label_rows(evaluation)
    print_table(title, columns, rows, numbers_from=1)
    for note in label_notes(evaluation):
        typer.echo(note)
    if evaluation.confusion is not None and (mistakes := frequent_mistakes(evaluation.confusion)):
        typer.echo(f"most frequent mistakes (true -> predicted): {mistakes}")


def print_confusion(confusion: ConfusionMatrix) -> None:
    """Print the confusion matrix, if a terminal has room for its columns."""
    from softcue.cli.output import print_table

    if len(confusion.predicted) > MAX_COLUMNS:
        typer.echo(f"the confusion matrix has {len(confusion.predicted)} columns: see it on a page, with --output-dir")
        return
    rows = [[label, *counts] for label, counts in zip(confusion.labels, confusion.counts, strict=True)]
    print_table("confusion matrix", ["true \\ predicted", *confusion.predicted], rows, numbers_from=1)


def frequent_mistakes(confusion: ConfusionMatrix) -> str:
    """The pairs of labels that are mistaken most often, in one line; empty if every row is right.

    Example:
        >>> from softcue.evaluation.label_scores import confusion_matrix
        >>> frequent_mistakes(confusion_matrix(["a", "b", "a"], ["a", "a", "b"], ["a", "b"]))
        'a -> b 1, b -> a 1'
    """
    pairs = [
        (count, true, predicted)
        for true, counts in zip(confusion.labels, confusion.counts, strict=True)
        for predicted, count in zip(confusion.predicted, counts, strict=True)
        if count and true != predicted
    ]
    most = sorted(pairs, key=lambda pair: -pair[0])[:NUM_MISTAKES]
    return ", ".join(f"{true} -> {predicted} {count:,}" for count, true, predicted in most)


def print_curve(cue: Cue) -> None:
    """Print the training curve as lines of text."""
    from softcue.drawing.sparkline import BARS, PLAIN_BARS

    try:
        BARS.encode(sys.stdout.encoding or "utf-8")
        bars = BARS
    except (UnicodeEncodeError, LookupError):
        bars = PLAIN_BARS
    for line in cue.training_curve.as_text(bars=bars):
        typer.echo(line)
