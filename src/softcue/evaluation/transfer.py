"""A cue on the rows of another task: which label of one stands for which of the other.

Labels match by name, else by a meaning they share (`means` in the task files): MRPC's `equivalent` and QQP's
`duplicate` are both a paraphrase, SNLI's `neutral` is what RTE calls `not_entailment`. The finer labels are always
turned into the coarser ones, never the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from softcue.errors import ConfigurationError
from softcue.evaluation.evaluate import Evaluation, score
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction


@dataclass(frozen=True)
class Transfer:
    """How a cue's answers are scored on another task's rows."""

    task: Task  # whose labels and metrics count
    answers: Mapping[str, str]  # the cue's label -> the label it counts as
    truths: Mapping[str, str]  # the rows' label -> the label it counts as

    def score(self, answers: Sequence[Prediction], examples: Sequence[Example], num_truncated: int = 0) -> Evaluation:
        """The cue's answers to the rows, in the labels that count."""
        told = [_renamed(answer, self.answers) for answer in answers]
        known = [replace(example, target=self.truths.get(str(example.target), example.target)) for example in examples]
        return score(self.task, told, known if self.truths else examples, num_truncated)


def transfer_between(ours: Task, theirs: Task) -> Transfer:
    """How answers of a cue for `ours` are scored on rows of `theirs`; refused where that has no meaning.

    Example:
        >>> from softcue.tasks import library_task
        >>> transfer_between(library_task("snli"), library_task("rte")).answers["neutral"]
        'not_entailment'
    """
    if ours.kind != theirs.kind:
        raise _incompatible(ours, theirs, f"a task for {ours.kind}, not {theirs.kind}")
    if len(ours.text) != len(theirs.text):
        raise _incompatible(ours, theirs, f"a task that reads {len(ours.text)} texts ({', '.join(ours.text)})")
    if not ours.labels or ours.label_names == theirs.label_names:
        return Transfer(theirs, {}, {})
    if matched := _matched(ours.labels, theirs.labels):
        return Transfer(theirs, matched, {})
    if matched := _matched(theirs.labels, ours.labels):
        return Transfer(ours, {}, matched)
    raise _incompatible(ours, theirs, f"labels that stand for {', '.join(ours.labels)}")


def _matched(finer: Mapping[str, Label], coarser: Mapping[str, Label]) -> dict[str, str] | None:
    """The one coarser label each finer one stands for; None if one has none or several, or all are the same."""
    found = {}
    for name, label in finer.items():
        meanings = {name, *label.means}
        fits = (
            [name]
            if name in coarser
            else [other for other, known in coarser.items() if meanings & {other, *known.means}]
        )
        if len(fits) != 1:
            return None
        found[name] = fits[0]
    return found if len(set(found.values())) > 1 else None


def _renamed(answer: Prediction, names: Mapping[str, str]) -> Prediction:
    """The answer in other labels; scores of labels that become one are added."""
    if not names or answer.label is None:
        return answer
    scores: dict[str, float] = {}
    for label, value in (answer.scores or {}).items():
        scores[names[label]] = scores.get(names[label], 0.0) + value
    return replace(answer, label=names.get(answer.label, answer.label), scores=scores or None)


def _incompatible(ours: Task, theirs: Task, expected: str) -> ConfigurationError:
    return ConfigurationError(
        setting="task", got=theirs.name, expected=expected, fix=f"the cue was trained for {ours.name}"
    )
