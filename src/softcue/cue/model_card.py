"""The model card: README.md of a cue folder, with use, scores, labels, parameters and limits.

It begins with the metadata that the Hugging Face Hub reads. Texts in it are written for the card: a cue does not hold
the rows it was trained on, and they may be private.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from softcue.backbones.loading.sources import hub_id_of
from softcue.configuration import method_config
from softcue.cue.cue_file import CueFile
from softcue.cue.score_table import score_table
from softcue.selection import SelectionRecord, selection_table
from softcue.selection.record import selection_notes
from softcue.tasks.readers import HUB_PREFIX
from softcue.tasks.task import TaskKind

EXAMPLE_TEXTS = {  # for each text that a task reads; written for the card
    1: ("I have waited for an answer since Monday. Who can help me?",),
    2: ("Who repaired the lamp?", "Nora repaired the lamp in the hall on Tuesday."),
}
PIPELINE_TAGS: dict[TaskKind, str] = {
    "classification": "text-classification",
    "multi-label": "text-classification",
    "regression": "text-classification",
    "referent": "text-classification",
    "generation": "text-generation",
    "span": "question-answering",
    "tags": "token-classification",
}


def model_card(cue_file: CueFile, name: str, selection: SelectionRecord | None = None, *, address: str = "") -> str:
    """The model card of a cue, as Markdown. `selection` tells how its method was chosen, if it was.

    `address` is what `softcue.load` takes, if it is not the name.

    Example:
        "# tickets" in model_card(cue.cue_file, "tickets").splitlines()
    """
    address = address or name
    task, method = cue_file.task, cue_file.method
    prediction = {
        "classification": f"one of {len(task.labels)} labels",
        "multi-label": f"any of {len(task.labels)} labels: none, one or several",
        "regression": "a number",
        "generation": "a text",
        "span": f"a span of `{task.text[-1]}`",
        "tags": f"spans of the text, each with one of {len(task.labels)} labels",
        "referent": f"whether `{task.text[-1]}` is what the marked pronoun stands for",
    }[task.kind]
    reads = " and ".join(f"`{column}`" for column in task.text)
    kind_of_backbone, weights = "frozen backbone", "The backbone's weights are not in this folder and were not changed."
    config = method_config(method)
    if config.tunes_backbone:
        kind_of_backbone = "backbone"
        weights = "This folder holds a trained copy of the backbone's weights; the backbone itself was not changed."
    notes = [f"{note[0].upper()}{note[1:]}." for note in config.notes()]
    lines = [
        "---",
        *yaml.safe_dump(_metadata(cue_file, name), sort_keys=False, allow_unicode=True, width=120).splitlines(),
        "---",
        f"# {name}",
        "",
        task.description or f"Reads {reads}, answers with {prediction}.",
        "",
        f"A softcue cue for the task `{task.name}`: `{method['name']}` on the {kind_of_backbone} "
        f"`{cue_file.backbone.name}` ({cue_file.backbone.kind}). {' '.join([weights, *notes])}",
        "",
        "## Use it",
        "```python",
        "import softcue",
        "",
        f'cue = softcue.load("{address}")',
        f"print(cue.predict([{_example(len(task.text))}])[0])",
        "```",
        f"or `softcue predict {address} --input FILE` with column(s) {reads}.",
        "",
    ]
    if cue_file.scores:
        table = score_table(cue_file)
        lines += ["## Scores", "", *_table(table.columns, table.rows), ""]
        if table.notes:
            lines += [*(f"- {note}" for note in table.notes), ""]
    if selection is not None:
        columns, rows = selection_table(selection)
        lines += ["## Methods tried", "", *_table(columns, rows), ""]
        lines += [*(f"- {note}" for note in selection_notes(selection)), ""]
    if task.labels:
        lines += ["## Labels", "", "| label | words | meaning |", "|---|---|---|"]
        lines += [
            f"| {_cell(label)} | {_cell(entry.words)} | {_cell(entry.description or '-')} |"
            for label, entry in task.labels.items()
        ]
        lines.append("")
    if task.kind == "multi-label":
        lines += [f"A label is predicted if its probability is at least {cue_file.readout.threshold:g}.", ""]
    counts, training = cue_file.counts, cue_file.training
    training_line = (
        f"- imported from {cue_file.imported_from}: softcue has neither trained nor scored it"
        if cue_file.imported_from
        else f"- training: seed {training.get('seed')}, {training.get('steps_done')} steps of "
        f"{training.get('batch_size')} rows, best after {training.get('best_step')}; "
        f"{training.get('train_rows')} training and {training.get('validation_rows')} validation rows"
    )
    limits = (
        "Texts unlike those it was trained on may be answered wrongly with confidence."
        if cue_file.imported_from
        else "It was trained and scored on the rows named above; texts of another kind or language may be "
        "answered wrongly with confidence."
    )
    recipe = [f"- recipe: {cue_file.recipe.summary}"] if cue_file.recipe else []
    lines += [
        "## Parameters",
        "",
        *recipe,
        f"- trained by gradient: {counts.get('gradient', 0):,}; "
        f"by a running average: {counts.get('ema', 0):,}; head: {counts.get('head', 0):,}",
        training_line,
        f"- backbone fingerprint: {', '.join(f'{k} {v}' for k, v in cue_file.backbone.fingerprint.items())}",
        f"- made with: {', '.join(f'{k} {v}' for k, v in cue_file.versions.items())}",
        "",
        "## Limits",
        "",
        limits
        + (
            ' Scores are probabilities among the labels it knows: there is no label for "none of these".'
            if task.has_classes
            else ""
        ),
    ]
    if task.citation or task.licence:
        licence = f"Licence: {task.licence}" if task.licence else ""
        lines += ["", " ".join(part for part in ("Data:", task.citation, licence) if part)]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    body = [f"| {' | '.join(_cell(text) for text in row)} |" for row in rows]
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *body]


def _metadata(cue_file: CueFile, name: str) -> dict[str, Any]:
    """The metadata of the card, with the keys of the Hugging Face Hub."""
    task, hub_id = cue_file.task, hub_id_of(cue_file.backbone.name)
    sources = [source for source in (task.train, task.test) if source.startswith(HUB_PREFIX)]
    data_sets = sorted({re.split("[#@]", source.removeprefix(HUB_PREFIX))[0] for source in sources})
    values: dict[str, Any] = {
        "library_name": "softcue",
        "pipeline_tag": PIPELINE_TAGS[task.kind],
        "base_model": hub_id,
        "datasets": data_sets,
        "tags": ["softcue", "parameter-efficient", str(cue_file.method["name"])],
        "widget": [dict(zip(task.text, texts, strict=True))] if (texts := EXAMPLE_TEXTS.get(len(task.text))) else [],
        "model-index": [{"name": name, "results": results}] if (results := _results(cue_file)) else [],
    }
    return {key: value for key, value in values.items() if value}


def _results(cue_file: CueFile) -> list[dict[str, Any]]:
    """The scores of each split with the number of rows behind them."""
    task = cue_file.task
    return [
        {
            "task": {"type": PIPELINE_TAGS[task.kind], "name": task.kind},
            "dataset": {
                "name": task.name,
                "type": re.sub(r"[^\w.-]+", "-", task.name),  # the hub takes no spaces here
                "split": split,
                **({} if (num_rows := cue_file.num_rows(split)) is None else {"args": {"rows": num_rows}}),
            },
            "metrics": [{"type": metric, "name": metric, "value": score} for metric, score in scores.items()],
        }
        for split, scores in cue_file.scores.items()
        if scores
    ]


def _example(num_texts: int) -> str:
    """The example texts as Python code."""
    texts = ", ".join(f'"{text}"' for text in EXAMPLE_TEXTS.get(num_texts, ("...",) * num_texts))
    return texts if num_texts == 1 else f"({texts})"


def _cell(text: str) -> str:
    """Text that stays in its table cell."""
    return " ".join(text.split()).replace("|", "\\|")
