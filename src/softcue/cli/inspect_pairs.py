"""`softcue inspect --pairs`: which sentence pairs are nearest with and without prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from softcue.cue.cue import Cue
    from softcue.inspection import PairStudy


@dataclass(frozen=True)
class PairSource:
    """The sentence pairs that a user names, and what to look at."""

    data: str | None  # a file, or a folder with published files
    task: str  # whose rows they are; empty: the first cue's
    tops: str
    columns: Sequence[str]
    skip_bad_rows: bool

    def __post_init__(self) -> None:
        """Check that there are pairs, if something is said about them."""
        from softcue.errors import ConfigurationError

        for option, value in {"--pairs-task": self.task, "--pairs-top": self.tops}.items():
            if value and self.data is None:
                raise ConfigurationError(
                    setting=option, got=value, expected="sentence pairs in --pairs", fix="pass --pairs FILE"
                )

    def study(self, cues: Sequence[Cue]) -> PairStudy:
        """The study of these pairs with cues on one backbone."""
        from softcue.inspection import pair_study
        from softcue.tasks.columns import parse_columns

        return pair_study(
            cues,
            self.data,
            self.task,
            parse_tops(self.tops),
            columns=parse_columns(self.columns),
            skip_bad_rows=self.skip_bad_rows,
        )


def compare_on_pairs(
    paths: Sequence[Path],
    source: PairSource,
    output_dir: Path | None,
    backbone: str | None,
    as_json: bool,
    allow_pickle: bool = False,
) -> None:
    """Compare several cues on the same pairs, print the result, and write the page and the picture."""
    from softcue.cli.output import print_json
    from softcue.cli.predict import load_together
    from softcue.files import convert_write_errors, write_atomically
    from softcue.inspection import pair_parts
    from softcue.inspection.page import html_page

    study = source.study(load_together(list(paths), backbone, False, allow_pickle))
    if output_dir is not None:
        title = f"{len(paths)} cues on {study.name}"
        page = html_page(title, [f"<h1>{escape(title)}</h1>", *pair_parts(study)])
        with convert_write_errors("output_dir", output_dir):
            output_dir.mkdir(parents=True, exist_ok=True)
            write_atomically(output_dir / "index.html", page.encode())
        write_pair_picture(study, output_dir)
    if as_json:
        print_json({"cues": [str(path) for path in paths], "pairs": study.as_dict()})
        return
    print_pairs(study)
    if output_dir is not None:
        typer.echo(f"page: {output_dir / 'index.html'}")


def parse_tops(words: str) -> list[int]:
    """Parse the numbers of nearest pairs, such as `100,200,300`.

    Example:
        >>> parse_tops("100, 200"), parse_tops("")
        ([100, 200], [])
    """
    from softcue.errors import ConfigurationError

    try:
        return [int(word) for word in words.split(",")] if words else []
    except ValueError as error:
        raise ConfigurationError(
            setting="--pairs-top",
            got=words,
            expected="numbers of pairs, such as 100,200,300",
            fix="separate them with commas",
        ) from error


def print_pairs(study: PairStudy) -> None:
    """Print the pairs of each group among the nearest, mean cosines and correlations."""
    from softcue.cli.output import print_table
    from softcue.inspection.pair_page import pair_table

    columns, rows = pair_table(study)
    title = f"{study.num_pairs:,} sentence pairs of {study.name}, sorted by cosine ({study.pooling} pooling)"
    print_table(title, columns, rows, numbers_from=2)
    for model in study.models:
        correlation = study.correlation(model)
        if correlation is not None:
            typer.echo(f"Spearman's correlation of cosine and score, {model.name}: {correlation:.1f}")
    if study.num_truncated:
        typer.echo(f"{study.num_truncated:,} sentences were cut to the length the cue reads", err=True)


def write_pair_picture(study: PairStudy, folder: Path) -> None:
    """Write pairs.png, if matplotlib is installed."""
    from softcue.cli.output import write_picture
    from softcue.inspection import pair_picture

    missing = "the charts of the pairs are on the page only"
    write_picture(folder / "pairs.png", lambda: pair_picture(study), missing)
