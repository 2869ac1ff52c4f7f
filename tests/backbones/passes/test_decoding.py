"""Sampled text: draws follow the model's distribution and depend on the row alone."""

from __future__ import annotations

import pytest
import torch
from tiny import ONE_OF_EACH_KIND, tiny
from toy import EXAMPLES, make_model

from softcue.backbones import backbone as backbone_module
from softcue.backbones.passes.decoding import Decoding, add_gumbel_noise
from softcue.inference import predict
from softcue.tasks import Task

WRITING = Task(name="writing", kind="generation")
WRITERS = [kind for kind in ONE_OF_EACH_KIND if kind != "bert"]


def draws(decoding: Decoding, logits: list[float], count: int = 20_000) -> torch.Tensor:
    """How often each token is drawn."""
    keys, generated = torch.arange(count, dtype=torch.int32), torch.zeros(count, 3)
    noisy = add_gumbel_noise(decoding, keys, generated, torch.tensor([logits]).expand(count, -1))
    return torch.bincount(noisy.argmax(dim=1), minlength=len(logits)) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_they_are_likely(temperature: float) -> None:
    logits = [0.0, 1.0, -1.0, 2.5]
    wanted = (torch.tensor(logits) / temperature).softmax(dim=0)
    shares = draws(Decoding(temperature=temperature), logits)
    assert float((shares - wanted).abs().max()) < 4 * (0.25 / 20_000) ** 0.5  # four standard errors


def test_draws_are_among_the_likeliest_only() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    shares = draws(Decoding(temperature=1.0, top_p=0.7), logits)
    assert shares[2:].tolist() == [0.0, 0.0]
    assert float(shares[0]) == pytest.approx(0.625, abs=0.02)
    assert draws(Decoding(temperature=1.0, top_p=1e-6), logits, 50).tolist() == [1.0, 0.0, 0.0, 0.0]


def written(kind: str, case: str = "prompt-tuning", together: bool = True, **readout: object) -> list[str | None]:
    backbone = tiny(kind)
    settings = {"decoding": "sample", "max_new_tokens": 6, **readout}
    model = make_model(backbone, case, WRITING, settings)
    requests = [(model, example) for example in EXAMPLES]
    passes = [requests] if together else [[request] for request in requests]
    return [answer.label for some in passes for answer in predict(backbone, some).predictions]


@pytest.mark.parametrize("case", ["prompt-tuning", "s-idpg-phm"])
@pytest.mark.parametrize("kind", WRITERS)
def test_draws_depend_on_the_row_alone(kind: str, case: str) -> None:
    first = written(kind, case)
    assert first == written(kind, case)
    assert first == written(kind, case, together=False)
    assert first != written(kind, case, draw_seed=1)
    assert first != written(kind, case, decoding="greedy")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_low_temperature_is_greedy(kind: str) -> None:
    assert written(kind, temperature=1e-4) == written(kind, decoding="greedy")


def test_shared_prompts_draw_what_prompts_in_every_row_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = written("gpt2")
    monkeypatch.setattr(backbone_module, "find_shared_prefixes", lambda batch, prompt, side: [])
    assert written("gpt2") == shared
