"""Compare settings that keep VIP's codebook from collapsing: one run per setting on Subj, and a plot.

    python -m benchmarks.tables.codebooks --data data --t5 FOLDER [--picture docs/codebook-use.png]

Only validation rows are used. A finished run is not repeated. Prints Markdown: perplexity of the codes drawn in the
last steps, |P^q|/|P|, the variation of prompts over inputs, and the validation score.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import softcue
from benchmarks.tables.grid import TableRun, print_header, print_row, run_missing
from softcue.backbones import Backbone, load_backbone

# The paper's form, whatever the preset says.
PAPER = {
    "scale": 1,
    "dropout": 0.1,
    "dedicated": "false",
    "codes_from": "words",
    "relative_temperature": "false",
    "temperature": 100,
    "decay": 0.99,
    "reset_below": 0,
    "commitment": 0.1,
}
CONTEXT = {**PAPER, "scale": 0, "codes_from": "context", "relative_temperature": "true", "temperature": 0.1}
FAST = {**CONTEXT, "temperature": 0.01, "decay": 0.9, "reset_below": 0.1}
SETTINGS: dict[str, dict[str, object]] = {
    "authors' start (length 100), literal rule": {**PAPER, "ema_rule": "literal"},
    "words of their own length, vqvae rule": {**PAPER, "codes_norm": 0},
    "scale, codes of P^c, relative temperature 0.1": CONTEXT,
    "the same after 25 steps without quantiser": {**CONTEXT, "fill_after": 25},
    "the same, 0.01, decay 0.9, reset": FAST,
    "codes per token, 0.05, decay 0.9, reset": {"dropout": 0.1},
    "the same without dropout (the preset)": {},
}
SCHEDULE = [
    "training.steps=100",
    "training.batch_size=8",
    "training.evaluate_every=50",
    "training.patience=0",
    "method.prompt_length=20",
    "backbone.max_length=96",
    "task.train_rows=400",
    "task.validation_rows=200",
    "task.label_words.0=subjective",
    "task.label_words.1=objective",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--t5", required=True, help="folder of a T5")
    parser.add_argument("--picture", type=Path, default=Path("docs/codebook-use.png"))
    parser.add_argument("--output", type=Path, default=Path("runs/codebooks"))
    arguments = parser.parse_args()
    backbone = load_backbone(arguments.t5)
    runs = [TableRun("subj", name, 0, arguments.output / str(number)) for number, name in enumerate(SETTINGS)]
    run_missing(runs, lambda run: train(arguments.data, backbone, run))
    print_header("setting", "perplexity of codes", "size of P^q / P", "variation over inputs, %", "validation")
    finished = [run for run in runs if run.is_done]
    for run in finished:
        health = run.metrics["health"]
        num_codes = run.cue_file["counts"]["ema"] // backbone.width
        print_row(
            run.method,
            f"{health['perplexity']:.0f} of {num_codes}",
            f"{health['prompt_ratio']:.2f}",
            f"{100 * health['prompt_variation']:.3f}",
            f"{run.score('validation'):.1f}",
        )
    plot_codes(finished, arguments.picture)


def train(data: Path, backbone: Backbone, run: TableRun) -> None:
    softcue.train(
        run.folder,
        backbone=backbone,
        method="vip",
        train=str(data / "subj/train.tsv"),
        text="sentence",
        label="label",
        overrides=[*SCHEDULE, *(f"method.{key}={value}" for key, value in SETTINGS[run.method].items())],
        resume=True,
        progress=False,
    )


def plot_codes(runs: list[TableRun], path: Path) -> None:
    """Plot perplexity and variation over the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    panels = figure.subplots(1, 2)
    titles = {"perplexity": "perplexity of the codes drawn", "prompt_variation": "variation of prompts over inputs"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for run in runs:
            lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text("utf-8").splitlines()]
            points = [(line["step"], line[name]) for line in lines if name in line]
            axes.plot(*zip(*points, strict=True), label=run.method, marker="o" if len(points) < 10 else "")
        axes.set_title(title)
        axes.set_xlabel("step")
    panels[1].set_yscale("log")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=2, fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
