"""What every method must keep, on every family of backbones. A new method or family joins by its table entry."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tiny import DECODERS, ENCODER_DECODERS, ENCODERS, ONE_OF_EACH_KIND, tiny
from torch import Tensor
from toy import ALL_METHODS, EXAMPLES, PAIRS, TASK, make_model

from softcue.backbones import Backbone, Decoding
from softcue.errors import ConfigurationError
from softcue.evaluation import predict
from softcue.methods import TaskModel, predict_mixed
from softcue.tasks import Label, Task
from softcue.tokens import PaddingSide, collate
from softcue.training import Trainer, TrainingConfig
from softcue.types import Batch, Example, Instance

FAMILIES = ENCODERS + ENCODER_DECODERS + DECODERS
each_family = pytest.mark.parametrize("family", FAMILIES)
each_method = pytest.mark.parametrize("method", ALL_METHODS)


def batch_of(
    model: TaskModel, backbone: Backbone, examples: list[Example], side: PaddingSide = "right", answers: bool = False
) -> Batch:
    rows = [model.tokens(example, with_answer=answers) for example in examples]
    return collate(rows, backbone.tokenizer.pad_token_id, side)


def text_states(model: TaskModel, backbone: Backbone, batch: Batch) -> Tensor:
    embeds = backbone.embed(batch.ids)
    prompt = model.method.prompt(Instance(embeds, batch.mask))
    return backbone.read(batch, prompt, embeds).text()


@each_family
@each_method
@torch.no_grad()
def test_outputs_keep_the_inputs_length(family: str, method: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, method)
    batch = batch_of(model, backbone, EXAMPLES)
    assert text_states(model, backbone, batch).shape == (*batch.ids.shape, backbone.hidden_width)


@each_family
@each_method
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_padded_batch(family: str, method: str, side: PaddingSide) -> None:
    backbone = tiny(family)
    model = make_model(backbone, method)
    batch = batch_of(model, backbone, EXAMPLES, side)
    together = text_states(model, backbone, batch)
    for number, example in enumerate(EXAMPLES):
        alone = text_states(model, backbone, batch_of(model, backbone, [example]))[0]
        torch.testing.assert_close(together[number][batch.mask[number]], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", DECODERS)
@each_method
@torch.no_grad()
def test_a_decoder_reads_the_same_whatever_side_the_layout_pads(family: str, method: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, method)
    batch = batch_of(model, backbone, EXAMPLES, answers=True)
    other = copy.copy(backbone)
    other.layout_side = "right"
    for one, two in zip(loss_of(model, backbone, batch), loss_of(model, other, batch), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


def loss_of(model: TaskModel, backbone: Backbone, batch: Batch) -> tuple[Tensor, Tensor]:
    loss, aux_loss = model(backbone, batch)
    return loss.total, aux_loss


@each_family
@each_method
@torch.no_grad()
def test_the_prompt_changes_what_the_backbone_reads(family: str, method: str) -> None:
    if method == "no-prompt":
        pytest.skip("has no prompt")
    backbone = tiny(family)
    prompted, plain = make_model(backbone, method), make_model(backbone, "no-prompt")
    batch = batch_of(prompted, backbone, EXAMPLES)
    difference = text_states(prompted, backbone, batch) - text_states(plain, backbone, batch)
    assert float(difference[batch.mask].abs().max()) > 1e-3


@each_family
@pytest.mark.parametrize("method", ["toy-add", "toy-replace"])
@torch.no_grad()
def test_deep_prompts_reach_every_layer(family: str, method: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, method)
    batch = batch_of(model, backbone, EXAMPLES)
    embeds = backbone.embed(batch.ids)
    prompt = model.method.prompt(Instance(embeds, batch.mask))
    assert prompt is not None and prompt.deeper is not None
    asked: list[int] = []
    whole = prompt.deeper

    def counted(layer: int, hidden: Tensor, mask: Tensor) -> Tensor:
        asked.append(layer)
        return whole(layer, hidden, mask)

    deep = backbone.read(batch, replace(prompt, deeper=counted), embeds).text()
    shallow = backbone.read(batch, replace(prompt, deeper=None), embeds).text()
    assert asked == list(range(1, backbone.num_layers))
    assert float((deep - shallow)[batch.mask].abs().max()) > 1e-3


@each_family
@each_method
@torch.no_grad()
def test_changing_the_target_never_changes_the_prompt(family: str, method: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, method)
    seen: list[Tensor] = []
    original = model.method.prompt

    def spy(instance: Instance) -> object:
        prompt = original(instance)
        seen.append(instance.embeds if prompt is None else prompt.tokens)
        if prompt is None or prompt.deeper is None:
            return prompt
        whole = prompt.deeper

        def deeper(layer: int, hidden: Tensor, mask: Tensor) -> Tensor:
            values = whole(layer, hidden, mask)
            seen.append(values)
            return values

        return replace(prompt, deeper=deeper)

    model.method.prompt = spy  # type: ignore[method-assign, assignment]
    other = [Example(example.texts, "a" if example.target != "a" else "c") for example in EXAMPLES]
    model(backbone, batch_of(model, backbone, EXAMPLES, answers=True))
    first = list(seen)
    seen.clear()
    model(backbone, batch_of(model, backbone, other, answers=True))
    assert len(first) == len(seen) > 0
    for one, two in zip(first, seen, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


@each_family
@each_method
def test_training_changes_only_tunable_numbers(family: str, method: str) -> None:
    backbone = tiny(family)
    trains_nothing = method == "no-prompt" and backbone.kind != "encoder"
    readout: dict[str, object] = {"name": "classifier"} if trains_nothing else {}
    model = make_model(backbone, method, readout=readout)
    before = {name: value.clone() for name, value in backbone.model.state_dict().items()}
    numbers = {name: value.clone() for name, value in model.named_parameters()}
    config = TrainingConfig(steps=2, batch_size=3, prompt_rate=0.1, network_rate=0.1)
    Trainer(backbone, model, EXAMPLES, EXAMPLES, config)._step()
    for name, value in backbone.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(parameter.grad is not None for parameter in backbone.model.parameters())
    for name, value in model.named_parameters():
        assert not torch.equal(value, numbers[name]), f"{name} did not learn"


@each_family
@each_method
def test_evaluation_is_deterministic_and_loading_gives_equal_outputs(family: str, method: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, method)
    requests = [(model, example) for example in EXAMPLES]
    first = predict(backbone, requests).answers
    assert predict(backbone, requests).answers == first
    twin = make_model(backbone, method, seed=5)
    twin.load_state_dict(model.state_dict())
    assert predict(backbone, [(twin, example) for example in EXAMPLES]).answers == first


@each_family
@torch.no_grad()
def test_a_mixed_batch_equals_separate_runs(family: str) -> None:
    backbone = tiny(family)
    models = [make_model(backbone, method, seed=number) for number, method in enumerate(ALL_METHODS)]
    models.append(make_model(backbone, "prompt-tuning", task=PAIRS, prompt_length=9))
    models.append(
        make_model(backbone, "prompt-tuning", readout={"name": "classifier"}, prompt_length=2, init="uniform")
    )
    rows = []
    for model in models:
        examples = (
            EXAMPLES if model.task is TASK else [Example(("My invoice", "The parcel is late")), Example(("a", "b"))]
        )
        rows += [(model, model.tokens(example)) for example in examples]
    order = torch.randperm(len(rows)).tolist()
    mixed = predict_mixed(backbone, [rows[number] for number in order])
    for number, answer in zip(order, mixed, strict=True):
        alone = predict_mixed(backbone, [rows[number]])[0]
        assert answer.label == alone.label
        assert answer.scores == pytest.approx(alone.scores, abs=1e-4)


@pytest.mark.parametrize("family", ENCODER_DECODERS + DECODERS)
@each_method
@torch.no_grad()
def test_cached_decoding_equals_uncached(family: str, method: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, method)
    batch = batch_of(model, backbone, EXAMPLES)
    embeds = backbone.embed(batch.ids)
    prompt = model.method.prompt(Instance(embeds, batch.mask))
    written = backbone.read(batch, prompt, embeds).generate(Decoding(1, 4))
    for number, example in enumerate(EXAMPLES):  # word by word, the whole text read anew for each
        rows = [model.tokens(example)]
        answer: list[int] = []
        for _ in range(4):
            forced = collate([replace(rows[0], target_ids=(*answer, 0))], backbone.tokenizer.pad_token_id)
            own = backbone.embed(forced.ids)
            own_prompt = model.method.prompt(Instance(own, forced.mask))
            reading = backbone.read(forced, own_prompt, own, with_target=True)
            answer.append(int(reading.target_logits(forced.target_ids)[0, -1].argmax()))
        assert _until_end(written[number]) == _until_end(answer)


@pytest.mark.parametrize("family", ENCODER_DECODERS + DECODERS)
@each_method
@torch.no_grad()
def test_beams_of_a_row_alone_equal_those_in_a_padded_batch(family: str, method: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, method)

    def written(examples: list[Example]) -> list[list[int]]:
        batch = batch_of(model, backbone, examples)
        embeds = backbone.embed(batch.ids)
        prompt = model.method.prompt(Instance(embeds, batch.mask))
        return backbone.read(batch, prompt, embeds).generate(Decoding(3, 4))

    together = written(EXAMPLES)
    for number, example in enumerate(EXAMPLES):
        assert _until_end(written([example])[0]) == _until_end(together[number])


def _until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(1)] if 1 in ids else ids


@pytest.mark.parametrize("family", ENCODER_DECODERS + DECODERS)
@each_method
@torch.no_grad()
def test_ranking_gives_the_likelihood_that_training_sees(family: str, method: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, method)
    embeds_batch = batch_of(model, backbone, EXAMPLES)
    embeds = backbone.embed(embeds_batch.ids)
    prompt = model.method.prompt(Instance(embeds, embeds_batch.mask))
    ranked = backbone.read(embeds_batch, prompt, embeds).rank(model.readout.candidates)  # type: ignore[arg-type]
    for column, label in enumerate(TASK.label_names):
        for row, example in enumerate(EXAMPLES):
            loss, _ = model(backbone, batch_of(model, backbone, [Example(example.texts, label)], answers=True))
            assert float(loss.total) == pytest.approx(-float(ranked[row, column]), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameter_counts_match_the_formula(family: str) -> None:
    backbone = tiny(family)
    for length in (1, 7):
        counts = make_model(backbone, "prompt-tuning", prompt_length=length, init="uniform").counts()
        assert (counts.gradient, counts.ema, counts.stored) == (length * backbone.width, 0, length * backbone.width)
    head = (backbone.hidden_width + 1) * len(TASK.labels) if backbone.kind == "encoder" else 0
    assert counts.head == head


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("method", ["prompt-tuning", "toy-add"])
@torch.no_grad()
def test_insertion_places_give_different_and_padding_safe_answers(family: str, method: str) -> None:
    backbone = tiny(family)
    found = {}
    for insert_at in ("front", "start", "end"):
        model = make_model(backbone, method, insert_at=insert_at)
        together = predict_mixed(backbone, [(model, model.tokens(example)) for example in EXAMPLES])
        for example, answer in zip(EXAMPLES, together, strict=True):
            alone = predict_mixed(backbone, [(model, model.tokens(example))])[0]
            assert answer.scores == pytest.approx(alone.scores, abs=1e-4)
        found[insert_at] = list((together[0].scores or {}).values())
    assert found["start"] != pytest.approx(found["end"], abs=1e-5)
    if family == "bert":  # the only one of these with a leading special token
        assert found["front"] != pytest.approx(found["start"], abs=1e-5)


@each_family
@pytest.mark.parametrize("insert_at", ["front", "start", "end"])
@pytest.mark.parametrize("readout", ["classifier", "label-words", "generation"])
def test_every_readout_teaches_a_prompt_at_every_place(family: str, insert_at: str, readout: str) -> None:
    backbone = tiny(family)
    if readout == "generation" and backbone.kind == "encoder":
        pytest.skip("an encoder writes no text")
    task = Task(name="words", labels={"a": Label(words="the"), "b": Label(words="is")})
    settings: dict[str, object] = {"name": readout}
    if backbone.kind == "decoder" and insert_at == "end" and readout == "classifier":
        with pytest.raises(ConfigurationError, match="insert_at"):
            make_model(backbone, task=task, readout=settings, insert_at=insert_at)
        return
    model = make_model(backbone, task=task, readout=settings, insert_at=insert_at)
    examples = [Example(example.texts, "ab"[number % 2]) for number, example in enumerate(EXAMPLES)]
    loss, _ = model(backbone, batch_of(model, backbone, examples, answers=True))
    loss.total.backward()
    (prompt,) = model.method.prompt_parameters()
    assert prompt.grad is not None
    assert bool((prompt.grad.abs().sum(dim=1) > 1e-8).all())  # each prompt vector is taught
