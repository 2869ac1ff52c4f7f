"""The labels' own texts as training rows: a few rows of a class say less than the words for it."""

from __future__ import annotations

from itertools import cycle, islice

from softcue.tasks import Task
from softcue.types import Example

MAX_PER_LABEL = 20
MAX_TRAINING_ROWS = 5000  # with more, the words of a label say nothing new


def label_rows(task: Task, num_rows: int, share: float) -> list[Example]:
    """Return rows that are the words and the description of each label, `share` times as many as training rows.

    All labels have equally many. There are none for tasks whose labels cannot be read as a row's text is.

    Example:
        >>> from softcue.tasks import library_task
        >>> rows = label_rows(library_task("urgency"), num_rows=20, share=0.3)
        >>> len(rows), rows[0].texts, rows[0].target
        (6, ('low',), 'low')
    """
    if not task.has_readable_labels or num_rows > MAX_TRAINING_ROWS:
        return []
    per_label = min(MAX_PER_LABEL, round(share * num_rows / len(task.labels)))
    return [
        Example((text,), name)
        for name, label in task.labels.items()
        for text in islice(cycle(filter(None, (label.words, label.description))), per_label)
    ]
