"""Tasks in words: the pages of `softcue tasks show` and of docs/tasks.md, made from the task files alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from softcue.tasks.catalogue import SAMPLES
from softcue.tasks.rows import stream_examples
from softcue.tasks.task import SPLITS, Published, Task

KINDS = {
    "classification": "one of the labels",
    "regression": "a number",
    "generation": "a text",
    "span": "words of the text",
    "tags": "pieces of the text with labels",
    "referent": "what the marked word stands for",
}
HEAD = """\
# Tasks

<!-- Made by `softcue tasks docs > docs/tasks.md` from src/softcue/tasks/library/. Change the task files, not this. -->

A task is a YAML file: where its rows come from, how a row becomes text for each kind of backbone, its labels, its
metrics, the published sizes of its splits, its citation and licence. softcue holds none of the published rows; it reads
them from the hub or from files in their published formats. Only the three sample tasks bring rows of their own.

```bash
softcue tasks                              # the list
softcue tasks show NAME                    # one task in full
softcue tasks check --data FOLDER          # are the files in a folder the published ones?
```

## Use one of your own
Write a YAML file and name it where a task is asked for, as in `--task my-task.yaml`. `train`, `validation` and `test`
are files (relative to the YAML file) or `hub:NAME#CONFIG@SPLIT`. This is all that is needed:

```yaml
description: Which team should answer a message.
text: [message]                            # the columns to read
label: team                                # the column with the answer
labels:
  billing: {words: billing, description: "The message is about money."}
  hardware: {words: hardware, description: "The message is about a device.", also: ["2"]}
train: train.csv
validation: validation.csv
```

`words` is what a text-to-text backbone writes, `also` lists other values that stand for the label in files, and `means`
names meanings that it shares with labels of other tasks, so that a cue of one task can be scored on the other.
`template` is the wording for text-to-text backbones, `sentences` the one or two texts an encoder reads; without them
the columns are named in front of their texts. `where` keeps only rows with certain values, `without` leaves some out;
`format` is for files that are not one example per row, `files` are places below a data folder.

## Add one to softcue
Put the file into `src/softcue/tasks/library/`, with the published sizes in `published`, known extracts in `parts`, a
citation and a licence note. Run `softcue tasks check` on real files and `softcue tasks docs > docs/tasks.md`. Python
is needed only for a format or a metric that is new.
"""


def sizes(task: Task) -> dict[str, int]:
    """Rows per split: those that come with softcue counted, others as published.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> sizes(library_task("rte"))
        {'train': 2490, 'validation': 277}
    """
    found = {}
    for split in SPLITS:
        if split in task.published:
            found[split] = task.published[split].rows
        elif (source := getattr(task, split)).startswith(str(SAMPLES)):
            found[split] = sum(1 for _ in stream_examples(source, task))
    return found


def wording(task: Task) -> dict[str, str]:
    """What a text-to-text backbone reads and writes, and what an encoder reads, with columns in place of texts.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> wording(library_task("mnli"))["reads"]
        'hypothesis: [hypothesis] premise: [premise]'
    """
    texts = tuple(f"[{column}]" for column in task.text)
    return {"reads": task.source(texts), "writes": _written(task), "encoder": " | ".join(task.for_encoder(texts))}


def page(tasks: Iterable[Task]) -> str:
    """docs/tasks.md.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> page([library_task("rte")]).splitlines()[0]
        '# Tasks'
    """
    known = list(tasks)
    rows = [
        (f"[{task.name}](#{task.name})", task.kind, sizes_text(task), task.main_metric, task.description)
        for task in known
    ]
    overview = _table(("task", "kind", "train / validation / test", "metric", "what it asks"), rows)
    return "\n".join([HEAD, "## Overview", overview, "", *(section(task) for task in known)])


def section(task: Task) -> str:
    """One task in full, as Markdown.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> section(library_task("rte")).splitlines()[0]
        '## rte'
    """
    words = wording(task)
    lines = [f"## {task.name}", *([task.description] if task.description else []), ""]
    lines += [
        f"- **Answer**: {KINDS[task.kind]}; **metric**: {_metric(task)}",
        f"- **Text-to-text** reads `{words['reads']}`, writes {words['writes']}",
        f"- **Encoders** read `{words['encoder']}`",
    ]
    lines += [f"- **Without rows** with {column}: {', '.join(values)}" for column, values in task.without.items()]
    lines += [f"- **Only rows** with {column}: {', '.join(values)}" for column, values in task.where.items()]
    lines += [f"- **Splits**: {'; '.join(origins)}" for origins in [_origins(task)] if origins]
    lines += [f"- **Files** below a data folder: {found}" for found in [_files(task)] if found]
    lines += [
        f"- **Published**: {_figures(split, task.published[split])}" for split in SPLITS if split in task.published
    ]
    lines += [f"- **Known extract**: {_figures(f'`{place}`', size)}" for place, size in task.parts.items()]
    lines += [
        f"- **{name}**: {value}" for name, value in (("Citation", task.citation), ("Licence", task.licence)) if value
    ]
    lines += [""]
    if task.labels:
        rows = [
            (
                f"`{name}`",
                label.words,
                ", ".join(f"`{value}`" for value in label.also),
                ", ".join(label.means),
                label.description,
            )
            for name, label in task.labels.items()
        ]
        lines += [_table(("label", "words", "also in files", "also means", "description"), rows), ""]
    return "\n".join(lines)


def sizes_text(task: Task) -> str:
    """Rows per split in one cell.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> sizes_text(library_task("rte"))
        '2,490 / 277 / -'
    """
    found = sizes(task)
    return " / ".join(f"{found[split]:,}" if split in found else "-" for split in SPLITS)


def _written(task: Task) -> str:
    match task.kind:
        case "regression":
            if task.scale is None:
                return "the number"
            low, high, step = task.scale
            return f"the number, from {low:g} to {high:g} in steps of {step:g}"
        case "tags":
            return "each piece with its label"
        case "referent":
            return "the name"
        case "span" | "generation":
            return "the answer"
    return "the label's words"


def _metric(task: Task) -> str:
    names = " and ".join(f"`{name}`" for name in task.main_metrics)
    return names + (f" (of `{task.positive}`)" if "f1" in task.main_metrics else "")


def _origins(task: Task) -> list[str]:
    found = []
    for split in SPLITS:
        source = getattr(task, split)
        if source.startswith(str(SAMPLES)):
            found.append(f"{split} comes with softcue ({sizes(task)[split]:,} rows)")
        elif source:
            found.append(f"{split} `{source}`")
    return found


def _files(task: Task) -> str:
    return "; ".join(
        f"{split} {' or '.join(f'`{place}`' for place in task.files[split])}" for split in SPLITS if split in task.files
    )


def _figures(what: str, size: Published) -> str:
    labels = ", ".join(f"{name} {count:,}" for name, count in size.labels.items())
    return f"{what} {size.rows:,} rows" + (f" ({labels})" if labels else "")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
