"""`softcue client`: call a running server."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from softcue.serving.client import Client

app = typer.Typer(help="Call a running softcue server.", no_args_is_help=True)

Url = Annotated[str, typer.Option(help="The server's address.")]
Key = Annotated[str, typer.Option(envvar="SOFTCUE_API_KEY", show_envvar=True, help="The key of the server.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
LOCAL_URL = "http://127.0.0.1:8000"
ATTEMPTS = 10  # about 20 seconds: a server that was just started still loads its cues


class Ensemble(StrEnum):
    """How several cues become one prediction."""

    vote = "vote"
    mean = "mean"


@app.command("predict")
def predict(
    texts: Annotated[
        list[str], typer.Argument(help="Texts to predict; a tab separates the texts of a task that reads two.")
    ],
    task: Annotated[list[str], typer.Option(help="The cue's name; several with --ensemble.")],
    ensemble: Annotated[Ensemble | None, typer.Option(help="One prediction from all named cues.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long.")] = False,
    url: Url = LOCAL_URL,
    api_key: Key = "",
    as_json: Json = False,
) -> None:
    """Print a prediction per text."""
    from dataclasses import asdict

    from softcue.cli.output import print_json, print_table
    from softcue.errors import ConfigurationError
    from softcue.types import labels_text

    if len(task) > 1 and ensemble is None:
        raise ConfigurationError(
            setting="--task", got=", ".join(task), expected="one name", fix="pass --ensemble vote or mean for several"
        )
    how: Literal["vote", "mean"] | None = None if ensemble is None else ensemble.value
    names = task[0] if len(task) == 1 else task
    client = _client(url, api_key)
    inputs = [(names, text) for text in _split_texts(client, task[0], texts)]
    results = client.predict(inputs, return_scores=True, truncate=truncate, ensemble=how)
    if as_json:
        print_json({"results": [asdict(result) for result in results]})
        return
    rows = []
    for text, result in zip(texts, results, strict=True):
        prediction = result.value if result.label is None else result.label
        if result.labels is not None:
            prediction = labels_text(result.labels)
        chosen = [result.label] if result.labels is None else result.labels
        probabilities = [
            probability for label in chosen if (probability := (result.scores or {}).get(label)) is not None
        ]
        score = ", ".join(f"{probability:.3f}" for probability in probabilities)
        rows.append([text, result.message if result.error else "" if prediction is None else prediction, score])
    print_table("", ["text", "prediction", "score"], rows)


@app.command("generate")
def generate(
    text: Annotated[str, typer.Argument(help="The text; a tab separates the texts of a task that reads two.")],
    task: Annotated[str, typer.Option(help="The name of a cue that generates free text.")],
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Replaces the cue's own limit.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long.")] = False,
    url: Url = LOCAL_URL,
    api_key: Key = "",
) -> None:
    """Print free text while it is generated."""
    from softcue.serving.client import ServerError

    client = _client(url, api_key)
    inputs = [(task, texts) for texts in _split_texts(client, task, [text])]
    printed = ""
    for _, part in client.stream(inputs, truncate=truncate, stop=stop or (), max_new_tokens=max_new_tokens):
        if isinstance(part, str):
            printed += part
            typer.echo(part, nl=False)
        elif part.error:
            raise ServerError(client.url, part.status, part.error, part.message)
        else:  # beam search sends no parts
            typer.echo(("" if part.label is None else str(part.label)).removeprefix(printed))


@app.command("tasks")
def tasks(url: Url = LOCAL_URL, api_key: Key = "", as_json: Json = False) -> None:
    """List the cues a server has loaded."""
    from softcue.cli.output import print_json, print_table

    loaded = _client(url, api_key).tasks()
    if as_json:
        print_json({"tasks": loaded})
        return
    columns = ["name", "version", "task", "kind", "method"]
    print_table("", columns, [[entry[column] for column in columns] for entry in loaded])


def _split_texts(client: Client, task: str, texts: list[str]) -> list[str | list[str]]:
    """Texts as the cue reads them: a tab separates the texts of a cue that reads several, and is a tab for others."""
    if not any("\t" in text for text in texts):
        return list(texts)
    reads_several = any(len(entry["text"]) > 1 for entry in client.tasks() if task in (entry["name"], entry["task"]))
    return [text.split("\t") if reads_several else text for text in texts]


def _client(url: str, api_key: str) -> Client:
    from softcue.serving.client import Client

    return Client(url, api_key, attempts=ATTEMPTS)
