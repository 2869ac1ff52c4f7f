"""`softcue export --to prompt-embeds`: what a decoder reads for each row, as embeddings of prompt and text.

    rows-00001.safetensors    of row N: `N.inputs_embeds` [S D], prompt and text in their order, without padding, and
                              `N.prompt` [P D], the prompt alone; rows are counted from 1
    rows.jsonl                of each row its number, file, number of tokens and texts

A server that takes embeddings in place of token ids then answers as the cue does, also where prompts read the input.
The numbers have the format of the backbone. The files are for these texts alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from softcue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.files import serialize_tensors, write_atomically
from softcue.inference import find_obstacle
from softcue.inputs.collate import collate
from softcue.interop.export import ExportOptions, ExportReport
from softcue.methods.method import PromptedConfig
from softcue.types import Example

ROWS_PER_FILE = 256
ROWS_AT_ONCE = 32


def export_prompt_embeds(cue: Cue, folder: Path, options: ExportOptions) -> ExportReport:
    """Write the input embeddings of prompt and text for the rows of `options.data`.

    Example:
        export_cue(softcue.load("cues/tickets"), "prompt-embeds", "embeds", ExportOptions(data="rows.csv"))
    """
    examples = _read_examples(cue, options)
    lines: list[str] = []
    num_tokens = 0
    tensors: dict[str, Tensor] = {}
    for first in range(0, len(examples), ROWS_AT_ONCE):
        some = examples[first : first + ROWS_AT_ONCE]
        file = f"rows-{first // ROWS_PER_FILE + 1:05}.safetensors"
        for row, (example, (embeds, prompt)) in enumerate(zip(some, _embed(cue, some), strict=True), start=first + 1):
            tensors |= {f"{row}.inputs_embeds": embeds, f"{row}.prompt": prompt}
            facts = {"row": row, "file": file, "num_tokens": len(embeds), "texts": list(example.texts)}
            lines.append(json.dumps(facts, ensure_ascii=False))
            num_tokens += len(embeds)
        next_row = first + len(some)
        if next_row % ROWS_PER_FILE == 0 or next_row == len(examples):
            write_atomically(folder / file, serialize_tensors(tensors))
            tensors = {}
    write_atomically(folder / "rows.jsonl", "".join(f"{line}\n" for line in lines).encode())
    notes = (
        f"Each row is one sequence of input embeddings for {cue.cue_file.backbone.name}; the answer follows it.",
        "Label words and decoding are not in the folder.",
    )
    return ExportReport({"rows": len(examples), "tokens": num_tokens, "width": cue.backbone.width}, notes)


def _read_examples(cue: Cue, options: ExportOptions) -> list[Example]:
    """Check the cue and read the rows; a text that is longer than the backbone takes gives several."""
    method, backbone = cue.model.method, cue.backbone
    if options.data is None:
        _refuse("data", None, "a file with the texts", "pass `data=FILE`")
    if not isinstance(method.config, PromptedConfig) and backbone.kind == "decoder":
        _refuse("method.name", method.config.name, "a method with a prompt", "export it with `to=peft` if PEFT has it")
    if obstacle := find_obstacle(cue.model, backbone):
        advice = (
            "export the backbone first: softcue backbones export"
            if method.weights is not None
            else "prompts of deeper layers that are the same for every input go to PEFT with `to=peft`"
        )
        _refuse(obstacle.setting, obstacle.got, obstacle.expected, f"{obstacle.reason}; {advice}")
    examples = [part for example in cue.examples(Path(options.data)) for part in cue.model.split(example)]
    if not examples:
        _refuse("data", options.data, "at least one row", "check the file")
    return examples


@torch.no_grad()
def _embed(cue: Cue, examples: Sequence[Example]) -> list[tuple[Tensor, Tensor]]:
    """The input embeddings [S D] and the prompt [P D] of each row."""
    model, backbone = cue.model, cue.backbone
    rows = model.rows(backbone, examples, use_disk_cache=False)
    batch = collate(rows, backbone.tokenizer.pad_token_id).to(backbone.device)
    forward_pass, prompt = model.read(model.method.view_of(backbone), batch)
    assert prompt is not None
    embeds, layout = forward_pass.embeds, forward_pass.layout
    return [
        (embeds[row, layout.mask[row]], prompt.tokens[row, prompt.mask[row]].to(backbone.dtype))
        for row in range(len(examples))
    ]


def _refuse(setting: str, got: object, expected: str, fix: str) -> NoReturn:
    raise ConfigurationError(setting=setting, got=got, expected=f"{expected} for an export of embeddings", fix=fix)
