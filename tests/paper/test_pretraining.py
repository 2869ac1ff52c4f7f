"""The objectives of LM adaptation against code written from Lester et al. (2021), section 2.2, and T5's description."""

from __future__ import annotations

import random

import pytest
import torch
from paper import literal_pretraining as literal
from paper.gradients import assert_same_with_gradients
from paper.literal_prompt_tuning import log_likelihood
from tiny import in_float64, tiny_model, tiny_tokenizer

from softcue.adaptation.chunks import split_tokens
from softcue.adaptation.config import AdaptationConfig
from softcue.adaptation.loop import AdaptationLoop
from softcue.adaptation.objectives import PrefixLM, RowMaker, SpanCorruption, count_noise
from softcue.adaptation.rows import RowFormat

SENTINELS = tuple(range(999, 899, -1))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(6))
def test_documents_are_concatenated_then_split(seed: int) -> None:
    choices = random.Random(seed)
    documents = [[choices.randrange(99) for _ in range(choices.randint(0, 9))] for _ in range(choices.randint(1, 12))]
    length = choices.randint(1, 7)
    chunks = [chunk.tolist() for chunk in split_tokens(documents, length)]
    assert chunks == literal.concatenate_and_split(documents, length)


@pytest.mark.parametrize("length", [2, 3, 17, 511])
def test_prefix_lm_is_a_text_and_its_continuation(length: int) -> None:
    chunk = list(range(1000, 1000 + length))
    for seed in range(5):
        source, target = PrefixLM(length)(torch.tensor(chunk), seeded(seed))
        assert (source.tolist(), target.tolist()) == literal.prefix_lm(chunk, len(source))


@pytest.mark.parametrize("final_sentinel", [False, True])
@pytest.mark.parametrize("length", [2, 3, 10, 70, 568])
@pytest.mark.parametrize("seed", range(3))
def test_span_corruption_is_what_the_mask_of_its_dropped_tokens_gives(
    length: int, seed: int, final_sentinel: bool
) -> None:
    chunk = list(range(length))
    corrupt = SpanCorruption(length, SENTINELS, 0.15, 3.0, final_sentinel)
    source, target = corrupt(torch.tensor(chunk), seeded(seed))
    is_masked = [token not in source.tolist() for token in chunk]
    assert (source.tolist(), target.tolist()) == literal.span_corruption(chunk, is_masked, SENTINELS, final_sentinel)
    num_spans = sum(is_masked[place] and not is_masked[place - 1] for place in range(1, length))
    assert (sum(is_masked), num_spans) == literal.num_masked(length)
    assert not is_masked[0] and is_masked[-1]  # T5's chunks begin with a kept token and end with a dropped one


def test_as_many_tokens_and_spans_are_dropped_as_t5_drops() -> None:
    for length in range(2, 700):
        for share, mean_span in ((0.15, 3.0), (0.5, 1.0), (0.3, 8.0)):
            assert count_noise(length, share, mean_span) == literal.num_masked(length, share, mean_span)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("objective", ["prefix-lm", "span-corruption"])
def test_the_loss_is_the_likelihood_of_the_targets_with_the_gradients_of_all_weights(objective: str) -> None:
    model, tokenizer = in_float64(tiny_model("t5")), tiny_tokenizer("t5")
    make_row: RowMaker = PrefixLM(9)
    if objective == "span-corruption":
        make_row = SpanCorruption(9, (399, 398, 397), 0.3, 1.5)
    row_format = RowFormat(tokenizer, make_row)
    rows = [row_format.row(torch.randint(5, 300, (9,)), seed) for seed in range(3)]
    loop = object.__new__(AdaptationLoop)  # its loss needs no stream, optimizer or folder
    loop.config, loop.model = AdaptationConfig(), model
    actual = loop.loss(row_format.batch(rows, torch.device("cpu")))
    total = torch.zeros(())
    for row in rows:
        target = row.target.tolist()
        shifted = torch.tensor([[model.config.decoder_start_token_id, *target[:-1]]])
        logits = model(input_ids=row.source.unsqueeze(0), decoder_input_ids=shifted).logits[0]
        total = total - log_likelihood(logits, target)
    assert actual.num_tokens == sum(len(row.target) for row in rows)
    assert_same_with_gradients(actual.cross_entropy, total, dict(model.named_parameters()))
