"""What comparisons of cues and of methods share: a table, pairs, sentences, notes, and files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from softcue.cue.cue_file import package_versions
from softcue.files import convert_write_errors, write_atomically, write_json
from softcue.inspection.page import note_parts
from softcue.studies.statistics import Difference
from softcue.studies.table import Column, Table, TitledTable


@dataclass(frozen=True)
class Pair:
    """Two sides of a comparison on the same rows."""

    first: str
    second: str
    difference: Difference  # of the task's metric, the second minus the first

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.difference.is_significant

    @property
    def sentence(self) -> str:
        """The difference in plain words."""
        return self.difference.describe(self.first, self.second, self.is_told_apart)

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON."""
        return {**asdict(self), "told_apart": self.is_told_apart, "sentence": self.sentence}


@dataclass(frozen=True, repr=False)
class Comparison(TitledTable):
    """A comparison is used like a DataFrame. It prints as a table with sentences, in a notebook as HTML.

    Example:
        comparison["trainable"]                 # a column, with numbers as numbers
        comparison.to_pandas()                  # the table as a DataFrame; comparison.pairs has one too
        comparison.sentences                    # which can be told apart
        comparison.save("page")                 # index.html, comparison.csv, comparison.json
    """

    data: str  # the name of the rows
    metric: str
    differences: Sequence[Pair]

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON."""

    @abstractmethod
    def page(self, command: str = "") -> str:
        """The HTML page about the comparison; `command` is what repeats it."""

    @property
    def pairs(self) -> Table:
        """Each pair with the difference of the metric, its interval, and whether it can be told apart."""
        differences = [pair.difference for pair in self.differences]
        return Table(
            [
                Column("first", [pair.first for pair in self.differences]),
                Column("second", [pair.second for pair in self.differences]),
                *self._pair_facts(),
                Column(
                    "difference",
                    [difference.value for difference in differences],
                    f"difference of {self.metric}",
                    "{:+.1f}".format,
                ),
                Column("low", [difference.low for difference in differences], "95 % interval from"),
                Column("high", [difference.high for difference in differences], "to"),
                Column("told_apart", [pair.is_told_apart for pair in self.differences], "told apart"),
                Column("sentence", [pair.sentence for pair in self.differences], is_shown=False),
            ]
        )

    def _pair_facts(self) -> list[Column]:
        """Further columns of the pairs."""
        return []

    @property
    def sentences(self) -> list[str]:
        """The differences in plain words."""
        return [pair.sentence for pair in self.differences]

    def save(self, output_dir: str | Path, command: str = "") -> list[Path]:
        """Write index.html, comparison.csv (the table) and comparison.json (all values); returns the files.

        `command` stands on the page as the way to repeat the comparison.

        Example:
            softcue.compare(["cues/a", "cues/b"], data="held-out.csv").save("page")
        """
        folder = Path(output_dir)
        texts = {"index.html": self.page(command), "comparison.csv": self.to_csv(), **self._more_files()}
        with convert_write_errors("output_dir", folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                write_atomically(folder / name, text.encode())
            write_json(folder / "comparison.json", self.as_dict())
        return [folder / name for name in (*texts, "comparison.json")]

    def _more_files(self) -> Mapping[str, str]:
        """The text of further files by name."""
        return {}


def repeat_parts(command: str) -> list[str]:
    """The parts of a page that tell how to repeat a comparison; without a command, the versions alone.

    Example:
        >>> repeat_parts("softcue compare cues/a cues/b")[1]
        '<pre>softcue compare cues/a cues/b</pre>'
    """
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    how = ["<h2>Repeat it</h2>", f"<pre>{escape(command)}</pre>"] if command else []
    return [*how, *note_parts([versions])]
