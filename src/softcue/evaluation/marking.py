"""Scores for pieces of text that are marked with labels, as CoNLL counts them.

A marked piece is right if its start, its end and its label are. All rows are counted together (micro), each piece
once per row. Precision is 0 where nothing is marked, recall where nothing is to be marked, F1 where nothing is right:
so conlleval starts them, and so does seqeval with zero_division=0.
"""

from __future__ import annotations

from collections.abc import Sequence

from softcue.types import Span

Marks = Sequence[Sequence[Span]]  # of every row


def span_precision(predicted: Marks, true: Marks) -> float:
    """Share of the marked pieces that are right.

    Example:
        >>> span_precision([[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]])
        50.0
    """
    hits, marked, _ = _counted(predicted, true)
    return 100.0 * hits / marked if marked else 0.0


def span_recall(predicted: Marks, true: Marks) -> float:
    """Share of the pieces to be marked that are.

    Example:
        >>> span_recall([[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]])
        100.0
    """
    hits, _, wanted = _counted(predicted, true)
    return 100.0 * hits / wanted if wanted else 0.0


def span_f1(predicted: Marks, true: Marks) -> float:
    """Harmonic mean of span_precision and span_recall.

    Example:
        >>> round(span_f1([[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]]), 2)
        66.67
    """
    hits, marked, wanted = _counted(predicted, true)
    return 200.0 * hits / (marked + wanted) if hits else 0.0


def _counted(predicted: Marks, true: Marks) -> tuple[int, int, int]:
    """Right, marked and wanted pieces."""
    rows = [(set(found), set(wanted)) for found, wanted in zip(predicted, true, strict=True)]
    return (
        sum(len(found & wanted) for found, wanted in rows),
        sum(len(found) for found, _ in rows),
        sum(len(wanted) for _, wanted in rows),
    )
