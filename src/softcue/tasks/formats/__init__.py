"""Published file formats that do not hold one example per row, and their conversion to flat rows.

A format knows no task. Rows that are already flat, from a hub data set or a user, pass through the same function.
"""

from softcue.tasks.formats.marked import semeval, semeval_lines, tacred, wsc
from softcue.tasks.formats.qa import multirc, race, record, squad
from softcue.tasks.formats.records import Format, Row
from softcue.tasks.formats.tags import conll, conll_lines

FORMATS: dict[str, Format] = {
    "squad": Format(squad),
    "multirc": Format(multirc),
    "record": Format(record),
    "race": Format(race, json_suffixes=(".txt",)),
    "wsc": Format(wsc),
    "conll": Format(conll, lines=conll_lines),
    "semeval": Format(semeval, lines=semeval_lines),
    "tacred": Format(tacred),
}

__all__ = ["FORMATS", "Format", "Row"]
