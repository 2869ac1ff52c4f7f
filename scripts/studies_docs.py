"""Write docs/studies.md from the studies that come with softcue.

    python scripts/studies_docs.py             write docs/studies.md
    python scripts/studies_docs.py --check     exit code 1 if it would change

The numbers of runs are those that `softcue study list` shows.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softcue.studies.study import Study

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "studies.md"
WIDTH = 120
# The first word of a study's name -> the heading of its part
PARTS = {
    "quick": "To try",
    "pt": "Lester et al. 2021: prompt tuning",
    "idpg": "Wu et al. 2022: IDPG",
    "vip": "Bhardwaj et al. 2022: VIP",
}
INTRODUCTION = """\
# Studies

This page is written by `python scripts/studies_docs.py`; a test compares it.

A study is a whole table of runs in one file: backbones, tasks, methods, regimes, seeds. softcue comes with the tables
and figures of the three papers, laid out as they are there, with the papers' own numbers to compare with.
[papers.md](papers.md) has single commands for everything else in the papers.

```bash
softcue study list
softcue study run vip-table1-superglue --backbone MODEL --data FOLDER --scale small
softcue study status studies/vip-table1-superglue
```

- The papers' settings are taken (`--recipe paper`), unless `--recipe default` is given.
- `--backbone` replaces the backbones of a study. Those of the papers are large; the default for encoders is `minilm`.
- `--scale small` has fewer tasks, rows, steps and seeds: a run is meant for one to three minutes on one core with a
  model as small as MiniLM or T5-small. Its scores do not tell whether a paper's claim holds at its own size.
- Without `--data`, rows come from the hub. Tasks below "files" are not there: `--data` names a folder with their
  published files ([tasks.md](tasks.md)).
- A study of your own is a YAML file of the same form as those in `src/softcue/studies/library/`
  ([own-studies.md](own-studies.md)).
"""


def make_page() -> str:
    """Return the text of docs/studies.md."""
    from softcue.studies.study import list_studies, read_study

    studies = {name: read_study(name) for name in list_studies()}
    lines = [INTRODUCTION]
    for prefix, heading in PARTS.items():
        chosen = {name: study for name, study in studies.items() if name.partition("-")[0] == prefix}
        lines += [
            f"## {heading}",
            "| study | what it shows | lines | runs | runs, small | tasks | files |",
            "|---|---|---|---|---|---|---|",
            *(table_line(name, study) for name, study in chosen.items()),
            "",
        ]
        for name, study in chosen.items():
            lines += [f"**{name}.** {study.description}", ""]
    wrapped = [_wrap(line) if line.startswith("**") else line for line in lines]
    return "\n".join(wrapped).rstrip("\n") + "\n"


def table_line(name: str, study: Study) -> str:
    """Return the line of a study: its size, its tasks and what must be there before it starts."""
    from softcue.studies.runs import plan_runs
    from softcue.studies.study import read_study
    from softcue.tasks import find_task

    num_small = plan_runs(read_study(name, scale="small"), {}).size
    tasks = list(dict.fromkeys(name for task in study.tasks for name in (task.name, *task.score_on)))
    files = [task for task in tasks if not _comes_by_itself(find_task(task))]
    if any(backbone.adapt for backbone in study.backbones):
        files.append("plain text (`--text`)")
    if any("method.glove" in method.settings for method in study.methods):
        files.append("GloVe vectors")
    cells = [
        f"`{name}`",
        study.heading,
        str(len(study.methods)),
        f"{plan_runs(study, {}).size:,}",
        f"{num_small:,}",
        ", ".join(tasks),
        ", ".join(files) or "none",
    ]
    return f"| {' | '.join(cells)} |"


def _comes_by_itself(task: object) -> bool:
    """Whether the rows of a task come from the hub or with softcue."""
    return any(getattr(task, split) for split in ("train", "validation", "test"))


def _wrap(paragraph: str) -> str:
    return textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true")
    page = make_page()
    if not parser.parse_args().check:
        PAGE.write_text(page, "utf-8")
    elif not PAGE.is_file() or PAGE.read_text("utf-8") != page:
        sys.exit("docs/studies.md is not what scripts/studies_docs.py writes: run it")


if __name__ == "__main__":
    main()
