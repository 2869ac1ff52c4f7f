"""The scores of a cue beside the baselines, each with its number of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from softcue.cue.cue_file import CueFile
from softcue.evaluation import (
    BASELINES,
    FEW_ROWS,
    count_rows,
    format_score,
    is_constant_zero_shot,
    name_baselines,
    why_no_zero_shot,
)


@dataclass(frozen=True)
class ScoreTable:
    """A table of scores as text, with notes below it."""

    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def score_table(cue_file: CueFile) -> ScoreTable:
    """The scores of a cue and of the baselines, for each split that was scored.

    Example:
        score_table(softcue.load("cues/tickets").cue_file).rows[0]     # ["validation", "56", "prompt-tuning", ...]
    """
    predictors = {
        split: {str(cue_file.method["name"]): scores, **name_baselines(cue_file.baselines.get(split, {}))}
        for split, scores in cue_file.scores.items()
    }
    metrics = list(dict.fromkeys(metric for scores in cue_file.scores.values() for metric in scores))
    rows = [
        [
            split,
            count_rows(cue_file.num_rows(split), unit=""),
            name,
            *(format_score(metric, scores.get(metric)) for metric in metrics),
        ]
        for split, by_name in predictors.items()
        for name, scores in by_name.items()
    ]
    notes = few_rows_notes(cue_file.num_rows(split) for split in cue_file.scores)
    if cue_file.has_kept_start:
        notes.append(f"{cue_file.method['name']} is as it began: no step of its training was better than the start")
    if "constant_prediction" in cue_file.training:
        notes += baseline_notes(cue_file)
    elif cue_file.scores:
        notes.append("no baselines: this cue was made by an earlier version of softcue")
    if cue_file.scores:
        notes += cue_file.task.paper_notes
    return ScoreTable(["split", "rows", "predictions of", *metrics], rows, notes)


def few_rows_notes(num_rows: Iterable[int | None]) -> list[str]:
    """A note if one of these numbers of rows is small.

    Example:
        >>> few_rows_notes([12, 500])
        ['(few): fewer than 30 rows; with other rows the score may be many points higher or lower']
    """
    has_few = any(count is not None and count < FEW_ROWS for count in num_rows)
    note = f"(few): fewer than {FEW_ROWS} rows; with other rows the score may be many points higher or lower"
    return [note] if has_few else []


def baseline_notes(cue_file: CueFile) -> list[str]:
    """Notes about baselines that a cue does not have, and about one that says little.

    Example:
        baseline_notes(cue.cue_file)     # ["no zero-shot score: an encoder without training has no ..."]
    """
    kind, task = cue_file.backbone.kind, cue_file.task
    notes = []
    if "constant_prediction" not in cue_file.training and (task.has_classes or task.kind == "regression"):
        # version 0.1 had no sets of labels
        baseline = BASELINES["majority_class" if task.has_classes else "mean_target"]
        notes.append(f"no {baseline}: this cue was made by an earlier version of softcue, which did not record it")
    if reason := why_no_zero_shot(kind, task):
        notes.append(f"no zero-shot score: {reason}")
    elif is_constant_zero_shot(kind, task):
        notes.append(f"zero-shot is always '{task.label_names[0]}': an encoder alone cannot compare two texts")
    return notes
