"""The text of `softcue tasks show` and of docs/tasks.md, generated from the task files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from softcue.tasks.catalogue import SAMPLES
from softcue.tasks.rows import stream_examples
from softcue.tasks.task import SPLITS, Published, Task

KINDS = {
    "classification": "one of the labels",
    "multi-label": "a set of labels",
    "regression": "a number",
    "generation": "a text",
    "span": "words of the text",
    "tags": "spans of the text with labels",
    "referent": "the referent of the marked word",
}
HEAD = """\
# Tasks

<!-- Made by `softcue tasks docs > docs/tasks.md` from src/softcue/tasks/library/. Change the task files, not this. -->

A task is a YAML file. It names the source of its rows, the text of a row for each kind of backbone, its labels, its
metrics, the published sizes of its splits, its citation and its licence. softcue contains none of the published rows.
It reads them from the hub or from files in their published formats. Only the four sample tasks come with rows.

```bash
softcue tasks                              # the list
softcue tasks show NAME                    # one task in full
softcue tasks check --data FOLDER          # compares the files in a folder with the published sizes
```

## Use your own task
Write a YAML file and pass it as the task, for example `--task my-task.yaml`. `train`, `validation` and `test` are files
(relative to the YAML file) or `hub:NAME#CONFIG@SPLIT`. A complete task file:

```yaml
description: Which team should answer a message.
text: [message]                            # the columns to read
label: team                                # the column with the target
labels:
  billing: {words: billing, description: "The message is about money."}
  hardware: {words: hardware, description: "The message is about a device.", also: ["2"]}
train: train.csv
validation: validation.csv
```

- `kind: multi-label` for rows with a set of labels: none, one or several. In csv files `separator` (default `;`) stands
  between them; other files hold lists. [Tasks and rows](rows.md#several-labels-per-row) has an example.
- `words`: the text that a text-to-text backbone generates for the label.
- `also`: other values that stand for the label in files.
- `means`: meanings that the label shares with labels of other tasks. A cue of one task can then be scored on the other.
- `template`: the source text for text-to-text backbones. Without it, each text follows the name of its column.
- `sentences`: the one or two texts that an encoder reads. Without it, these are the columns.
- `where` keeps only rows with certain values; `without` leaves rows with certain values out.
- `format`: the format of files that do not hold one example per row.
- `files`: paths below a data folder.

## Add a task to softcue
Put the file into `src/softcue/tasks/library/`, with the published sizes in `published`, known extracts in `parts`, a
citation and a licence note. Run `softcue tasks check` on real files, then `softcue tasks docs > docs/tasks.md`. Only a
new format or a new metric needs Python code.
"""


def sizes(task: Task) -> dict[str, int]:
    """The rows per split: counted for sample tasks, as published for others.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> sizes(library_task("rte"))
        {'train': 2490, 'validation': 277}
    """
    num_rows = {}
    for split in SPLITS:
        if split in task.published:
            num_rows[split] = task.published[split].rows
        elif (source := getattr(task, split)).startswith(str(SAMPLES)):
            num_rows[split] = sum(1 for _ in stream_examples(source, task))
    return num_rows


def input_formats(task: Task) -> dict[str, str]:
    """The input and output of a text-to-text backbone and the input of an encoder, with [column] for each text.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> input_formats(library_task("mnli"))["reads"]
        'hypothesis: [hypothesis] premise: [premise]'
    """
    texts = tuple(f"[{column}]" for column in task.text)
    return {"reads": task.source(texts), "writes": _output_format(task), "encoder": " | ".join(task.for_encoder(texts))}


def page(tasks: Iterable[Task]) -> str:
    """The content of docs/tasks.md.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> page([library_task("rte")]).splitlines()[0]
        '# Tasks'
    """
    listed = list(tasks)
    rows = [
        (f"[{task.name}](#{task.name})", task.kind, sizes_text(task), task.main_metric, task.description)
        for task in listed
    ]
    overview = _table(("task", "kind", "train / validation / test", "metric", "description"), rows)
    return "\n".join([HEAD, "## Overview", overview, "", *(section(task) for task in listed)])


def section(task: Task) -> str:
    """The full description of a task as Markdown.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> section(library_task("rte")).splitlines()[0]
        '## rte'
    """
    formats = input_formats(task)
    lines = [f"## {task.name}", *([task.description] if task.description else []), ""]
    lines += [
        f"- **Target**: {KINDS[task.kind]}; **metric**: {_metric(task)}",
        f"- **Text-to-text** reads `{formats['reads']}`, writes {formats['writes']}",
        f"- **Encoders** read `{formats['encoder']}`",
    ]
    if task.pads_punctuation:
        lines += ["- **T5's preprocessing** puts spaces around punctuation (`readout.pad_punctuation=true`)"]
    lines += [f"- **{paper} reports** `{metric}`" for paper, metric in task.paper_metrics.items()]
    lines += [f"- **Without rows** with {column}: {', '.join(values)}" for column, values in task.without.items()]
    lines += [f"- **Only rows** with {column}: {', '.join(values)}" for column, values in task.where.items()]
    lines += [f"- **Splits**: {'; '.join(origins)}" for origins in [_origins(task)] if origins]
    lines += [f"- **Files** below a data folder: {files}" for files in [_files(task)] if files]
    lines += [
        f"- **Published**: {_size_text(split, task.published[split])}" for split in SPLITS if split in task.published
    ]
    lines += [f"- **Known extract**: {_size_text(f'`{path}`', size)}" for path, size in task.parts.items()]
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
    """The rows per split as one table cell.

    Example:
        >>> from softcue.tasks.catalogue import library_task
        >>> sizes_text(library_task("rte"))
        '2,490 / 277 / -'
    """
    num_rows = sizes(task)
    return " / ".join(f"{num_rows[split]:,}" if split in num_rows else "-" for split in SPLITS)


def _output_format(task: Task) -> str:
    match task.kind:
        case "regression":
            if task.scale is None:
                return "the number"
            low, high, step = task.scale
            return f"the number, from {low:g} to {high:g} in steps of {step:g}"
        case "tags":
            return "each span with its label"
        case "referent":
            return "the name"
        case "multi-label":
            return "nothing: a head chooses the labels"
        case "span" | "generation":
            return "the answer"
    return "the label's words"


def _metric(task: Task) -> str:
    names = " and ".join(f"`{name}`" for name in task.main_metrics)
    return names + (f" (of `{task.positive}`)" if "f1" in task.main_metrics else "")


def _origins(task: Task) -> list[str]:
    origins = []
    for split in SPLITS:
        source = getattr(task, split)
        if source.startswith(str(SAMPLES)):
            origins.append(f"{split} comes with softcue ({sizes(task)[split]:,} rows)")
        elif source:
            origins.append(f"{split} `{source}`")
    return origins


def _files(task: Task) -> str:
    return "; ".join(
        f"{split} {' or '.join(f'`{path}`' for path in task.files[split])}" for split in SPLITS if split in task.files
    )


def _size_text(name: str, size: Published) -> str:
    labels = ", ".join(f"{name} {count:,}" for name, count in size.labels.items())
    return f"{name} {size.rows:,} rows" + (f" ({labels})" if labels else "")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
