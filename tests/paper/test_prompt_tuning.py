"""Prompt tuning (Lester et al. 2021) against literal re-computations of the paper (literal_prompt_tuning.py)."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from paper import literal_prompt_tuning as literal
from paper.gradients import assert_same_with_gradients
from tiny import in_float64, tiny_float64, tiny_model, tiny_tokenizer
from tolerance import LITERAL_FLOAT64
from torch import Tensor
from toy import EXAMPLES, TASK, make_model

from softcue.backbones import Backbone
from softcue.evaluation import vote
from softcue.inference import TaskModel, predict
from softcue.inputs.collate import collate
from softcue.prompts import StaticPrompt
from softcue.prompts.prompt_tuning import label_vectors, uniform_vectors, vocabulary_vectors
from softcue.tasks import Label, Task
from softcue.types import Instance, Prediction

# --- section 2: [P; X] -----------------------------------------------------------------------------------------------


def prompt_in(model: TaskModel) -> Tensor:
    assert isinstance(model.method.encoder, StaticPrompt)
    return model.method.encoder.prompt


def literal_logits(backbone: Backbone, prompt: Tensor, text: str, target: list[int]) -> Tensor:
    """The logits of each target token, of transformers' own T5 whose encoder reads [P; X]. [U V]"""
    table = backbone.model.get_input_embeddings().weight
    sequence = literal.concatenate(prompt, literal.embed(table, backbone.tokenizer(text)["input_ids"]))
    shifted = torch.tensor([[backbone.start_id, *target[:-1]]])
    return backbone.model(inputs_embeds=sequence.unsqueeze(0), decoder_input_ids=shifted).logits[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(4))
def test_every_row_has_the_same_trained_matrix(seed: int) -> None:
    choices = random.Random(seed)
    num_rows, length, num_tokens, width = (choices.randint(1, 6) for _ in range(4))
    matrix, embeds = torch.randn(length, width), torch.randn(num_rows, num_tokens, width)
    tokens = StaticPrompt(matrix)(Instance(embeds, torch.ones(num_rows, num_tokens).bool())).tokens
    for row in range(num_rows):
        joined = torch.cat([tokens[row], embeds[row]])
        assert torch.equal(joined, literal.concatenate(matrix, embeds[row]))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.parametrize("sentinel", [False, True])
def test_t5_is_trained_on_the_likelihood_of_the_target_after_prompt_and_text(length: int, sentinel: bool) -> None:
    backbone = tiny_float64("t5") if not sentinel else sentinel_t5()
    readout: dict[str, Any] = {"name": "generation", "sentinel": sentinel}
    model = make_model(backbone, "prompt-tuning", readout=readout, prompt_length=length, init="uniform").double()
    prompt = prompt_in(model)
    rows = model.rows(backbone, EXAMPLES, with_target=True)
    output = model(backbone, collate(rows, backbone.tokenizer.pad_token_id))
    total, num_tokens = torch.zeros(()), 0
    for example in EXAMPLES:
        target = backbone.tokenizer(TASK.labels[str(example.target)].words)["input_ids"]
        if sentinel:
            target = literal.sentinel_target(target, backbone.tokenizer.convert_tokens_to_ids("<extra_id_0>"))
        total = total + literal.log_likelihood(literal_logits(backbone, prompt, example.texts[0], target), target)
        num_tokens += len(target)
    assert model.readout.num_losses(rows) == num_tokens
    assert_same_with_gradients(output.losses.sum() / num_tokens, -total / num_tokens, {"P": prompt})
    assert not any(value.requires_grad for value in backbone.model.parameters())  # only the prompt is updated


def sentinel_t5() -> Backbone:
    """A tiny T5 in float64 whose tokenizer has sentinels."""
    tokenizer, model = tiny_tokenizer("t5"), tiny_model("t5")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra_id_0>", "<extra_id_1>"]})
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return Backbone(in_float64(model), tokenizer, "t5-with-sentinels")


# --- section 3.2: prompt initialisation ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_random_prompt_is_uniform_between_minus_and_plus_a_half(seed: int) -> None:
    length, width = random.Random(seed).randint(1, 40), 100
    actual = uniform_vectors(length, width, torch.Generator().manual_seed(seed))
    draws = torch.rand(length, width, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(actual, torch.tensor(literal.random_uniform(draws.tolist())))
    large = uniform_vectors(200, 100, torch.Generator().manual_seed(seed))
    assert -0.5 <= float(large.min()) < -0.49 and 0.49 < float(large.max()) <= 0.5
    assert abs(float(large.mean())) < 0.01


@pytest.mark.parametrize("seed", range(2))
def test_a_sampled_prompt_has_different_tokens_of_the_5000_most_common(seed: int) -> None:
    table = torch.randn(7000, 3)
    vectors = vocabulary_vectors(table, 40, torch.Generator().manual_seed(seed))
    tokens = literal.sampled_tokens(table, vectors)
    assert len(set(tokens)) == 40
    assert max(tokens) > 4000  # of all of them


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(6))
def test_a_class_label_prompt_has_a_mean_vector_per_class_then_sampled_ones(seed: int) -> None:
    choices = random.Random(seed)
    table, length = torch.randn(50, choices.randint(1, 8)), choices.randint(2, 9)
    labels = [[choices.randrange(50) for _ in range(choices.randint(1, 4))] for _ in range(choices.randint(1, length))]
    sampled = torch.randn(length, table.shape[1])
    LITERAL_FLOAT64.assert_close(label_vectors(table, labels, sampled), literal.class_labels(table, labels, sampled))


# --- section 6: prompt ensembling ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_five_prompts_in_one_batch_vote_as_five_models() -> None:
    """Figure 2 and section 6: one example, replicated over a batch in which only the prompt varies."""
    backbone = tiny_float64("t5")
    task = Task(name="words", labels={word: Label(words=word) for word in ("account", "invoice", "phone")})
    readout: dict[str, Any] = {"name": "generation"}
    models = []
    for seed, length in enumerate([2, 5, 5, 3, 4]):  # prompts of other lengths share the batch too
        settings: dict[str, Any] = {"init": "uniform", "init_scale": 4.0, "prompt_length": length}
        models.append(make_model(backbone, "prompt-tuning", task, readout, seed, **settings).double())
    num_answers = set()
    for example in EXAMPLES[2:]:
        together = predict(backbone, [(model, example) for model in models]).predictions
        answers = []
        for model, prediction in zip(models, together, strict=True):
            likelihoods = []
            for word in task.labels:
                target = backbone.tokenizer(word)["input_ids"]
                with torch.no_grad():
                    logits = literal_logits(backbone, prompt_in(model), example.texts[0], target)
                likelihoods.append(literal.log_likelihood(logits, target))
            shares = dict(zip(task.labels, literal.probabilities(likelihoods), strict=True))
            assert prediction.scores == LITERAL_FLOAT64.approx(shares)
            answers.append(max(shares, key=shares.__getitem__))
        assert vote(together).label in literal.majority(answers)
        num_answers.add(len(set(answers)))
    assert max(num_answers) > 1  # there was something to vote on


@pytest.mark.parametrize("seed", range(20))
def test_the_answer_with_the_most_votes_wins(seed: int) -> None:
    choices = random.Random(seed)
    answers = [choices.choice("abc") for _ in range(5)]
    assert vote([Prediction(answer) for answer in answers]).label in literal.majority(answers)
