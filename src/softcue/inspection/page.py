"""One self-contained HTML page about a cue: scores, nearest words, codes per label, pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from softcue.cue.cue import Cue
from softcue.inspection.codes import CodesByLabel
from softcue.inspection.nearest import NearestWords

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
figure { margin: 1rem 0; } img { max-width: 100%; background: #fff; border-radius: 4px; }
figcaption, .quiet { opacity: .75; font-size: .9rem; }
"""


def cue_page(
    cue: Cue, words: NearestWords | None, codes: CodesByLabel | None, pictures: dict[str, bytes], top: int
) -> str:
    """The HTML page; `pictures` are PNG bytes by caption.

    Example:
        page = cue_page(cue, nearest_words(cue), None, {}, top=5)
    """
    cue_file = cue.cue_file
    parts = [
        f"<h1>{escape(cue.name)}</h1>",
        f"<p>{escape(cue_file.task.description or cue_file.task.name)}</p>",
        f'<p class="quiet">{escape(str(cue_file.method["name"]))} on {escape(cue_file.backbone.name)}</p>',
    ]
    if cue_file.scores:
        metrics = list(dict.fromkeys(metric for scores in cue_file.scores.values() for metric in scores))
        rows = [[split, *(scores.get(metric, "") for metric in metrics)] for split, scores in cue_file.scores.items()]
        parts += ["<h2>Scores</h2>", _table(["rows", *metrics], rows)]
    parts += [_picture(caption, image) for caption, image in pictures.items()]
    if codes is not None:
        parts += _codes(codes, top)
    if words is not None:
        rows = [
            [vector.position, vector.norm, ", ".join(f"{n.word} {n.cosine:.2f}" for n in vector.neighbours)]
            for vector in words.vectors
        ]
        parts += ["<h2>Nearest words of the prompt vectors</h2>", _table(["#", "norm", "words (cosine)"], rows)]
    body = "\n".join(parts)
    title = escape(cue.name)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _codes(codes: CodesByLabel, top: int) -> list[str]:
    row_counts = ", ".join(f"{escape(label)} {count}" for label, count in codes.rows.items())
    num_idle = sum(code.is_idle for code in codes.codes)
    num_unspecific = sum(not code.label for code in codes.codes) - num_idle
    parts = [
        "<h2>Codes per label</h2>",
        f"<p>{codes.num_codes} codes for {codes.num_tokens} vectors; perplexity of their use {codes.perplexity:.1f}, "
        f"idle {num_idle}, taken for all labels alike {num_unspecific}. Rows: {row_counts}. "
        "Odds are those of the label against the mean of the others.</p>",
    ]
    for label in codes.rows:
        rows = [
            [code.number, code.odds, 100 * code.share, ", ".join(map(str, code.tokens)) or "-"]
            for code in codes.top(label, top)
        ]
        parts += [f"<h3>{escape(label)}</h3>", _table(["code", "odds", "share, %", "first for vectors"], rows)]
    return parts


def _picture(caption: str, image: bytes) -> str:
    data = base64.b64encode(image).decode()
    text = escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return '<p class="quiet">none</p>'
    kinds = [' class="number"' if isinstance(cell, (int, float)) else "" for cell in rows[0]]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(columns, kinds, strict=True))
    lines = []
    for row in rows:
        cells = (
            f"<td{kind}>{escape(f'{cell:.2f}' if isinstance(cell, float) else str(cell))}</td>"
            for cell, kind in zip(row, kinds, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
