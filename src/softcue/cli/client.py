"""`softcue client`: ask a running server."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from softcue.serving.client import Client

app = typer.Typer(help="Ask a running softcue server.", no_args_is_help=True)

Url = Annotated[str, typer.Option(help="The server's address.")]
Key = Annotated[str, typer.Option(envvar="SOFTCUE_API_KEY", show_envvar=True, help="The key it asks for.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
HERE = "http://127.0.0.1:8000"


class Ensemble(StrEnum):
    """How several cues become one answer."""

    vote = "vote"
    mean = "mean"


@app.command("predict")
def predict(
    texts: Annotated[list[str], typer.Argument(help="Texts to read; of a task that reads two, parted by a tab.")],
    task: Annotated[list[str], typer.Option(help="The cue's name; several with --ensemble.")],
    ensemble: Annotated[Ensemble | None, typer.Option(help="One answer from all cues named.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long.")] = False,
    url: Url = HERE,
    api_key: Key = "",
    as_json: Json = False,
) -> None:
    """Print an answer per text."""
    from dataclasses import asdict

    from softcue.cli.output import print_json, print_table
    from softcue.errors import ConfigurationError

    if len(task) > 1 and ensemble is None:
        raise ConfigurationError(
            setting="--task", got=", ".join(task), expected="one name", fix="pass --ensemble vote or mean for several"
        )
    how: Literal["vote", "mean"] | None = None if ensemble is None else ensemble.value
    who = task[0] if len(task) == 1 else task
    client = _client(url, api_key)
    inputs = [(who, text) for text in _read(client, task[0], texts)]
    found = client.predict(inputs, return_scores=True, truncate=truncate, ensemble=how)
    if as_json:
        print_json({"results": [asdict(reply) for reply in found]})
        return
    rows = []
    for text, reply in zip(texts, found, strict=True):
        answer = reply.value if reply.label is None else reply.label
        score = "" if reply.scores is None else f"{reply.scores.get(str(reply.label), 0.0):.3f}"
        rows.append([text, reply.message if reply.error else "" if answer is None else answer, score])
    print_table("", ["text", "answer", "score"], rows)


@app.command("generate")
def generate(
    text: Annotated[str, typer.Argument(help="What to read; of a task that reads two texts, parted by a tab.")],
    task: Annotated[str, typer.Option(help="The name of a cue that writes free text.")],
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Instead of the cue's own limit.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long.")] = False,
    url: Url = HERE,
    api_key: Key = "",
) -> None:
    """Print free text as it is written."""
    from softcue.serving.client import ServerError

    client = _client(url, api_key)
    inputs = [(task, own) for own in _read(client, task, [text])]
    written = ""
    for _, found in client.stream(inputs, truncate=truncate, stop=stop or (), max_new_tokens=max_new_tokens):
        if isinstance(found, str):
            written += found
            typer.echo(found, nl=False)
        elif found.error:
            raise ServerError(client.url, found.status, found.error, found.message)
        else:  # beams tell nothing before they are done
            typer.echo((found.label or "").removeprefix(written))


@app.command("tasks")
def tasks(url: Url = HERE, api_key: Key = "", as_json: Json = False) -> None:
    """List the cues a server has loaded."""
    from softcue.cli.output import print_json, print_table

    found = _client(url, api_key).tasks()
    if as_json:
        print_json({"tasks": found})
        return
    columns = ["name", "version", "task", "kind", "method"]
    print_table("", columns, [[entry[column] for column in columns] for entry in found])


def _read(client: Client, task: str, texts: list[str]) -> list[str | list[str]]:
    """Texts as the cue reads them: a tab parts those of a cue that reads several, and is a tab for others."""
    if not any("\t" in text for text in texts):
        return list(texts)
    reads_several = any(len(known["text"]) > 1 for known in client.tasks() if task in (known["name"], known["task"]))
    return [text.split("\t") if reads_several else text for text in texts]


def _client(url: str, api_key: str) -> Client:
    from softcue.serving.client import Client

    return Client(url, api_key)
