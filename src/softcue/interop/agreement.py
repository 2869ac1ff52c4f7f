"""How far the predictions of an export are from those of its cue, on rows of data and on made-up texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from softcue.cue import Cue
from softcue.cue.rows_to_compare import RowsToCompare, made_up_examples
from softcue.errors import ConfigurationError
from softcue.inference import predict
from softcue.readouts.heads import Regression
from softcue.types import Example, Prediction

ROWS_AT_ONCE = 32  # rows of different lengths share a batch, so that padding is compared too
FLOAT_TOLERANCE = 1e-3  # largest difference of a probability; of a number, in standard deviations of the training rows
INT8_LABELS = 0.005  # share of rows whose labels may differ
INT8_TOLERANCE = 0.1  # of a number, in standard deviations of the training rows

# Texts of rows, by the columns of the task -> a number per label, or one number. [N C]
Run = Callable[[Sequence[tuple[str, ...]]], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class ComparedRows:
    """Rows with the predictions of the cue and those of the export."""

    source: str  # a file, or the cue's own validation rows; empty: made-up texts
    rows: int
    equal_labels: int | None  # None: the task has no labels
    largest_difference: float  # of a probability; of a number, in standard deviations of the training rows
    cut_rows: int = 0  # longer than the cue reads; softcue and a plain tokenizer cut them in different places
    largest_difference_of_cut_rows: float = 0.0

    @property
    def share_of_equal_labels(self) -> float:
        """The share of rows with the same label, or the same set of labels."""
        return 1.0 if self.equal_labels is None or not self.rows else self.equal_labels / self.rows


@dataclass(frozen=True)
class Agreement:
    """The comparison on made-up texts and, if there are any, on rows of data."""

    made_up: ComparedRows
    data: ComparedRows | None

    def as_dict(self) -> dict[str, object]:
        """The fields, for JSON."""
        return {"made_up": asdict(self.made_up), "data": None if self.data is None else asdict(self.data)}

    def facts(self) -> dict[str, str | int | float]:
        """What to print."""
        facts: dict[str, str | int | float] = {}
        for name, compared in (("made-up texts", self.made_up), ("rows", self.data)):
            if compared is None:
                continue
            labels = "" if compared.equal_labels is None else f"{compared.equal_labels} equal labels, "
            source = f" of {compared.source}" if compared.source else ""
            facts[name] = f"{compared.rows}{source}, {labels}largest difference {compared.largest_difference:.2g}"
            if compared.cut_rows:
                facts[name] = (
                    f"{facts[name]} ({compared.largest_difference_of_cut_rows:.2g} among {compared.cut_rows} that "
                    "were cut)"
                )
        return facts

    def check(self, is_int8: bool, force: bool) -> None:
        """Raise an error if the export is not the cue, unless it is forced."""
        if force:
            return
        compared = [self.made_up, *([] if self.data is None else [self.data])]
        if not is_int8:
            difference = max(rows.largest_difference for rows in compared)
            if not difference <= FLOAT_TOLERANCE:  # also if it is not a number
                raise _differs(f"scores that differ by {difference:.2g}", f"at most {FLOAT_TOLERANCE:g}")
            return
        rows = self.data or self.made_up
        if rows.equal_labels is None:
            if not rows.largest_difference <= INT8_TOLERANCE:
                deviations = f"numbers that differ by {rows.largest_difference:.2g} standard deviations"
                raise _differs(deviations, f"at most {INT8_TOLERANCE:g}")
        elif rows.share_of_equal_labels < 1 - INT8_LABELS:
            source = rows.source or "made-up texts"
            differing = f"another label for {rows.rows - rows.equal_labels} of {rows.rows} rows ({source})"
            raise _differs(differing, f"another label for at most {INT8_LABELS:.1%}")


def _differs(got: str, expected: str) -> ConfigurationError:
    return ConfigurationError(
        setting="predictions of the export",
        got=got,
        expected=f"{expected} from the cue's",
        fix="leave out --int8 if it is there, or write it with --force",
    )


def measure_agreement(cue: Cue, run: Run, rows: RowsToCompare) -> Agreement:
    """Compare an export with its cue, on made-up texts and on rows of data.

    Example:
        measure_agreement(cue, run, read_rows_to_compare(cue, "held-out.csv")).data.largest_difference
    """
    compared = _compare(cue, run, rows.examples, rows.source) if rows.examples else None
    return Agreement(_compare(cue, run, made_up_examples(cue), ""), compared)


def _compare(cue: Cue, run: Run, examples: Sequence[Example], source: str) -> ComparedRows:
    model = cue.model
    expected = predict(cue.backbone, [(model, example) for example in examples], ROWS_AT_ONCE).predictions
    is_cut = [model.formatter.source(example).is_truncated for example in examples]
    scores: dict[int, Sequence[float]] = {}
    order = sorted(range(len(examples)), key=lambda number: number * 7919 % 104729)  # lengths mixed, the same each time
    for start in range(0, len(order), ROWS_AT_ONCE):
        numbers = order[start : start + ROWS_AT_ONCE]
        scores |= dict(zip(numbers, run([examples[number].texts for number in numbers]), strict=True))
    differences = [_difference(cue, prediction, scores[number]) for number, prediction in enumerate(expected)]
    whole = [value for value, cut in zip(differences, is_cut, strict=True) if not cut]
    cut = [value for value, cut in zip(differences, is_cut, strict=True) if cut]
    equal = None
    if model.task.labels:
        equal = sum(_has_same_labels(cue, prediction, scores[number]) for number, prediction in enumerate(expected))
    return ComparedRows(source, len(examples), equal, _largest(whole), len(cut), _largest(cut))


def _largest(values: Sequence[float]) -> float:
    """The largest value; a value that is not a number counts as infinite."""
    return max((value if value == value else float("inf") for value in values), default=0.0)


def _difference(cue: Cue, prediction: Prediction, scores: Sequence[float]) -> float:
    readout = cue.model.readout
    if isinstance(readout, Regression):
        assert prediction.value is not None
        return abs(scores[0] - prediction.value) / float(readout.scale)
    assert prediction.scores is not None
    return _largest([abs(left - right) for left, right in zip(scores, prediction.scores.values(), strict=True)])


def _has_same_labels(cue: Cue, prediction: Prediction, scores: Sequence[float]) -> bool:
    names = cue.model.readout.task.label_names
    if prediction.labels is not None:
        chosen = tuple(name for name, score in zip(names, scores, strict=True) if score >= prediction.threshold)
        return chosen == prediction.labels
    return names[max(range(len(names)), key=lambda number: scores[number])] == prediction.label
