"""How much longer the first text of a pair is than the second (Wu et al. 2022, appendix A.4 and figure 5).

A model that was trained on pairs of very different lengths (NLI) meets other lengths in its next task. IDPG compares
the tasks by the mean of the length of the first text less that of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev, quantiles
from typing import Any

from softcue.errors import ConfigurationError
from softcue.tasks.catalogue import sources
from softcue.tasks.readers import Source, name_of
from softcue.tasks.rows import stream_examples
from softcue.tasks.task import SPLITS, Task
from softcue.types import Example

# The rows of a task whose lengths are measured if no split is named. With validation rows MRPC has the paper's 0.6.
SPLITS_TO_MEASURE = ("validation", "test", "train")


def count_words(text: str) -> int:
    """The number of words between white space.

    Example:
        >>> count_words("Where is  my parcel?")
        4
    """
    return len(text.split())


@dataclass(frozen=True)
class PairLengths:
    """The lengths of the two texts of every pair of a task or a file.

    Example:
        >>> lengths = PairLengths("toy", "validation", "words", [4, 6], [3, 1])
        >>> lengths.differences, lengths.mean_difference
        ([1, 5], 3.0)
    """

    name: str  # of the task or the file
    split: str  # of the task's rows; empty for a file
    unit: str  # words or tokens
    first: list[int]
    second: list[int]

    @property
    def num_pairs(self) -> int:
        """The number of pairs."""
        return len(self.first)

    @property
    def differences(self) -> list[int]:
        """The length of the first text less that of the second, of each pair."""
        return [first - second for first, second in zip(self.first, self.second, strict=True)]

    @property
    def mean_difference(self) -> float:
        """The mean of the differences: the height of a bar in IDPG's figure 5."""
        return fmean(self.differences)

    @property
    def middle_half(self) -> tuple[float, float]:
        """The lower and the upper quartile of the differences.

        Example:
            >>> PairLengths("toy", "", "words", [1, 2, 3, 4, 5], [1, 1, 1, 1, 1]).middle_half
            (1.0, 3.0)
        """
        if self.num_pairs == 1:
            return float(self.differences[0]), float(self.differences[0])
        lower, _, upper = quantiles(self.differences, n=4, method="inclusive")
        return lower, upper

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON. The standard deviation is over these pairs."""
        differences = self.differences
        lower, upper = self.middle_half
        return {
            "name": self.name,
            "split": self.split,
            "unit": self.unit,
            "pairs": self.num_pairs,
            "mean_first": fmean(self.first),
            "mean_second": fmean(self.second),
            "mean_difference": self.mean_difference,
            "standard_deviation": pstdev(differences),
            "mean_absolute_difference": fmean(map(abs, differences)),
            "lower_quartile": lower,
            "upper_quartile": upper,
        }


def measure_pairs(
    name: str,
    task: Task,
    examples: Iterable[Example],
    count: Callable[[str], int] = count_words,
    unit: str = "words",
    split: str = "",
) -> PairLengths:
    """Measure the two texts that an encoder reads of each example; `count` gives the length of a text.

    Example:
        >>> task = Task(name="toy", text=("a", "b"))
        >>> measure_pairs("toy", task, [Example(("one two three", "one"))]).mean_difference
        2.0
    """
    check_pair_task(task)
    first: list[int] = []
    second: list[int] = []
    for example in examples:
        first_text, second_text = task.for_encoder(example.texts)
        first.append(count(first_text))
        second.append(count(second_text))
    return PairLengths(name, split, unit, first, second)


def pair_lengths(
    task: Task,
    data: Source | None = None,
    split: str = "",
    count: Callable[[str], int] = count_words,
    unit: str = "words",
    skip_bad_rows: bool = False,
) -> PairLengths:
    """The lengths of the pairs of a task: of its own rows, of its files below a data folder, or of a file.

    Without `split` the validation rows are taken, else test or training rows. Targets are not needed.

    Example:
        >>> from softcue.tasks import library_task
        >>> pair_lengths(library_task("same-request")).num_pairs
        62
    """
    check_pair_task(task)
    is_folder = isinstance(data, (str, Path)) and Path(data).is_dir()
    if data is not None and not is_folder:
        if split:
            raise ConfigurationError(
                setting="split", got=split, expected="a split of a task's own rows", fix="leave it out for a file"
            )
        examples = stream_examples(data, task, needs_target=False, skip_bad_rows=skip_bad_rows)
        return measure_pairs(name_of(data), task, examples, count, unit)
    available: Mapping[str, Source]
    if is_folder:
        available = dict(sources(task, str(data)))
    else:
        available = {name: address for name in SPLITS if (address := getattr(task, name))}
    split = split or next((name for name in SPLITS_TO_MEASURE if name in available), "")
    if split not in available:
        raise ConfigurationError(
            setting="split",
            got=split,
            expected=f"one of {', '.join(available) or 'no rows'}, which {task.name} has",
            fix="name one of them, or pass `data`",
        )
    # Rows are chosen by `where` and `without` where targets are read. Elsewhere a target may be hidden or missing.
    needs_target = bool(task.where or task.without)
    examples = stream_examples(available[split], task, needs_target, skip_bad_rows)
    return measure_pairs(task.name, task, examples, count, unit, split)


def length_table(lengths: Sequence[PairLengths]) -> tuple[list[str], list[list[object]]]:
    """Columns and rows of a table with the lengths of the pairs of each task.

    Example:
        >>> length_table([PairLengths("toy", "", "words", [4, 6], [3, 1])])[1]
        [['toy', '-', 2, '5.0', '2.0', '+3.0', '2 to 4']]
    """
    rows: list[list[object]] = []
    for entry in lengths:
        figures, (lower, upper) = entry.as_dict(), entry.middle_half
        rows.append(
            [
                entry.name,
                entry.split or "-",
                entry.num_pairs,
                f"{figures['mean_first']:.1f}",
                f"{figures['mean_second']:.1f}",
                f"{figures['mean_difference']:+.1f}",
                f"{lower:g} to {upper:g}",
            ]
        )
    unit = lengths[0].unit
    return ["task", "split", "pairs", f"{unit}, first", f"{unit}, second", "difference", "middle half"], rows


def check_pair_task(task: Task) -> None:
    """Check that an encoder reads two texts of a row of the task.

    Example:
        >>> check_pair_task(Task(name="toy"))
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: task: got 'toy'; expected a task with two texts; ...
    """
    if task.num_sentences != 2:
        raise ConfigurationError(
            setting="task",
            got=task.name,
            expected="a task with two texts",
            fix=f"it reads {', '.join(task.text)}; name another task or two text columns",
        )


def is_sentence_pair_task(task: Task) -> bool:
    """Whether a task compares two plain columns, as the pair tasks of GLUE do.

    Example:
        >>> from softcue.tasks import library_task
        >>> [is_sentence_pair_task(library_task(name)) for name in ("rte", "stsb", "squad", "tickets")]
        [True, True, False, False]
    """
    is_compared = task.kind in ("classification", "regression")
    return is_compared and len(task.text) == 2 and not task.format and not task.sentences
