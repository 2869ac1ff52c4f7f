"""`softcue inspect`: scores, training curve, mistakes, nearest words, codes, sentence pairs; or several cues."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softcue.cli.completion import complete_task
from softcue.cli.options import AllowPickle, Columns, SkipBadRows

if TYPE_CHECKING:
    from softcue.cue.cue import Cue
    from softcue.inspection import CheckedRows, CodesByLabel, NearestWords
    from softcue.tasks import Task

MAX_TEXT = 100  # characters of a wrong row's text in the terminal


def inspect(
    cues: Annotated[list[Path], typer.Argument(help="A cue folder or hub:OWNER/NAME, or several to compare.")],
    top: Annotated[
        int, typer.Option(min=1, max=50, help="Neighbours per prompt vector, codes per label, wrong rows.")
    ] = 5,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Rows with targets, for scores of each label, wrong rows and codes per label; with several cues, "
            "texts for prompts that read the input."
        ),
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            help="Sentence pairs with targets: how near they are with and without prompts. A file or a folder."
        ),
    ] = None,
    pairs_task: Annotated[
        str, typer.Option(help="The task whose rows --pairs has; unset: the cue's.", autocompletion=complete_task)
    ] = "",
    pairs_top: Annotated[str, typer.Option(help="Numbers of nearest pairs to look at; unset: 100,200,300.")] = "",
    columns: Columns = None,
    skip_bad_rows: SkipBadRows = False,
    output_dir: Annotated[Path | None, typer.Option(help="Write index.html and pictures (PNG) here.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show scores and training curve of a cue, mistakes on --data, nearest words, codes of labels, sentence pairs.

    Several cues are compared: on --pairs, or by scores, validation curves and the similarity of their prompts.
    """
    from dataclasses import asdict

    from softcue.cli.inspect_pairs import PairSource, compare_on_pairs, print_pairs, write_pair_picture
    from softcue.cli.inspect_several import compare, parse_data_columns
    from softcue.cli.inspect_words import print_clusters, print_label_places, write_words_picture
    from softcue.cli.output import print_json
    from softcue.cli.scores import print_curve, print_scores, score_facts
    from softcue.cue.cue import load
    from softcue.cue.hub import find_cue_folder
    from softcue.inspection import (
        AT_START,
        check_rows,
        label_places,
        nearest_words,
        pair_parts,
        word_clusters,
        word_parts,
    )
    from softcue.tasks.columns import rename_columns

    source = PairSource(pairs, pairs_task, pairs_top, columns or [], skip_bad_rows)
    renamed = parse_data_columns(columns or [], data if pairs is None else Path(pairs))
    folders = [find_cue_folder(cue) for cue in cues]
    if len(folders) > 1 and pairs is not None:
        compare_on_pairs(folders, source, output_dir, backbone, as_json, allow_pickle)
        return
    if len(folders) > 1:
        compare(folders, data, renamed, skip_bad_rows, output_dir, backbone, as_json, allow_pickle)
        return
    [cue], [folder] = cues, folders
    loaded = load(folder, backbone, allow_pickle=allow_pickle)
    [row_task] = rename_columns([loaded.task], {} if data is None else renamed)
    checked = None
    if data is not None:
        checked = check_rows(loaded, data, num_wrong=top, row_task=row_task, skip_bad_rows=skip_bad_rows)
    encoder = loaded.model.method.prompt_encoder()
    words = None if encoder is None or encoder.static_vectors() is None else nearest_words(loaded, top)
    has_moved = words is not None and not loaded.cue_file.has_kept_start
    clusters = word_clusters(loaded, top) if has_moved else None
    places = label_places(loaded, top) if has_moved else []
    codes = _codes(loaded, folder, data, row_task, skip_bad_rows)
    recipe = loaded.cue_file.recipe
    study = None if pairs is None else source.study([loaded])
    if output_dir is not None:
        more_parts = [*word_parts(clusters, places), *([] if study is None else pair_parts(study))]
        _write_page(loaded, words, codes, checked, output_dir, top, more_parts)
        if clusters is not None:
            write_words_picture(loaded.name, clusters, output_dir)
        if study is not None:
            write_pair_picture(study, output_dir)
    if as_json:
        print_json(
            {
                "cue": str(cue),
                "recipe": None if recipe is None else recipe.model_dump(),
                **score_facts(loaded),
                "curve": loaded.training_curve.as_dict(),
                "evaluation": None if checked is None else checked.as_dict(),
                **(asdict(words) if words else {}),
                "clusters": None if clusters is None else asdict(clusters),
                "labels": [{**asdict(place), "persists": place.persists} for place in places],
                "prompt_text": loaded.model.method.prompt_text,
                "codes": None if codes is None else asdict(codes),
                "pairs": None if study is None else study.as_dict(),
            }
        )
        return
    print_scores(loaded)
    if recipe is not None:
        typer.echo(f"recipe: {recipe.summary}")
    print_curve(loaded)
    if checked is not None:
        _print_checked(loaded, checked)
    if words is not None:
        _print_words(cue, words, top)
        if not has_moved:
            typer.echo(AT_START)
        if clusters is not None:
            print_clusters(clusters)
        if places:
            print_label_places(places)
    elif loaded.model.method.prompt_text:
        typer.echo(f"the prompt, {loaded.model.method.prompt_length} tokens:\n\n{loaded.model.method.prompt_text}")
    else:
        typer.echo(f"{loaded.cue_file.method['name']} has no prompt vectors among the word embeddings")
    if codes is not None:
        _print_codes(codes, top)
    if study is not None:
        print_pairs(study)
    if output_dir is not None:
        typer.echo(f"page: {output_dir / 'index.html'}")


def _write_page(
    cue: Cue,
    words: NearestWords | None,
    codes: CodesByLabel | None,
    checked: CheckedRows | None,
    folder: Path,
    top: int,
    more_parts: Sequence[str] = (),
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
    page = cue_page(cue, words, codes, pictures, top, checked, more_parts)
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


def _codes(cue: Cue, folder: Path, data: Path | None, row_task: Task, skip_bad_rows: bool) -> CodesByLabel | None:
    """Codes per label on the given rows, or on the run's own validation rows; None without a codebook."""
    from softcue.errors import SoftcueError
    from softcue.inspection import codes_by_label
    from softcue.run import splits_of_run
    from softcue.tasks import examples_from

    encoder = cue.model.method.prompt_encoder()
    if not cue.task.labels or encoder is None or encoder.codebook() is None:
        return None
    try:
        if data is None:
            examples = splits_of_run(folder).validation
        else:
            examples = examples_from(data, row_task, skip_bad_rows=skip_bad_rows)
        return codes_by_label(cue, examples)
    except SoftcueError as error:
        advice = "" if data else "pass --data FILE, the run's own rows cannot be used: "
        typer.echo(f"no codes per label: {advice}{error}", err=True)
        return None
