"""Which codes indicate which label (Bhardwaj et al. 2022, appendix A.3): odds over rows with known targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softcue.cue.cue import Cue
from softcue.errors import CueError, DataError
from softcue.inputs.collate import batch_by_length, collate
from softcue.prompts.quantizer import perplexity
from softcue.types import Example

IDLE_SHARE = 0.1  # relative to an even share: a code with a smaller share is idle
MIN_ODDS = 1.1  # odds from which a code indicates a label


@dataclass(frozen=True)
class Code:
    """One code of the codebook."""

    number: int
    share: float  # of all assignments of prompt vectors to codes
    is_idle: bool  # hardly ever assigned
    label: str  # the label it indicates; empty if it is idle or assigned equally often for all labels
    odds: float  # of its likeliest label against the mean of the others; labels weigh the same
    tokens: list[int]  # prompt vectors for which it is the code with the highest odds for that label


@dataclass(frozen=True)
class CodesByLabel:
    """How often a codebook's codes are assigned for each label."""

    num_codes: int
    num_tokens: int
    rows: dict[str, int]  # per label
    perplexity: float
    codes: list[Code]  # all codes, in order
    owners: list[int] | None  # the one prompt vector each code is assigned to; None if codes are shared

    def top(self, label: str, count: int) -> list[Code]:
        """The codes that indicate a label, highest odds first."""
        codes = [code for code in self.codes if code.label == label]
        return sorted(codes, key=lambda code: -code.odds)[:count]


@torch.no_grad()
def codes_by_label(cue: Cue, examples: Sequence[Example], batch_size: int = 64) -> CodesByLabel:
    """Measure which codes of a cue indicate which label of the given rows.

    Example:
        cue = softcue.load("cues/mine")
        codes = codes_by_label(cue, examples_from("rows.csv", cue.task))
    """
    labels = cue.task.label_names
    encoder = cue.model.method.prompt_encoder()
    if not labels or encoder is None or encoder.codebook() is None:
        raise CueError(
            setting="cue",
            got=cue.name,
            expected="a method with a codebook, on a task with labels",
            fix=f"{cue.cue_file.method['name']} on {cue.task.kind} has no codes per label",
        )
    sums: Tensor | None = None  # [C n K]
    model, backbone = cue.model, cue.backbone
    view = model.method.view_of(backbone)
    rows = model.rows(backbone, examples)
    counts = torch.zeros(len(labels))
    for numbers in batch_by_length([len(row.ids) for row in rows], batch_size, backbone.tokens_at_once):
        batch = collate([rows[number] for number in numbers], backbone.tokenizer.pad_token_id).to(backbone.device)
        shares = encoder.assignment(model.instance(view, batch, view.input_states(batch))).cpu()
        sums = torch.zeros(len(labels), *shares.shape[1:]) if sums is None else sums
        pairs = [  # a row counts for each of its labels
            (place, labels.index(name))
            for place, number in enumerate(numbers)
            for name in dict.fromkeys(cue.task.labels_of(examples[number]))
        ]
        places, label_numbers = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T
        sums.index_add_(0, label_numbers, shares[places])
        counts += torch.bincount(label_numbers, minlength=len(labels))
    if sums is None or not bool((counts > 0).all()):
        missing = labels[int((counts == 0).nonzero()[0])]
        raise DataError(
            setting="rows",
            got=f"none of label '{missing}'",
            expected="rows of every label",
            fix="pass other rows: odds compare labels",
        )
    means = sums / counts.view(-1, 1, 1)  # [C n K] labels weigh the same
    static_vectors = encoder.static_vectors()
    first = 0 if static_vectors is None else len(static_vectors) - means.shape[1]  # plain vectors come first
    return _describe_codes(means, labels, counts, float(perplexity(sums.sum((0, 1)))), first)


def _describe_codes(
    means: Tensor, labels: Sequence[str], counts: Tensor, perplexity_of_use: float, first: int
) -> CodesByLabel:
    num_tokens, num_codes = means.shape[1:]
    even = 1 / num_codes
    overall = means.mean(1)  # [C K]
    odds = _odds(overall, even)
    best_odds, best_label = odds.max(0)  # [K]
    share = overall.mean(0)  # [K]
    chosen = _odds(means, even).argmax(2)  # [C n] for each label and token one code, as in figure 4
    tokens: dict[tuple[int, int], list[int]] = {}
    for label in range(len(labels)):
        for token, code in enumerate(chosen[label].tolist()):
            tokens.setdefault((label, code), []).append(first + token)
    codes = []
    for number in range(num_codes):
        label = int(best_label[number])
        is_idle = float(share[number]) < IDLE_SHARE * even
        has_label = not is_idle and float(best_odds[number]) >= MIN_ODDS
        codes.append(
            Code(
                number,
                float(share[number]),
                is_idle,
                labels[label] if has_label else "",
                float(best_odds[number]),
                tokens.get((label, number), []) if has_label else [],
            )
        )
    rows = {name: int(count) for name, count in zip(labels, counts, strict=True)}
    is_assigned = means.sum(0) > 0  # [n K]
    owners = None
    if num_tokens > 1 and bool((is_assigned.sum(0) <= 1).all()):
        owners = [first + token for token in is_assigned.int().argmax(0).tolist()]
    return CodesByLabel(num_codes, num_tokens, rows, perplexity_of_use, codes, owners)


def _odds(shares: Tensor, even: float) -> Tensor:
    """Odds of each label against the others [C ...]; a tenth of an even share is added to keep rare codes near 1."""
    smoothed = shares + IDLE_SHARE * even
    others = (smoothed.sum(0) - smoothed) / (len(shares) - 1)
    return smoothed / others
