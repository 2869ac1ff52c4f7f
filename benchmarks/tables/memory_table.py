"""Writes the memory table of docs/scale.md: `python -m benchmarks.tables.memory_table`."""

from __future__ import annotations

import argparse
from pathlib import Path

from softcue.planning import MemoryLayout, MemoryPlan, Quantization

PAGE = Path("docs/scale.md")
BEGIN, END = "<!-- memory table: begin -->", "<!-- memory table: end -->"
BACKBONES = {"Llama-2-7B": "llama-2-7b", "Llama-3-8B": "llama-3-8b", "T5-XXL": "t5-xxl", "Llama-3-70B": "llama-3-70b"}
FORMATS: dict[str, Quantization] = {"bf16": "none", "int8": "int8", "int4": "int4"}
NUM_GPUS = (1, 2, 8)
ROWS, LENGTH = 16, 512


def memory_rows(name: str, title: str) -> list[list[str]]:
    """The lines of one model: the peak of the fullest GPU in GB, as it is and with layers that run again."""
    plan = MemoryPlan(name, "prompt-tuning", ROWS, LENGTH)
    rows = []
    for label, quantization in FORMATS.items():
        cells = []
        for gpus in NUM_GPUS:
            layouts = [MemoryLayout(ROWS, runs_again, "bfloat16", quantization, gpus) for runs_again in (False, True)]
            cells.append(" / ".join(f"{plan.memory(layout).peak / 2**30:.1f}" for layout in layouts))
        weights = plan.memory(MemoryLayout(ROWS, False, "bfloat16", quantization)).weights
        rows.append([title, label, f"{weights / 2**30:.1f}", *cells])
    return rows


def memory_table() -> str:
    """The table as Markdown."""
    lines = [line for title, name in BACKBONES.items() for line in memory_rows(name, title)]
    columns = ["backbone", "weights", "GB of weights", *(f"{gpus} GPU{'s' * (gpus > 1)}" for gpus in NUM_GPUS)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *lines))


def main() -> None:
    """Replace the table in the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{memory_table()}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
