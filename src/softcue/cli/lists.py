"""`softcue methods` and `softcue tasks`."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def methods(as_json: Json = False) -> None:
    """List what can be trained, with the settings of each."""
    from softcue.cli.output import print_json, print_table
    from softcue.methods import METHODS

    if as_json:
        print_json({"methods": [
            {"name": name, "summary": method.summary, "paper": method.paper,
             "settings": {key: {"default": field.get_default(call_default_factory=True), "description": field.description}
                          for key, field in method.Config.model_fields.items() if key != "name"}}
            for name, method in METHODS.items()]})  # fmt: skip
        return
    rows = [
        [name, method.paper, method.summary, " ".join(key for key in method.Config.model_fields if key != "name")]
        for name, method in METHODS.items()
    ]
    print_table("", ["method", "paper", "what is trained", "settings (method.KEY=value)"], rows)


def tasks(as_json: Json = False) -> None:
    """List the tasks that come with softcue."""
    from softcue.cli.output import print_json, print_table
    from softcue.tasks import examples_from, library_names, library_task

    found = []
    for name in library_names():
        task = library_task(name)
        sizes = {
            split: len(examples_from(getattr(task, split), task)) for split in ("train", "validation", "test")
        }
        found.append({"name": name, "description": task.description, "kind": task.kind, "text": list(task.text),
                      "labels": list(task.label_names), "metric": task.main_metric, "rows": sizes})  # fmt: skip
    if as_json:
        print_json({"tasks": found})
        return
    rows = [
        [t["name"], t["description"], "/".join(map(str, t["rows"].values())), t["metric"], ", ".join(t["labels"])]  # type: ignore[attr-defined, arg-type]
        for t in found
    ]
    print_table("", ["task", "what it asks", "train/validation/test", "metric", "labels"], rows)
