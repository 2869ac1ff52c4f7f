"""Every method, family and readout on a pretend device: the processor's numbers, and nothing left on the processor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from on_device import assert_same, backbone_on, outcome, to_first_device
from pretend import SYNCHRONISATIONS, DeviceMismatchError, PretendMode
from tiny import KINDS, ONE_OF_EACH_KIND
from toy import CASES, EXAMPLES, SET_EXAMPLES, SETS, make_model, works_on

from softcue.methods import METHODS
from softcue.prompts import PromptEncoder
from softcue.tasks import Task
from softcue.types import Example, Prompt, Span

Case = tuple[str, str, str]  # family, method, readout
READOUTS = {
    "encoder": ("classifier", "label-words"),
    "encoder-decoder": ("generation", "classifier", "label-words"),
    "decoder": ("generation", "classifier", "label-words"),
}
HEADS_ONLY = ("linear-probe", "warp", "efl")
WITHOUT_HEAD = ("manual-prompt",)  # it trains nothing


def fits(family: str, case: str, readout: str) -> bool:
    name = case.split()[0]
    needs_other = readout != "classifier" if name in HEADS_ONLY else name in WITHOUT_HEAD and readout == "classifier"
    return not needs_other and works_on(case, family)


PRODUCT = [
    (family, case, readout)
    for case in CASES
    for family in ONE_OF_EACH_KIND
    for readout in READOUTS[KINDS[family]]
    if fits(family, case, readout)
]


def covering() -> list[Case]:
    """Each method once, and each family with each readout at least once: combinations take turns."""
    chosen: list[Case] = []
    for case in [case for case in CASES if case in METHODS]:
        able = [combination for combination in PRODUCT if combination[1] == case]
        # the combination of family and readout that was taken least so far
        chosen.append(min(able, key=lambda one: sum((one[0], one[2]) == (taken[0], taken[2]) for taken in chosen)))
    return chosen


COVERING = covering()


def test_the_default_run_covers_all_methods_families_and_readouts() -> None:
    assert {case for _, case, _ in COVERING} >= {name for name in METHODS if name in CASES}
    pairs = [{(family, readout) for family, _, readout in chosen} for chosen in (COVERING, PRODUCT)]
    assert pairs[0] == pairs[1]


@pytest.mark.parametrize(
    ("family", "case", "readout"),
    [pytest.param(*combination, marks=() if combination in COVERING else pytest.mark.slow) for combination in PRODUCT],
)
def test_a_step_and_a_prediction_have_the_processor_s_numbers(family: str, case: str, readout: str) -> None:
    settings = {"name": readout}
    assert_same(outcome(family, case, settings, to_first_device), outcome(family, case, settings))


SCORES = Task(name="scores", kind="regression")
QUESTIONS = Task(name="questions", kind="span", text=("question", "context"))
NAMES = Task(name="names", kind="tags", labels={"team": {"words": "team"}})  # type: ignore[dict-item]
OTHER_TASKS: dict[str, tuple[Task, list[Example]]] = {
    "sets of labels": (SETS, SET_EXAMPLES),
    "scores": (SCORES, [replace(example, target=float(number)) for number, example in enumerate(EXAMPLES)]),
    "spans": (
        QUESTIONS,
        [Example(("Who?", example.texts[0]), example.texts[0][:6], spans=(Span(0, 6),)) for example in EXAMPLES],
    ),
    "tags": (NAMES, [replace(example, target=None, spans=(Span(0, 3, "team"),)) for example in EXAMPLES]),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if number else ()) for number, name in enumerate(OTHER_TASKS)]
)
@pytest.mark.parametrize("case", ["prompt-tuning", "m-idpg-phm"])
def test_other_tasks_have_the_processor_s_numbers_too(name: str, case: str) -> None:
    task, examples = OTHER_TASKS[name]
    on_device = outcome("bert", case, place=to_first_device, task=task, examples=examples)
    assert_same(on_device, outcome("bert", case, task=task, examples=examples))


@pytest.mark.parametrize("family", ["t5", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_drawn_texts_are_those_of_the_processor(family: str) -> None:
    settings: dict[str, Any] = {"name": "generation", "decoding": "sample", "max_new_tokens": 4, "temperature": 1.0}
    assert_same(outcome(family, "prompt-tuning", settings, to_first_device), outcome(family, "prompt-tuning", settings))


def planted(monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    """Let prompt tuning make a mistake before it returns its prompt."""
    encoder_class = METHODS["prompt-tuning"]
    make_prompt = encoder_class.prompt

    def prompt(self: Any, instance: Any) -> Prompt | None:
        made: Prompt | None = make_prompt(self, instance)
        assert made is not None
        return mistake(made)  # type: ignore[no-any-return]

    monkeypatch.setattr(encoder_class, "prompt", prompt)


def test_an_index_made_on_the_processor_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda made: replace(made, tokens=made.tokens[:, torch.arange(made.tokens.shape[1])]))
    with pytest.raises(DeviceMismatchError, match=r"cpu tensor \(4,\) for one on pretend:0"):
        outcome("bert", "prompt-tuning", place=to_first_device)


def test_a_mask_made_on_the_processor_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda made: replace(made, tokens=made.tokens * torch.ones(4, 1)))
    with pytest.raises(DeviceMismatchError, match=r"a tensor of the processor \(4, 1\)"):
        outcome("bert", "prompt-tuning", place=to_first_device)


def test_a_generator_of_the_processor_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    planted(
        monkeypatch,
        lambda made: replace(made, tokens=made.tokens + torch.empty_like(made.tokens).normal_(generator=generator)),
    )
    with pytest.raises(DeviceMismatchError, match="generator of the processor"):
        outcome("bert", "prompt-tuning", place=to_first_device)


def test_reading_a_value_is_counted_as_a_synchronisation() -> None:
    with PretendMode(), SYNCHRONISATIONS.counting() as places:
        values = torch.ones(3, device="pretend:0")
        float(values.sum())
        values[values > 0].tolist()
        torch.ones(2).to("pretend:0", non_blocking=True)
        values.to("cpu", non_blocking=True)
    assert [kind for kind, _ in places.elements()] == ["item", "mask as index", "tolist", "copy to the host"]


def test_tensors_of_two_pretend_devices_do_not_mix() -> None:
    with PretendMode(), pytest.raises(DeviceMismatchError, match=r"pretend:0.*pretend:1"):
        torch.ones(2, device="pretend:0") + torch.ones(2, device="pretend:1")


def test_a_backbone_says_on_which_device_it_is() -> None:
    with PretendMode():
        backbone = backbone_on("bert", to_first_device)
        assert str(backbone.device) == "pretend:0"
        encoder = make_model(backbone).method.prompt_encoder()
        assert isinstance(encoder, PromptEncoder)
