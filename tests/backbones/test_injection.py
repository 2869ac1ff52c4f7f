from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import KINDS, ONE_OF_EACH_KIND, tiny, tiny_model, tiny_tokenizer
from torch import Tensor, nn
from torch.nn import functional
from toy import EXAMPLES, make_model

from softcue.backbones import Backbone, ForwardPass
from softcue.backbones.layout import Layout, lay_out
from softcue.inference import TaskModel
from softcue.inputs.collate import PaddingSide, collate
from softcue.randomness import rows_of_global_batch
from softcue.types import Batch, Instance, LayerPrompt, Prompt, TokenizedRow

PAD = 99.0


pytestmark = pytest.mark.usefixtures("prompts_in_every_row")  # these tests look at the layout


def random_batch(side: PaddingSide) -> tuple[Batch, Tensor]:
    generator = torch.Generator().manual_seed(3)
    rows = []
    for number in range(6):
        length = int(torch.randint(1, 7, (1,), generator=generator))
        target = tuple(range(500, 500 + number % 4))
        insert_at = int(torch.randint(0, length + 1, (1,), generator=generator))
        rows.append(TokenizedRow(tuple(range(100, 100 + length)), tuple([1] * length), insert_at, target))
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
        text_ids = batch.ids[row][batch.mask[row]].tolist()
        prompt_values = prompt[row, prompt_mask[row], 0].tolist()
        at = int(batch.insert_at[row])
        expected = text_ids[:at] + prompt_values + text_ids[at:]
        kinds = [1] * at + [0] * len(prompt_values) + [1] * (len(text_ids) - at)
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
        at_slots = placed[row][layout.text_slots[row][batch.mask[row]]].tolist()
        assert at_slots == [float(value) for value in text_ids]
        if with_target:
            at_slots = placed[row][layout.target_slots[row][batch.target_mask[row]]].tolist()
            assert at_slots == [float(value) for value in answer]


def test_gradient_reaches_each_prompt_vector_once_per_row() -> None:
    batch, prompt_mask = random_batch("right")
    layout = lay_out(batch, prompt_mask, "right")
    prompt = torch.zeros(6, 5, 2, requires_grad=True)
    layout.place(prompt, torch.zeros(*batch.ids.shape, 2), torch.zeros(6, 0, 2)).sum().backward()
    assert prompt.grad is not None
    assert torch.equal(prompt.grad[..., 0], prompt_mask.float())


def batch_of(model: TaskModel, backbone: Backbone) -> Batch:
    return collate(model.rows(backbone, EXAMPLES, with_target=True), backbone.tokenizer.pad_token_id)


def forward_pass_of(model: TaskModel, backbone: Backbone, batch: Batch) -> ForwardPass:
    return model.read(model.method.view_of(backbone), batch)[0]


@torch.no_grad()
def test_no_deep_prompt_reaches_another_backbone_or_a_later_pass() -> None:
    backbone, other = tiny("bert"), tiny("roberta")
    model = make_model(backbone, "toy-add")
    batch = batch_of(model, backbone)
    embeds = backbone.embed(batch.ids)
    prompt = model.method.prompt(Instance(embeds, batch.mask))
    assert prompt is not None
    plain = other.read(batch, None, other.embed(batch.ids)).text()
    asked_layers: list[int] = []
    whole = prompt.layer_prompts
    assert whole is not None

    def nested(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
        asked_layers.append(layer)
        inner = other.read(batch, None, other.embed(batch.ids)).text()  # another backbone while the first is active
        torch.testing.assert_close(inner, plain)
        return whole(layer, hidden, mask)

    backbone.read(batch, replace(prompt, layer_prompts=nested), embeds).text()
    assert asked_layers == list(range(backbone.num_layers))
    backbone.read(batch, None, embeds).text()
    assert asked_layers == list(range(backbone.num_layers))


@torch.no_grad()
def test_a_plain_pass_within_a_prompted_one_of_the_same_backbone_is_plain() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "prefix-tuning")
    batch = batch_of(model, backbone)
    embeds = backbone.embed(batch.ids)
    plain = backbone.read(batch, None, embeds).text()
    expected = forward_pass_of(model, backbone, batch).text()
    prompt = model.method.prompt(Instance(embeds, batch.mask))
    assert prompt is not None
    whole = prompt.layer_prompts
    assert whole is not None

    def nested(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
        assert torch.equal(backbone.read(batch, None, embeds).text(), plain)
        return whole(layer, hidden, mask)

    assert torch.equal(backbone.read(batch, replace(prompt, layer_prompts=nested), embeds).text(), expected)


@pytest.mark.parametrize("case", ["toy-add", "prefix-tuning", "adapter", "fine-tuning"])
@torch.no_grad()
def test_a_pass_leaves_the_shared_backbone_as_it_was(case: str) -> None:
    for family in ONE_OF_EACH_KIND:
        backbone = tiny(family)
        model = make_model(backbone, case)
        batch = batch_of(model, backbone)
        embeds = backbone.embed(batch.ids)
        before = backbone.read(batch, None, embeds).text()
        changed = forward_pass_of(model, backbone, batch).text()
        assert torch.equal(backbone.read(batch, None, embeds).text(), before)
        assert not torch.allclose(changed, before, atol=1e-3)


@pytest.mark.parametrize("case", ["toy-add", "prefix-tuning", "adapter"])
def test_two_threads_share_a_backbone(case: str) -> None:
    backbone = tiny("gpt2")
    models = [make_model(backbone, case, seed=seed) for seed in (1, 2)]
    batch = batch_of(models[0], backbone)

    def states(number: int) -> Tensor:
        with torch.no_grad():
            return forward_pass_of(models[number], backbone, batch).text()

    expected = [states(0), states(1)]
    assert not torch.allclose(*expected, atol=1e-3)
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


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("case", ["toy-add", "prefix-tuning", "adapter"])
@torch.no_grad()
def test_backbones_that_share_a_model_or_copy_it_apply_each_layer_prompt_once(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = batch_of(model, backbone)
    expected = forward_pass_of(model, backbone, batch).text()
    same = Backbone(backbone.model, backbone.tokenizer, "same")
    for other in (same, backbone.with_weights(), backbone.with_weights().with_weights()):
        torch.testing.assert_close(forward_pass_of(model, other, batch).text(), expected)
        asked_layers: list[int] = []
        forward_pass = forward_pass_of(model, other, batch)
        if forward_pass.prompt is None or (whole := forward_pass.prompt.layer_prompts) is None:
            continue

        def counted(
            layer: int, hidden: Tensor, mask: Tensor, whole: Any = whole, asked_layers: Any = asked_layers
        ) -> Any:
            asked_layers.append(layer)
            return whole(layer, hidden, mask)

        replace(forward_pass, prompt=replace(forward_pass.prompt, layer_prompts=counted)).text()
        assert asked_layers == list(range(backbone.num_layers))


def test_a_model_with_other_weights_shares_the_rest() -> None:
    backbone = tiny("t5")
    name, value = next(iter(backbone.model.named_parameters()))
    changed = nn.Parameter(value.detach() + 1)
    view = backbone.with_weights({name: changed})
    assert changed.requires_grad
    for other_name, other in view.model.named_parameters():
        assert other is (changed if other_name == name else backbone.model.get_parameter(other_name))
    # T5's word embeddings serve encoder, decoder and output: the view's are tied likewise
    assert view.model.get_output_embeddings().weight is view.model.get_input_embeddings().weight is changed


def test_dropout_of_the_backbone_is_on_in_one_view_only() -> None:
    backbone = tiny("bert")
    batch = batch_of(make_model(backbone, "no-prompt"), backbone)
    embeds = backbone.embed(batch.ids)
    with torch.no_grad():
        plain = backbone.read(batch, None, embeds).text()
        noisy = [backbone.with_dropout.read(batch, None, embeds).text() for _ in range(2)]
        assert torch.equal(backbone.read(batch, None, embeds).text(), plain)
    assert not torch.allclose(noisy[0], plain, atol=1e-2)
    assert not torch.allclose(noisy[0], noisy[1], atol=1e-2)
    assert backbone.with_dropout.word_table is backbone.word_table


FAMILY_NAMES = list(KINDS)


@contextmanager
def calls_of(modules: Sequence[nn.Module]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Record the first input and the output of each call of the modules."""
    calls: list[tuple[Tensor, Tensor]] = []

    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        entered = args[0] if args else kwargs["hidden_states"]
        calls.append((entered, output if isinstance(output, Tensor) else output[0]))

    handles = [module.register_forward_hook(keep, with_kwargs=True) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("family", FAMILY_NAMES)
@torch.no_grad()
def test_a_layers_prompt_is_added_to_or_replaces_states_and_text_states_are_unchanged(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prompt-tuning")
    batch = batch_of(model, backbone)
    embeds = backbone.embed(batch.ids)
    prompt = model.method.prompt(Instance(embeds, batch.mask))
    states = torch.randn(len(EXAMPLES), 4, backbone.hidden_width)
    adds = torch.tensor([True, False, True, False, False])
    assert prompt is not None

    def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
        return LayerPrompt(states, adds) if layer == 1 else LayerPrompt(states) if layer == 2 else None

    forward_pass = backbone.read(batch, replace(prompt, layer_prompts=layer_prompts), embeds)
    with calls_of(list(dict.fromkeys(backbone.layers))) as calls:
        forward_pass.text()
    for layer, always_adds in ((1, False), (2, True)):
        before, after = calls[layer - 1][1], calls[layer][0]
        assert torch.equal(after[~forward_pass.layout.is_prompt], before[~forward_pass.layout.is_prompt])
        old, new = at_prompt(forward_pass.layout, before), at_prompt(forward_pass.layout, after)
        for row in range(len(EXAMPLES)):
            expected = states[row] + old[row] if always_adds or adds[row] else states[row]
            torch.testing.assert_close(new[row], expected)


class Recorded(nn.Module):
    """Records its number and returns zeros."""

    def __init__(self, number: int, calls: list[int]) -> None:
        super().__init__()
        self.number, self.calls = number, calls

    def forward(self, output: Tensor) -> Tensor:
        self.calls.append(self.number)
        return torch.zeros_like(output)


@pytest.mark.parametrize("family", FAMILY_NAMES)
@torch.no_grad()
def test_sublayers_are_all_that_a_layer_adds_to_its_input_and_each_has_its_own_module(family: str) -> None:
    backbone = tiny(family)
    batch = batch_of(make_model(backbone, "no-prompt"), backbone)
    applied: list[int] = []
    seen = backbone.with_sublayers([Recorded(number, applied) for number in range(len(backbone.sublayers))])
    forward_pass = seen.read(batch, None, seen.embed(batch.ids))
    with calls_of(list(dict.fromkeys(backbone.layers))) as calls:
        forward_pass.hidden()
    num_source = 2 * backbone.num_layers
    assert applied == list(range(num_source))  # attention, feed-forward, layer by layer
    for entered, left in calls:  # nothing is added: a layer returns its input, normalised if it ends with a norm
        norm = functional.layer_norm(entered, entered.shape[-1:])
        assert min(float((left - entered).abs().max()), float((left - norm).abs().max())) < 1e-3
    applied.clear()
    if backbone.kind == "encoder-decoder":
        forward_pass.target_logits(batch.target_ids)
        assert applied == list(range(num_source, len(backbone.sublayers)))


# Keys and values


WITH_KEYS = [name for name in KINDS if name != "deberta-v2"]  # it uses its key projection for positions too


def at_prompt(layout: Layout, values: Tensor) -> Tensor:
    """The vectors at the positions of the prompt tokens. [B S X] -> [B P X]"""
    rows = []
    for index, row in zip(layout.index.tolist(), values, strict=True):
        rows.append(torch.stack([row[index.index(number)] for number in range(layout.prompt_length)]))
    return torch.stack(rows)


@pytest.mark.parametrize("family", WITH_KEYS)
@torch.no_grad()
def test_the_frozen_keys_and_values_of_a_word_prompt_have_the_effect_of_that_prompt(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prompt-tuning")
    batch = batch_of(model, backbone)
    embeds = backbone.embed(batch.ids)
    words = model.method.prompt(Instance(embeds, batch.mask))
    assert words is not None
    forward_pass = backbone.read(batch, words, embeds)
    computed: dict[tuple[int, str], Tensor] = {}

    def keep(which: str, columns: Sequence[tuple[int, int]]) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            vectors = torch.cat([output[..., start:stop] for start, stop in columns], dim=2)  # [B S K]
            number = sum(kind == which for _, kind in computed)  # a shared module runs in each layer
            computed[number, which] = at_prompt(forward_pass.layout, vectors)

        return hook

    handles = [
        layer.get_submodule(projection.module).register_forward_hook(keep(which, projection.columns))
        for layer, parts in dict(zip(backbone.layers, backbone.structure.source.layers, strict=True)).items()
        for which in ("keys", "values")
        if (projection := getattr(parts, which)) is not None
    ]
    expected = forward_pass.text()
    for handle in handles:
        handle.remove()
    assert computed[0, "keys"].shape == (len(EXAMPLES), 4, backbone.key_width)

    def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt:
        return LayerPrompt(keys=computed[layer, "keys"], values=computed[layer, "values"])

    given = replace(words, tokens=torch.zeros_like(words.tokens), layer_prompts=layer_prompts)
    mask = batch.mask
    torch.testing.assert_close(backbone.read(batch, given, embeds).text()[mask], expected[mask], rtol=1e-4, atol=1e-4)
    without = backbone.read(batch, replace(given, layer_prompts=None), embeds).text()
    assert not torch.allclose(without[mask], expected[mask], atol=1e-2)


@pytest.mark.parametrize("family", WITH_KEYS)
@torch.no_grad()
def test_with_keys_and_values_the_states_at_the_prompt_reach_no_text(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prefix-tuning")
    batch = batch_of(model, backbone)
    embeds = backbone.embed(batch.ids)
    prompt = model.method.prompt(Instance(embeds, batch.mask))
    assert prompt is not None
    other = replace(prompt, tokens=torch.randn(prompt.tokens.shape) * 3)
    first, second = (backbone.read(batch, part, embeds, joins_keys=False) for part in (prompt, other))
    torch.testing.assert_close(first.text()[batch.mask], second.text()[batch.mask], rtol=1e-4, atol=1e-4)
    differences = (first.hidden() - second.hidden()).abs()[first.layout.is_prompt]
    assert float(differences.max()) > 1e-2  # they do change there


def compute_projections(family: str, layer: Any, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by the frozen weights alone. [S D] -> each [S heads 8]"""
    if family == "bert":
        attention = layer.attention.self
        weights = [(part.weight, part.bias) for part in (attention.query, attention.key, attention.value)]
    elif family == "t5":
        attention = layer.layer[0].SelfAttention
        weights = [(part.weight, None) for part in (attention.q, attention.k, attention.v)]
    elif family == "llama":
        attention = layer.self_attn
        weights = [(part.weight, None) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
    elif family == "gpt2":  # its matrix is transposed: [D 3D]
        attention = layer.attn.c_attn
        weights = [(attention.weight[:, at : at + 32].T, attention.bias[at : at + 32]) for at in (0, 32, 64)]
    else:
        attention = layer.attention.query_key_value
        rows = [[head * 24 + part * 8 + n for head in range(4) for n in range(8)] for part in range(3)]
        weights = [(attention.weight[part], attention.bias[part]) for part in rows]
    query, key, value = (functional.linear(states, w, b).view(len(states), -1, 8) for w, b in weights)
    return query, key, value


def rotate(vectors: Tensor, size: int) -> Tensor:
    """Rotary positions from 0, on the first `size` numbers of each head. [S heads 8]"""
    turned = vectors.clone()
    for position in range(len(vectors)):
        for number in range(size // 2):
            angle = torch.tensor(position * 10000.0 ** (-2 * number / size))
            x, y = vectors[position, :, number], vectors[position, :, number + size // 2]
            turned[position, :, number] = x * angle.cos() - y * angle.sin()
            turned[position, :, number + size // 2] = y * angle.cos() + x * angle.sin()
    return turned


# family -> paths in a layer: the frozen key projection, and the projection of the heads' outputs
ATTENTIONS = {
    "bert": ("attention.self.key", "attention.output.dense"),
    "t5": ("layer.0.SelfAttention.k", "layer.0.SelfAttention.o"),
    "gpt2": ("attn.c_attn", "attn.c_proj"),
    "llama": ("self_attn.k_proj", "self_attn.o_proj"),
    "gpt_neox": ("attention.query_key_value", "attention.dense"),
}


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    inputs: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    try:
        yield inputs
    finally:
        handle.remove()


@pytest.mark.parametrize("family", ATTENTIONS)
@pytest.mark.parametrize("insert_at", ["front", "end"])
@torch.no_grad()
def test_text_attends_to_exactly_the_trained_keys_and_values(family: str, insert_at: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prefix-tuning", insert_at=insert_at)
    batch = batch_of(model, backbone)
    forward_pass = forward_pass_of(model, backbone, batch).with_positions
    layer: Any = backbone.layers[0]
    projection, output_projection = (layer.get_submodule(path) for path in ATTENTIONS[family])
    with inputs_of(projection) as states, inputs_of(output_projection) as outputs:
        forward_pass.text()
    trained = model.method.encoder.prompts[0]  # type: ignore[union-attr, index]
    width = backbone.key_width
    trained_keys, trained_values = (part.view(4, -1, 8) for part in (trained[:, :width], trained[:, width:]))
    for row in range(len(EXAMPLES)):
        real = forward_pass.layout.mask[row]
        index = forward_pass.layout.index[row][real].tolist()  # below 4: the number of a prompt token
        query, key, value = compute_projections(family, layer, states[0][row][real])
        for slot, number in enumerate(index):
            if number < 4:
                key[slot], value[slot] = trained_keys[number], trained_values[number]
        if family in ("llama", "gpt_neox"):
            size = 8 if family == "llama" else 2  # GPT-NeoX rotates a quarter
            query, key = rotate(query, size), rotate(key, size)
        bias = layer.layer[0].SelfAttention.compute_bias(len(index), len(index))[0] if family == "t5" else None
        for slot, number in enumerate(index):
            if number < 4:
                continue
            last = slot + 1 if backbone.kind == "decoder" else len(index)  # a decoder does not look ahead
            heads = []
            for head in range(4):
                kept = head * key.shape[1] // 4  # LLaMA has two heads of keys for four of queries
                scores = key[:last, kept] @ query[slot, head]
                scores = scores + bias[head, slot, :last] if bias is not None else scores / 8**0.5
                heads.append(scores.softmax(0) @ value[:last, kept])
            output = outputs[0][row][real][slot]
            torch.testing.assert_close(output, torch.cat(heads), rtol=1e-4, atol=1e-4)


# Gradient checkpointing


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("prompt-tuning", {}),
        ("m-idpg-phm", {"dropout": 0.3}),
        ("m-idpg-phm kv", {"dropout": 0.3, "representation_dropout": True}),
        ("prefix-tuning", {}),
        ("adapter", {"dropout": 0.3}),
        ("lora", {"dropout": 0.3}),
        ("fine-tuning", {"dropout": True}),
    ],
)
def test_layers_run_again_give_the_same_loss_and_gradients(family: str, case: str, settings: dict[str, object]) -> None:
    plain, again = (trained_once(family, case, settings, checkpoints) for checkpoints in (False, True))
    assert again["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert (plain["loss"] == pytest.approx(plain["loss without noise"], rel=1e-6)) == (not settings)
    assert set(again["gradients"]) == set(plain["gradients"])
    for name, gradient in plain["gradients"].items():
        torch.testing.assert_close(again["gradients"][name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in plain["gradients"].values())
    assert plain["runs"] == [1, 1, 1]
    assert again["runs"] == [2, 2, 2]
    assert again["asked layers"] == plain["asked layers"]  # a prompt is made once
    assert again["kept"] < plain["kept"] / 1.5


@pytest.mark.parametrize(
    ("case", "settings"), [("prefix-tuning", {}), ("adapter", {"dropout": 0.3}), ("lora", {"dropout": 0.3})]
)
def test_a_shared_layer_run_again_has_the_prompt_and_adapter_of_its_place(
    case: str, settings: dict[str, object]
) -> None:
    plain, again = (trained_once("albert", case, settings, checkpoints) for checkpoints in (False, True))
    for name, gradient in plain["gradients"].items():
        torch.testing.assert_close(again["gradients"][name], gradient, rtol=1e-4, atol=1e-6, msg=name)
        assert float(gradient.abs().max()) > 0, name
    assert (plain["runs"], again["runs"]) == ([3, 3, 3], [6, 6, 6])  # the same module in three places


def trained_once(family: str, case: str, settings: dict[str, object], checkpoints: bool) -> dict[str, Any]:
    """Run one backward pass on a new backbone, and count what it took."""
    backbone = Backbone(tiny_model(family), tiny_tokenizer(family), f"tiny-{family}")
    if checkpoints:
        backbone.checkpoint_layers()
    model = make_model(backbone, case, readout={"dropout": 0.0}, **settings)
    batch = batch_of(model, backbone)
    _ = backbone.with_dropout  # made now, so that it does not copy the counting hooks below
    with torch.no_grad():
        without_noise = float(model(backbone, batch)[0].sum())
    model.train()
    layers = model.method.view_of(backbone).layers
    runs = [0] * len(layers)
    for number, layer in enumerate(layers):

        def count(module: nn.Module, args: Any, number: int = number) -> None:
            runs[number] += 1

        inside = next(part for part in layer.modules() if isinstance(part, nn.Linear | nn.LayerNorm))
        inside.register_forward_pre_hook(count)
    asked_layers: list[int] = []
    original = model.method.prompt

    def spy(instance: Instance) -> Prompt | None:
        prompt = original(instance)
        if prompt is None or prompt.layer_prompts is None:
            return prompt
        whole = prompt.layer_prompts

        def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            asked_layers.append(layer)
            return whole(layer, hidden, mask)

        return replace(prompt, layer_prompts=layer_prompts)

    model.method.prompt = spy  # type: ignore[method-assign]
    kept = 0

    def pack(values: Tensor) -> Tensor:
        nonlocal kept
        kept += values.numel() * values.element_size()
        return values

    torch.manual_seed(7)
    counting = torch.autograd.graph.saved_tensors_hooks(pack, lambda values: values)
    with (
        counting,
        rows_of_global_batch([4, 0, 2, 5, 1], 6),
    ):  # noise by position; no longer active when the layers run again
        losses, aux_loss, *_ = model(backbone, batch)
    total = losses.sum() + aux_loss
    torch.manual_seed(8)
    total.backward()
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return {
        "loss": total.item(),
        "loss without noise": without_noise,
        "gradients": gradients,
        "runs": runs,
        "asked layers": asked_layers,
        "kept": kept,
    }
