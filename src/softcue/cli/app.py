"""`softcue`: the verbs, and how errors end. Heavy packages are imported inside the verbs."""

from __future__ import annotations

import os
import re
import sys
import warnings
from functools import cache

import typer

from softcue.cli import (
    backbones,
    client,
    demo,
    doctor,
    evaluate,
    inspect,
    lists,
    params,
    predict,
    serve,
    tasks,
    train,
)
from softcue.errors import SoftcueError

app = typer.Typer(
    name="softcue",
    help="Teach a frozen language model new tasks with small learned prompts that read the input.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("serve")(serve.serve)
app.command("inspect")(inspect.inspect)
app.command("methods")(lists.methods)
app.command("params")(params.params)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.add_typer(tasks.app, name="tasks")
app.add_typer(backbones.app, name="backbones")
app.add_typer(client.app, name="client")


def _version(value: bool) -> None:
    if value:
        from softcue import __version__

        typer.echo(f"softcue {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Teach a frozen language model new tasks with small learned prompts that read the input."""


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    """Warnings for people: what, without file and line."""
    sys.stderr.write(f"warning: {message}\n")


def main() -> None:
    """Run a verb; an error a user can mend is one line on standard error and exit code 2."""
    warnings.showwarning = _warn
    try:
        app()
    except SoftcueError as error:
        sys.stderr.write(f"error: {with_options(' '.join(str(error).split()))}\n")
        sys.exit(2)
    except SystemExit as end:  # typer ends every verb with one, also after Ctrl-C and a closed pipe
        if end.code == 130:
            sys.stderr.write("stopped; go on with --resume if this was a training run\n")
        if isinstance(end.__context__, BrokenPipeError) or not _flushed():
            sys.exit(0)  # the reader of our output left, as `head` does
        raise


def with_options(message: str) -> str:
    """An error's message with the Python arguments it names written as options of the command line.

    Example:
        >>> with_options("output_dir: got 'x'; expected a new folder; pass `overwrite=True` or `train=FILE`")
        "--output-dir: got 'x'; expected a new folder; pass --overwrite or --train FILE"
    """

    def option(name: str) -> str:
        return "--" + name.replace("_", "-")

    message = re.sub(r"`(\w+)=True`", lambda match: option(match[1]), message)
    message = re.sub(r"`(\w+)=([^`]+)`", lambda match: f"{option(match[1])} {match[2]}", message)
    setting, colon, rest = message.partition(": got ")
    return option(setting) + colon + rest if setting in _option_names() else message


@cache
def _option_names() -> frozenset[str]:
    """The Python names of all options of all verbs."""
    commands = [typer.main.get_command(app)]
    names: set[str] = set()
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        names |= {parameter.name for parameter in command.params if parameter.name}
    return frozenset(names)


def _flushed() -> bool:
    """Whether the reader of our output is still there; if not, what is left goes nowhere."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
