"""`softcue`: all commands, and how errors are printed. Commands import heavy packages only when they run."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Collection, Sequence

import typer

from softcue.cli import (
    adapt,
    backbones,
    client,
    compare,
    config,
    demo,
    doctor,
    evaluate,
    export,
    import_peft,
    inspect,
    methods,
    params,
    plan,
    predict,
    push,
    serve,
    sign,
    study,
    tasks,
    train,
    tune,
)
from softcue.cli.repeated_options import check_repeated_options
from softcue.cli.stopping import (
    STOPPED_BY_CTRL_C,
    STOPPED_BY_SIGTERM,
    StoppedBySignal,
    raise_on_sigterm,
    stopped_message,
)
from softcue.errors import LostProcessError, SoftcueError

app = typer.Typer(
    name="softcue",
    help="Teach a frozen language model new tasks with small learned prompts that read the input.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train.train)
app.command("adapt")(adapt.adapt)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("compare")(compare.compare)
app.command("tune")(tune.tune)
app.command("serve")(serve.serve)
app.command("inspect")(inspect.inspect)
app.command("export")(export.export)
app.command("sign")(sign.sign)
app.command("push")(push.push)
app.command("import")(import_peft.import_peft)
app.command("methods")(methods.methods)
app.command("config")(config.config)
app.command("params")(params.params)
app.command("plan")(plan.plan)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.add_typer(tasks.app, name="tasks")
app.add_typer(backbones.app, name="backbones")
app.add_typer(client.app, name="client")
app.add_typer(study.app, name="study")
check_repeated_options([app, tasks.app, backbones.app, client.app, study.app])


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


def _print_warning(message: Warning | str, *place: object, **options: object) -> None:
    """Print a warning without file and line."""
    sys.stderr.write(f"warning: {message}\n")


def main() -> None:
    """Run a command. An error of the user is a line on standard error, perhaps with details below, and exit code 2.

    A stop is 130 or 143.
    """
    warnings.showwarning = _print_warning
    try:
        with raise_on_sigterm():
            app(prog_name="softcue")
    except StoppedBySignal:
        _print_stopped()
        sys.exit(STOPPED_BY_SIGTERM)
    except SoftcueError as error:
        names = option_names(sys.argv[1:])
        headline, *details = (with_options(_on_one_line(part), names) for part in (error.headline, *error.details))
        sys.stderr.write("\n".join([f"error: {headline}", *(f"  {detail}" for detail in details)]) + "\n")
        if isinstance(error, LostProcessError):
            sys.stderr.flush()
            os._exit(2)  # torch would wait for the lost process when it closes its connections
        sys.exit(2)
    except SystemExit as end:  # typer ends all commands with it, also after Ctrl-C and a closed pipe
        if end.code == STOPPED_BY_CTRL_C:
            _print_stopped()
        if isinstance(end.__context__, BrokenPipeError) or not _flush_output():
            sys.exit(0)  # the reader of standard output is gone, as after `head`
        raise


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _print_stopped() -> None:
    """Say once, also with several processes, that the command was stopped and how to go on."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"{stopped_message(sys.argv)}\n")


def with_options(message: str, options: Collection[str] = ()) -> str:
    """Write the Python arguments in an error message as options of the command line.

    `argument=value` in backticks always becomes an option. A setting, and a name alone in backticks, become one only
    if the command has it; `options` are the Python names of the command's options.

    Example:
        >>> message = "output_dir: got 'x'; expected a new folder; pass `overwrite=True` or `train=FILE`"
        >>> with_options(message, ["output_dir", "overwrite", "train"])
        "--output-dir: got 'x'; expected a new folder; pass --overwrite or --train FILE"
    """

    def option(name: str) -> str:
        return "--" + name.replace("_", "-")

    message = re.sub(r"`(\w+)=True`", lambda match: option(match[1]), message)
    message = re.sub(r"`(\w+)=([^`]+)`", lambda match: f"{option(match[1])} {match[2]}", message)
    message = re.sub(r"`(\w+)`", lambda match: option(match[1]) if match[1] in options else match[0], message)
    setting, colon, rest = message.partition(": got ")
    return option(setting) + colon + rest if setting in options else message


def option_names(words: Sequence[str]) -> frozenset[str]:
    """The Python names of the options of the command that the words of a command line call.

    Example:
        >>> "skip_bad_rows" in option_names(["predict", "cues/tickets"]), "skip_bad_rows" in option_names(["doctor"])
        (True, False)
    """
    command = typer.main.get_command(app)
    for word in words:
        subcommands = getattr(command, "commands", {})
        if word not in subcommands:
            break
        command = subcommands[word]
    flags = [flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")]
    return frozenset(flag.removeprefix("--").replace("-", "_") for flag in flags)


def _flush_output() -> bool:
    """Flush standard output; False if its reader is gone. The rest of the output is then dropped."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
