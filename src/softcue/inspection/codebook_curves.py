"""Curves of what a prompt encoder reports while it is trained: codes in use, and how much prompts read the input."""

from __future__ import annotations

from pathlib import Path

from softcue.cue.training_curve import read_json_lines
from softcue.drawing import line_chart

# measure in metrics.jsonl -> title and whether its values span several powers of ten
MEASURES = {
    "codes_drawn": ("codes drawn in the epoch", False),
    "perplexity": ("perplexity of the codes", False),
    "prompt_ratio": ("size of P^q beside P", False),
    "prompt_variation": ("variation of the prompt over inputs", True),
}


def codebook_curves(metrics: Path) -> list[str]:
    """Charts (inline SVG) of the measures in metrics.jsonl; none if it has none of them, as for static prompts.

    Example:
        codebook_curves(Path("cues/mine/metrics.jsonl"))
    """
    lines = read_json_lines(metrics)
    charts = []
    for name, (title, is_log) in MEASURES.items():
        points = [
            (float(line["step"]), float(line[name]))
            for line in lines
            if isinstance(line.get(name), (int, float)) and isinstance(line.get("step"), int)
        ]
        if points and (chart := line_chart(title, points, "step", is_log=is_log)):
            charts.append(chart)
    return charts
