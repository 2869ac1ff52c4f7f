"""`softcue methods`."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def methods(as_json: Json = False) -> None:
    """List the methods, with the settings of each."""
    from softcue.cli.output import print_json, print_table
    from softcue.methods import METHODS

    entries = []
    for name, method in METHODS.items():
        settings = {
            key: {"default": field.get_default(call_default_factory=True), "description": field.description}
            for key, field in method.Config.model_fields.items()
            if key != "name"
        }
        entries.append({"name": name, "summary": method.summary, "paper": method.paper, "settings": settings})
    if as_json:
        print_json({"methods": entries})
        return
    rows = [[m["name"], m["paper"], m["summary"], " ".join(m["settings"])] for m in entries]
    print_table("", ["method", "paper", "what is trained", "settings (method.KEY=value)"], rows)
