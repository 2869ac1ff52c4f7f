"""Published tasks whose test rows are training rows, to choose presets by: the real test rows are never read.

    python -m benchmarks.tables.held_out_rows DATA FOLDER

Each task gets a folder with a training file and a file of 500 rows to score, both drawn from its published training
file. A study with `--data FOLDER` then trains, validates and scores on training rows only.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import NamedTuple

NUM_HELD_OUT = 500


class Files(NamedTuple):
    """The files of a task."""

    train: str
    scored: str  # the file that a run scores at its end
    first_text: int  # the column of the first text; columns before it may be numbers of rows


SINGLE_TEXTS = Files("train.tsv", "test.tsv", first_text=0)
TASKS = {
    "cr": SINGLE_TEXTS,
    "mr": SINGLE_TEXTS,
    "sst2": SINGLE_TEXTS,
    "subj": SINGLE_TEXTS,
    "mrpc": Files("train.tsv", "test.tsv", first_text=3),
    "qnli": Files("train_subset14k.tsv", "dev.tsv", first_text=0),
    "qqp": Files("train_subset37k.tsv", "dev.tsv", first_text=0),
    "rte": Files("train.tsv", "dev.tsv", first_text=1),
    "sts-b": Files("train.tsv", "dev.tsv", first_text=7),
}


def hold_out_rows(published: Path, folder: Path) -> None:
    """Write the files of each task below `folder`, both from its published training file.

    Example:
        hold_out_rows(Path("data"), Path("held-out"))
    """
    for task, files in TASKS.items():
        header, *rows = (published / task / files.train).read_text("utf-8").split("\n")
        rows = list({row.split("\t")[files.first_text]: row for row in rows if row}.values())  # no text on both sides
        random.Random(0).shuffle(rows)  # files may be sorted by label
        target = folder / task
        target.mkdir(parents=True)
        (target / files.scored).write_text("\n".join([header, *rows[:NUM_HELD_OUT], ""]), "utf-8")
        (target / files.train).write_text("\n".join([header, *rows[NUM_HELD_OUT:], ""]), "utf-8")


def main() -> None:
    """Read the arguments and write the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, help="the folder with the tasks' published files")
    parser.add_argument("folder", type=Path, help="a new folder")
    arguments = parser.parse_args()
    hold_out_rows(arguments.published, arguments.folder)


if __name__ == "__main__":
    main()
