"""Prompts that are attended to beside the text: what is added, where, and that nothing is added at the start."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny import DECODERS, ENCODER_DECODERS, ENCODERS, tiny
from tolerance import REORDERED_FLOAT32
from torch import Tensor
from toy import EXAMPLES, TASK, make_model

import softcue
from softcue.backbones.attention_sizes import attention_sizes
from softcue.backbones.injection import parallel_attention
from softcue.errors import BackboneError
from softcue.inference import make_task_model
from softcue.inputs.collate import collate
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import LayerPrompt

FAMILIES = [family for family in ENCODERS + ENCODER_DECODERS + DECODERS if family != "deberta-v2"]


def literal_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, head_width: int) -> Tensor:
    """softmax(q K^T / sqrt(d)) V, token by token and head by head."""
    result = torch.zeros_like(queries)
    for row in range(len(queries)):
        for token in range(queries.shape[1]):
            for start in range(0, queries.shape[2], head_width):
                head = slice(start, start + head_width)
                numbers = [number for number in range(keys.shape[1]) if mask[row, number]]
                scores = [
                    math.exp(float(queries[row, token, head] @ keys[row, number, head]) / math.sqrt(head_width))
                    for number in numbers
                ]
                for score, number in zip(scores, numbers, strict=True):
                    result[row, token, head] += score / sum(scores) * values[row, number, head]
    return result


def test_attention_equals_the_equation() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(2, length, 8, generator=generator) for length in (5, 3, 3))
    mask = torch.tensor([[True, True, True], [True, False, True]])
    layer_prompt = LayerPrompt(parallel_keys=keys, parallel_values=values, parallel_mask=mask)
    expected = literal_attention(queries, keys, values, mask, head_width=4)
    torch.testing.assert_close(parallel_attention(queries, layer_prompt, 4), expected, rtol=1e-5, atol=1e-5)


def test_rows_without_such_a_prompt_get_nothing() -> None:
    keys, values = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    values[1] = 0.0
    mask = torch.tensor([[True, True, True], [False, False, False]])
    added = parallel_attention(
        torch.randn(2, 4, 8), LayerPrompt(parallel_keys=keys, parallel_values=values, parallel_mask=mask), 4
    )
    assert torch.equal(added[1], torch.zeros(4, 8)) and float(added[0].abs().min()) > 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["p-tuning-v2", "m-idpg-phm"])
def test_step_zero_is_the_frozen_model(family: str, method: str) -> None:
    backbone = tiny(family)
    settings = {"rule": "parallel", "prompt_length": 3}
    if method == "m-idpg-phm":
        settings |= {"phm_n": 4, "bottleneck": 8}
    config = METHODS[method].Config.model_validate({"name": method, **settings})
    generator = torch.Generator().manual_seed(0)
    model = make_task_model(TASK, (METHODS[method], config), ReadoutConfig(), backbone, generator).eval()
    batch = collate(model.rows(backbone, EXAMPLES), backbone.tokenizer.pad_token_id)
    with torch.no_grad():
        states = model.read(backbone, batch)[0].text()
        plain = backbone.read(batch, None, backbone.input_states(batch)).text()
    torch.testing.assert_close(states[batch.mask], plain[batch.mask], rtol=1e-5, atol=1e-5)
    assert model.method.prompt_length == 0  # no position of the text is taken


def test_what_is_added_stands_before_the_output_projection() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "p-tuning-v2 parallel")
    batch = collate(model.rows(backbone, EXAMPLES), backbone.tokenizer.pad_token_id)
    layer = backbone.layers[0]
    attention = layer.attention
    seen: dict[str, Tensor] = {}
    handles = [
        attention.self.query.register_forward_hook(lambda module, args, output: seen.update(queries=output)),
        attention.self.register_forward_hook(lambda module, args, output: seen.update(heads=output[0])),
        attention.output.dense.register_forward_hook(lambda module, args, output: seen.update(output=output)),
    ]
    with torch.no_grad():
        model.read(backbone, batch)[0].text()
        prompt = model.prompt(backbone, batch, backbone.input_states(batch))
        assert prompt is not None and prompt.layer_prompts is not None
        part = prompt.layer_prompts(0, torch.zeros(len(EXAMPLES), 1, 32), torch.ones(len(EXAMPLES), 1))
        assert part is not None and part.parallel_keys is not None and part.parallel_values is not None
        mask = torch.ones(part.parallel_keys.shape[:2], dtype=torch.bool)
        added = literal_attention(seen["queries"], part.parallel_keys, part.parallel_values, mask, head_width=8)
        expected = attention.output.dense.weight @ (seen["heads"] + added).transpose(1, 2)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(
        seen["output"], expected.transpose(1, 2) + attention.output.dense.bias, rtol=1e-4, atol=1e-5
    )


def test_vectors_are_in_units_of_the_layers_keys_and_values() -> None:
    backbone = tiny("bert")
    sizes = attention_sizes(backbone)
    model = make_model(backbone, "p-tuning-v2 parallel")
    units = torch.tensor(model.method.config.model_dump()["units"])
    torch.testing.assert_close(units, sizes, rtol=1e-3, atol=0.0)  # rounded to four digits
    assert sizes.shape == (backbone.num_layers, 2) and float(sizes.min()) > 0
    assert model.counts().stored == model.counts().gradient == backbone.num_layers * 4 * 2 * 32


def test_a_cue_predicts_the_same_after_saving(tmp_path: Path) -> None:
    backbone = tiny("bert")
    rows = [{"text": example.texts[0], "label": str(example.target)} for example in EXAMPLES] * 4
    cue = softcue.train(
        tmp_path / "cue",
        backbone=backbone,
        method="p-tuning-v2",
        train=rows,
        validation=rows,
        overrides={"method.rule": "parallel", "training.steps": 3},
        progress=False,
    )
    loaded = softcue.load(tmp_path / "cue", backbone)
    texts = [row["text"] for row in rows[:5]]
    for before, after in zip(cue.predict(texts), loaded.predict(texts), strict=True):
        assert after.scores == REORDERED_FLOAT32.approx(before.scores)


def test_it_learns_the_training_rows() -> None:
    backbone = tiny("bert")
    config = METHODS["p-tuning-v2"].Config.model_validate({"name": "p-tuning-v2", "rule": "parallel"})
    generator = torch.Generator().manual_seed(0)
    model = make_task_model(TASK, (METHODS["p-tuning-v2"], config), ReadoutConfig(), backbone, generator)
    training = TrainingConfig(steps=60, batch_size=4, learning_rate=0.05, network_learning_rate=0.02)
    losses: list[float] = []
    Trainer(
        backbone,
        [TaskData(model, EXAMPLES * 2, EXAMPLES)],
        training,
        listener=lambda kind, values: losses.append(values["loss"]) if kind == "step" else None,
    ).run()
    assert losses[-1] < 0.3 * losses[0]


def test_a_backbone_whose_queries_are_not_found_says_so() -> None:
    with pytest.raises(BackboneError, match=r"method\.rule.*not found"):
        make_model(tiny("deberta-v2"), "p-tuning-v2 parallel")
