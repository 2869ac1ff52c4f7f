"""`softcue inspect`: the nearest words of prompt vectors, and the codes that indicate each label."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from softcue.cue.cue import Cue
    from softcue.inspection import CodesByLabel, NearestWords


def inspect(
    cue: Annotated[Path, typer.Argument(help="A cue folder.")],
    top: Annotated[int, typer.Option(min=1, max=50, help="Neighbours per prompt vector, codes per label.")] = 5,
    data: Annotated[
        Path | None, typer.Option(help="Rows with targets, for codes per label; without it, the run's own.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Write index.html and its pictures (PNG) here.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the nearest words of each prompt vector, and the codes of a codebook that indicate each label."""
    from dataclasses import asdict

    from softcue.cli.output import print_json
    from softcue.cue.cue import load
    from softcue.inspection import nearest_words

    loaded = load(cue, backbone)
    # Without word neighbours, a page can still show scores and curves.
    encoder = loaded.model.method.prompt_encoder()
    words = None if output_dir and encoder and encoder.static_vectors() is None else nearest_words(loaded, top)
    codes = _codes(loaded, cue, data)
    if output_dir is not None:
        _write_page(loaded, words, codes, output_dir, top)
    if as_json:
        print_json(
            {"cue": str(cue), **(asdict(words) if words else {}), "codes": None if codes is None else asdict(codes)}
        )
        return
    if words is not None:
        _print_words(cue, words, top)
    if codes is not None:
        _print_codes(codes, top)
    if output_dir is not None:
        typer.echo(f"page: {output_dir / 'index.html'}")


def _write_page(cue: Cue, words: NearestWords | None, codes: CodesByLabel | None, folder: Path, top: int) -> None:
    """Write index.html and its pictures."""
    from softcue.files import convert_write_errors, write_atomically
    from softcue.inspection import code_map, cue_page, training_curves

    assert cue.path is not None
    encoder = cue.model.method.prompt_encoder()
    codebook = None if encoder is None else encoder.codebook()
    files: dict[str, bytes] = {}
    if curves := training_curves(cue.path / "metrics.jsonl"):
        files["training.png"] = curves
    if codes is not None and codebook is not None:
        files["codes.png"] = code_map(codes, codebook.cpu())
    captions = {"training.png": "Codebook and prompt in training", "codes.png": "Codes by the label they indicate"}
    page = cue_page(cue, words, codes, {captions[name]: image for name, image in files.items()}, top)
    with convert_write_errors("output_dir", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {**files, "index.html": page.encode()}.items():
            write_atomically(folder / name, content)


def _print_words(cue: Path, words: NearestWords, top: int) -> None:
    from softcue.cli.output import print_table

    rows = [
        [row.position, f"{row.norm:.2f}", ", ".join(f"{n.word} {n.cosine:.2f}" for n in row.neighbours)]
        for row in words.vectors
    ]
    print_table(f"{cue}: {words.num_vectors} prompt vectors", ["#", "norm", f"nearest {top} words (cosine)"], rows)
    typer.echo(f"labels still nearest to a vector: {', '.join(words.labels_kept) or 'none'}")
    typer.echo(f"words that are nearest to several vectors: {', '.join(words.repeated) or 'none'}")


def _print_codes(codes: CodesByLabel, top: int) -> None:
    from softcue.cli.output import print_table

    rows = [
        [label, code.number, f"{code.odds:.2f}", f"{100 * code.share:.2f}", ", ".join(map(str, code.tokens)) or "-"]
        for label in codes.rows
        for code in codes.top(label, top)
    ]
    print_table(
        f"{codes.num_codes} codes, perplexity {codes.perplexity:.1f} over {sum(codes.rows.values())} rows",
        ["label", "code", "odds", "share, %", "first for vectors"],
        rows,
    )


def _codes(cue: Cue, folder: Path, data: Path | None) -> CodesByLabel | None:
    """Codes per label on the given rows, or on the run's own validation rows."""
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
