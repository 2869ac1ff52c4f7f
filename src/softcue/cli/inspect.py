"""`softcue inspect`: scores, training curve, mistakes, nearest words of prompt vectors, codes of each label."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from softcue.cue.cue import Cue
    from softcue.inspection import CheckedRows, CodesByLabel, NearestWords

MAX_TEXT = 100  # characters of a wrong row's text in the terminal


def inspect(
    cue: Annotated[Path, typer.Argument(help="A cue folder.")],
    top: Annotated[
        int, typer.Option(min=1, max=50, help="Neighbours per prompt vector, codes per label, wrong rows.")
    ] = 5,
    data: Annotated[
        Path | None,
        typer.Option(help="Rows with targets, for scores of each label, wrong rows and codes per label."),
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Write index.html (and a map of codes, PNG) here.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show scores and training curve of a cue, its mistakes on --data, nearest words of prompts, codes of labels."""
    from dataclasses import asdict

    from softcue.cli.output import print_json
    from softcue.cli.scores import print_curve, print_scores, score_facts
    from softcue.cue.cue import load
    from softcue.inspection import check_rows, nearest_words

    loaded = load(cue, backbone)
    checked = None if data is None else check_rows(loaded, data, num_wrong=top)
    encoder = loaded.model.method.prompt_encoder()
    words = None if encoder is None or encoder.static_vectors() is None else nearest_words(loaded, top)
    codes = _codes(loaded, cue, data)
    if output_dir is not None:
        _write_page(loaded, words, codes, checked, output_dir, top)
    if as_json:
        print_json(
            {
                "cue": str(cue),
                **score_facts(loaded),
                "curve": loaded.training_curve.as_dict(),
                "evaluation": None if checked is None else checked.as_dict(),
                **(asdict(words) if words else {}),
                "prompt_text": loaded.model.method.prompt_text,
                "codes": None if codes is None else asdict(codes),
            }
        )
        return
    print_scores(loaded)
    print_curve(loaded)
    if checked is not None:
        _print_checked(loaded, checked)
    if words is not None:
        _print_words(cue, words, top)
    elif loaded.model.method.prompt_text:
        typer.echo(f"the prompt, {loaded.model.method.prompt_length} tokens:\n\n{loaded.model.method.prompt_text}")
    else:
        typer.echo(f"{loaded.cue_file.method['name']} has no prompt vectors among the word embeddings")
    if codes is not None:
        _print_codes(codes, top)
    if output_dir is not None:
        typer.echo(f"page: {output_dir / 'index.html'}")


def _write_page(
    cue: Cue,
    words: NearestWords | None,
    codes: CodesByLabel | None,
    checked: CheckedRows | None,
    folder: Path,
    top: int,
) -> None:
    """Write index.html, and a map of the codes if there are any and matplotlib is installed."""
    from softcue.errors import MissingExtraError
    from softcue.files import convert_write_errors, write_atomically
    from softcue.inspection import code_map, cue_page

    encoder = cue.model.method.prompt_encoder()
    codebook = None if encoder is None else encoder.codebook()
    pictures: dict[str, bytes] = {}
    if codes is not None and codebook is not None:
        try:
            pictures["Codes by the label they indicate"] = code_map(codes, codebook.cpu())
        except MissingExtraError as error:
            typer.echo(f"the page has no map of the codes: {error}", err=True)
    page = cue_page(cue, words, codes, pictures, top, checked)
    with convert_write_errors("output_dir", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for image in pictures.values():
            write_atomically(folder / "codes.png", image)
        write_atomically(folder / "index.html", page.encode())


def _print_checked(cue: Cue, checked: CheckedRows) -> None:
    """Print scores on the given rows, scores of each label, residuals and wrong rows."""
    from softcue.cli.output import print_table
    from softcue.cli.scores import print_confusion, print_evaluations, print_labels
    from softcue.cue.score_table import baseline_notes
    from softcue.inspection.checked_rows import Residuals

    evaluations = {str(cue.path): checked.evaluation}
    print_evaluations(f"{cue.path} on {checked.name}", evaluations, baseline_notes(cue.cue_file))
    print_labels("scores of each label", checked.evaluation)
    if checked.evaluation.confusion is not None:
        print_confusion(checked.evaluation.confusion)
    residuals = Residuals.of(checked.evaluation)
    if residuals is not None:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in residuals.as_dict().items())
        typer.echo(f"residuals (predicted minus true): {figures}")
    rows = [
        [
            row.number,
            _shorten(" / ".join(row.texts)),
            row.true,
            row.predicted,
            "-" if row.score is None else f"{row.score:.3g}",
        ]
        for row in checked.wrong
    ]
    measure = "score" if residuals is None else "error"
    title = "most confident wrong rows" if residuals is None else "largest errors"
    if rows:
        print_table(title, ["row", "text", "true", "predicted", measure], rows, numbers_from=4)
    else:
        typer.echo(f"{title}: none")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else line[:MAX_TEXT] + " ..."


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
    """Codes per label on the given rows, or on the run's own validation rows; None without a codebook."""
    from softcue.errors import SoftcueError
    from softcue.inspection import codes_by_label
    from softcue.run import splits_of_run
    from softcue.tasks import examples_from

    encoder = cue.model.method.prompt_encoder()
    if not cue.task.labels or encoder is None or encoder.codebook() is None:
        return None
    try:
        return codes_by_label(cue, examples_from(data, cue.task) if data else splits_of_run(folder).validation)
    except SoftcueError as error:
        advice = "" if data else "pass --data FILE, the run's own rows cannot be used: "
        typer.echo(f"no codes per label: {advice}{error}", err=True)
        return None
