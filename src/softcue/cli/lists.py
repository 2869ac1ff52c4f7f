"""`softcue methods` and `softcue tasks`."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def methods(as_json: Json = False) -> None:
    """List what can be trained, with the settings of each."""
    from softcue.cli.output import print_json, print_table
    from softcue.methods import METHODS

    found = []
    for name, method in METHODS.items():
        settings = {
            key: {"default": field.get_default(call_default_factory=True), "description": field.description}
            for key, field in method.Config.model_fields.items()
            if key != "name"
        }
        found.append({"name": name, "summary": method.summary, "paper": method.paper, "settings": settings})
    if as_json:
        print_json({"methods": found})
        return
    rows = [[m["name"], m["paper"], m["summary"], " ".join(m["settings"])] for m in found]
    print_table("", ["method", "paper", "what is trained", "settings (method.KEY=value)"], rows)


def tasks(as_json: Json = False) -> None:
    """List the tasks that come with softcue."""
    from softcue.cli.output import print_json, print_table
    from softcue.tasks import examples_from, library_names, library_task

    found, rows = [], []
    for name in library_names():
        task = library_task(name)
        sizes = {split: len(examples_from(getattr(task, split), task)) for split in ("train", "validation", "test")}
        found.append({
            "name": name, "description": task.description, "kind": task.kind, "text": list(task.text),
            "labels": list(task.label_names), "metric": task.main_metric, "rows": sizes,
        })  # fmt: skip
        counts, labels = "/".join(map(str, sizes.values())), ", ".join(task.label_names)
        rows.append([name, task.description, counts, task.main_metric, labels])
    if as_json:
        print_json({"tasks": found})
        return
    print_table("", ["task", "what it asks", "train/validation/test", "metric", "labels"], rows)
