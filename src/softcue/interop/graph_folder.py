"""What a graph needs beside it to read texts: a tokenizer file, a record, and a script without torch and softcue.

`predict.py` is the code that users run. The export is compared with its cue through this file, so what is checked is
what is used: template, special tokens, cutting, padding and graph together.
"""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softcue.cue import Cue
from softcue.cue.rows_to_compare import RowsToCompare
from softcue.errors import ConfigurationError
from softcue.files import write_atomically, write_json
from softcue.inputs.special_tokens import special_token_pattern
from softcue.interop.agreement import Agreement, Run, measure_agreement
from softcue.interop.encoder_graph import EncoderGraph
from softcue.interop.export import ExportOptions, ExportReport
from softcue.tasks import Task

FORMAT = 1  # of export.json
MEGABYTE = 1e6
_PLACE = re.compile("\0([0-9]+)\0")  # stands for a text while a template is taken apart


@dataclass(frozen=True)
class Runtime:
    """The software that runs a graph, and the lines of `predict.py` that are its own."""

    name: str
    file: str  # of the graph
    package: str  # to install beside tokenizers
    imports: str
    session: str  # sets `run`: inputs by name -> scores [N C]


SCRIPT = '''"""Predictions of a cue from its graph. It needs numpy, tokenizers, {package}, and no torch."""
import json
import re
import sys
from pathlib import Path

import numpy as np
{imports}
from tokenizers import Tokenizer

here = Path(__file__).parent
about = json.loads((here / "export.json").read_text("utf-8"))
tokenizer = Tokenizer.from_file(str(here / "tokenizer.json"))  # it cuts and pads too
{session}


def predict(rows):
    """Rows of texts, in the order of about["text"], to scores: a probability per label, or one number. [N C]"""
    if len(rows) == 0:
        return np.zeros((0, max(1, len(about["labels"]))), np.float32)
    filled = [["".join(part if isinstance(part, str) else row[part] for part in template)
               for template in about["templates"]] for row in rows]
    plain = [[re.sub(about["special_tokens"], lambda token: " " + token[0][1:], text) for text in texts]
             for texts in filled]  # special tokens that are written in a text are text
    encoded = tokenizer.encode_batch([tuple(texts) if len(texts) == 2 and texts[1] else texts[0] for texts in plain])
    inputs = {{
        "input_ids": [row.ids for row in encoded],
        "attention_mask": [row.attention_mask for row in encoded],
        "token_type_ids": [row.type_ids for row in encoded],
        "text_parts": [[-1 if part is None else part for part in row.sequence_ids] for row in encoded],
    }}
    return run({{name: np.array(inputs[name], dtype=np.int64) for name in about["inputs"]}})


if __name__ == "__main__":
    scores = predict([sys.argv[1:]])[0].tolist()
    print(json.dumps(dict(zip(about["labels"], scores)) if about["labels"] else scores[0]))
'''

README = """# {cue} for {runtime}

`{file}` is the cue `{cue}` ({method} on {backbone}) as one graph: {what}. It takes {inputs} (int64, [rows, tokens]) and
gives `scores` [rows, {outputs}].

```
pip install numpy tokenizers {package}
python predict.py {example}
```
{labels}
- `tokenizer.json` cuts texts to {max_tokens} tokens and pads them.
- `export.json` has labels, templates, inputs, and how far the scores are from the cue's.
- `predict.py` is the whole program:

```python
{script}```

## Agreement with the cue
{agreement}
"""


def write_graph_folder(
    graph: EncoderGraph, folder: Path, runtime: Runtime, options: ExportOptions, rows: RowsToCompare
) -> ExportReport:
    """Write everything beside the graph's own file, compare it with the cue, and say how far it is from it.

    Example:
        write_graph_folder(graph, Path("tickets-onnx"), ONNX, ExportOptions(), read_rows_to_compare(cue, None))
    """
    cue = graph.cue
    script = SCRIPT.format(package=runtime.package, imports=runtime.imports, session=runtime.session)
    about = _describe(cue, graph, runtime, options)
    write_tokenizer(cue, folder / "tokenizer.json")
    write_json(folder / "export.json", about)
    write_atomically(folder / "predict.py", script.encode())
    run: Run = runpy.run_path(str(folder / "predict.py"))["predict"]
    agreement = measure_agreement(cue, lambda texts: [list(map(float, scores)) for scores in run(texts)], rows)
    agreement.check(options.int8, options.force)
    write_json(folder / "export.json", {**about, "agreement": agreement.as_dict()})
    write_atomically(folder / "README.md", _readme(cue, about, runtime, agreement, script).encode())
    size = sum(file.stat().st_size for file in folder.glob(f"{Path(runtime.file).stem}*"))
    facts: dict[str, str | int | float] = {"megabytes": round(size / MEGABYTE, 1), **agreement.facts()}
    return ExportReport(facts, tuple(_notes(cue, agreement)))


def check_template(cue: Cue, force: bool) -> None:
    """Raise an error if cutting would lose words of the template, unless it is forced.

    softcue cuts the texts of a row and never its template. A tokenizer cuts the filled template at its end.

    Example:
        check_template(softcue.load("cues/tickets"), force=False)
    """
    if (ending := _template_ending(cue.task)) and not force:
        raise ConfigurationError(
            setting=f"template of task {cue.task.name}",
            got=f"{ending!r} behind its last column",
            expected="a template that ends with a column: the export cuts long texts at the end, template included",
            fix="write it with --force if your texts are short",
        )


def _template_ending(task: Task) -> str:
    """The words behind the last column of a template; empty if there are none."""
    last_parts = [template[-1] for template in _templates(task) if template]
    return next((part for part in last_parts if isinstance(part, str) and part.strip()), "")


def _templates(task: Task) -> list[list[str | int]]:
    """The one or two texts that the tokenizer reads, as words and indices of columns."""
    texts = tuple(f"\0{number}\0" for number in range(len(task.text)))
    return [
        [int(part) if number % 2 else part for number, part in enumerate(_PLACE.split(sentence)) if part]
        for sentence in task.for_encoder(texts)
    ]


def _describe(cue: Cue, graph: EncoderGraph, runtime: Runtime, options: ExportOptions) -> dict[str, Any]:
    model, task = cue.model, cue.task
    return {
        "format": FORMAT,
        "cue": cue.name,
        "version": cue.cue_file.record_sha256,
        "backbone": cue.cue_file.backbone.name,
        "method": cue.cue_file.method["name"],
        "kind": task.kind,
        "file": runtime.file,
        "int8": options.int8,
        "text": list(task.text),
        "templates": _templates(task),
        "special_tokens": special_token_pattern(cue.backbone.tokenizer),
        "max_tokens": model.formatter.limit,
        "inputs": list(graph.input_names),
        "outputs": ["scores"],
        "labels": [task.label_value(name) for name in task.label_names],
        "threshold": model.readout.config.threshold if task.kind == "multi-label" else None,
        "agreement": None,
    }


def write_tokenizer(cue: Cue, path: Path) -> None:
    """Write the tokenizer with the cue's limit and its padding.

    Example:
        write_tokenizer(softcue.load("cues/tickets"), Path("tokenizer.json"))
    """
    from tokenizers import Tokenizer

    tokenizer = cue.backbone.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ConfigurationError(
            setting=f"tokenizer of {cue.backbone.name}",
            got=type(tokenizer).__name__,
            expected="one of the tokenizers package, which runs without transformers",
            fix="use `softcue serve`, or `softcue export --to mlflow`",
        )
    copied = Tokenizer.from_str(backend.to_str())
    copied.enable_truncation(max_length=cue.model.formatter.limit)
    copied.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
    write_atomically(path, copied.to_str().encode())


def _readme(cue: Cue, about: dict[str, Any], runtime: Runtime, agreement: Agreement, script: str) -> str:
    task = cue.task
    labels = f"Labels, in the order of the scores: {', '.join(task.label_names)}.\n" if task.labels else ""
    if task.kind == "multi-label":
        labels += f"A label is predicted from a score of {about['threshold']:g} on.\n"
    compared = [f"- {name}: {value}" for name, value in agreement.facts().items()]
    return README.format(
        cue=cue.name,
        runtime=runtime.name,
        file=runtime.file,
        method=about["method"],
        backbone=about["backbone"],
        what="backbone with 8-bit weights, prompts and head" if about["int8"] else "backbone, prompts and head",
        inputs=", ".join(f"`{name}`" for name in about["inputs"]),
        outputs=max(1, len(task.label_names)),
        package=runtime.package,
        example=" ".join(f'"{name}"' for name in task.text),
        labels=labels,
        max_tokens=about["max_tokens"],
        script=script,
        agreement="\n".join([*compared, *(f"- {note}" for note in _notes(cue, agreement))]),
    )


def _notes(cue: Cue, agreement: Agreement) -> list[str]:
    """What a user of the export should know."""
    notes = []
    if agreement.data is None:
        notes.append("only made-up texts were compared: name rows with --data, the cue's own are not there")
    if cue.cue_file.backbone.dtype != "float32":
        notes.append(f"the cue was trained in {cue.cue_file.backbone.dtype}; the export is compared with it in float32")
    limit = cue.model.formatter.limit
    if _template_ending(cue.task):
        notes.append(f"texts longer than {limit} tokens lose the end of the template")
    reads_vectors = cue.model.method.representation is not None
    if reads_vectors:
        notes.append(f"M(x) is of the first {limit} tokens; in softcue it may read more of a longer text")
    return notes
