"""How a method is chosen on the user's rows: settings, rungs, folds, and the record of what was tried.

Plain data and pure functions. Training the candidates is the work of `softcue/auto_run.py`.
"""

from softcue.selection.config import AUTO, SelectionConfig
from softcue.selection.folds import make_folds
from softcue.selection.halving import NUM_RUNGS, Standing, better_half, rank, rung_step
from softcue.selection.record import (
    CANDIDATES,
    RungScore,
    SelectionRecord,
    TriedMethod,
    read_record,
    selection_table,
    write_record,
)

__all__ = [
    "AUTO",
    "CANDIDATES",
    "NUM_RUNGS",
    "RungScore",
    "SelectionConfig",
    "SelectionRecord",
    "Standing",
    "TriedMethod",
    "better_half",
    "make_folds",
    "rank",
    "read_record",
    "rung_step",
    "selection_table",
    "write_record",
]
