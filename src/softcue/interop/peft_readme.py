"""The README.md of a PEFT folder: how it is loaded, the input text, and what of the cue is not in it."""

from __future__ import annotations

from typing import NamedTuple

from softcue.backbones import Backbone
from softcue.cue import Cue
from softcue.cue.cue_file import package_versions

AUTO_CLASSES = {"encoder-decoder": "AutoModelForSeq2SeqLM", "decoder": "AutoModelForCausalLM"}


class Readme(NamedTuple):
    """The text, and what of it the export says too."""

    text: str
    notes: tuple[str, ...]


def auto_class(backbone: Backbone) -> str:
    """The class of transformers that loads the model under the names of modules that the cue has.

    Example:
        auto_class(load_backbone("gpt2"))     # "AutoModelForCausalLM"
    """
    with_word_head = "AutoModelForMaskedLM" if backbone.word_head is not None else "AutoModel"
    return AUTO_CLASSES.get(backbone.kind, with_word_head)


def base_model_of(cue: Cue) -> str:
    """The name under which transformers finds the backbone: its folder, unless the name is a hub id.

    Example:
        base_model_of(softcue.load("cues/tickets"))
    """
    return cue.cue_file.backbone.name if cue.backbone.folder is None else str(cue.backbone.folder.resolve())


def peft_readme(cue: Cue, peft_type: str, num_virtual_tokens: int, tokens_before: tuple[int, ...]) -> Readme:
    """Describe the PEFT folder of a cue. `tokens_before` are ids of tokens that are virtual tokens now.

    Example:
        peft_readme(cue, "LORA", 0, ()).notes
    """
    backbone, class_name = cue.backbone, auto_class(cue.backbone)
    # An encoder-decoder's output is that of its decoder.
    has_positions = peft_type == "PROMPT_TUNING" and backbone.kind != "encoder-decoder"
    notes = [
        *_token_notes(cue, tokens_before),
        *(_state_notes(num_virtual_tokens, tokens_before) if has_positions else []),
        *_readout_notes(cue),
    ]
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    base = base_model_of(cue)
    templates = cue.model.formatter.templates
    lines = [
        f"# {cue.name}",
        "",
        f"`{cue.model.method.config.name}` for the task `{cue.task.name}` on `{base}`, as {peft_type} of PEFT. "
        f"Exported from a softcue cue ({versions}).",
        "",
        "```python",
        "from peft import PeftModel",
        f"from transformers import AutoTokenizer, {class_name}",
        "",
        f'model = {class_name}.from_pretrained("{base}")',
        'model = PeftModel.from_pretrained(model, "this folder")',
        f'tokenizer = AutoTokenizer.from_pretrained("{base}")',
        "```",
        "",
        "## Input text",
        "",
        "The text, with the columns of a row in braces:" if len(templates) == 1 else "Two texts, given as a pair:",
        *(part for template in templates for part in ("", "```", template, "```")),
        "",
        *(f"- {note}" for note in notes),
    ]
    if cue.task.labels:
        lines += ["", "## Labels", "", "| label | words |", "|---|---|"]
        lines += [f"| {_cell(name)} | {_cell(label.words)} |" for name, label in cue.task.labels.items()]
    lines += [
        "",
        f"Backbone fingerprint: {', '.join(f'{part} {digest}' for part, digest in vars(backbone.fingerprint).items())}",
    ]
    return Readme("\n".join(lines) + "\n", tuple(notes))


def _token_notes(cue: Cue, tokens_before: tuple[int, ...]) -> list[str]:
    """How a text becomes token ids."""
    notes = []
    if tokens_before:
        [name] = cue.backbone.tokenizer.convert_ids_to_tokens(list(tokens_before))
        notes.append(f"Leave out the first token of a tokenized text ({name}): it is the first virtual token.")
    if cue.backbone.kind == "decoder":
        notes.append("Leave out an end token if the tokenizer adds one to the text.")
    if cue.model.readout.pads_punctuation and cue.backbone.kind != "encoder":
        notes.append("Put spaces around punctuation in the texts of a row, not in the template.")
    notes.append(f"The cue cuts texts so that {cue.model.formatter.limit} tokens of input remain; PEFT does not.")
    return notes


def _state_notes(num_virtual_tokens: int, tokens_before: tuple[int, ...]) -> list[str]:
    """Which outputs belong to which token."""
    first = " The first of them is the token left out." if tokens_before else ""
    return [f"The first {num_virtual_tokens} positions of the output are virtual tokens.{first}"]


def _readout_notes(cue: Cue) -> list[str]:
    """How the cue turns outputs into a prediction, which is not in the folder."""
    readout = cue.model.readout
    if any(True for _ in readout.parameters()):
        reads = f" (it reads the {readout.summary} of the text's last hidden states)" if readout.summary else ""
        return [
            f"The trained head is not in the folder{reads}: its tensors are readout.* in the cue's cue.safetensors."
        ]
    if readout.decoding is None and cue.task.labels:
        return ["Template and label words are in README.md alone: the cue compares how likely the labels' words are."]
    return ["Template and label words are in README.md alone; the cue writes text, and decoding is the user's choice."]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
