"""`softcue sign`: say who made a cue, for those who check it with --require-signature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sign(
    cues: Annotated[list[Path] | None, typer.Argument(help="Cue folders to sign.")] = None,
    key: Annotated[Path | None, typer.Option(help="The secret key to sign with.")] = None,
    new_key: Annotated[
        Path | None, typer.Option(help="Write a new secret key here, and the public key beside it as .pub.")
    ] = None,
) -> None:
    """Sign cues, so that `--require-signature` accepts them; the format is that of minisign."""
    from softcue.cue.signatures import sign_cue, write_new_key
    from softcue.errors import ConfigurationError

    if new_key is not None:
        public_key = write_new_key(new_key)
        typer.echo(f"{new_key}: the secret key, for you alone; it has no password")
        typer.echo(f"{public_key}: the public key, for those who load your cues with --require-signature")
        key = key or new_key
    if key is None:
        raise ConfigurationError(
            setting="key", got=None, expected="a secret key", fix="pass `key=FILE`; `new_key=FILE` makes one"
        )
    for cue in cues or ():
        typer.echo(f"signed: {sign_cue(cue, key)}")
