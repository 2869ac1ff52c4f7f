from __future__ import annotations

import pytest

from benchmarks.host_speed import host_figures
from benchmarks.plan import Plan


@pytest.mark.slow
def test_host_side_is_measured_from_file_to_file_and_through_the_engine() -> None:
    figures = host_figures(Plan(repeats=1), num_rows=2048)
    assert list(figures) == [
        "host_rows_per_second",
        "host_engine_rows_per_second",
        "batch_choice_ms",
        "batch_choice_ms_gpu_budget",
    ]
    assert all(figure["ratio"] > 0 for figure in figures.values())
