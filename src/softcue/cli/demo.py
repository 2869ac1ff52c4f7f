"""`softcue demo`: three cues on one frozen model, and a table that compares them with baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    output_dir: Annotated[Path, typer.Option("--output-dir", help="Where the three cue folders go.")] = Path("cues"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train the three sample tasks on the frozen MiniLM and compare them with simple baselines."""
    import json
    import time

    from softcue.api import train
    from softcue.backbones import load_backbone
    from softcue.cli.output import print_json, print_table
    from softcue.evaluation import linear_probe, zero_shot
    from softcue.tasks import examples_from, library_task

    started = time.monotonic()
    backbone = load_backbone("minilm")
    results = []
    for name in ("tickets", "urgency", "same-request"):
        task = library_task(name)
        rows = {split: examples_from(getattr(task, split), task) for split in ("train", "validation", "test")}
        cue = train(output_dir / name, task=name, backbone=backbone, resume=True, progress=not as_json)
        assert cue.path is not None
        metrics = json.loads((cue.path / "metrics.json").read_text("utf-8"))
        probe = linear_probe(backbone, task, rows["train"], rows["validation"], rows["test"])
        results.append(
            {
                "task": name,
                "method": cue.cue_file.method["name"],
                "score": cue.scores["test"][task.main_metric],
                "no training": zero_shot(backbone, task, rows["test"]).main,
                "linear probe": probe.main,
                "trained numbers": cue.counts.gradient + cue.counts.head,
                "cue KB": round((cue.path / "cue.safetensors").stat().st_size / 1024, 1),
                "seconds": metrics["seconds"],
            }
        )
    if as_json:
        print_json({"rows": results, "seconds": round(time.monotonic() - started, 1)})
        return
    headings = {"no training": "zero-shot", "trained numbers": "trainable parameters"}  # the JSON keys stay
    columns = [headings.get(key, key) for key in results[0]]
    title = "accuracy on test rows; one frozen MiniLM, three cues"
    print_table(title, columns, [list(row.values()) for row in results])
    typer.echo(f"Cues are in {output_dir}/. Try next:")
    cues = f"{output_dir}/tickets {output_dir}/urgency"
    typer.echo(f"  echo 'My parcel never came!' | softcue predict {cues} --input -")
    typer.echo(f"  softcue inspect {output_dir}/tickets")
    flags = "--text COLUMN --label COLUMN --backbone minilm --output-dir cues/mine"
    typer.echo(f"  softcue train --train YOUR.csv {flags}")
