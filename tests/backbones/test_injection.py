from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from tiny import tiny
from torch import Tensor
from toy import EXAMPLES, make_model

from softcue.backbones.injection import lay_out
from softcue.tokens import PaddingSide, collate
from softcue.types import Batch, Instance, Tokens

PAD = 99.0


def random_batch(side: PaddingSide) -> tuple[Batch, Tensor]:
    generator = torch.Generator().manual_seed(3)
    rows = []
    for number in range(6):
        length = int(torch.randint(1, 7, (1,), generator=generator))
        target = tuple(range(500, 500 + number % 4))
        insert_at = int(torch.randint(0, length + 1, (1,), generator=generator))
        rows.append(Tokens(tuple(range(100, 100 + length)), tuple([1] * length), insert_at, target))
    prompt_mask = torch.rand(6, 5, generator=generator) > 0.3
    return collate(rows, pad_id=0, side=side), prompt_mask


@pytest.mark.parametrize("batch_side", ["left", "right"])
@pytest.mark.parametrize("layout_side", ["left", "right"])
@pytest.mark.parametrize("with_target", [True, False])
def test_layout_equals_row_by_row_construction(
    batch_side: PaddingSide, layout_side: PaddingSide, with_target: bool
) -> None:
    batch, prompt_mask = random_batch(batch_side)
    layout = lay_out(batch, prompt_mask, layout_side, with_target)
    prompt = -1.0 - torch.arange(30.0).view(6, 5, 1)
    text = batch.ids.unsqueeze(2).float()
    target = (batch.target_ids if with_target else batch.target_ids[:, :0]).unsqueeze(2).float()
    placed = layout.place(prompt, text, target).squeeze(2)
    assert batch.segments is not None
    segments = layout.place_segments(batch.segments)
    for row in range(6):
        own_text = batch.ids[row][batch.mask[row]].tolist()
        own_prompt = prompt[row, prompt_mask[row], 0].tolist()
        at = int(batch.insert_at[row])
        expected = own_text[:at] + own_prompt + own_text[at:]
        kinds = [1] * at + [0] * len(own_prompt) + [1] * (len(own_text) - at)
        if with_target:
            answer = batch.target_ids[row][batch.target_mask[row]].tolist()
            expected += answer
            kinds += [0] * len(answer)
        missing = placed.shape[1] - len(expected)
        real = (
            [False] * missing + [True] * len(expected)
            if layout_side == "left"
            else [True] * len(expected) + [False] * missing
        )
        assert layout.mask[row].tolist() == real
        assert placed[row][layout.mask[row]].tolist() == [float(value) for value in expected]
        assert placed[row][~layout.mask[row]].tolist() == [0.0] * missing
        assert layout.positions[row][layout.mask[row]].tolist() == list(range(len(expected)))
        assert segments[row][layout.mask[row]].tolist() == kinds
        found = placed[row][layout.text_slots[row][batch.mask[row]]].tolist()
        assert found == [float(value) for value in own_text]
        if with_target:
            found = placed[row][layout.target_slots[row][batch.target_mask[row]]].tolist()
            assert found == [float(value) for value in answer]


def test_gradient_reaches_each_prompt_vector_once_per_row() -> None:
    batch, prompt_mask = random_batch("right")
    layout = lay_out(batch, prompt_mask, "right")
    prompt = torch.zeros(6, 5, 2, requires_grad=True)
    layout.place(prompt, torch.zeros(*batch.ids.shape, 2), torch.zeros(6, 0, 2)).sum().backward()
    assert prompt.grad is not None
    assert torch.equal(prompt.grad[..., 0], prompt_mask.float())


def test_no_deep_prompt_reaches_another_backbone_or_a_later_pass() -> None:
    backbone, other = tiny("bert"), tiny("roberta")
    model = make_model(backbone, "toy-add")
    batch = collate([model.tokens(example) for example in EXAMPLES], 0)
    embeds = backbone.embed(batch.ids)
    prompt = model.method.prompt(Instance(embeds, batch.mask))
    assert prompt is not None
    plain = other.read(batch, None, other.embed(batch.ids)).text()
    asked = 0
    whole = prompt.deeper
    assert whole is not None

    def nested(layer: int, hidden: Tensor, mask: Tensor) -> Tensor:
        nonlocal asked
        asked += 1
        inner = other.read(batch, None, other.embed(batch.ids)).text()  # another backbone while ours is active
        torch.testing.assert_close(inner, plain)
        return whole(layer, hidden, mask)

    backbone.read(batch, replace(prompt, deeper=nested), embeds).text()
    assert asked == backbone.num_layers - 1
    backbone.read(batch, None, embeds).text()
    assert asked == backbone.num_layers - 1


def test_two_threads_share_a_backbone() -> None:
    backbone = tiny("gpt2")
    models = [make_model(backbone, "toy-add", seed=seed) for seed in (1, 2)]
    batch = collate([models[0].tokens(example) for example in EXAMPLES], 0)

    def states(number: int) -> Tensor:
        with torch.no_grad():
            embeds = backbone.embed(batch.ids)
            return backbone.read(batch, models[number].method.prompt(Instance(embeds, batch.mask)), embeds).text()

    expected = [states(0), states(1)]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not torch.allclose(states(number), expected[number], atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_backbones_on_one_model_ask_for_each_deep_prompt_once() -> None:
    from softcue.backbones import Backbone

    backbone = tiny("bert")
    twin = Backbone(backbone.model, backbone.tokenizer, "twin")
    model = make_model(backbone, "toy-add")
    batch = collate([model.tokens(example) for example in EXAMPLES], 0)
    embeds = backbone.embed(batch.ids)
    prompt = model.method.prompt(Instance(embeds, batch.mask))
    torch.testing.assert_close(twin.read(batch, prompt, embeds).text(), backbone.read(batch, prompt, embeds).text())
    asked: list[int] = []
    assert prompt is not None and prompt.deeper is not None
    whole = prompt.deeper

    def counted(layer: int, hidden: Tensor, mask: Tensor) -> Tensor:
        asked.append(layer)
        return whole(layer, hidden, mask)

    twin.read(batch, replace(prompt, deeper=counted), embeds).text()
    assert asked == [1, 2]
