"""The Task: its columns, its labels with their words, its metrics, and the text of a row for each kind of backbone."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from softcue.errors import DataError
from softcue.types import Example, LabelValue, Prediction, label_text

# multi-label: a row has a set of labels: none, one or several. span: the target is a span of the last text. tags: spans
# of the text get labels. referent: whether the last text names what the marked pronoun refers to (text-to-text
# backbones generate the name instead).
TaskKind = Literal["classification", "multi-label", "regression", "generation", "span", "tags", "referent"]
LabelType = Literal["text", "integer", "float", "boolean"]
USUAL_METRICS = {
    "classification": "accuracy",
    "multi-label": "micro_f1",
    "regression": "pearson_spearman",
    "generation": "exact_match",
    "span": "exact_match+word_f1",
    "tags": "span_f1",
    "referent": "accuracy",
}
SPLITS = ("train", "validation", "test")
UNICODE = "text without lone surrogates"
REPAIR = "repair the escape sequence"


def is_unicode(value: object) -> bool:
    """Whether all texts of a value can be written as UTF-8: a JSON escape can hold half of a character.

    Example:
        >>> is_unicode({"words": ["caf\u00e9"]}), is_unicode({"words": ["\\ud800"]})
        (True, False)
    """
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return False
        return True
    if isinstance(value, Mapping):
        return all(is_unicode(key) and is_unicode(item) for key, item in value.items())
    return not isinstance(value, (list, tuple)) or all(map(is_unicode, value))


class UnicodeModel(BaseModel):
    """A model whose texts a tokenizer can read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_texts(cls, values: Any) -> Any:
        if not is_unicode(values):
            raise ValueError(UNICODE)
        return values


class Label(UnicodeModel):
    """One class: the words that a text-to-text backbone generates for it, and its meaning."""

    words: str = Field(description="the words that a text-to-text backbone generates for this label")
    description: str = Field("", description="what the label means, in a few words")
    also: tuple[str, ...] = Field((), description="other values that stand for it in data files, such as '1'")
    means: tuple[str, ...] = Field((), description="meanings it shares with labels of other tasks, beside its name")


class Published(BaseModel):
    """The published size of a split: its examples after the format is read, and the examples per label."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    labels: dict[str, int] = Field(default_factory=dict, description="label -> rows; for tags: label -> spans")


class Task(UnicodeModel):
    """A task, as read from its YAML file or made from a user's columns: columns, labels, metric, templates.

    `cue.task` is the task of a cue. A task of your own is written as a YAML file with these fields, and trained with
    `softcue.train(folder, task="mine.yaml")`.

    Example:
        >>> task = Task(
        ...     name="films",
        ...     text=("title", "review"),
        ...     label="verdict",
        ...     labels={"0": Label(words="bad"), "1": Label(words="good")},
        ...     label_type="integer",
        ... )
        >>> task.main_metric, task.label_words
        ('accuracy', ('bad', 'good'))
        >>> task.source(("Rain", "Three hours of rain."))
        'title: Rain review: Three hours of rain.'
    """

    name: str = Field(description="the name that a user types")
    description: str = Field("", description="one sentence: what goes in, what comes out")
    kind: TaskKind = Field(
        "classification", description="classification, multi-label, regression, generation, span, tags, referent"
    )
    format: str = Field("", description="the format of its files (tasks/formats/), if not one example per row")
    text: tuple[str, ...] = Field(("text",), description="the columns to read")
    columns: dict[str, tuple[str, ...]] = Field(default_factory=dict, description="column -> other names for it")
    where: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="column -> values: rows with others are left out, where they have the column"
    )
    without: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="column -> values: rows that have one of them are left out"
    )
    may_be_empty: tuple[str, ...] = Field((), description="text columns that some rows leave empty")
    label: str = Field("label", description="the column with the target")
    labels: dict[str, Label] = Field(default_factory=dict, description="label -> its words")
    label_type: LabelType = Field(
        "text", description="the type in which predictions give labels: text, integer, float or boolean"
    )
    separator: str = Field(
        ";", min_length=1, description="multi-label: what stands between the labels of a row, where a cell is a text"
    )
    positive: str = Field(
        "", description="the label whose F1 is the metric `f1`; of a referent task, the label for yes"
    )
    scale: tuple[float, float, float] | None = Field(
        None, description="regression as text: lowest score, highest score, step"
    )
    init_words: tuple[str, ...] = Field(
        (), description="words that prompts are initialised from, if not those of the labels"
    )
    metric: str = Field(
        "", description="the metric of early stopping, a+b for a mean; empty: the usual one of the kind"
    )
    paper_metrics: dict[str, str] = Field(
        default_factory=dict, description="paper -> the metric it reports, where that is not `metric`"
    )
    template: str = Field("", description="source text for text-to-text backbones, with {column} fields")
    pads_punctuation: bool = Field(
        False, description="T5's preprocessing puts spaces around its punctuation (`readout.pad_punctuation`)"
    )
    sentences: tuple[str, ...] = Field((), description="for encoders: one or two templates; empty: the columns")
    train: str = Field("", description="training rows: a file, or hub:NAME@SPLIT")
    validation: str = Field("", description="validation rows")
    test: str = Field("", description="test rows")
    files: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="split -> paths below a data folder (with * and ?); the first that matches is used",
    )
    published: dict[str, Published] = Field(default_factory=dict, description="split -> its published size")
    parts: dict[str, Published] = Field(default_factory=dict, description="path in `files` of an extract -> its size")
    citation: str = Field("", description="where the task comes from")
    licence: str = Field("", description="the terms of use of its rows")

    @field_validator("text")
    @classmethod
    def _check_columns(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        return text_columns(columns)

    @field_validator("labels")
    @classmethod
    def _check_label_values(cls, labels: dict[str, Label]) -> dict[str, Label]:
        values = [value for name, label in labels.items() for value in {name, *label.also}]
        if repeated := sorted({value for value in values if values.count(value) > 1}):
            raise ValueError(f"'{repeated[0]}' for one label only")
        return labels

    @field_validator("label_type")
    @classmethod
    def _check_label_type(cls, label_type: LabelType, info: ValidationInfo) -> LabelType:
        for name in info.data.get("labels", {}):
            if isinstance(_parse_label(name, label_type), str) and label_type != "text":
                raise ValueError(f"a type that every label has, and '{name}' is no {label_type}")
        return label_type

    @field_validator("positive")
    @classmethod
    def _check_positive(cls, positive: str, info: ValidationInfo) -> str:
        if positive and positive not in info.data.get("labels", {}):
            raise ValueError(f"one of the labels {list(info.data.get('labels', {}))}")
        return positive

    @field_validator("template")
    @classmethod
    def _check_template_fields(cls, template: str, info: ValidationInfo) -> str:
        columns = info.data.get("text", ())
        # The last text of a referent task is the target, so the source text may leave it out.
        _check_template(template, columns, required=columns[:-1] if info.data.get("kind") == "referent" else columns)
        return template

    @field_validator("sentences")
    @classmethod
    def _check_sentences(cls, sentences: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        columns = info.data.get("text", ())
        for sentence in sentences:
            _check_template(sentence, columns, required=())
        if len(sentences) > 2:
            raise ValueError("one or two templates, because that is what encoders read")
        if sentences and info.data.get("kind") in ("span", "tags") and sentences[-1] != f"{{{columns[-1]}}}":
            raise ValueError(f"the plain {{{columns[-1]}}} last, because the target is a span of it")
        return sentences

    @field_validator("files", "published")
    @classmethod
    def _check_splits(cls, values: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(values) - set(SPLITS)):
            raise ValueError(f"splits {', '.join(SPLITS)}, not {', '.join(unknown)}")
        return values

    @model_validator(mode="after")
    def _check_referent_labels(self) -> Self:
        if self.kind == "referent" and (len(self.labels) != 2 or not self.positive):
            raise ValueError("two labels, and as `positive` the one for a last text that is the referent")
        return self

    @model_validator(mode="after")
    def _check_separator(self) -> Self:
        if self.kind == "multi-label":
            for value in (value for name, label in self.labels.items() for value in (name, *label.also)):
                if self.separator in value:
                    raise ValueError(f"labels without the separator '{self.separator}', which '{value}' has")
        return self

    def example_from(self, texts: Sequence[str], where: str = "row 1") -> Example:
        """An example of texts alone, one for each text column.

        Example:
            >>> Task(name="t", text=("first", "second")).example_from(["Hello.", "Goodbye."]).texts
            ('Hello.', 'Goodbye.')
        """
        if len(texts) != len(self.text):
            raise DataError(
                setting=where,
                got=texts,
                expected=f"{len(self.text)} text(s): {', '.join(self.text)}",
                fix="pass one string, or a pair for a task that reads two",
            )
        if all(map(is_plain_text, texts)):
            return Example(tuple(texts))
        columns = zip(self.text, texts, strict=True)
        return Example(tuple(self.check_text(f"{where}, column '{column}'", column, text) for column, text in columns))

    def check_text(self, where: str, column: str, value: object) -> str:
        """The value of a text column, if it is a text that can be written as UTF-8 and is not empty."""
        if not isinstance(value, str) or (not value.strip() and column not in self.may_be_empty):
            raise DataError(
                setting=where, got=value, expected="a text that is not empty", fix="fill it in or remove the row"
            )
        return check_unicode(where, value)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes, in the order of every score vector."""
        return tuple(self.labels)

    @property
    def label_words(self) -> tuple[str, ...]:
        """The words that a text-to-text backbone generates for each class, in the same order."""
        return tuple(label.words for label in self.labels.values())

    @property
    def has_readable_labels(self) -> bool:
        """Whether the texts of labels can stand for rows: a row is one text with one label, and labels have words.

        Example:
            >>> Task(name="stars", labels={"1": Label(words="1"), "2": Label(words="2")}).has_readable_labels
            False
        """
        is_single = self.kind == "classification" and len(self.text) == 1 and bool(self.labels)
        texts = (label.words + label.description for label in self.labels.values())
        return is_single and all(any(map(str.isalpha, text)) for text in texts)

    @property
    def has_classes(self) -> bool:
        """Whether the target of a row is one of the labels."""
        return self.kind in ("classification", "referent")

    @property
    def has_row_labels(self) -> bool:
        """Whether the target of a row is one of the labels, or a set of them."""
        return self.has_classes or self.kind == "multi-label"

    @property
    def min_labels(self) -> int:
        """The fewest labels that training rows may have: a class needs another one to be told from."""
        return 2 if self.has_classes else 1

    def labels_of(self, example: Example) -> tuple[str, ...]:
        """The labels of a row with a target: its class, its set of labels, or the labels of its spans.

        Example:
            >>> Task(name="t", kind="multi-label").labels_of(Example(("Hello.",), labels=("greeting", "short")))
            ('greeting', 'short')
            >>> Task(name="t").labels_of(Example(("Hello.",), "greeting"))
            ('greeting',)
        """
        if self.has_classes:
            return (str(example.target),)
        return example.labels or tuple(span.label for span in example.spans if span.label)

    @property
    def main_metric(self) -> str:
        """The metric of early stopping and of the tables; `a+b` is the mean of two metrics."""
        return self.metric or USUAL_METRICS[self.kind]

    @property
    def main_metrics(self) -> tuple[str, ...]:
        """The metrics whose mean is the main metric."""
        return tuple(self.main_metric.split("+"))

    @property
    def paper_notes(self) -> list[str]:
        """What papers report, for the notes of a table with scores.

        Example:
            >>> Task(name="t", paper_metrics={"VIP": "macro_f1"}).paper_notes
            ['VIP reports macro_f1 on t; the official metric is accuracy']
        """
        return [
            f"{paper} reports {metric} on {self.name}; the official metric is {self.main_metric}"
            for paper, metric in self.paper_metrics.items()
        ]

    @property
    def num_sentences(self) -> int:
        """The number of texts that an encoder reads: one or two."""
        return len(self.sentences) or (len(self.text) if len(self.text) <= 2 else 1)

    def label_of(self, value: str) -> str | None:
        """The label that a value in a data file stands for, or None.

        Example:
            >>> Task(name="t", labels={"yes": Label(words="yes", also=("1",))}).label_of("1")
            'yes'
            >>> Task(name="t", labels={"true": Label(words="yes")}, label_type="boolean").label_of("True")
            'true'
        """
        if value in self.labels:
            return value
        if (parsed := label_text(_parse_label(value, self.label_type))) in self.labels:
            return parsed
        return next((name for name, label in self.labels.items() if value in label.also), None)

    def label_value(self, name: str) -> LabelValue:
        """A label in the type that the training labels had. Text that is none of the labels stays text.

        Example:
            >>> task = Task(name="t", labels={"0": Label(words="bad"), "1": Label(words="good")}, label_type="integer")
            >>> task.label_value("1"), task.label_value("rather good")
            (1, 'rather good')
        """
        return _parse_label(name, self.label_type) if name in self.labels else name

    def with_label_values(self, prediction: Prediction) -> Prediction:
        """A prediction of a model, whose labels are text, with labels in the type of the training labels.

        Example:
            >>> task = Task(name="t", labels={"0": Label(words="bad"), "1": Label(words="good")}, label_type="integer")
            >>> task.with_label_values(Prediction("1", scores={"0": 0.25, "1": 0.75}))
            Prediction(1, 0.75)
        """
        if self.label_type == "text":
            return prediction
        name, names, scores = prediction.label_text, prediction.labels, prediction.scores
        return replace(
            prediction,
            label=None if name is None else self.label_value(name),
            labels=None if names is None else tuple(self.label_value(label_text(name)) for name in names),
            scores=None if scores is None else {self.label_value(name): score for name, score in scores.items()},
        )

    def read_by(self, encoder: bool) -> set[int]:
        """The indices of the texts that a backbone reads.

        Example:
            >>> sorted(Task(name="t", text=("a", "b", "c"), sentences=("{a}", "{c}")).read_by(encoder=True))
            [0, 2]
        """
        templates = self.sentences if encoder else (self.template,) if self.template else ()
        fields = {name for template in templates for _, name, _, _ in string.Formatter().parse(template) if name}
        indices = range(len(self.text) - (self.kind == "referent" and not encoder))
        return {index for index in indices if not fields or self.text[index] in fields}

    def source(self, texts: tuple[str, ...]) -> str:
        """The input of a text-to-text backbone: the filled template, or each text after the name of its column."""
        values = dict(zip(self.text, texts, strict=True))
        if self.template:
            return _fill(self.template, values)
        if self.kind == "referent":
            values.pop(self.text[-1])
        if len(values) == 1:
            return texts[0]
        return _name_columns(values)

    def for_encoder(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """The one or two texts that an encoder reads.

        Example:
            >>> task = Task(name="t", text=("a", "b", "c"), sentences=("{a}", "{b} or {c}"))
            >>> task.for_encoder(("Why?", "left", "right"))
            ('Why?', 'left or right')
        """
        if not self.sentences and len(texts) <= 2:
            return texts
        values = dict(zip(self.text, texts, strict=True))
        if self.sentences:
            return tuple(_fill(sentence, values) for sentence in self.sentences)
        return (_name_columns(values),)


def _parse_label(text: str, label_type: LabelType) -> LabelValue:
    """A label of that type from its text; text that cannot be read so stays text."""
    if label_type == "boolean":
        return {"true": True, "false": False}.get(text.lower(), text)
    if label_type == "text":
        return text
    if label_type == "integer" and text.lstrip("-").isdecimal():
        return int(text)  # exact also where a float is not
    try:
        number = float(text)
    except ValueError:
        return text
    if label_type == "float":
        return number
    return int(number) if number.is_integer() else text


def _name_columns(values: Mapping[str, str]) -> str:
    return " ".join(f"{name}: {text}" for name, text in values.items())


def _fill(template: str, values: Mapping[str, str]) -> str:
    # Not str.format, which reads a column such as "review.text" as an attribute.
    parts = string.Formatter().parse(template)
    return "".join(literal + ("" if name is None else values[name]) for literal, name, _, _ in parts)


def _check_template(template: str, columns: tuple[str, ...], required: tuple[str, ...]) -> None:
    if not template:
        return
    try:
        parsed = string.Formatter().parse(template)
        parts = [(name, spec or conversion) for _, name, spec, conversion in parsed if name is not None]
    except ValueError as error:
        raise ValueError(f"a template with {{column}} fields: {error}") from error
    fields = {name for name, _ in parts}
    if unknown := fields - set(columns):
        raise ValueError(f"only the text columns {list(columns)} as fields, not {sorted(unknown)}")
    if missing := set(required) - fields:
        raise ValueError(f"a field for every text column; it leaves out {sorted(missing)}")
    if any(spec for _, spec in parts):
        raise ValueError("plain {column} fields without a format specification")


def text_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of the texts, if they are different and at least one.

    Example:
        >>> text_columns(("first", "second"))
        ('first', 'second')
    """
    if not columns or len(set(columns)) < len(columns) or "" in columns:
        raise ValueError("the names of different text columns, at least one")
    return columns


def portable(task: Task) -> Task:
    """The part of a task that a cue stores: everything but its files and their published sizes.

    Example:
        >>> portable(Task(name="t", train="rows.csv")).train
        ''
    """
    cleared = {"train": "", "validation": "", "test": "", "files": {}, "published": {}, "parts": {}}
    return task.model_copy(update=cleared)


def joint_task(tasks: Sequence[Task]) -> Task:
    """The task that a method shared by several tasks sees: the label words of all of them, each once.

    Example:
        >>> from softcue.tasks import library_task
        >>> joint_task([library_task("tickets"), library_task("urgency")]).label_words[-2:]
        ('normal', 'high')
    """
    if len(tasks) == 1:
        return tasks[0]
    labels = {label.words: Label(words=label.words) for task in tasks for label in task.labels.values()}
    words = (word for task in tasks for word in task.init_words or task.label_words)
    return Task(
        name="+".join(task.name for task in tasks),
        description=" ".join(task.description for task in tasks if task.description),
        init_words=tuple(dict.fromkeys(words)),
        labels=labels,
    )


def is_plain_text(value: object) -> bool:
    """Whether a value is a text that nothing can be wrong with: ASCII, and not empty. Most texts of a row are.

    Example:
        >>> is_plain_text("hello"), is_plain_text(" "), is_plain_text("caf\u00e9")
        (True, False, False)
    """
    return isinstance(value, str) and value.isascii() and not value.isspace() and value != ""


def check_unicode(where: str, value: str) -> str:
    """The text, if it can be written as UTF-8."""
    if not is_unicode(value):
        raise DataError(setting=where, got=repr(value[:40]), expected=UNICODE, fix=REPAIR)
    return value
