"""The settings of a task: a task of the library, a task file, or columns of the user's files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from softcue.tasks.task import TaskKind, text_columns


class TaskConfig(BaseModel):
    """The task of a run: a task of the library, a task file, or columns of the user's files."""

    # A column or a label may be called 1, which YAML reads as a number.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field("", description="a task of `softcue tasks`, a task file (.yaml), or a name for a new task")
    data: str = Field("", description="a folder with a task's published files; else its rows come from the hub")
    train: str = Field("", description="training rows: csv, tsv, json, jsonl (also .gz), parquet, hub:NAME@SPLIT")
    validation: str = Field("", description="validation rows; without them a share of the training rows is held out")
    test: str = Field("", description="test rows, scored once at the end")
    text: tuple[str, ...] = Field((), description="the column to read, or several of them")
    label: str = Field("", description="the column with the target")
    format: str = Field(
        "", description="the format of the files: squad, conll, semeval, ...; empty: one example per row"
    )
    kind: TaskKind | None = Field(None, description="classification, regression, generation, span, tags or referent")
    label_words: dict[str, str] = Field(default_factory=dict, description="label -> the words for it")
    label_descriptions: dict[str, str] = Field(
        default_factory=dict, description="label -> what it means, in a sentence"
    )
    metric: str = Field("", description="the metric of early stopping")
    template: str = Field("", description="source text for text-to-text backbones, with {column} fields")
    train_rows: int = Field(0, ge=0, description="use only this many training rows (seeded sample); 0 uses all")
    validation_rows: int = Field(0, ge=0, description="use only this many validation rows; 0 uses all")
    test_rows: int = Field(0, ge=0, description="use only this many test rows; 0 uses all")
    few_shot: int = Field(
        0, ge=0, description="train on this many rows and validate on others (validation_rows, else 1000); 0 is off"
    )
    stratified: bool = Field(False, description="every class gets its share of few_shot or train_rows")
    swap_pairs: bool = Field(False, description="every training pair also with its two texts swapped")
    validation_share: float = Field(0.15, gt=0, lt=1, description="held out of training if validation is empty")
    skip_bad_rows: bool = Field(False, description="leave out rows that cannot be used instead of stopping")
    sample_seed: int = Field(0, ge=0, description="decides which rows are sampled or held out")

    @field_validator("text", mode="before")
    @classmethod
    def _split_list(cls, columns: object) -> object:
        """Split `a,b` of the command line into two columns."""
        if isinstance(columns, str):
            return [column.strip() for column in columns.split(",")] if columns else []
        return [columns] if isinstance(columns, int) else columns

    @field_validator("text")
    @classmethod
    def _check_columns(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        return text_columns(columns) if columns else ()
