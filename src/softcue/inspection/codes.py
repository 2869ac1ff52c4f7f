"""Which codes speak for which label (Bhardwaj et al. 2022, appendix A.3): odds over rows with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softcue.cue.cue import Cue
from softcue.errors import CueError, DataError
from softcue.inputs.collate import by_length, collate
from softcue.prompts.quantizer import perplexity
from softcue.types import Example, Instance

SMALLEST = 0.1  # of an even share: a code taken less often than that is idle
SPEAKS = 1.1  # odds from which a code speaks for a label


@dataclass(frozen=True)
class Code:
    """One code of the codebook."""

    number: int
    share: float  # of all that the tokens take
    is_idle: bool  # hardly ever taken
    label: str  # the label it speaks for; empty for one that is idle or taken for all labels alike
    odds: float  # of its likeliest label against the mean of the others, labels counted as equally frequent
    tokens: list[int]  # prompt vectors for which it is the code with the highest odds for that label


@dataclass(frozen=True)
class CodesByLabel:
    """A codebook in use."""

    num_codes: int
    num_tokens: int
    rows: dict[str, int]  # per label
    perplexity: float
    codes: list[Code]  # every code, in order
    owners: list[int] | None  # where every code is taken by one vector alone: which

    def top(self, label: str, count: int) -> list[Code]:
        """The codes that speak for a label, by their odds."""
        own = [code for code in self.codes if code.label == label]
        return sorted(own, key=lambda code: -code.odds)[:count]


@torch.no_grad()
def codes_by_label(cue: Cue, examples: Sequence[Example], batch_size: int = 64) -> CodesByLabel:
    """How the codes of a cue are shared among the labels of some rows.

    Example:
        cue = softcue.load("cues/mine")
        found = codes_by_label(cue, examples_from("rows.csv", cue.task))
    """
    labels = cue.task.label_names
    encoder = cue.model.method.prompt_encoder()
    if not labels or encoder is None or encoder.codebook() is None:
        raise CueError(
            setting="cue",
            got=cue.name,
            expected="a method with a codebook, on a task with labels",
            fix=f"{cue.record.method['name']} on {cue.task.kind} has no codes per label",
        )
    sums: Tensor | None = None  # [C n K]
    model, backbone = cue.model, cue.backbone
    seen = model.method.view_of(backbone)
    rows = model.rows(backbone, examples)
    counts = torch.zeros(len(labels))
    for numbers in by_length([len(row.ids) for row in rows], batch_size, backbone.tokens_at_once):
        batch = collate([rows[number] for number in numbers], backbone.tokenizer.pad_token_id).to(backbone.device)
        shares = encoder.assignment(Instance(seen.input_states(batch), batch.mask, batch.representation)).cpu()
        sums = torch.zeros(len(labels), *shares.shape[1:]) if sums is None else sums
        own = torch.tensor([labels.index(str(examples[number].target)) for number in numbers])
        sums.index_add_(0, own, shares)
        counts += torch.bincount(own, minlength=len(labels))
    if sums is None or not bool((counts > 0).all()):
        missing = labels[int((counts == 0).nonzero()[0])]
        raise DataError(
            setting="rows",
            got=f"none of label '{missing}'",
            expected="rows of every label",
            fix="pass other rows: odds compare labels",
        )
    means = sums / counts.view(-1, 1, 1)  # [C n K] labels weigh alike
    embedded = encoder.embedded()
    first = 0 if embedded is None else len(embedded) - means.shape[1]  # plain vectors stand in front
    return _speaking(means, labels, counts, float(perplexity(sums.sum((0, 1)))), first)


def _speaking(means: Tensor, labels: Sequence[str], counts: Tensor, in_use: float, first: int) -> CodesByLabel:
    num_tokens, num_codes = means.shape[1:]
    even = 1 / num_codes
    overall = means.mean(1)  # [C K]
    odds = _odds(overall, even)
    best, speaks_for = odds.max(0)  # [K]
    share = overall.mean(0)  # [K]
    chosen = _odds(means, even).argmax(2)  # [C n] for each label and token one code, as in figure 4
    tokens: dict[tuple[int, int], list[int]] = {}
    for label in range(len(labels)):
        for token, code in enumerate(chosen[label].tolist()):
            tokens.setdefault((label, code), []).append(first + token)
    codes = []
    for number in range(num_codes):
        label = int(speaks_for[number])
        is_idle = float(share[number]) < SMALLEST * even
        speaks = not is_idle and float(best[number]) >= SPEAKS
        codes.append(
            Code(
                number,
                float(share[number]),
                is_idle,
                labels[label] if speaks else "",
                float(best[number]),
                tokens.get((label, number), []) if speaks else [],
            )
        )
    rows = {name: int(count) for name, count in zip(labels, counts, strict=True)}
    taken = means.sum(0) > 0  # [n K]
    owners = taken.int().argmax(0) if num_tokens > 1 and bool((taken.sum(0) <= 1).all()) else None
    own = None if owners is None else [first + token for token in owners.tolist()]
    return CodesByLabel(num_codes, num_tokens, rows, in_use, codes, own)


def _odds(shares: Tensor, even: float) -> Tensor:
    """Of each label against all others; a tenth of an even share is added so that rare codes stay near 1. [C ...]"""
    smoothed = shares + SMALLEST * even
    others = (smoothed.sum(0) - smoothed) / (len(shares) - 1)
    return smoothed / others
