"""Inputs: the rows of a task to token ids (formatter), kept on disk (token_cache), to padded batches (collate)."""

from softcue.inputs.collate import (
    NO_LABEL,
    NO_SPAN,
    PaddingSide,
    batch_by_equal_length,
    batch_by_length,
    collate,
    split_by_budget,
    stack_sentence_vectors,
)
from softcue.inputs.formatter import (
    ANSWER_PREFIX,
    NUMBERED_POSITIONS,
    TOKENS_AT_ONCE,
    InputFormatter,
    InsertAt,
    OffsetUnit,
    target_tokens,
)
from softcue.inputs.token_cache import tokenize_rows

__all__ = [
    "ANSWER_PREFIX",
    "NO_LABEL",
    "NO_SPAN",
    "NUMBERED_POSITIONS",
    "TOKENS_AT_ONCE",
    "InputFormatter",
    "InsertAt",
    "OffsetUnit",
    "PaddingSide",
    "batch_by_equal_length",
    "batch_by_length",
    "collate",
    "split_by_budget",
    "stack_sentence_vectors",
    "target_tokens",
    "tokenize_rows",
]
