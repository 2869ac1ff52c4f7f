"""A prompt that all rows share runs once, and all results equal those of a prompt in every row."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import pytest
import torch
from tiny import DECODERS, tiny, tiny_model, tiny_tokenizer
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES
from toy import EXAMPLES, TASK, make_model

from softcue.backbones import Backbone
from softcue.backbones import backbone as backbone_module
from softcue.backbones.backbone import prefix_bytes
from softcue.backbones.passes.decoder import DecoderPass, PrefixStates, SharedPrefix
from softcue.backbones.passes.decoding import Decoding
from softcue.inference import TaskModel, predict
from softcue.inputs.collate import PaddingSide, collate
from softcue.machine import Memory
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training.processes import Processes
from softcue.types import Example

STATIC = [
    "prompt-tuning",
    "p-tuning-v2",
    "p-tuning-v2 replace",
    "p-tuning-v2 kv",
    "p-tuning-v2 deeper",
    "prefix-tuning",
    "prefix-tuning network",
]
READOUTS = ["generation", "label-words", "classifier"]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A patch that `lay_out_in_every_row` may use for the rest of the test."""
    with monkeypatch.context() as patch:
        yield patch


def lay_out_in_every_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backbone_module, "find_shared_prefixes", lambda batch, prompt, side: [])


def training_step(
    model: TaskModel, backbone: Backbone, side: PaddingSide = "right"
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one batch."""
    model.train().zero_grad()
    batch = collate(model.rows(backbone, EXAMPLES, with_target=True), backbone.tokenizer.pad_token_id, side)
    torch.manual_seed(0)
    outcome = model(backbone, batch)
    outcome.losses.sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return float(outcome.losses.sum().detach()), gradients


def check_close(actual: torch.Tensor, expected: torch.Tensor, name: str = "") -> None:
    scale = float(expected.abs().max()) or 1.0
    assert float((actual - expected).abs().max()) <= REORDERED_FLOAT32.absolute * scale, name


def check_same_step(
    first: tuple[float, dict[str, torch.Tensor]], second: tuple[float, dict[str, torch.Tensor]]
) -> None:
    assert first[0] == REORDERED_FLOAT32.approx(second[0])
    assert first[1].keys() == second[1].keys()
    assert any(float(value.abs().max()) > 0 for value in first[1].values())
    for name, value in first[1].items():
        check_close(value, second[1][name], name)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("case", ["prompt-tuning", "p-tuning-v2 kv"])
@pytest.mark.parametrize("readout", READOUTS)
def test_loss_and_gradient_are_those_of_every_row_by_itself(
    family: str, case: str, readout: str, plain: pytest.MonkeyPatch
) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case, readout={"name": readout, "dropout": 0.0}, task=words_of_one_piece(readout))
    shared = training_step(model, backbone)
    lay_out_in_every_row(plain)
    check_same_step(shared, training_step(model, backbone))


def words_of_one_piece(readout: str) -> object:
    return (
        TASK
        if readout != "label-words"
        else TASK.model_copy(
            update={"labels": {name: label.model_copy(update={"words": name}) for name, label in TASK.labels.items()}}
        )
    )


@pytest.mark.parametrize("case", STATIC)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["gpt2", "opt"])  # without and with a token in front of every text
def test_every_static_prompt_and_both_paddings(
    case: str, side: PaddingSide, family: str, plain: pytest.MonkeyPatch
) -> None:
    backbone = tiny(family)
    plain.setattr(backbone, "layout_side", side)
    model = make_model(backbone, case)
    shared = training_step(model, backbone, side)
    lay_out_in_every_row(plain)
    check_same_step(shared, training_step(model, backbone, side))


def forward_pass_of(model: TaskModel, backbone: Backbone) -> DecoderPass:
    batch = collate(model.eval().rows(backbone, EXAMPLES), backbone.tokenizer.pad_token_id)
    forward_pass, _ = model.read(backbone, batch)
    assert isinstance(forward_pass, DecoderPass)
    return forward_pass


@pytest.mark.parametrize(("family", "length"), [("gpt2", 4), ("opt", 5), ("llama", 4)])
def test_the_shared_prefix_is_all_before_the_text(family: str, length: int) -> None:
    backbone = tiny(family)
    assert forward_pass_of(make_model(backbone), backbone).shared[0].length == length


@pytest.mark.parametrize("case", ["m-idpg-phm", "vip", "vip mixed", "toy-add", "no-prompt"])
def test_prompts_that_depend_on_the_input_are_not_shared(case: str) -> None:
    assert forward_pass_of(make_model(tiny("gpt2"), case), tiny("gpt2")).shared == []


def test_prompts_with_noise_of_their_own_per_row_are_not_shared() -> None:
    backbone = tiny("gpt2")
    model = make_model(backbone, "prefix-tuning", dropout=0.5).train()
    batch = collate(model.rows(backbone, EXAMPLES), backbone.tokenizer.pad_token_id)
    forward_pass, _ = model.read(backbone, batch)
    assert isinstance(forward_pass, DecoderPass)
    assert forward_pass.shared == []
    model.eval()
    assert forward_pass_of(model, backbone).shared[0].length == 4


@pytest.mark.parametrize("insert_at", ["end", "first-end"])
def test_prompts_behind_the_text_are_not_shared(insert_at: str) -> None:
    backbone = tiny("gpt2")
    assert forward_pass_of(make_model(backbone, insert_at=insert_at), backbone).shared == []


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("case", ["prompt-tuning", "p-tuning-v2 replace", "prefix-tuning"])
def test_states_ranks_and_first_words_are_the_same(family: str, case: str, plain: pytest.MonkeyPatch) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    candidates = [torch.tensor([5, 6, 7]), torch.tensor([8]), torch.tensor([9, 1])]
    results = []
    for _ in range(2):
        with torch.no_grad():
            passes = [forward_pass_of(model, backbone) for _ in range(3)]
            results.append((passes[0].text(), passes[1].rank(candidates), passes[2].first_logits()))
        lay_out_in_every_row(plain)
    mask = passes[0].text_mask.unsqueeze(2)
    for shared, alone in zip(results[0], results[1], strict=True):
        if shared.shape[:2] == mask.shape[:2] and shared.dim() == 3:
            shared, alone = shared * mask, alone * mask
        check_close(shared, alone)


def test_some_rows_of_a_pass_share_as_all_of_them_do(plain: pytest.MonkeyPatch) -> None:
    backbone = tiny("opt")
    model = make_model(backbone, "p-tuning-v2")
    candidates = [torch.tensor([5, 6]), torch.tensor([8])]
    rows = torch.tensor([2, 4])  # the shortest rows: padded, so neither begins in the first column
    with torch.no_grad():
        expected = forward_pass_of(model, backbone).rank(candidates)[rows]
        check_close(forward_pass_of(model, backbone).rows(rows).rank(candidates), expected)
        lay_out_in_every_row(plain)
        check_close(forward_pass_of(model, backbone).rank(candidates)[rows], expected)


@pytest.mark.parametrize(
    "decoding", [{"decoding": "greedy"}, {"decoding": "beam", "num_beams": 3}, {"decoding": "rank"}]
)
def test_predictions_are_the_same_alone_and_in_mixed_batches(
    decoding: dict[str, object], plain: pytest.MonkeyPatch
) -> None:
    backbone = tiny("llama")
    models = [make_model(backbone, readout={"max_new_tokens": 4, **decoding}, seed=seed) for seed in range(2)]
    models.append(make_model(backbone, "m-idpg-phm", readout={"max_new_tokens": 4, **decoding}))
    requests = [(model, example) for model in models for example in EXAMPLES]
    shared = predict(backbone, requests).predictions
    alone = [predict(backbone, [request]).predictions[0] for request in requests]
    lay_out_in_every_row(plain)
    expected = predict(backbone, requests).predictions
    assert [answer.label for answer in shared] == [answer.label for answer in expected]
    assert [answer.label for answer in alone] == [answer.label for answer in expected]


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("case", ["prompt-tuning", "prefix-tuning"])
def test_generated_tokens_are_the_same(family: str, num_beams: int, case: str, plain: pytest.MonkeyPatch) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    with torch.no_grad():
        shared = forward_pass_of(model, backbone).generate(Decoding(num_beams, max_new_tokens=6))
        lay_out_in_every_row(plain)
        assert forward_pass_of(model, backbone).generate(Decoding(num_beams, max_new_tokens=6)) == shared


@pytest.mark.parametrize("settings", [{"micro_batch_size": 2}, {"optimizer": "adafactor"}])
def test_a_run_ends_with_the_same_parameters(settings: dict[str, object], plain: pytest.MonkeyPatch) -> None:
    backbone = tiny("gpt2")
    config = TrainingConfig.model_validate({"steps": 4, "batch_size": 5, "learning_rate": 0.01, **settings})
    states = []
    for _ in range(2):
        model = make_model(backbone)
        Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config).run()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        lay_out_in_every_row(plain)
    for name, value in states[0].items():
        check_close(value, states[1][name], name)


@pytest.mark.parametrize("micro_batch_tokens", [0, 40])
def test_gradients_of_two_processes_add_up_to_those_of_every_row_by_itself(
    plain: pytest.MonkeyPatch, micro_batch_tokens: int
) -> None:
    """Each process runs without a network; the test sums their gradients."""

    class Share(Processes):
        has_shares = False  # each takes all rows and its part of every step

        def __init__(self, rank: int, world_size: int) -> None:
            self.rank, self.world_size, self.is_in_step = rank, world_size, False

        def total(self, values: torch.Tensor) -> torch.Tensor:
            return values

    backbone = tiny("gpt2")
    config = TrainingConfig(steps=1, batch_size=len(EXAMPLES), micro_batch_tokens=micro_batch_tokens)

    def gradients(rank: int, world_size: int) -> dict[str, torch.Tensor]:
        model = make_model(backbone)
        trainer = Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config, processes=Share(rank, world_size))
        plain.setattr(trainer, "_reduce_and_update", lambda: None)
        trainer._step()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    shares = [gradients(rank, 2) for rank in (0, 1)]
    assert all(float(gradient.abs().max()) > 0 for share in shares for gradient in share.values())
    lay_out_in_every_row(plain)
    whole = gradients(0, 1)
    for name, value in whole.items():
        check_close(shares[0][name] + shares[1][name], value, name)


@pytest.mark.parametrize("case", ["prompt-tuning", "p-tuning-v2 kv", "p-tuning-v2"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3_text"])
def test_layers_that_run_again_share_a_prefix_with_the_same_loss_and_gradient(family: str, case: str) -> None:
    plain = tiny(family)
    checkpointed = plain.with_weights()
    checkpointed.checkpoint_layers()
    model = make_model(plain, case)
    batch = collate(model.rows(plain, EXAMPLES, with_target=True), plain.tokenizer.pad_token_id)
    assert model.read(checkpointed, batch, with_target=True)[0].shared  # type: ignore[attr-defined]
    check_same_step(training_step(model, checkpointed), training_step(model, plain))


def test_a_prompt_is_run_once_per_step_whatever_the_number_of_rows(plain: pytest.MonkeyPatch) -> None:
    backbone = tiny("gpt2")
    model = make_model(backbone)
    shapes = []
    layer = backbone.layers[0]
    handle = layer.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple((args[0] if args else kwargs["hidden_states"]).shape[:2])),
        with_kwargs=True,
    )
    try:
        training_step(model, backbone)
    finally:
        handle.remove()
    longest = max(len(row.ids) + len(row.target_ids) for row in model.rows(backbone, EXAMPLES, with_target=True))
    assert shapes == [(1, 4), (len(EXAMPLES), longest)]


def requests_of(models: list[TaskModel]) -> list[tuple[TaskModel, Example]]:
    return [(model, example) for model in models for example in EXAMPLES]


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("family", ["gpt2", "opt", "qwen3"])
def test_mixed_batches_of_unlike_prompts_share_what_each_cue_begins_with(
    family: str, readout: str, plain: pytest.MonkeyPatch
) -> None:
    backbone = tiny(family)
    task = words_of_one_piece(readout)
    settings = {"readout": {"name": readout}, "task": task}
    models = [
        make_model(backbone, prompt_length=3, **settings),
        make_model(backbone, seed=1, prompt_length=7, **settings),
        make_model(backbone, "p-tuning-v2 kv", **settings),
        make_model(backbone, "no-prompt", **settings) if readout != "classifier" else make_model(backbone, **settings),
    ]
    shared = predict(backbone, requests_of(models)).predictions
    lay_out_in_every_row(plain)
    for ours, expected in zip(shared, predict(backbone, requests_of(models)).predictions, strict=True):
        assert ours.scores == REORDERED_PROBABILITIES.approx(expected.scores)


def test_a_prompt_is_run_once_for_all_batches_until_its_parameters_change(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny("gpt2")
    models = [make_model(backbone, seed=seed) for seed in range(2)]
    runs: list[int] = []
    compute = DecoderPass._compute_prefixes

    def counted(forward_pass: DecoderPass, prefixes: Sequence[SharedPrefix]) -> list[PrefixStates]:
        runs.extend(prefix.length for prefix in prefixes)
        return compute(forward_pass, prefixes)

    monkeypatch.setattr(DecoderPass, "_compute_prefixes", counted)
    first = predict(backbone, requests_of(models), batch_size=3).predictions
    assert runs == [4, 4]
    assert predict(backbone, requests_of(models), batch_size=3).predictions == first
    assert runs == [4, 4]
    encoder = models[0].method.prompt_encoder()
    assert encoder is not None
    next(encoder.parameters()).data += 1.0  # a version counter does not see this
    changed = predict(backbone, requests_of(models), batch_size=3).predictions
    assert runs == [4, 4, 4]
    assert [answer.scores for answer in changed[:5]] != [answer.scores for answer in first[:5]]
    assert changed[5:] == first[5:]


def test_kept_bytes_are_bounded_and_none_are_kept_for_a_deleted_cue(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny("gpt2").with_weights()
    models = [make_model(backbone, seed=seed) for seed in range(3)]
    predict(backbone, requests_of(models))
    kept = backbone.prefixes._entries
    assert len(kept) == 3
    size = sum(k.nbytes + v.nbytes for k, v in next(iter(kept.values()))[2].cache)
    del models[0]
    gc.collect()
    assert len(kept) == 2
    monkeypatch.setattr(backbone.prefixes, "max_bytes", 2 * size)  # one entry has keys, values and states
    newest = make_model(backbone, seed=9)
    predict(backbone, requests_of([newest]))
    assert list(kept) == [newest.method.prompt_encoder()]


def test_room_for_kept_prompts_is_a_share_of_the_memory_and_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(total=64.0, available=None, limit=None)
    monkeypatch.setattr(backbone_module, "read_memory", lambda: memory)
    assert prefix_bytes(torch.device("cpu")) == 4 << 30
    memory = Memory(total=64.0, available=None, limit=8.0)  # of a container
    assert prefix_bytes(torch.device("cpu")) == 512 << 20
    memory = Memory(total=None, available=None, limit=None)
    assert prefix_bytes(torch.device("cpu")) == prefix_bytes(torch.device("meta")) == 256 << 20
    backbone = tiny("gpt2").with_weights()
    late = backbone.from_layer(1)
    backbone.set_prefix_bytes(0)
    assert late.prefixes.max_bytes == 0
    predict(backbone, requests_of([make_model(backbone)]))
    assert not backbone.prefixes._entries


def test_nothing_is_kept_in_training() -> None:
    backbone = tiny("gpt2").with_weights()
    training_step(make_model(backbone), backbone)
    assert not backbone.prefixes._entries


def test_rows_that_share_a_prompt_are_not_padded_to_rows_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny("gpt2")
    static, forward_pass = make_model(backbone), make_model(backbone, "m-idpg-phm")
    requests = [((static, forward_pass)[number % 2], example) for number, example in enumerate([*EXAMPLES, *EXAMPLES])]
    alone = [predict(backbone, [request]).predictions[0] for request in requests]
    widths = []
    original = backbone.base.forward
    monkeypatch.setattr(
        backbone.base,
        "forward",
        lambda *args, **kwargs: (widths.append(kwargs["inputs_embeds"].shape[1]), original(*args, **kwargs))[1],
    )
    together = predict(backbone, requests).predictions
    shorter, longer = sorted(set(widths))[-2:]  # narrower passes are those over the candidates
    assert longer - shorter == static.method.prompt_length
    for mixed, expected in zip(together, alone, strict=True):
        assert mixed.label == expected.label
        assert mixed.scores == REORDERED_PROBABILITIES.approx(expected.scores)


def seeing(window: int) -> Backbone:
    """A decoder whose layers see this number of positions back."""
    backbone = Backbone(tiny_model("mistral", sliding_window=window), tiny_tokenizer("mistral"), "tiny-window")
    assert backbone.window == window
    return backbone


@pytest.mark.parametrize("length", [2, 4])
def test_layers_with_a_sliding_window_give_the_numbers_of_every_row_by_itself(length: int) -> None:
    backbone = seeing(14)
    model = make_model(backbone, prompt_length=length, init="vocabulary").eval()
    rows = model.rows(backbone, [Example(("ok",)), *EXAMPLES])
    assert max(len(row.ids) for row in rows) + length > 14 > min(len(row.ids) for row in rows) + length
    together = collate(rows, backbone.tokenizer.pad_token_id)
    candidates = [torch.tensor([7, 8, 9, 1]), torch.tensor([5, 1])]
    ways = (
        lambda forward_pass: forward_pass.first_logits(),
        lambda forward_pass: forward_pass.rank(candidates),
        lambda forward_pass: torch.tensor([ids[:3] for ids in forward_pass.generate(Decoding(max_new_tokens=3))]),
    )
    with torch.no_grad():
        for way in ways:
            batched = way(model.read(backbone, together)[0])
            for number, row in enumerate(rows):
                alone = way(model.read(backbone, collate([row], backbone.tokenizer.pad_token_id))[0])
                check_close(batched[number], alone[0], row)


def test_targets_beyond_the_window_are_ranked_and_generated_with_a_prompt_in_every_row() -> None:
    backbone = seeing(20)
    model = make_model(backbone, prompt_length=2, init="vocabulary").eval()
    batch = collate(model.rows(backbone, [Example(("ok",)), Example(("ok ok",))]), backbone.tokenizer.pad_token_id)
    with torch.no_grad():
        forward_pass = model.read(backbone, batch)[0]
        assert isinstance(forward_pass, DecoderPass) and forward_pass.shared
        assert forward_pass._leaves_window(12) and not forward_pass._leaves_window(1)
        long = [torch.arange(5, 5 + size) for size in (12, 3)]
        check_close(forward_pass.rank(long), forward_pass._in_every_row().rank(long))
        assert forward_pass.generate(Decoding(max_new_tokens=12)) == forward_pass._in_every_row().generate(
            Decoding(max_new_tokens=12)
        )
