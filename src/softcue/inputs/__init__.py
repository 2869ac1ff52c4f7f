"""Inputs: the rows of a task to token ids (formatter), kept on disk (token_cache), to padded batches (collate)."""

from softcue.inputs.collate import (
    NO_LABEL,
    NOWHERE,
    PaddingSide,
    by_length,
    collate,
    stack_sentence_vectors,
    within_budget,
)
from softcue.inputs.formatter import (
    ANSWER_CUE,
    NUMBERED_PLACES,
    TOKENS_AT_ONCE,
    InputFormatter,
    InsertAt,
    OffsetUnit,
    answer_tokens,
)
from softcue.inputs.token_cache import token_rows

__all__ = [
    "ANSWER_CUE",
    "NOWHERE",
    "NO_LABEL",
    "NUMBERED_PLACES",
    "TOKENS_AT_ONCE",
    "InputFormatter",
    "InsertAt",
    "OffsetUnit",
    "PaddingSide",
    "answer_tokens",
    "by_length",
    "collate",
    "stack_sentence_vectors",
    "token_rows",
    "within_budget",
]
