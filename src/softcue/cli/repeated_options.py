"""Options that stand more than once in a command: a list takes all values, another option is an error."""

from __future__ import annotations

from collections.abc import Iterable

import typer
from typer.core import TyperCommand

from softcue.errors import ConfigurationError

# Options with several names between commas; they may also be repeated. In `study`, --text is a folder: an error.
LISTS = frozenset({"text", "tasks", "methods", "backbones", "regimes", "labels", "pairs_top"})


class CheckedCommand(TyperCommand):
    """A command that drops no value of an option given several times.

    Typer keeps only the last value. Here `--text left --text right` means `--text left,right`, and two different
    values of an option that takes one are an error.
    """

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the words of a command; all values of a list are joined with commas."""
        words = list(args)
        rest: list[str] = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # the shell completes a command that is not written to the end
            return rest
        for name, values in self._repeated_values(ctx, words).items():
            if name in LISTS and isinstance(ctx.params[name], str):
                ctx.params[name] = ",".join(values)
            elif len(set(values)) > 1:
                raise ConfigurationError(
                    setting=name,
                    got=" and ".join(values),
                    expected="this option once",
                    fix="keep one value; where an option takes a list, write A,B",
                )
        return rest

    def _repeated_values(self, ctx: typer.Context, words: list[str]) -> dict[str, list[str]]:
        """The values of each option that takes one value and stands more than once, by its name in Python."""
        parser = self.make_parser(ctx)
        names = set()
        for option in self.get_params(ctx):
            takes_value = not (getattr(option, "is_flag", True) or getattr(option, "count", False))
            if takes_value and option.name and not getattr(option, "multiple", False):
                parser.add_option(option, option.opts, option.name, "append", option.nargs)  # type: ignore[arg-type]
                names.add(option.name)
        values, _, _ = parser.parse_args(words)
        return {name: list(map(str, values[name])) for name in names if len(values.get(name) or ()) > 1}


def check_repeated_options(apps: Iterable[typer.Typer]) -> None:
    """Let all commands of these apps refuse or join options that are given several times.

    Example:
        >>> app = typer.Typer()
        >>> _ = app.command("greet")(lambda: None)
        >>> check_repeated_options([app])
        >>> app.registered_commands[0].cls.__name__
        'CheckedCommand'
    """
    for app in apps:
        for command in app.registered_commands:
            command.cls = CheckedCommand
