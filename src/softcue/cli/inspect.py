"""`softcue inspect`: what a prompt's vectors are near to, and which codes speak for which label."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from softcue.cue.cue import Cue
    from softcue.inspection import CodesByLabel


def inspect(
    cue: Annotated[Path, typer.Argument(help="A cue folder.")],
    top: Annotated[int, typer.Option(min=1, max=50, help="Neighbours per prompt vector, codes per label.")] = 5,
    data: Annotated[
        Path | None, typer.Option(help="Rows with answers, for codes per label; else the run's own.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Write index.html and its pictures (PNG) here.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the nearest words of every prompt vector, and of a codebook the codes that speak for each label."""
    from dataclasses import asdict

    from softcue.cli.output import print_json, print_table
    from softcue.cue.cue import load
    from softcue.inspection import code_map, cue_page, nearest_words, training_curves

    loaded = load(cue, backbone)
    # a page has more to show than words
    encoder = loaded.model.method.prompt_encoder()
    words = None if output_dir and encoder and encoder.embedded() is None else nearest_words(loaded, top)
    codes = _codes(loaded, cue, data)
    if output_dir is not None:
        from softcue.files import writable, write_whole

        files: dict[str, bytes] = {}
        if curves := training_curves(cue / "metrics.jsonl"):
            files["training.png"] = curves
        codebook = None if encoder is None else encoder.codebook()
        if codes is not None and codebook is not None:
            files["codes.png"] = code_map(codes, codebook.cpu())
        captions = {"training.png": "Codebook and prompt in training", "codes.png": "Codes by the label they speak for"}
        page = cue_page(loaded, words, codes, {captions[name]: image for name, image in files.items()}, top)
        with writable("--output-dir", output_dir):
            output_dir.mkdir(parents=True, exist_ok=True)
            for name, content in {**files, "index.html": page.encode()}.items():
                write_whole(output_dir / name, content)
    if as_json:
        print_json(
            {"cue": str(cue), **(asdict(words) if words else {}), "codes": None if codes is None else asdict(codes)}
        )
        return
    if words is not None:
        rows = [
            [row.position, f"{row.norm:.2f}", ", ".join(f"{n.word} {n.cosine:.2f}" for n in row.neighbours)]
            for row in words.vectors
        ]
        print_table(f"{cue}: {words.num_vectors} prompt vectors", ["#", "norm", f"nearest {top} words (cosine)"], rows)
        typer.echo(f"labels still nearest to a vector: {', '.join(words.labels_kept) or 'none'}")
        typer.echo(f"words that are nearest to several vectors: {', '.join(words.repeated) or 'none'}")
    if codes is not None:
        entries = [
            [label, code.number, f"{code.odds:.2f}", f"{100 * code.share:.2f}", ", ".join(map(str, code.tokens)) or "-"]
            for label in codes.rows
            for code in codes.top(label, top)
        ]
        print_table(
            f"{codes.num_codes} codes, perplexity {codes.perplexity:.1f} over {sum(codes.rows.values())} rows",
            ["label", "code", "odds", "share, %", "first for vectors"],
            entries,
        )
    if output_dir is not None:
        typer.echo(f"page: {output_dir / 'index.html'}")


def _codes(cue: Cue, folder: Path, data: Path | None) -> CodesByLabel | None:
    """Codes per label over the rows given, else over the run's own validation rows."""
    from softcue.errors import SoftcueError
    from softcue.inspection import codes_by_label
    from softcue.run import splits_of_run
    from softcue.tasks import examples_from

    encoder = cue.model.method.prompt_encoder()
    if data is None and (not cue.task.labels or encoder is None or encoder.codebook() is None):
        return None
    if data is not None:
        return codes_by_label(cue, examples_from(data, cue.task))
    try:
        return codes_by_label(cue, splits_of_run(folder).validation)
    except SoftcueError as error:
        typer.echo(f"codes per label: pass --data FILE, the run's own rows cannot be used ({error})", err=True)
        return None
