"""Published tasks whose test rows are training rows, to choose presets by: the real test rows are never read.

    python -m benchmarks.tables.held_out_rows DATA FOLDER

Each task gets a folder with a training file and a test file of 500 rows, both drawn from its published training file. A
study with `--data FOLDER` then trains, validates and scores on training rows only.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

TASKS = ("cr", "mr", "sst2", "subj")
NUM_HELD_OUT = 500


def hold_out_rows(published: Path, folder: Path) -> None:
    """Write `folder`/TASK/train.tsv and test.tsv from the training file of each task.

    Example:
        hold_out_rows(Path("data"), Path("held-out"))
    """
    for task in TASKS:
        header, *rows = (published / task / "train.tsv").read_text("utf-8").split("\n")
        rows = list({row.split("\t")[0]: row for row in rows if row}.values())  # no text on both sides
        random.Random(0).shuffle(rows)  # files may be sorted by label
        target = folder / task
        target.mkdir(parents=True)
        (target / "test.tsv").write_text("\n".join([header, *rows[:NUM_HELD_OUT], ""]), "utf-8")
        (target / "train.tsv").write_text("\n".join([header, *rows[NUM_HELD_OUT:], ""]), "utf-8")


def main() -> None:
    """Read the arguments and write the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, help="the folder with the tasks' published files")
    parser.add_argument("folder", type=Path, help="a new folder")
    arguments = parser.parse_args()
    hold_out_rows(arguments.published, arguments.folder)


if __name__ == "__main__":
    main()
