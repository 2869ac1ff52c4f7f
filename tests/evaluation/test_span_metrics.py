from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

from softcue.evaluation.metrics import span_f1, span_precision, span_recall
from softcue.types import Span

LABELS = ("PER", "LOC", "ORG", "MISC")
PER, LOC = Span(0, 4, "PER"), Span(9, 15, "LOC")


def spans_of(words: Sequence[str], tags: Sequence[str]) -> tuple[Span, ...]:
    """IOB2 tags of words joined by spaces, as pieces of that text."""
    spans: list[Span] = []
    start = 0
    for word, tag in zip(words, tags, strict=True):
        end = start + len(word)
        if tag.startswith("B-"):
            spans.append(Span(start, end, tag[2:]))
        elif tag.startswith("I-"):
            spans[-1] = Span(spans[-1].start, end, tag[2:])
        start = end + 1
    return tuple(spans)


def random_tags(draws: random.Random, length: int) -> list[str]:
    """A tagging that IOB2 allows: I- only behind B- or I- of its label."""
    tags: list[str] = []
    for _ in range(length):
        label = draws.choice(LABELS)
        choices = ["O", f"B-{label}"]
        if tags and tags[-1] != "O":
            choices += [f"I-{tags[-1][2:]}"] * 2
        tags.append(draws.choice(choices))
    return tags


def noisy(draws: random.Random, tags: list[str], share: float) -> list[str]:
    """The tagging with some of its words tagged anew, and mended where IOB2 is broken by it."""
    other = random_tags(draws, len(tags))
    mixed = [new if draws.random() < share else old for old, new in zip(tags, other, strict=True)]
    for at, tag in enumerate(mixed):
        if tag.startswith("I-") and (at == 0 or mixed[at - 1][2:] != tag[2:]):
            mixed[at] = f"B-{tag[2:]}"
    return mixed


def taggings(number: int) -> list[tuple[list[str], list[str], list[str]]]:
    """Words, true tags and predicted tags; some sentences right, some empty, most in part right."""
    draws = random.Random(5)
    rows = []
    for _ in range(number):
        words = ["x" * draws.randint(1, 7) for _ in range(draws.randint(1, 12))]
        true = random_tags(draws, len(words)) if draws.random() < 0.95 else ["O"] * len(words)
        predicted = noisy(draws, true, draws.choice([0.0, 0.2, 0.5, 1.0]))
        rows.append((words, true, predicted if draws.random() < 0.95 else ["O"] * len(words)))
    return rows


def test_converter_reads_iob2() -> None:
    words = ["Ada", "King", "met", "Ada", "Paris", "x"]
    tags = ["B-PER", "I-PER", "O", "B-PER", "B-LOC", "B-LOC"]
    assert spans_of(words, tags) == (Span(0, 8, "PER"), Span(13, 16, "PER"), Span(17, 22, "LOC"), Span(23, 24, "LOC"))


def test_each_of_6000_random_taggings_scores_as_in_seqeval() -> None:
    rows = taggings(6000)
    partly = 0
    for words, true, predicted in rows:
        pair = [spans_of(words, predicted)], [spans_of(words, true)]
        expected = precision_recall_fscore_support([true], [predicted], average="micro", zero_division=0)[:3]
        ours = (span_precision(*pair), span_recall(*pair), span_f1(*pair))
        assert ours == pytest.approx([100 * number for number in expected]), (true, predicted)
        partly += 0 < ours[2] < 100
    assert partly > 1000  # the draw is not trivial


@pytest.mark.parametrize("size", [1, 10, 300])
def test_random_corpora_score_as_in_seqeval(size: int) -> None:
    rows = taggings(3000)
    for start in range(0, 10 * size, size):
        part = rows[start : start + size]
        true, predicted = [row[1] for row in part], [row[2] for row in part]
        pair = [spans_of(words, tags) for words, _, tags in part], [spans_of(words, tags) for words, tags, _ in part]
        assert span_f1(*pair) == pytest.approx(100 * f1_score(true, predicted, zero_division=0))


def test_scores_by_hand() -> None:
    # marked 4, to be marked 3, right 2: one in each row
    true = [(PER, LOC), (PER,)]
    predicted = [(PER, Span(9, 14, "LOC")), (Span(0, 4, "LOC"), PER)]
    assert span_precision(predicted, true) == 50.0
    assert span_recall(predicted, true) == pytest.approx(200 / 3)
    assert span_f1(predicted, true) == pytest.approx(100 * 4 / 7)


@pytest.mark.parametrize("wrong", [Span(1, 4, "PER"), Span(0, 3, "PER"), Span(0, 4, "LOC")])
def test_start_end_and_label_must_all_be_right(wrong: Span) -> None:
    assert span_f1([[PER]], [[PER]]) == 100.0
    assert span_f1([[wrong]], [[PER]]) == 0.0


def test_piece_counts_in_its_own_row_and_once() -> None:
    assert span_f1([[], [PER]], [[PER], []]) == 0.0
    assert span_precision([[PER, PER, LOC]], [[PER]]) == 50.0


@pytest.mark.parametrize(("predicted", "true"), [([], []), ([PER], []), ([], [PER])])
def test_nothing_marked_or_nothing_to_mark_is_zero_as_in_conlleval(predicted: list[Span], true: list[Span]) -> None:
    assert (
        span_precision([predicted], [true]) == span_recall([predicted], [true]) == span_f1([predicted], [true]) == 0.0
    )
