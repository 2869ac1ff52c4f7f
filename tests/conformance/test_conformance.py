"""What every method must keep, on every family of backbones. A new method or family joins by its table entry."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tiny import DECODERS, ENCODER_DECODERS, ENCODERS, ONE_OF_EACH_KIND, tiny
from torch import Tensor
from toy import CASES, ELSEWHERE, EVERYWHERE, EXAMPLES, PAIRS, TASK, make_model

from softcue.backbones import Backbone, Decoding
from softcue.errors import BackboneError, ConfigurationError
from softcue.inference import TaskModel, predict, predict_mixed
from softcue.inputs.collate import PaddingSide, collate
from softcue.methods import METHODS
from softcue.tasks import Label, Task
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Batch, Example, Instance, LayerPrompt, Prompt, TokenizedRow

FAMILIES = ENCODERS + ENCODER_DECODERS + DECODERS
WRITERS = ENCODER_DECODERS + DECODERS

# What cannot work, with the setting that the refusal names.
REFUSED: dict[tuple[str, str], tuple[type[Exception], str]] = {
    # ELECTRA's embeddings are narrower than its hidden states: one generator cannot make both
    **{
        ("electra", case): (ConfigurationError, r"method\.sharing")
        for case in (
            "m-idpg-phm",
            "m-idpg-phm S",
            "m-idpg-phm first",
            "m-idpg-phm replace",
            "m-idpg-dnn",
            "m-idpg-phm-glove",
            "m-idpg-phm words",
            "m-idpg-phm normed",
        )
    },
    # DeBERTa's key projection serves relative positions, too
    **{
        ("deberta-v2", case): (BackboneError, r"method\.rule")
        for case in (
            "prefix-tuning",
            "prefix-tuning network",
            "p-tuning-v2 kv",
            "m-idpg-phm kv",
        )
    },
}
INSTEAD = [("electra", "m-idpg-phm L"), ("electra", "m-idpg-phm kv"), ("deberta-v2", "p-tuning-v2")]
COMBINATIONS = [
    *[(family, case) for case in EVERYWHERE for family in FAMILIES if (family, case) not in REFUSED],
    *[(family, case) for case in ELSEWHERE for family in ONE_OF_EACH_KIND],
    *INSTEAD,
]


def each_combination(families: Sequence[str] = FAMILIES) -> pytest.MarkDecorator:
    chosen = [(family, case) for family, case in COMBINATIONS if family in families]
    return pytest.mark.parametrize(("family", "case"), chosen)


def unfolded(model: TaskModel, examples: Sequence[Example] = EXAMPLES) -> list[Example]:
    """The examples as they are put to the backbone; five rows of them are enough."""
    return [part for example in examples for part in model.split(example)][:5]


def batch_of(
    model: TaskModel, backbone: Backbone, examples: list[Example], side: PaddingSide = "right", answers: bool = False
) -> Batch:
    rows = model.rows(backbone, examples, with_answer=answers)
    return collate(rows, backbone.tokenizer.pad_token_id, side)


def row_of(model: TaskModel, backbone: Backbone, example: Example) -> TokenizedRow:
    return model.rows(backbone, model.split(example))[0]


def text_states(model: TaskModel, backbone: Backbone, batch: Batch) -> Tensor:
    return model.read(model.method.view_of(backbone), batch)[0].text()


def tensors_of(part: LayerPrompt | None) -> list[Tensor]:
    return [] if part is None else [value for value in vars(part).values() if value is not None]


def test_every_method_has_a_case() -> None:
    assert {method_class for method_class, _ in CASES.values()} >= set(METHODS.values())


@pytest.mark.parametrize(("family", "case"), REFUSED)
def test_what_cannot_work_is_refused_by_name(family: str, case: str) -> None:
    error, setting = REFUSED[family, case]
    with pytest.raises(error, match=setting):
        make_model(tiny(family), case)


@each_combination()
@torch.no_grad()
def test_outputs_keep_the_inputs_length(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = batch_of(model, backbone, unfolded(model))
    assert text_states(model, backbone, batch).shape == (*batch.ids.shape, backbone.hidden_width)


@each_combination()
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_padded_batch(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    examples = unfolded(model)
    sides: tuple[PaddingSide, ...] = ("left", "right")
    batches = [batch_of(model, backbone, examples, side) for side in sides]
    together = [text_states(model, backbone, batch) for batch in batches]
    for number, example in enumerate(examples):
        alone = text_states(model, backbone, batch_of(model, backbone, [example]))[0]
        for batch, states in zip(batches, together, strict=True):
            torch.testing.assert_close(states[number][batch.mask[number]], alone, rtol=1e-4, atol=1e-4)


@each_combination(DECODERS)
@torch.no_grad()
def test_a_decoder_reads_the_same_whatever_side_the_layout_pads(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = batch_of(model, backbone, unfolded(model), answers=True)
    loss, aux_loss, _ = model(backbone, batch)
    other = copy.copy(backbone)
    other.layout_side = "right"
    other_loss, other_aux_loss, _ = model(other, batch)
    torch.testing.assert_close(other_loss.total, loss.total, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other_aux_loss, aux_loss, rtol=1e-4, atol=1e-4)


@each_combination()
@torch.no_grad()
def test_a_method_changes_what_the_backbone_reads_if_it_says_so(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = batch_of(model, backbone, unfolded(model))
    plain = backbone.read(batch, None, backbone.embed(batch.ids)).text()
    difference = (text_states(model, backbone, batch) - plain)[batch.mask].abs().amax(dim=1)  # per token
    if model.method.changes_reading:
        # a decoder's tokens before the prompt (OPT's first) cannot see it
        assert float((difference > 1e-3).float().mean()) > 0.7
    else:
        assert float(difference.max()) == 0.0


DEEP = [
    (family, case)
    for family, case in COMBINATIONS
    if case.startswith(("m-idpg", "p-tuning-v2", "prefix-tuning", "toy"))
]


@pytest.mark.parametrize(("family", "case"), DEEP)
@torch.no_grad()
@pytest.mark.usefixtures("prompts_in_every_row")
def test_deep_prompts_reach_every_layer(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = batch_of(model, backbone, EXAMPLES)
    seen = model.method.view_of(backbone)
    embeds = seen.input_states(batch)
    prompt = model.prompt(seen, batch, embeds)
    assert prompt is not None and prompt.layer_prompts is not None
    whole = prompt.layer_prompts

    def states(without: int | None) -> tuple[Tensor, list[LayerPrompt | None]]:
        """The text's states when one layer is left out, and what layers were given."""
        given: list[LayerPrompt | None] = []

        def recorded(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            assert layer == len(given)  # each once, in order
            given.append(None if layer == without else whole(layer, hidden, mask))
            return given[-1]

        return seen.read(batch, replace(prompt, layer_prompts=recorded), embeds).text(), given

    everything, given = states(without=None)
    takes_keys = any(part is not None and part.keys is not None for part in given)
    first = 0 if takes_keys else 1  # at level 0, prompts of hidden states are the embeddings themselves
    assert [part is not None for part in given] == [layer >= first for layer in range(seen.num_layers)]
    for part in given[first:]:
        assert part is not None
        assert (part.states is None) == takes_keys == (part.keys is not None) == (part.values is not None)
    for layer in range(first, seen.num_layers):
        assert float((states(without=layer)[0] - everything)[batch.mask].abs().max()) > 1e-3


GENERATED = [(family, case) for family, case in COMBINATIONS if "idpg" in case and family in ONE_OF_EACH_KIND]


@pytest.mark.parametrize(("family", "case"), GENERATED)
@torch.no_grad()
def test_generated_prompts_differ_between_inputs_on_every_level(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = batch_of(model, backbone, EXAMPLES)
    seen = model.method.view_of(backbone)
    forward_pass, _ = model.read(seen, batch)
    assert forward_pass.prompt is not None
    whole = forward_pass.prompt.layer_prompts
    found: list[Tensor] = [] if case.endswith("kv") else [forward_pass.prompt.tokens]

    def recorded(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
        assert whole is not None
        part = whole(layer, hidden, mask)
        found.extend(value for value in tensors_of(part) if value.is_floating_point())
        return part

    if whole is not None:
        replace(forward_pass, prompt=replace(forward_pass.prompt, layer_prompts=recorded)).text()
    num_levels = 1 if case.startswith("s-") else seen.num_layers
    assert len(found) == num_levels * (2 if case.endswith("kv") else 1)
    for values in found:
        for row in range(1, len(EXAMPLES)):
            assert float((values[row] - values[0]).abs().max()) > 1e-3


@each_combination()
@torch.no_grad()
def test_changing_the_target_never_changes_the_prompt(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    found: list[Tensor] = []
    original = model.method.prompt

    def spy(instance: Instance) -> Prompt | None:
        prompt = original(instance)
        found.append(instance.embeds if prompt is None else prompt.tokens)
        if prompt is None or prompt.layer_prompts is None:
            return prompt
        whole = prompt.layer_prompts

        def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            part = whole(layer, hidden, mask)
            found.extend(tensors_of(part))
            return part

        return replace(prompt, layer_prompts=layer_prompts)

    model.method.prompt = spy  # type: ignore[method-assign, assignment]
    examples = unfolded(model)
    names = model.readout.task.label_names
    others = [Example(example.texts, names[0] if example.target != names[0] else names[-1]) for example in examples]
    model(backbone, batch_of(model, backbone, examples, answers=True))
    first = list(found)
    found.clear()
    model.method.view_of(backbone).prefixes.forget()  # what is kept from the first pass would not ask the prompt again
    model(backbone, batch_of(model, backbone, others, answers=True))
    assert len(first) == len(found) > 0
    for one, two in zip(first, found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


@each_combination()
def test_training_changes_only_tunable_numbers(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    if not any(True for _ in model.parameters()):  # a baseline learns only through a head
        model = make_model(backbone, case, readout={"name": "classifier"})
    before = {name: value.clone() for name, value in backbone.model.state_dict().items()}
    numbers = {name: value.clone() for name, value in model.named_parameters()}
    config = TrainingConfig(steps=2, batch_size=3, learning_rate=0.1, network_learning_rate=0.1)
    Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config)._step()
    for name, value in backbone.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for parameter in backbone.model.parameters():
        assert parameter.grad is None and not parameter.requires_grad
    unread = ("method.weights.cls/",) if case in ("fine-tuning", "efl") else ()  # BERT's word head, when a head reads
    for name, value in model.named_parameters():
        is_read = not name.startswith(unread) if unread else True
        assert torch.equal(value, numbers[name]) != is_read, f"{name} did not learn"


@each_combination()
def test_evaluation_is_deterministic_and_loading_gives_equal_outputs(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    requests = [(model, example) for example in EXAMPLES]
    first = predict(backbone, requests).answers
    assert predict(backbone, requests).answers == first
    twin = make_model(backbone, case, seed=5)
    if any(True for _ in model.parameters()):
        assert predict(backbone, [(twin, example) for example in EXAMPLES]).answers != first
    twin.load_state_dict(model.state_dict())
    assert predict(backbone, [(twin, example) for example in EXAMPLES]).answers == first


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_mixed_batch_of_all_methods_equals_separate_runs(family: str) -> None:
    backbone = tiny(family)
    cases = [case for case in CASES if (family, case) not in REFUSED]
    models = [make_model(backbone, case, seed=number) for number, case in enumerate(cases)]
    models.append(make_model(backbone, "prompt-tuning", task=PAIRS, prompt_length=9))
    models.append(
        make_model(backbone, "prompt-tuning", readout={"name": "classifier"}, prompt_length=2, init="uniform")
    )
    models.append(make_model(backbone, "no-prompt", readout={"name": "classifier"}))
    if family != "deberta-v2":
        models.append(make_model(backbone, "prefix-tuning", prompt_length=6, seed=9))
        models.append(make_model(backbone, "p-tuning-v2 kv", prompt_length=1, seed=10))
    pairs = [Example(("My invoice", "The parcel is late")), Example(("a", "b"))]
    rows: list[tuple[TaskModel, TokenizedRow]] = []
    for number, model in enumerate(models):
        examples = [EXAMPLES[number % 5], EXAMPLES[(number + 2) % 5]] if model.task is TASK else pairs
        rows += [(model, row) for row in model.rows(backbone, unfolded(model, examples))]
    order = torch.randperm(len(rows)).tolist()
    mixed = predict_mixed(backbone, [rows[number] for number in order])
    for number, answer in zip(order, mixed, strict=True):
        alone = predict_mixed(backbone, [rows[number]])[0]
        assert answer.scores == pytest.approx(alone.scores, abs=1e-4)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("readout", ["label-words", "generation"])
@torch.no_grad()
def test_rows_that_are_read_apart_keep_their_own_prompts(family: str, readout: str) -> None:
    backbone = tiny(family)
    if backbone.kind == "encoder":
        readout = "label-words"
    task = Task(name="words", labels={"a": Label(words="the"), "b": Label(words="is")})
    settings: dict[str, object] = {"name": readout, "decoding": "greedy", "max_new_tokens": 4}
    cases = ("toy-add", "m-idpg-phm", "prefix-tuning", "toy-replace", "m-idpg-phm kv", "prompt-tuning", "adapter")
    models = [make_model(backbone, case, task=task, readout=settings, seed=seed) for seed, case in enumerate(cases)]
    rows = [(model, row_of(model, backbone, example)) for example in EXAMPLES[:3] for model in models]
    for row, answer in zip(rows, predict_mixed(backbone, rows), strict=True):
        alone = predict_mixed(backbone, [row])[0]
        assert answer.label == alone.label
        assert answer.scores == (None if alone.scores is None else pytest.approx(alone.scores, abs=1e-4))


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_prompts_of_all_kinds_share_one_pass_and_changed_backbones_have_their_own(family: str) -> None:
    backbone = tiny(family)
    head: dict[str, object] = {"name": "classifier"}
    cases = ("prompt-tuning", "toy-add", "toy-replace", "prefix-tuning", "m-idpg-phm", "m-idpg-phm kv")
    models = [make_model(backbone, case, readout=head) for case in cases]
    rows = [(model, row_of(model, backbone, example)) for example in EXAMPLES[:2] for model in models]
    adapted = [make_model(backbone, "adapter", readout=head, seed=seed) for seed in (1, 2)]
    others = [(model, row_of(model, backbone, EXAMPLES[0])) for model in adapted]

    def num_passes(some: list[tuple[TaskModel, TokenizedRow]]) -> int:
        passes: list[object] = []
        handle = backbone.layers[0].register_forward_pre_hook(lambda module, args: passes.append(module))
        predict_mixed(backbone, some)
        handle.remove()
        return len(passes)

    predict_mixed(backbone, rows)  # a decoder's static prompts are run once, and kept
    # on decoders, rows whose prompt is kept are shorter than those that read the input: a pass each
    together = 2 if backbone.kind == "decoder" else 1
    assert num_passes(rows) == together
    assert num_passes(rows + others) == together + len(adapted)


@each_combination(WRITERS)
@torch.no_grad()
def test_cached_decoding_equals_uncached(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    seen = model.method.view_of(backbone)
    examples = unfolded(model)
    written = model.read(seen, batch_of(model, backbone, examples))[0].generate(Decoding(1, 4))
    for number, example in enumerate(examples):  # word by word, the whole text read anew for each
        row = model.rows(backbone, [example])[0]
        answer: list[int] = []
        for _ in range(4):
            forced = collate([replace(row, target_ids=(*answer, 0))], backbone.tokenizer.pad_token_id)
            forward_pass, _ = model.read(seen, forced, with_target=True)
            answer.append(int(forward_pass.target_logits(forced.target_ids)[0, -1].argmax()))
        assert _until_end(written[number]) == _until_end(answer)


@each_combination(WRITERS)
@torch.no_grad()
def test_beams_of_a_row_alone_equal_those_in_a_padded_batch(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    seen = model.method.view_of(backbone)
    examples = unfolded(model)

    def written(some: list[Example]) -> list[list[int]]:
        return model.read(seen, batch_of(model, backbone, some))[0].generate(Decoding(3, 4))

    together = written(examples)
    for number, example in enumerate(examples):
        assert _until_end(written([example])[0]) == _until_end(together[number])


def _until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(1)] if 1 in ids else ids


@each_combination(WRITERS)
@torch.no_grad()
def test_ranking_gives_the_likelihood_that_training_sees(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    if model.method.needs_head:
        assert model.readout.summary is not None  # a head, also here: there are no answers to rank
        return
    examples = unfolded(model)[:3]
    forward_pass, _ = model.read(model.method.view_of(backbone), batch_of(model, backbone, examples))
    ranked = forward_pass.rank(model.readout.candidates)  # type: ignore[arg-type]
    for column, label in enumerate(model.readout.task.label_names):
        for row, example in enumerate(examples):
            loss, _, _ = model(backbone, batch_of(model, backbone, [Example(example.texts, label)], answers=True))
            assert float(loss.total) == pytest.approx(-float(ranked[row, column]), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameter_counts_match_the_formula(family: str) -> None:
    backbone = tiny(family)
    for length in (1, 7):
        counts = make_model(backbone, "prompt-tuning", prompt_length=length, init="uniform").counts()
        assert (counts.gradient, counts.ema, counts.stored) == (length * backbone.width, 0, length * backbone.width)
    head = (backbone.hidden_width + 1) * len(TASK.labels) if backbone.kind == "encoder" else 0
    assert counts.head == head


@pytest.mark.parametrize("case", CASES)
def test_all_that_is_stored_is_trained_or_a_codebook(case: str) -> None:
    model = make_model(tiny("bert"), case)
    counts = model.counts()
    codes = [value for name, value in model.method.state_dict().items() if name.endswith("codebook")]
    assert counts.ema == sum(value.numel() for value in codes)
    assert counts.gradient == sum(parameter.numel() for parameter in model.method.parameters())
    assert counts.stored == counts.gradient + counts.ema


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("case", ["prompt-tuning", "toy-add", "m-idpg-phm", "prefix-tuning"])
@torch.no_grad()
def test_insertion_places_give_different_and_padding_safe_answers(family: str, case: str) -> None:
    backbone = tiny(family)
    found = {}
    for insert_at in ("front", "start", "end"):
        model = make_model(backbone, case, insert_at=insert_at)
        together = predict_mixed(backbone, [(model, row_of(model, backbone, example)) for example in EXAMPLES])
        for example, answer in zip(EXAMPLES, together, strict=True):
            alone = predict_mixed(backbone, [(model, row_of(model, backbone, example))])[0]
            assert answer.scores == pytest.approx(alone.scores, abs=1e-4)
        found[insert_at] = list((together[0].scores or {}).values())
    assert found["start"] != pytest.approx(found["end"], abs=1e-5)
    if family == "bert":  # the only one of these with a leading special token
        assert found["front"] != pytest.approx(found["start"], abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("insert_at", ["front", "start", "end"])
@pytest.mark.parametrize("readout", ["classifier", "label-words", "generation"])
def test_every_readout_teaches_a_prompt_at_every_place(family: str, insert_at: str, readout: str) -> None:
    backbone = tiny(family)
    task = Task(name="words", labels={"a": Label(words="the"), "b": Label(words="is")})
    settings: dict[str, object] = {"name": readout}
    if readout == "generation" and backbone.kind == "encoder":
        with pytest.raises(BackboneError, match="writes text"):
            make_model(backbone, task=task, readout=settings, insert_at=insert_at)
        return
    if backbone.kind == "decoder" and insert_at == "end" and readout == "classifier":
        with pytest.raises(ConfigurationError, match="insert_at"):
            make_model(backbone, task=task, readout=settings, insert_at=insert_at)
        return
    model = make_model(backbone, task=task, readout=settings, insert_at=insert_at)
    examples = [Example(example.texts, "ab"[number % 2]) for number, example in enumerate(EXAMPLES)]
    loss, _, _ = model(backbone, batch_of(model, backbone, examples, answers=True))
    loss.total.backward()
    (prompt,) = model.method.prompt_parameters()
    assert prompt.grad is not None
    assert bool((prompt.grad.abs().sum(dim=1) > 1e-8).all())  # each prompt vector is taught
