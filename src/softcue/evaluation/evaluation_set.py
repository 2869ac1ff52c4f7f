"""Rows with known targets, of the cue's task or of another, and how a cue's labels are scored on them.

On another task's rows, labels match by name, else by a shared meaning (`means` in the task files): MRPC's `equivalent`
and QQP's `duplicate` are both a paraphrase, SNLI's `neutral` is what RTE calls `not_entailment`. Finer labels are
always mapped to coarser ones, never the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from softcue.errors import ConfigurationError
from softcue.evaluation.report import Evaluation, score
from softcue.evaluation.wrong_rows import WrongRow, wrong_rows
from softcue.tasks import SPLITS, Label, Source, Task, examples_from, find_task, sources
from softcue.tasks.readers import Dataset, name_of, splits_of
from softcue.tasks.rows import has_targets
from softcue.tasks.splits import is_task_name, limit_rows
from softcue.types import Example, Prediction, label_text


@dataclass(frozen=True)
class LabelMapping:
    """A common set of labels for a cue's predictions and the targets of the rows."""

    task: Task  # the task with the common labels, and with the metrics
    predicted: Mapping[str, str]  # the cue's label -> common label; empty if they are the same
    targets: Mapping[str, str]  # the rows' label -> common label; empty if they are the same

    def score(
        self, predictions: Sequence[Prediction], examples: Sequence[Example], num_truncated: int = 0
    ) -> Evaluation:
        """Score a cue's predictions in the common labels."""
        return score(self.task, *self.map_labels(predictions, examples), num_truncated)

    def map_labels(
        self, predictions: Sequence[Prediction], examples: Sequence[Example]
    ) -> tuple[list[Prediction], list[Example]]:
        """A cue's predictions and the examples, both in the common labels."""
        mapped = [_map_prediction(prediction, self.predicted) for prediction in predictions]
        if not self.targets:
            return mapped, list(examples)
        return mapped, [
            replace(
                example,
                target=self.targets.get(str(example.target), example.target),
                labels=tuple(dict.fromkeys(self.targets[name] for name in example.labels)),
            )
            for example in examples
        ]


@dataclass(frozen=True)
class EvaluationSet:
    """Rows with known targets, and the labels a cue is scored in."""

    name: str
    examples: Sequence[Example]
    labels: LabelMapping

    def score(
        self,
        predictions: Sequence[Prediction],
        num_truncated: int = 0,
        baselines: Mapping[str, Sequence[Prediction]] | None = None,
    ) -> Evaluation:
        """Score a cue's predictions for all rows, and those of baselines, by name."""
        evaluation = self.labels.score(predictions, self.examples, num_truncated)
        others = {name: self.labels.score(guesses, self.examples).scores for name, guesses in (baselines or {}).items()}
        return replace(evaluation, baselines=others)

    def wrong_rows(self, predictions: Sequence[Prediction], limit: int = 10) -> list[WrongRow]:
        """The rows a cue gets wrong, the most confident prediction first."""
        return wrong_rows(self.labels.task, *self.labels.map_labels(predictions, self.examples), limit)


def read_evaluation_set(
    cue_task: Task,
    data: Source | None = None,
    task: str = "",
    split: str = "",
    num_rows: int = 0,
    skip_bad_rows: bool = False,
) -> EvaluationSet:
    """Read rows to score a cue on: of a file, of a folder with published files, or the task's own rows.

    With `num_rows`, a sample of that many rows is taken (seed 0).

    Example:
        read_evaluation_set(library_task("tickets")).name        # the task's own test rows
        read_evaluation_set(cue.task, "../data", task="mrpc")    # another task's, from its published files
    """
    if (dataset_splits := splits_of(data)) is not None:
        data, split = _choose_dataset(dataset_splits, split, cue_task), ""
    is_folder = isinstance(data, (str, Path)) and Path(data).is_dir()
    has_splits = data is None or is_folder
    row_task = _task_of_rows(cue_task, task, has_splits)
    labels = match_labels(cue_task, row_task)
    if split and (split not in SPLITS or not has_splits):
        raise ConfigurationError(
            setting="split",
            got=split,
            expected=f"{', '.join(SPLITS)}, of a task's own rows",
            fix="leave it out for a file",
        )
    source = data
    if has_splits:
        available: Mapping[str, Source]
        if is_folder:
            available = dict(sources(row_task, str(data)))
        else:
            available = {name: address for name in SPLITS if (address := getattr(row_task, name))}
        split = split or next((name for name in ("test", "validation") if name in available), "")
        source = available.get(split)
        if source is None and available:
            raise ConfigurationError(
                setting="split",
                got=split,
                expected=f"one that is there: {', '.join(available)}",
                fix="name one of them",
            )
    if source is None:
        raise ConfigurationError(
            setting="data",
            got=data if data is not None else "",
            expected=f"rows with answers for {row_task.name}",
            fix="pass `data=FILE`, `data=FOLDER` with its files, or `task=FILE.yaml`",
        )
    name = f"{row_task.name} ({split})" if has_splits else name_of(source)
    examples = examples_from(source, row_task, skip_bad_rows=skip_bad_rows)
    return EvaluationSet(name, limit_rows(examples, num_rows, seed=0), labels)


def _choose_dataset(splits: Mapping[str, Dataset], split: str, task: Task) -> Dataset:
    """The named split of a `DatasetDict`, else its test or validation rows, if they have targets."""
    with_targets = [name for name in ("test", "validation") if name in splits and has_targets(splits[name], task)]
    name = split or next(iter(with_targets), "")
    if name not in splits:
        raise ConfigurationError(
            setting="split",
            got=split,
            expected=f"one of the DatasetDict: {', '.join(splits)}",
            fix="name one with targets",
        )
    return splits[name]


def _task_of_rows(cue_task: Task, task: str, has_splits: bool) -> Task:
    """The task that describes the rows: the named one, else the cue's as it is known by name, else as it was saved."""
    row_task = cue_task
    if task:
        row_task = find_task(task)
    elif has_splits and is_task_name(cue_task.name):
        row_task = find_task(cue_task.name)
    # A task file may leave its labels to the rows, and its kind.
    completed: dict[str, object] = {}
    if row_task.has_row_labels and not row_task.labels:
        completed = {"labels": cue_task.labels, "label_type": cue_task.label_type}
    is_decided_by_rows = cue_task.kind == "multi-label" or (cue_task.kind == "regression" and not row_task.labels)
    if "kind" not in row_task.model_fields_set and is_decided_by_rows:
        completed["kind"] = cue_task.kind
    return row_task.model_copy(update=completed)


def match_labels(cue_task: Task, row_task: Task) -> LabelMapping:
    """Find labels in which a cue for `cue_task` can be scored on rows of `row_task`; an error if there are none.

    Example:
        >>> from softcue.tasks import library_task
        >>> match_labels(library_task("snli"), library_task("rte")).predicted["neutral"]
        'not_entailment'
    """
    num_texts = len(cue_task.text)
    if cue_task.kind != row_task.kind:
        raise _incompatible(cue_task, row_task, f"a task for {cue_task.kind}, not {row_task.kind}")
    if num_texts != len(row_task.text):
        raise _incompatible(cue_task, row_task, f"a task that reads {num_texts} texts ({', '.join(cue_task.text)})")
    if not cue_task.labels or cue_task.label_names == row_task.label_names:
        return LabelMapping(row_task, {}, {})
    if mapping := _map_labels(cue_task.labels, row_task.labels):
        return LabelMapping(row_task, mapping, {})
    if mapping := _map_labels(row_task.labels, cue_task.labels):
        return LabelMapping(cue_task, {}, mapping)
    raise _incompatible(cue_task, row_task, f"labels that stand for {', '.join(cue_task.labels)}")


def _map_labels(finer: Mapping[str, Label], coarser: Mapping[str, Label]) -> dict[str, str] | None:
    """Map each finer label to the one coarser label it means; None if one has none or several, or all have the same."""
    mapping = {}
    for name, label in finer.items():
        meanings = {name, *label.means}
        candidates = (
            [name]
            if name in coarser
            else [other_name for other_name, other in coarser.items() if meanings & {other_name, *other.means}]
        )
        if len(candidates) != 1:
            return None
        mapping[name] = candidates[0]
    return mapping if len(set(mapping.values())) > 1 else None


def _map_prediction(prediction: Prediction, mapping: Mapping[str, str]) -> Prediction:
    """The prediction in other labels; scores of labels that become one are added, of sets the highest counts."""
    if mapping and prediction.labels is not None:
        highest: dict[str, float] = {}
        for label, value in (prediction.scores or {}).items():
            common = mapping[label_text(label)]
            highest[common] = max(highest.get(common, 0.0), value)
        labels = tuple(dict.fromkeys(mapping[label_text(label)] for label in prediction.labels))
        return replace(prediction, labels=labels, scores=highest or None)
    if not mapping or (text := prediction.label_text) is None:
        return prediction
    scores: dict[str, float] = {}
    for label, value in (prediction.scores or {}).items():
        common = mapping[label_text(label)]
        scores[common] = scores.get(common, 0.0) + value
    return replace(prediction, label=mapping.get(text, text), scores=scores or None)


def _incompatible(cue_task: Task, row_task: Task, expected: str) -> ConfigurationError:
    return ConfigurationError(
        setting="task", got=row_task.name, expected=expected, fix=f"the cue was trained for {cue_task.name}"
    )
