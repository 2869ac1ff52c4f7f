"""Write the generated parts of docs/methods: settings, parameters, preset against paper, results, and the pictures.

    python scripts/methods_docs.py             write them
    python scripts/methods_docs.py --check     exit code 1 if a file would change

A page is written by hand but for what stands between `<!-- NAME -->` and `<!-- end of NAME -->`. Results are lines of
the tables of docs/results.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "methods"
PICTURES = ROOT / "docs" / "images" / "methods"
RESULTS = ROOT / "docs" / "results.md"
# Backbones whose parameters are counted, with their kind.
SHAPES = {"minilm": "encoder", "roberta-large": "encoder", "t5-base": "encoder-decoder", "gpt2": "decoder"}
SECTIONS_OF_RECIPES = ("method", "readout", "training")


def pages() -> dict[Path, str]:
    """Return the text of every generated file, by its path."""
    from softcue.methods import METHODS

    files = {FOLDER / f"{name}.md": page_of(name) for name in METHODS.built_in}
    return {**files, **{PICTURES / f"{name}.svg": draw(*parts) for name, parts in FAMILIES.items()}}


def page_of(name: str) -> str:
    """Return the page of a method with its generated parts made anew."""
    page = (FOLDER / f"{name}.md").read_text("utf-8")
    for block, make in BLOCKS.items():
        begin, end = f"<!-- {block} -->\n", f"<!-- end of {block} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"docs/methods/{name}.md has no part {begin.strip()} ... {end}")
        page = f"{before}{begin}\n{make(name)}\n\n{end}{after}"
    return page


# --- the generated parts ---


def settings_part(name: str) -> str:
    """The settings of a method's own section, with the preset of each kind of backbone where it differs."""
    from softcue.methods import METHODS
    from softcue.settings_docs import format_value, list_settings

    by_kind = {kind: {s.key: s for s in list_settings("method", name, kind)} for kind in METHODS[name].kinds}
    rows = []
    for key, setting in next(iter(by_kind.values())).items():
        if key == "name":
            continue
        presets = {kind: format_value(settings[key].value) for kind, settings in by_kind.items()}
        values = [f"`{value}`" for value in dict.fromkeys(presets.values())]
        if len(values) > 1:
            values = [f"`{value}` ({kind})" for kind, value in presets.items()]
        rows.append(
            [f"`{key}`", setting.type, f"`{format_value(setting.default)}`", ", ".join(values), setting.meaning]
        )
    if not rows:
        return "The method has no settings of its own."
    preset = "`softcue train` takes the preset. The default is what a method has without a preset."
    return f"{preset}\n\n{table(['`method.`', 'type', 'default', 'preset', 'meaning'], rows)}"


def parameters_part(name: str) -> str:
    """The parameters on a few backbones, for the preset and for the paper's settings."""
    rows = []
    for shape, kind in SHAPES.items():
        cells = [f"{shape} ({kind})"]
        for recipe in ("default", "paper"):
            count = counts_on(shape, recipe).get(name)
            cells += [f"{count.gradient:,}", f"{count.stored:,}"] if count else ["-", "-"]
        if set(cells[1:]) != {"-"}:
            rows.append(cells)
    if not rows:
        return "The method cannot be built on the backbones that are counted."
    return table(["backbone", "trained, preset", "stored, preset", "trained, paper", "stored, paper"], rows)


def recipe_part(name: str) -> str:
    """Where the preset differs from the paper, on the kind of backbone that the paper uses."""
    from softcue.recipes import paper_recipe
    from softcue.settings_docs import format_value, list_settings

    recipe = paper_recipe(name)
    if not recipe.paper or not recipe.settings:
        return "There is no paper whose settings could be compared."
    rows = []
    training = {setting.key: setting.value for setting in list_settings("training", name, recipe.kind)}
    in_other_units = {}  # settings whose place another one takes
    if training["relative_rate"]:
        in_other_units["training.learning_rate"] = f"{training['relative_rate']:g} of the words' size"
    if not training["steps"]:
        in_other_units["training.steps"] = f"{training['epochs']} epochs, at least {training['min_steps']} steps"
    for section in SECTIONS_OF_RECIPES:
        for setting in list_settings(section, name, recipe.kind):
            paper = recipe.settings.get(setting.path)
            if paper is None or paper.agrees(setting.value):
                continue
            source = paper.source if paper.is_from_paper else f"chosen here: {paper.source}"
            preset = in_other_units.get(setting.path) or shown(format_value(setting.value))
            rows.append([f"`{setting.path}`", preset, shown(format_value(paper.value)), source])
    heading = f"On backbones of kind {recipe.kind}" + (
        f" ({recipe.paper}: {recipe.backbone})" if recipe.backbone else ""
    )
    if not rows:
        return f"{heading}, the preset has the paper's values."
    return f"{heading}. Settings that agree are left out; `softcue methods {name}` has them all.\n\n" + table(
        ["setting", "preset", "paper", "where the paper says so"], rows
    )


def results_part(name: str) -> str:
    """The lines about a method in the tables of docs/results.md, under the headings they stand below."""
    found: list[str] = []
    for heading, head, lines in result_tables():
        # The name alone, or followed by how the run differs; not a sentence that begins with it.
        own = [line for line in lines if re.match(rf"\| {re.escape(name)}(?:,[^|]*| \([^|]*| on [^|]*)? \|", line)]
        if own:
            width = head.count("|") - 1
            found += ["", f"[{heading}](../results.md#{anchor(heading)})", "", head, "|" + "---|" * width, *own]
    if not found:
        return (
            "No table of [results.md](../results.md) has a line for it. [papers.md](../papers.md) and the "
            "[lab notes](../lab-notes.md) say what was tried."
        )
    return "\n".join(found[1:])


BLOCKS: dict[str, Callable[[str], str]] = {
    "settings": settings_part,
    "parameters": parameters_part,
    "recipe": recipe_part,
    "results": results_part,
}


@cache
def counts_on(shape: str, recipe: str) -> dict[str, Any]:
    """The parameters of all methods on a backbone: what `softcue params` prints."""
    from softcue.backbones.loading.shapes import backbone_like
    from softcue.inspection.parameter_sizes import count_methods
    from softcue.methods import METHODS

    counts, _ = count_methods(backbone_like(shape), {name: (name, {}) for name in METHODS.built_in}, recipe)
    return dict(counts)


@cache
def result_tables() -> list[tuple[str, str, list[str]]]:
    """The tables of docs/results.md: heading, first line, lines."""
    tables: list[tuple[str, str, list[str]]] = []
    heading = ""
    lines: list[str] = []
    for line in [*RESULTS.read_text("utf-8").splitlines(), ""]:
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            tables.append((heading, lines[0], lines[2:]))
            lines = []
    return tables


def anchor(heading: str) -> str:
    """The anchor of a heading, as code hosts and the site make it."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", heading.lower()).strip())


def shown(value: str) -> str:
    """A value in code marks."""
    return f"`{value}`" if value else "(empty)"


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- |", "|---|").replace(" --- |", "---|")


# --- the pictures ---

# What is trained, by family: (title, parts of the picture)
FAMILIES: dict[str, tuple[str, set[str]]] = {
    "words": ("Trained vectors stand beside the words; the frozen layers read both", {"vectors"}),
    "generated-words": (
        "A trained network reads the input and makes vectors beside the words",
        {"vectors", "generator"},
    ),
    "layers": ("Trained vectors enter every layer, the same for every input", {"each-layer"}),
    "generated-layers": (
        "A trained network reads the input and makes vectors for every layer",
        {"each-layer", "generator"},
    ),
    "inside": ("Small trained networks stand behind the sub-layers of every frozen layer", {"inside"}),
    "updates": ("Trained products of two thin matrices stand beside matrices of every frozen layer", {"updates"}),
    "weights": ("All weights of a copy of the model are trained", {"weights"}),
    "head": ("The model is frozen and reads the words alone; only the head is fitted", set()),
    "text": ("Nothing is trained: an instruction and example rows stand before the row as text", {"text"}),
}
STYLE = """\
  <style>
    text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
    .small { font-size: 12px; fill: #59636e; }
    .frozen { fill: #e7edf3; stroke: #57606a; stroke-width: 1.2; }
    .word { fill: #f6f8fa; stroke: #8b949e; }
    .trained { fill: #d55e00; stroke: #a84a00; }
    .given { fill: #cfd7df; stroke: #57606a; }
    .on { fill: #ffffff; font-weight: 600; }
    .arrow { stroke: #57606a; stroke-width: 1.4; fill: none; }
    .tip { fill: #57606a; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .small { fill: #a9b1ba; }
      .frozen { fill: #2d333b; stroke: #8b949e; }
      .word { fill: #22272e; stroke: #6e7681; }
      .given { fill: #444c56; stroke: #8b949e; }
      .trained { fill: #c75400; stroke: #f0883e; }
      .on { fill: #ffffff; }
      .arrow { stroke: #a9b1ba; } .tip { fill: #a9b1ba; }
    }
  </style>
  <defs>
    <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
      <path class="tip" d="M0 0 L8 4 L0 8 z"/>
    </marker>
  </defs>"""
LAYERS = {"layer 3": 66, "layer 2": 122, "layer 1": 178}  # the upper edge of each layer


def draw(title: str, parts: set[str]) -> str:
    """A picture of a frozen model with the trained parts in colour."""
    left = 250  # of the layers; the generator stands at its left
    shapes = [_box("trained" if "weights" in parts else "frozen", left, top, 350, 38) for top in LAYERS.values()]
    shapes += [_text(name, left + 292, top + 24, "on" if "weights" in parts else "") for name, top in LAYERS.items()]
    if "text" in parts:
        shapes += [_box("frozen", left + 110, 14, 130, 30), _text("label words", left + 137, 34)]
    else:
        shapes += [_box("trained", left + 110, 14, 130, 30), _text("head", left + 159, 34, "on")]
    shapes += [_arrow(left + 175, 64, left + 175, 48)]
    shapes += [_arrow(left + 175, top - 2, left + 175, top - 16) for top in (122, 178)]
    beside = "vectors" in parts or "text" in parts
    for number, word in enumerate(("the", "tap", "drips")):
        at = left + (170 if beside else 90) + 60 * number
        shapes += [_box("word", at, 238, 52, 30), _text(word, at + 9, 258)]
    if "vectors" in parts:
        shapes += [_box("trained", left + 10 + 36 * number, 238, 28, 30) for number in range(4)]
    if "text" in parts:
        shapes += [_box("given", left, 238, 160, 30), _text("words and examples", left + 14, 258)]
    shapes += [_arrow(left + 175, 236, left + 175, 220)]
    if "each-layer" in parts:
        for top in LAYERS.values():
            shapes += [_box("trained", left + 80 + 20 * number, top + 9, 14, 20) for number in range(4)]
    if "inside" in parts:
        for top in LAYERS.values():
            shapes += [_box("trained", left + at, top + 8, 46, 22) for at in (70, 200)]
    if "updates" in parts:  # a matrix of the layer, and beside it its update
        for top in LAYERS.values():
            for at in (50, 170):
                shapes += [_box("word", left + at, top + 7, 24, 24), _text("+", left + at + 30, top + 24)]
                shapes += [
                    _box("trained", left + at + 44, top + 7, 8, 24),
                    _box("trained", left + at + 56, top + 15, 24, 8),
                ]
    if "generator" in parts:
        goals = [top + 19 for top in LAYERS.values()] if "each-layer" in parts else [253]
        shapes += [_box("trained", 56, 132, 120, 44), _text("generator", 84, 159, "on")]
        shapes += [_path(f"M176 154 H206 V{goal} H{left + (76 if 'each-layer' in parts else 6)}") for goal in goals]
        last_word = left + (170 if beside else 90) + 146
        shapes += [_path(f"M{last_word} 270 V290 H116 V180"), _text("reads the input", 126, 284, "small")]
    else:
        legend = ["grey: frozen"] if "text" in parts else ["orange: fitted", "grey: frozen"]
        shapes += [_text(words, 56, 148 + 18 * number, "small") for number, words in enumerate(legend)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 304" role="img" aria-label="{title}">',
            STYLE,
            *(f"  {shape}" for shape in shapes),
            "</svg>\n",
        ]
    )


def _box(kind: str, x: int, y: int, width: int, height: int) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'


def _text(words: str, x: int, y: int, kind: str = "") -> str:
    return f'<text{f" class={chr(34)}{kind}{chr(34)}" if kind else ""} x="{x}" y="{y}">{words}</text>'


def _arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    return _path(f"M{x1} {y1} L{x2} {y2}")


def _path(line: str) -> str:
    return f'<path class="arrow" d="{line}" marker-end="url(#tip)"/>'


def main() -> None:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    files = pages()
    changed = [path for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text]
    if is_check and changed:
        sys.exit(f"{changed[0].relative_to(ROOT)} is not what scripts/methods_docs.py writes: run it")
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], "utf-8")


if __name__ == "__main__":
    main()
