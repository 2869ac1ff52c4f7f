"""`softcue push`: a cue to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def push(
    cue: Annotated[Path, typer.Argument(help="A cue folder.")],
    repo_id: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository on the hub; made if missing.")],
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Who may see a new repository; unset: the hub's default.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="The branch to upload to; made if missing.")] = None,
    message: Annotated[str | None, typer.Option(help="The commit's message.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Upload a cue to the Hugging Face Hub with a model card. The token is that of HF_TOKEN or `hf auth login`.

    Whoever has the same backbone can then load it: softcue predict hub:OWNER/NAME "a text".
    """
    from softcue.cli.output import print_json
    from softcue.cue.hub import HubAddress, push_folder

    url = push_folder(cue, repo_id, private=private, revision=revision, commit_message=message)
    address = str(HubAddress(repo_id, revision or "main"))
    if as_json:
        print_json({"cue": str(cue), "address": address, "commit": url})
        return
    typer.echo(f"uploaded: {url}")
    typer.echo(f'next: softcue predict {address} "a text"')
