"""The rules that every method keeps on every family of backbones.

A new method or family joins by its table entry. What is computed in other shapes is compared with a tolerance of
tolerance.py; what is computed in the same shapes is compared bit by bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tiny import DECODERS, ENCODER_DECODERS, ENCODERS, ONE_OF_EACH_KIND, SPECIAL, tiny, tiny_float64
from tolerance import REORDERED_FLOAT32, REORDERED_FLOAT64, REORDERED_PROBABILITIES, Tolerance
from torch import Tensor
from toy import CASES, ELSEWHERE, EVERYWHERE, EXAMPLES, PAIRS, SET_EXAMPLES, SETS, TASK, make_model, works_on

from softcue.backbones import Backbone, Decoding
from softcue.errors import BackboneError, ConfigurationError
from softcue.inference import TaskModel, predict, predict_mixed
from softcue.inputs.collate import PaddingSide, collate
from softcue.methods import METHODS
from softcue.tasks import Label, Task
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Batch, Example, Instance, LayerPrompt, Prompt, TokenizedRow

FAMILIES = ENCODERS + ENCODER_DECODERS + DECODERS
GENERATORS = ENCODER_DECODERS + DECODERS
END = SPECIAL.index("</s>")

# Combinations that cannot work, with the setting that the error names.
UNSUPPORTED: dict[tuple[str, str], tuple[type[Exception], str]] = {
    # methods for some kinds of backbone only
    **{
        (family, case): (BackboneError, r"method\.name")
        for case in CASES
        for family in FAMILIES
        if not works_on(case, family)
    },
    # the embeddings of ELECTRA and ALBERT are narrower than the hidden states: one generator cannot make both
    **{
        (family, case): (ConfigurationError, r"method\.sharing")
        for family in ("electra", "albert")
        for case in (
            "m-idpg-phm",
            "m-idpg-phm S",
            "m-idpg-phm first",
            "m-idpg-phm replace",
            "m-idpg-dnn",
            "m-idpg-phm-glove",
            "m-idpg-phm words",
            "m-idpg-phm words tuned",
            "m-idpg-phm normed",
        )
    },
    # ALBERT's layers share weights: none can be left out
    **{("albert", case): (BackboneError, r"method\.insert_layer") for case in CASES if " late" in case},
    # DeBERTa v2 and v3 also use the key projection for relative positions
    **{
        ("deberta-v2", case): (BackboneError, r"method\.rule")
        for case in (
            "prefix-tuning",
            "prefix-tuning network",
            "p-tuning-v2 kv",
            "m-idpg-phm kv",
            "p-tuning-v2 parallel",
        )
    },
}
ALTERNATIVES = [("electra", "m-idpg-phm L"), ("electra", "m-idpg-phm kv"), ("deberta-v2", "p-tuning-v2")]
COMBINATIONS = [
    *[(family, case) for case in EVERYWHERE for family in FAMILIES if (family, case) not in UNSUPPORTED],
    *[(family, case) for case in ELSEWHERE for family in ONE_OF_EACH_KIND if (family, case) not in UNSUPPORTED],
    *ALTERNATIVES,
]


def each_combination(families: Sequence[str] = FAMILIES) -> pytest.MarkDecorator:
    chosen = [(family, case) for family, case in COMBINATIONS if family in families]
    return pytest.mark.parametrize(("family", "case"), chosen)


def split_examples(model: TaskModel, examples: Sequence[Example] = EXAMPLES) -> list[Example]:
    """The examples as rows of the backbone; five rows are enough."""
    return [part for example in examples for part in model.split(example)][:5]


def make_batch(
    model: TaskModel,
    backbone: Backbone,
    examples: list[Example],
    side: PaddingSide = "right",
    with_targets: bool = False,
) -> Batch:
    rows = model.rows(backbone, examples, with_target=with_targets)
    batch = collate(rows, backbone.tokenizer.pad_token_id, side)
    if batch.representation is None:
        return batch
    rounded = batch.representation.to(torch.float32)  # as the store of sentence vectors keeps them, also in float64
    return replace(batch, representation=rounded.to(torch.get_default_dtype()))


def tokenize_example(model: TaskModel, backbone: Backbone, example: Example) -> TokenizedRow:
    return model.rows(backbone, model.split(example))[0]


def read_text_states(model: TaskModel, backbone: Backbone, batch: Batch) -> Tensor:
    return model.read(model.method.view_of(backbone), batch)[0].text()


def list_tensors(part: LayerPrompt | None) -> list[Tensor]:
    return [] if part is None else [value for value in vars(part).values() if value is not None]


def cut_at_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(END)] if END in ids else ids


def test_every_method_has_a_case() -> None:
    assert {method_class for method_class, _ in CASES.values()} >= set(METHODS.values())


@pytest.mark.parametrize(("family", "case"), UNSUPPORTED)
def test_unsupported_combinations_raise_errors_that_name_the_setting(family: str, case: str) -> None:
    error, setting = UNSUPPORTED[family, case]
    with pytest.raises(error, match=setting):
        make_model(tiny(family), case)


@each_combination(ONE_OF_EACH_KIND)
@torch.no_grad()
def test_hidden_states_keep_the_input_s_length(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = make_batch(model, backbone, split_examples(model))
    assert read_text_states(model, backbone, batch).shape == (*batch.ids.shape, backbone.hidden_width)


@each_combination()
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_padded_batch(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    examples = split_examples(model)
    sides: tuple[PaddingSide, ...] = ("left", "right")
    batches = [make_batch(model, backbone, examples, side) for side in sides]
    together = [read_text_states(model, backbone, batch) for batch in batches]
    for number, example in enumerate(examples):
        alone = read_text_states(model, backbone, make_batch(model, backbone, [example]))[0]
        for batch, states in zip(batches, together, strict=True):
            REORDERED_FLOAT32.assert_close(states[number][batch.mask[number]], alone)


@each_combination(DECODERS)
@torch.no_grad()
def test_the_padding_side_does_not_change_a_decoder_s_loss(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = make_batch(model, backbone, split_examples(model), with_targets=True)
    losses, aux_loss, *_ = model(backbone, batch)
    other = copy.copy(backbone)
    other.layout_side = "right"
    other_losses, other_aux_loss, *_ = model(other, batch)
    REORDERED_FLOAT32.assert_close(other_losses, losses)
    REORDERED_FLOAT32.assert_close(other_aux_loss, aux_loss)


@each_combination()
@torch.no_grad()
def test_a_method_changes_hidden_states_exactly_if_it_declares_so(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = make_batch(model, backbone, split_examples(model))
    plain = backbone.read(batch, None, backbone.embed(batch.ids)).text()
    difference = (read_text_states(model, backbone, batch) - plain)[batch.mask].abs().amax(dim=1)  # per token
    if model.method.changes_hidden_states:
        # a decoder's tokens before the prompt (OPT's first) cannot see it
        assert float((difference > 1e-3).float().mean()) > 0.7
    else:
        assert float(difference.max()) == 0.0


DEEP_PROMPTS = [
    (family, case)
    for family, case in COMBINATIONS
    if case.startswith(("m-idpg", "p-tuning-v2", "prefix-tuning", "toy"))
]


@pytest.mark.parametrize(("family", "case"), DEEP_PROMPTS)
@torch.no_grad()
@pytest.mark.usefixtures("prompts_in_every_row")
def test_deep_prompts_reach_every_layer(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = make_batch(model, backbone, EXAMPLES)
    view = model.method.view_of(backbone)
    embeds = view.input_states(batch)
    prompt = model.prompt(view, batch, embeds)
    assert prompt is not None and prompt.layer_prompts is not None
    make_layer_prompt = prompt.layer_prompts

    def read_without(skipped: int | None) -> tuple[Tensor, list[LayerPrompt | None]]:
        """The text's states when a layer gets no prompt, and the prompts of all layers."""
        given: list[LayerPrompt | None] = []

        def record(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            assert layer == len(given)  # each layer once, in order
            given.append(None if layer == skipped else make_layer_prompt(layer, hidden, mask))
            return given[-1]

        return view.read(batch, replace(prompt, layer_prompts=record), embeds).text(), given

    complete, given = read_without(None)
    takes_keys = any(part is not None and part.states is None for part in given)
    first = 0 if takes_keys else 1  # at level 0, prompts of hidden states are the embeddings themselves
    assert [part is not None for part in given] == [layer >= first for layer in range(view.num_layers)]
    for part in given[first:]:
        assert part is not None
        assert (part.states is None) == takes_keys
        assert takes_keys == ((part.keys is not None) != (part.parallel_keys is not None))
    for layer in range(first, view.num_layers):
        assert float((read_without(layer)[0] - complete)[batch.mask].abs().max()) > 1e-3


GENERATED_PROMPTS = [(family, case) for family, case in COMBINATIONS if "idpg" in case and family in ONE_OF_EACH_KIND]


@pytest.mark.parametrize(("family", "case"), GENERATED_PROMPTS)
@torch.no_grad()
def test_generated_prompts_differ_between_inputs_on_every_level(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    batch = make_batch(model, backbone, EXAMPLES)
    view = model.method.view_of(backbone)
    forward_pass, _ = model.read(view, batch)
    assert forward_pass.prompt is not None
    make_layer_prompt = forward_pass.prompt.layer_prompts
    has_keys = case.endswith(("kv", "parallel"))
    levels: list[Tensor] = [] if has_keys else [forward_pass.prompt.tokens]

    def record(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
        assert make_layer_prompt is not None
        part = make_layer_prompt(layer, hidden, mask)
        levels.extend(value for value in list_tensors(part) if value.is_floating_point())
        return part

    if make_layer_prompt is not None:
        replace(forward_pass, prompt=replace(forward_pass.prompt, layer_prompts=record)).text()
    num_levels = 1 if case.startswith("s-") else view.num_layers
    assert len(levels) == num_levels * (2 if has_keys else 1)
    for values in levels:
        for row in range(1, len(EXAMPLES)):
            assert float((values[row] - values[0]).abs().max()) > 1e-3


def record_prompts(model: TaskModel, backbone: Backbone, examples: list[Example]) -> list[Tensor]:
    """The prompt tensors of all levels in a training pass (a method without prompts: the text's embeddings)."""
    tensors: list[Tensor] = []
    make_prompt = model.method.prompt

    def record(instance: Instance) -> Prompt | None:
        prompt = make_prompt(instance)
        tensors.append(instance.embeds if prompt is None else prompt.tokens)
        if prompt is None or prompt.layer_prompts is None:
            return prompt
        make_layer_prompt = prompt.layer_prompts

        def record_layer(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            part = make_layer_prompt(layer, hidden, mask)
            tensors.extend(list_tensors(part))
            return part

        return replace(prompt, layer_prompts=record_layer)

    batch = make_batch(model, backbone, examples, with_targets=True)
    model.method.view_of(backbone).prefixes.forget()  # a kept prefix would not make the prompt again
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.method, "prompt", record)
        model(backbone, batch)
    return tensors


def assert_target_is_unseen(model: TaskModel, backbone: Backbone, tolerance: Tolerance) -> None:
    """Compare the prompts of the same texts with other targets. Their lengths differ, so the shapes may, too."""
    examples = split_examples(model)
    names = model.readout.task.label_names
    others = [Example(example.texts, names[0] if example.target != names[0] else names[-1]) for example in examples]
    prompts = record_prompts(model, backbone, examples)
    other_prompts = record_prompts(model, backbone, others)
    assert len(prompts) == len(other_prompts) > 0
    for prompt, other_prompt in zip(prompts, other_prompts, strict=True):
        tolerance.assert_close(prompt, other_prompt)


@each_combination()
@torch.no_grad()
def test_changing_the_target_never_changes_the_prompt(family: str, case: str) -> None:
    backbone = tiny(family)
    assert_target_is_unseen(make_model(backbone, case), backbone, REORDERED_FLOAT32)


@each_combination(ONE_OF_EACH_KIND)
@torch.no_grad()
@pytest.mark.usefixtures("float64")
def test_changing_the_target_never_changes_the_prompt_in_float64(family: str, case: str) -> None:
    """In float64 rounding is far smaller than any leak of the target."""
    backbone = tiny_float64(family)
    assert_target_is_unseen(make_model(backbone, case).double(), backbone, REORDERED_FLOAT64)


@torch.no_grad()
@pytest.mark.usefixtures("float64")
def test_a_slight_leak_of_the_target_is_noticed_in_float64() -> None:
    backbone = tiny_float64("gpt2")
    model = make_model(backbone, "toy-add").double()
    make_prompt = model.method.prompt
    num_calls = 0

    def leak(instance: Instance) -> Prompt | None:
        nonlocal num_calls
        num_calls += 1
        prompt = make_prompt(instance)
        assert prompt is not None
        return replace(prompt, tokens=prompt.tokens * (1 + 1e-9 * num_calls))  # differs between the two passes

    model.method.prompt = leak  # type: ignore[method-assign, assignment]
    with pytest.raises(AssertionError, match="not close"):
        assert_target_is_unseen(model, backbone, REORDERED_FLOAT64)


@each_combination()
def test_training_changes_only_trainable_parameters(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    if not model.method.needs_training:
        assert not any(True for _ in model.parameters())
        return
    if not any(True for _ in model.parameters()):  # a baseline learns only through a head
        model = make_model(backbone, case, readout={"name": "classifier"})
    frozen = {name: value.clone() for name, value in backbone.model.state_dict().items()}
    initial = {name: value.clone() for name, value in model.named_parameters()}
    config = TrainingConfig(steps=2, batch_size=3, learning_rate=0.1, network_learning_rate=0.1)
    Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config)._step()
    for name, value in backbone.model.state_dict().items():
        assert torch.equal(value, frozen[name]), name
    for parameter in backbone.model.parameters():
        assert parameter.grad is None and not parameter.requires_grad
    # BERT's word head is unused beside a classifier
    unused = ("method.weights.cls/",) if case in ("fine-tuning", "efl") else ()
    for name, value in model.named_parameters():
        is_used = not name.startswith(unused)
        assert torch.equal(value, initial[name]) != is_used, f"{name} did not learn"


@each_combination(ONE_OF_EACH_KIND)
def test_evaluation_is_deterministic_and_loading_gives_equal_outputs(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    requests = [(model, example) for example in EXAMPLES]
    first = predict(backbone, requests).predictions
    assert predict(backbone, requests).predictions == first
    twin = make_model(backbone, case, seed=5)
    if any(True for _ in model.parameters()):
        assert predict(backbone, [(twin, example) for example in EXAMPLES]).predictions != first
    twin.load_state_dict(model.state_dict())
    assert predict(backbone, [(twin, example) for example in EXAMPLES]).predictions == first


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_mixed_batch_of_all_methods_equals_separate_runs(family: str) -> None:
    backbone = tiny(family)
    cases = [case for chosen_family, case in COMBINATIONS if chosen_family == family]
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
        rows += [(model, row) for row in model.rows(backbone, split_examples(model, examples))]
    order = torch.randperm(len(rows)).tolist()
    mixed = predict_mixed(backbone, [rows[number] for number in order])
    for number, prediction in zip(order, mixed, strict=True):
        alone = predict_mixed(backbone, [rows[number]])[0]
        assert prediction.scores == REORDERED_PROBABILITIES.approx(alone.scores)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("readout", ["label-words", "generation"])
@torch.no_grad()
def test_rows_of_separate_passes_keep_their_prompts(family: str, readout: str) -> None:
    backbone = tiny(family)
    if backbone.kind == "encoder":
        readout = "label-words"
    task = Task(name="words", labels={"a": Label(words="the"), "b": Label(words="is")})
    settings: dict[str, object] = {"name": readout, "decoding": "greedy", "max_new_tokens": 4}
    cases = ("toy-add", "m-idpg-phm", "prefix-tuning", "toy-replace", "m-idpg-phm kv", "prompt-tuning", "adapter")
    models = [make_model(backbone, case, task=task, readout=settings, seed=seed) for seed, case in enumerate(cases)]
    rows = [(model, tokenize_example(model, backbone, example)) for example in EXAMPLES[:3] for model in models]
    for row, prediction in zip(rows, predict_mixed(backbone, rows), strict=True):
        alone = predict_mixed(backbone, [row])[0]
        assert prediction.label == alone.label
        assert prediction.scores == (None if alone.scores is None else REORDERED_PROBABILITIES.approx(alone.scores))


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_prompts_of_all_kinds_share_a_pass_and_each_changed_backbone_has_one(family: str) -> None:
    backbone = tiny(family)
    head: dict[str, object] = {"name": "classifier"}
    cases = ("prompt-tuning", "toy-add", "toy-replace", "prefix-tuning", "m-idpg-phm", "m-idpg-phm kv")
    models = [make_model(backbone, case, readout=head) for case in cases]
    rows = [(model, tokenize_example(model, backbone, example)) for example in EXAMPLES[:2] for model in models]
    adapted = [make_model(backbone, "adapter", readout=head, seed=seed) for seed in (1, 2)]
    others = [(model, tokenize_example(model, backbone, EXAMPLES[0])) for model in adapted]

    def count_passes(mixed: list[tuple[TaskModel, TokenizedRow]]) -> int:
        passes: list[object] = []
        handle = backbone.layers[0].register_forward_pre_hook(lambda module, args: passes.append(module))
        predict_mixed(backbone, mixed)
        handle.remove()
        return len(passes)

    predict_mixed(backbone, rows)  # a decoder runs static prompts once and keeps them
    # on decoders, rows with a kept prompt are shorter than rows with a generated one: each length has its pass
    together = 2 if backbone.kind == "decoder" else 1
    assert count_passes(rows) == together
    assert count_passes(rows + others) == together + len(adapted)


@each_combination(GENERATORS)
@torch.no_grad()
def test_cached_decoding_equals_uncached(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    view = model.method.view_of(backbone)
    examples = split_examples(model)
    generated = model.read(view, make_batch(model, backbone, examples))[0].generate(Decoding(1, 4))
    for row, token_ids in zip(model.rows(backbone, examples), generated, strict=True):
        token_ids = (*cut_at_end(token_ids), END)[:4]
        # one uncached pass over all that was generated: each token is the likeliest after those before it
        forced = collate([replace(row, target_ids=token_ids)], backbone.tokenizer.pad_token_id)
        forward_pass, _ = model.read(view, forced, with_target=True)
        logits = forward_pass.target_logits(forced.target_ids)[0]
        chosen = logits[range(len(token_ids)), token_ids]
        REORDERED_FLOAT32.assert_close(chosen, logits.amax(dim=1))  # two tokens may tie within rounding


@each_combination([family for family in ONE_OF_EACH_KIND if family in GENERATORS])
@torch.no_grad()
@pytest.mark.usefixtures("float64")
def test_beams_of_a_row_alone_equal_those_in_a_padded_batch(family: str, case: str) -> None:
    backbone = tiny_float64(family)  # in float32 two beams could tie within rounding
    model = make_model(backbone, case).double()
    view = model.method.view_of(backbone)
    examples = split_examples(model)

    def generate(chosen: list[Example]) -> list[list[int]]:
        return model.read(view, make_batch(model, backbone, chosen))[0].generate(Decoding(3, 4))

    together = generate(examples)
    for number, example in enumerate(examples):
        assert cut_at_end(generate([example])[0]) == cut_at_end(together[number])


@each_combination(GENERATORS)
@torch.no_grad()
def test_ranking_gives_the_likelihood_that_training_sees(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    if model.method.needs_head:
        assert model.readout.summary is not None  # it reads with a head: there are no candidates to rank
        return
    examples = split_examples(model)[:3]
    forward_pass, _ = model.read(model.method.view_of(backbone), make_batch(model, backbone, examples))
    ranked = forward_pass.rank(model.readout.candidates)  # type: ignore[arg-type]
    for column, label in enumerate(model.readout.task.label_names):
        for row, example in enumerate(examples):
            [loss], *_ = model(
                backbone, make_batch(model, backbone, [Example(example.texts, label)], with_targets=True)
            )
            assert float(loss) == REORDERED_FLOAT32.approx(-float(ranked[row, column]))


@pytest.mark.parametrize("family", FAMILIES)
def test_parameter_counts_match_the_formula(family: str) -> None:
    backbone = tiny(family)
    for length in (1, 7):
        counts = make_model(backbone, "prompt-tuning", prompt_length=length, init="uniform").counts()
        assert (counts.gradient, counts.ema, counts.stored) == (length * backbone.width, 0, length * backbone.width)
    head = (backbone.hidden_width + 1) * len(TASK.labels) if backbone.kind == "encoder" else 0
    assert counts.head == head


@pytest.mark.parametrize("case", CASES)
def test_stored_parameters_are_trainable_or_a_codebook(case: str) -> None:
    family = next(family for family in ONE_OF_EACH_KIND if works_on(case, family))
    model = make_model(tiny(family), case)
    counts = model.counts()
    codes = [value for name, value in model.method.state_dict().items() if name.endswith("codebook")]
    assert counts.ema == sum(value.numel() for value in codes)
    assert counts.gradient == sum(parameter.numel() for parameter in model.method.parameters())
    assert counts.stored == counts.gradient + counts.ema


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("case", ["prompt-tuning", "toy-add", "m-idpg-phm", "prefix-tuning"])
@torch.no_grad()
def test_insertion_places_give_different_predictions_that_padding_does_not_change(family: str, case: str) -> None:
    backbone = tiny(family)
    log_scores = {}  # probabilities near 0 and 1 differ little, their logarithms do
    for insert_at in ("front", "start", "end"):
        model = make_model(backbone, case, insert_at=insert_at)
        together = predict_mixed(
            backbone, [(model, tokenize_example(model, backbone, example)) for example in EXAMPLES]
        )
        for example, prediction in zip(EXAMPLES, together, strict=True):
            alone = predict_mixed(backbone, [(model, tokenize_example(model, backbone, example))])[0]
            assert prediction.scores == REORDERED_PROBABILITIES.approx(alone.scores)
        log_scores[insert_at] = [math.log(score) for score in (together[0].scores or {}).values()]
    assert log_scores["start"] != REORDERED_FLOAT32.approx(log_scores["end"])
    if family == "bert":  # only BERT has a leading special token here
        assert log_scores["front"] != REORDERED_FLOAT32.approx(log_scores["start"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("insert_at", ["front", "start", "end"])
@pytest.mark.parametrize("readout", ["classifier", "label-words", "generation"])
def test_every_readout_gives_gradients_to_every_prompt_vector_at_every_place(
    family: str, insert_at: str, readout: str
) -> None:
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
    losses, *_ = model(backbone, make_batch(model, backbone, examples, with_targets=True))
    losses.sum().backward()
    (prompt,) = model.method.prompt_parameters()
    assert prompt.grad is not None
    assert bool((prompt.grad.abs().sum(dim=1) > 1e-8).all())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_every_method_predicts_sets_of_labels_or_says_that_it_cannot(family: str, case: str) -> None:
    backbone = tiny(family)
    if not works_on(case, family):
        return
    if case in ("efl", "manual-prompt"):
        with pytest.raises(ConfigurationError, match=r"method\.name.*sets is multi-label"):
            make_model(backbone, case, task=SETS)
        return
    model = make_model(backbone, case, task=SETS, readout={"threshold": 0.4})
    batch = collate(model.rows(backbone, SET_EXAMPLES, with_target=True), backbone.tokenizer.pad_token_id)
    output = model(backbone, batch)
    output.losses.sum().backward()
    assert len(output.losses) == len(SET_EXAMPLES) and math.isfinite(output.losses.sum().item())
    assert model.readout.linear is not None and model.readout.linear.weight.grad is not None
    together = predict(backbone, [(model, example) for example in SET_EXAMPLES]).predictions
    for example, prediction in zip(SET_EXAMPLES, together, strict=True):
        [alone] = predict(backbone, [(model, example)]).predictions
        assert prediction.scores == REORDERED_PROBABILITIES.approx(alone.scores)
        scores = prediction.scores or {}
        assert prediction.labels == tuple(label for label in SETS.label_names if scores[label] >= 0.4)
        assert (prediction.label, prediction.score, prediction.threshold) == (None, None, 0.4)
