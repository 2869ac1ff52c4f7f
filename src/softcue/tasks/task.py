"""What a task is: its columns, its labels with their words, its metric, and how a row becomes one text."""

from __future__ import annotations

import string
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

TaskKind = Literal["classification", "regression", "generation"]


class Label(BaseModel):
    """One class: the words a text-to-text backbone writes for it, and what it means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    words: str = Field(description="what a text-to-text backbone writes for this label")
    description: str = Field("", description="what the label means, in a few words")


class Task(BaseModel):
    """A task, as read from its YAML file or made from a user's columns.

    Example:
        >>> task = Task(name="toy", text=("first", "second"), label="label")
        >>> task.source(("Hello.", "Bye."))
        'first: Hello. second: Bye.'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="what the user types")
    description: str = Field("", description="one sentence: what goes in, what comes out")
    kind: TaskKind = Field("classification", description="classification, regression or generation")
    text: tuple[str, ...] = Field(("text",), description="one or two columns to read")
    label: str = Field("label", description="the column with the answer")
    labels: dict[str, Label] = Field(default_factory=dict, description="label -> its words")
    metric: str = Field("", description="what early stopping watches; empty takes the kind's usual one")
    template: str = Field("", description="source text for text-to-text backbones, with {column} fields")
    train: str = Field("", description="training rows: a file, or hub:NAME@SPLIT")
    validation: str = Field("", description="validation rows")
    test: str = Field("", description="test rows")
    citation: str = Field("", description="where the task comes from")
    licence: str = Field("", description="on what terms its rows may be used")

    @field_validator("text")
    @classmethod
    def _one_or_two(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        return text_columns(columns)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes, in the order every score vector uses."""
        return tuple(self.labels)

    @property
    def label_words(self) -> tuple[str, ...]:
        """What a text-to-text backbone writes for each class, in the same order."""
        return tuple(label.words for label in self.labels.values())

    @property
    def main_metric(self) -> str:
        """The metric that early stopping and the tables use."""
        usual = {"classification": "accuracy", "regression": "pearson_spearman", "generation": "exact_match"}
        return self.metric or usual[self.kind]

    def source(self, texts: tuple[str, ...]) -> str:
        """One text for a text-to-text backbone: the template, or the columns named in front of their text."""
        if self.template:
            values = dict(zip(self.text, texts, strict=True))
            # Not str.format, which takes a column such as "review.text" for an attribute.
            parts = string.Formatter().parse(self.template)
            return "".join(literal + ("" if name is None else values[name]) for literal, name, _, _ in parts)
        if len(texts) == 1:
            return texts[0]
        return " ".join(f"{name}: {text}" for name, text in zip(self.text, texts, strict=True))

    @field_validator("template")
    @classmethod
    def _known_fields(cls, template: str, info: object) -> str:
        columns = getattr(info, "data", {}).get("text", ())
        try:
            found = string.Formatter().parse(template)
            parts = [(name, form or mark) for _, name, form, mark in found if name is not None]
        except ValueError as error:
            raise ValueError(f"a template with {{column}} fields: {error}") from error
        fields = {name for name, _ in parts}
        if unknown := fields - set(columns):
            raise ValueError(f"only the text columns {list(columns)} as fields, not {sorted(unknown)}")
        if template and fields != set(columns):
            raise ValueError(f"a field for every text column; it leaves out {sorted(set(columns) - fields)}")
        if any(form for _, form in parts):
            raise ValueError("plain {column} fields without a format behind them")
        return template


def text_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns a task reads, checked.

    Example:
        >>> text_columns(("first", "second"))
        ('first', 'second')
    """
    if not 1 <= len(columns) <= 2 or len(set(columns)) < len(columns) or "" in columns:
        raise ValueError("the name of one text column, or of two different ones")
    return columns
