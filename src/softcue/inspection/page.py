"""Self-contained HTML pages: all about a cue, or an evaluation. Charts are inline SVG in the colours of the page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from softcue.cue.cue import Cue
from softcue.cue.score_table import few_rows_notes, score_table
from softcue.cue.training_curve import step_log
from softcue.drawing import histogram, html_table, scatter_chart, side_by_side
from softcue.evaluation import Evaluation, WrongRow
from softcue.evaluation.report import compare_rows, confusion_table, label_table
from softcue.inspection.checked_rows import CheckedRows, Residuals
from softcue.inspection.codebook_curves import codebook_curves
from softcue.inspection.codes import CodesByLabel
from softcue.inspection.nearest import AT_START, NearestWords

MANY_VECTORS = 12  # from here on the table of nearest words is closed until it is clicked
MAX_TEXT = 400  # characters of a row's text on the page
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: .2rem; overflow-wrap: anywhere; } h2 { margin-top: 2.2rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: .5rem 0 1rem; min-width: min(100%, 24rem); }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { vertical-align: bottom; font-weight: 600; }
.facts { display: flex; flex-wrap: wrap; gap: .4rem; padding: 0; margin: .6rem 0; list-style: none; }
.facts li { background: var(--soft); border-radius: 1rem; padding: .1rem .8rem; overflow-wrap: anywhere; }
.quiet { opacity: .75; font-size: .9rem; } summary { cursor: pointer; margin: .5rem 0; }
ol.wrong { list-style: none; padding: 0; }
ol.wrong > li { border-left: 3px solid #d9822b; padding: .1rem .8rem; margin: 1rem 0; }
ol.wrong p { margin: .2rem 0; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } img { max-width: 100%; background: #fff; border-radius: 4px; }
figcaption { opacity: .75; font-size: .9rem; }
@media (max-width: 40rem) { body { margin: 1rem auto; } th, td { padding: .25rem .4rem; } }
"""


def cue_page(
    cue: Cue,
    words: NearestWords | None,
    codes: CodesByLabel | None,
    pictures: Mapping[str, bytes],
    top: int,
    checked: CheckedRows | None = None,
    more_parts: Sequence[str] = (),
) -> str:
    """The page about a cue; `pictures` are PNG bytes by caption, `checked` are rows with known targets.

    `more_parts` are HTML that comes last.

    Example:
        page = cue_page(cue, nearest_words(cue), None, {}, top=5)
    """
    cue_file = cue.cue_file
    facts = [
        str(cue_file.method["name"]),
        f"{cue_file.backbone.name} ({cue_file.backbone.kind})",
        cue_file.task.kind,
        f"{cue_file.counts.get('gradient', 0):,} trainable parameters and a head of {cue_file.counts.get('head', 0):,}",
    ]
    parts = [
        f"<h1>{escape(cue.name)}</h1>",
        f"<p>{escape(cue_file.task.description or cue_file.task.name)}</p>",
        f'<ul class="facts">{"".join(f"<li>{escape(fact)}</li>" for fact in facts)}</ul>',
        *note_parts([] if cue_file.recipe is None else [cue_file.recipe.summary]),
    ]
    if cue_file.scores:
        table = score_table(cue_file)
        parts += ["<h2>Scores</h2>", html_table(table.columns, table.rows), *note_parts(table.notes)]
    parts += ["<h2>Training</h2>", cue.training_curve.as_html()]
    curves = codebook_curves(step_log(cue.path, cue_file)) if cue.path else []
    if curves:
        parts += ["<h2>Prompts in training</h2>", side_by_side(curves)]
    if checked is not None:
        parts += _checked_parts(cue.name, checked)
    images = [_picture(caption, image) for caption, image in pictures.items()]
    parts += images if codes is None else _codes(codes, images, top)
    if words is not None:
        parts += _words(words, [AT_START] if cue_file.has_kept_start else [])
    if cue.model.method.prompt_text:
        parts += ["<h2>Prompt</h2>", f"<pre>{escape(cue.model.method.prompt_text)}</pre>"]
    return html_page(cue.name, [*parts, *more_parts])


def evaluation_page(title: str, checked: CheckedRows) -> str:
    """The page about an evaluation: scores beside the baselines, labels, confusion matrix and wrong rows.

    Example:
        page = evaluation_page("tickets", check_rows(cue, "held-out.csv"))
    """
    return html_page(title, [f"<h1>{escape(title)}</h1>", *_checked_parts(title, checked)])


def _checked_parts(name: str, checked: CheckedRows) -> list[str]:
    evaluation = checked.evaluation
    notes = few_rows_notes([evaluation.num_rows])
    if evaluation.num_illegal:
        notes.append(f"{evaluation.num_illegal:,} predictions {evaluation.illegal_note}")
    if evaluation.has_collapsed:
        notes.append(evaluation.collapse_note)
    parts = [
        f"<h2>On {escape(checked.name)}</h2>",
        html_table(*compare_rows({name: evaluation.scores}, evaluation)),
        *note_parts(notes),
    ]
    if evaluation.by_label:
        parts += ["<h3>Scores of each label</h3>", label_table(evaluation)]
    if evaluation.confusion is not None:
        explained = (
            "A line per true label, a column per predicted label. Stronger colours stand for more of the line's rows."
        )
        parts += ["<h3>Confusion matrix</h3>", f'<p class="quiet">{explained}</p>']
        parts.append(confusion_table(evaluation.confusion))
    parts += _regression_parts(evaluation)
    parts += _wrong_parts(checked.wrong, is_error=bool(evaluation.scored_rows and evaluation.scored_rows.values))
    return parts


def _regression_parts(evaluation: Evaluation) -> list[str]:
    residuals = Residuals.of(evaluation)
    if residuals is None or evaluation.scored_rows is None:
        return []
    points = list(zip(evaluation.scored_rows.true_values, evaluation.scored_rows.values, strict=True))
    charts = [
        scatter_chart("predicted and true values", points, "true", "predicted"),
        histogram("residuals (predicted minus true)", residuals.values, "residual"),
    ]
    figures = [[name, f"{value:.4g}"] for name, value in residuals.as_dict().items()]
    return ["<h3>Residuals</h3>", side_by_side(charts), html_table(["of the residuals", "value"], figures)]


def _wrong_parts(wrong: Sequence[WrongRow], is_error: bool) -> list[str]:
    title = "Largest errors" if is_error else "Most confident wrong rows"
    if not wrong:
        return [f"<h3>{title}</h3>", "<p>none</p>"]
    items = []
    for row in wrong:
        text = " / ".join(row.texts)
        text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " ..."
        measure = "" if row.score is None else f", {'error' if is_error else 'score'} {row.score:.3g}"
        items.append(
            f"<li><p>{escape(text)}</p><p>true <b>{escape(row.true)}</b>, predicted <b>{escape(row.predicted)}</b>"
            f'<span class="quiet">{measure}; row {row.number:,}</span></p></li>'
        )
    return [f"<h3>{title}</h3>", f'<ol class="wrong">{"".join(items)}</ol>']


def _words(words: NearestWords, notes: Sequence[str]) -> list[str]:
    rows = [
        [vector.position, vector.norm, ", ".join(f"{n.word} {n.cosine:.2f}" for n in vector.neighbours)]
        for vector in words.vectors
    ]
    table = html_table(["#", "norm", "words (cosine)"], rows)
    if len(rows) > MANY_VECTORS:
        table = f"<details><summary>{len(rows)} vectors</summary>{table}</details>"
    return ["<h2>Nearest words of the prompt vectors</h2>", *note_parts(notes), table]


def _codes(codes: CodesByLabel, images: Sequence[str], top: int) -> list[str]:
    row_counts = ", ".join(f"{escape(label)} {count}" for label, count in codes.rows.items())
    num_idle = sum(code.is_idle for code in codes.codes)
    num_unspecific = sum(not code.label for code in codes.codes) - num_idle
    parts = [
        "<h2>Codes per label</h2>",
        f"<p>{codes.num_codes} codes for {codes.num_tokens} vectors; perplexity of their use {codes.perplexity:.1f}, "
        f"idle {num_idle}, taken for all labels alike {num_unspecific}. Rows: {row_counts}. "
        "Odds are those of the label against the mean of the others.</p>",
        *images,
    ]
    for label in codes.rows:
        rows = [
            [code.number, code.odds, 100 * code.share, ", ".join(map(str, code.tokens)) or "-"]
            for code in codes.top(label, top)
        ]
        parts += [f"<h3>{escape(label)}</h3>", html_table(["code", "odds", "share, %", "first for vectors"], rows)]
    return parts


def note_parts(notes: Sequence[str]) -> list[str]:
    """Notes as quiet paragraphs of a page.

    Example:
        >>> note_parts(["5 < 30 rows"])
        ['<p class="quiet">5 &lt; 30 rows</p>']
    """
    return [f'<p class="quiet">{escape(note)}</p>' for note in notes]


def _picture(caption: str, image: bytes) -> str:
    data = base64.b64encode(image).decode()
    text = escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'


def html_page(title: str, parts: Sequence[str]) -> str:
    """A page of these parts, with the style of all pages.

    Example:
        >>> html_page("a < b", ["<p>hello</p>"]).count("<title>a &lt; b</title>")
        1
    """
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n{body}\n</html>\n"
    )
