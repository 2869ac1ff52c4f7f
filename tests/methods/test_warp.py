"""WARP: places of its vectors, the state at the mask, class vectors, counts, and settings that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tiny import ENCODERS, SIZES, SPECIAL, VOCABULARY, tiny, tiny_tokenizer
from tolerance import REORDERED_FLOAT32
from toy import EXAMPLES, PAIRS, TASK, make_model

import softcue
from softcue.backbones import Backbone
from softcue.errors import BackboneError, ConfigurationError
from softcue.inference import TaskModel
from softcue.inputs.collate import collate
from softcue.inputs.formatter import InputFormatter
from softcue.inputs.packed_rows import pack_rows
from softcue.inputs.token_cache import _read, file_chunks
from softcue.methods import METHODS
from softcue.tasks import Label, Task
from softcue.types import Example, TokenizedRow

CLS, SEP, MASK = (SPECIAL.index(token) for token in ("<s>", "</s>", "<mask>"))
SCORES = Task(name="stars", kind="regression", text=("first", "second"), scale=(0.0, 5.0, 0.2))
PAIR = Example(("The invoice", "Where is it"), "same")


def ids(text: str) -> list[int]:
    return list(tiny_tokenizer("bert")(text, add_special_tokens=False)["input_ids"])


def sequence(row: TokenizedRow) -> list[Any]:
    """The tokens of a row, with the number of each prompt vector as text at its place."""
    assert row.places is not None
    tokens: list[Any] = []
    for index in range(len(row.ids) + 1):
        tokens += [f"p{number}" for number, place in enumerate(row.places) if place == index]
        tokens += row.ids[index : index + 1]
    return tokens


def make_formatter(task: Task, length: int, limit: int = 90) -> InputFormatter:
    return InputFormatter(
        task, tiny_tokenizer("bert"), "encoder", limit, "around", " <mask>", suffix_in_first=True, prompt_length=length
    )


def formatted(task: Task, texts: tuple[str, ...], length: int, limit: int = 90) -> TokenizedRow:
    return make_formatter(task, length, limit).source(Example(texts))


def test_a_quarter_of_the_vectors_goes_to_each_place_around_text_and_mask() -> None:
    first, second = ids("refund "), ids("Where is it")  # this tokenizer has a token for the space before the mask
    expected = [CLS, "p0", *first, "p1", MASK, "p2", SEP, *second, "p3", SEP]
    assert sequence(formatted(PAIRS, ("refund", "Where is it"), 4)) == expected
    expected = [CLS, "p0", "p1", *first, "p2", "p3", MASK, "p4", "p5", SEP]
    assert sequence(formatted(TASK, ("refund",), 6)) == expected
    assert sequence(formatted(TASK, ("refund",), 0)) == [CLS, *first, MASK, SEP]


def test_a_mask_in_the_texts_does_not_move_the_place() -> None:
    for task, texts in ((TASK, ("a <mask> b",)), (PAIRS, ("a <mask> b", "c <mask>"))):
        row = formatted(task, texts, 4)
        assert row.places is not None
        end_of_first = row.ids.index(SEP)
        assert row.places[1:3] == (end_of_first - 1, end_of_first) and row.ids[end_of_first - 1] == MASK


def test_a_long_text_is_cut_and_keeps_the_mask() -> None:
    row = formatted(TASK, ("my order never came " * 30,), 4, limit=20)
    assert row.is_truncated and len(row.ids) <= 20 and row.ids[-2:] == (MASK, SEP)


def test_places_are_kept_by_the_token_cache(tmp_path: Path) -> None:
    rows = [formatted(TASK, (text,), 6) for text in ("refund", "Where is it")]
    (tmp_path / "rows.safetensors").write_bytes(b"".join(file_chunks(pack_rows(rows).arrays)))
    assert _read(tmp_path / "rows.safetensors", 2, make_formatter(TASK, 6)) == rows


def literal_logits(model: TaskModel, backbone: Backbone, example: Example) -> torch.Tensor:
    """Assemble the input of one row by hand, run the model, and compare the mask's state with the class vectors."""
    (prompt,) = model.method.prompt_parameters()
    (row,) = model.rows(backbone, [example])
    words = backbone.model.get_input_embeddings().weight
    vectors, segments, mask_at = [], [], -1
    for token in sequence(row):
        if token == MASK and mask_at < 0:
            mask_at = len(vectors)
        vectors.append(prompt[int(token[1:])] if isinstance(token, str) else words[token])
    if row.segments is not None:
        numbers = iter(row.segments)
        segments = [0 if isinstance(token, str) else next(numbers) for token in sequence(row)]
    given: dict[str, Any] = {"inputs_embeds": torch.stack(vectors).unsqueeze(0)}
    if segments:
        given["token_type_ids"] = torch.tensor([segments])
    hidden = backbone.base(**given).last_hidden_state[0, mask_at]
    seen: list[torch.Tensor] = []
    handle = backbone.model.get_output_embeddings().register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    backbone.model(**given)  # the input of the masked-word head's last layer
    handle.remove()
    state = seen[0][0, mask_at]
    assert hidden.shape == (backbone.hidden_width,) and state.shape == (backbone.mask_width,)
    linear = model.readout.linear
    assert linear is not None
    return linear.weight @ state + linear.bias


@pytest.mark.parametrize("family", ENCODERS)
@torch.no_grad()
def test_the_mask_s_state_from_the_word_head_is_compared_with_class_vectors(family: str) -> None:
    backbone = tiny(family)
    for task, examples in ((TASK, EXAMPLES[:2]), (PAIRS, [PAIR])):
        model = make_model(backbone, "warp", task=task, prompt_length=6)
        for example in examples:
            batch = collate(model.rows(backbone, [example]), 0)
            features = model.read(backbone, batch)[0].features("mask")
            logits = model.readout.outputs(features)[0]  # type: ignore[operator]
            REORDERED_FLOAT32.assert_close(logits, literal_logits(model, backbone, example))


def test_all_prompt_vectors_and_class_vectors_get_gradients() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "warp", prompt_length=8)
    batch = collate(model.rows(backbone, EXAMPLES, with_target=True), 0)
    model(backbone, batch).losses.sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert bool((parameter.grad.reshape(len(parameter), -1).abs().sum(dim=1) > 0).all())


def test_vectors_start_as_the_mask_and_class_vectors_as_label_words(tmp_path: Path) -> None:
    backbone = tiny("bert")
    config = METHODS["warp"].Config(name="warp")
    method = METHODS["warp"].build(config, backbone, TASK, torch.Generator())
    (prompt,) = method.prompt_parameters()
    assert torch.equal(prompt, backbone.word_table[MASK].expand(20, -1))
    model = make_model(backbone, "warp", readout={"head_start": "words"})
    model.readout.start_from_words(backbone)
    assert model.readout.linear is not None
    for row, label in enumerate(TASK.labels.values()):
        words = backbone.word_table[torch.tensor(ids(f" {label.words}"))].mean(dim=0)
        assert torch.equal(model.readout.linear.weight[row], words)


def test_an_encoder_without_a_word_head_gives_its_last_hidden_state() -> None:
    torch.manual_seed(3)
    model_without_head = hf.BertModel(hf.BertConfig(vocab_size=VOCABULARY, **SIZES)).eval()
    backbone = Backbone(model_without_head, tiny_tokenizer("bert"), "headless")
    model = make_model(backbone, "warp")
    assert model.readout.notes() == ["headless has no masked-word head: the head reads the mask's last hidden state"]
    batch = collate(model.rows(backbone, EXAMPLES[:1]), 0)
    forward_pass, _ = model.read(backbone, batch)
    at_mask = forward_pass.text()[0, batch.ids[0].tolist().index(MASK)]
    assert torch.equal(forward_pass.features("mask")[0], at_mask)


@pytest.mark.parametrize(("task", "examples"), [(TASK, EXAMPLES), (SCORES, [Example(("a", "b"), 3.0)] * 4)])
def test_a_cue_of_classes_or_scores_is_trained_saved_and_loaded(
    task: Task, examples: list[Example], tmp_path: Path
) -> None:
    rows = [{**dict(zip(task.text, row.texts, strict=True)), "label": row.target} for row in examples] * 2
    given: dict[str, Any] = {"train": rows, "validation": rows, "backbone": tiny("roberta"), "text": list(task.text)}
    overrides = {"training.steps": 2, "task.kind": task.kind, "method.prompt_length": 5}
    cue = softcue.train(tmp_path / "cue", method="warp", overrides=overrides, progress=False, **given)
    loaded = softcue.load(tmp_path / "cue", tiny("roberta"))
    assert loaded.cue_file.readout.pooling == "mask"
    assert loaded.predict(rows) == cue.predict(rows)
    num_outputs = 1 if task.kind == "regression" else len(TASK.labels)
    assert (cue.counts.gradient, cue.counts.head) == (5 * 32, num_outputs * 33)


def test_without_prompt_vectors_only_class_vectors_are_trained(tmp_path: Path) -> None:
    model = make_model(tiny("bert"), "warp", prompt_length=0)
    assert (model.counts().gradient, model.counts().head) == (0, 3 * 33)


def test_other_prompts_and_readouts_can_use_mask_and_places() -> None:
    words = Task(name="words", labels={"a": Label(words="the"), "b": Label(words="is")})
    backbone = tiny("bert")
    model = make_model(backbone, "prompt-tuning", task=words, readout={"name": "label-words"}, insert_at="around")
    (row,) = model.rows(backbone, EXAMPLES[:1])
    assert row.places is not None
    assert (
        len(
            make_model(backbone, "m-idpg-phm", readout={"pooling": "mask"}, insert_at="around").rows(backbone, EXAMPLES)
        )
        == 5
    )


@pytest.mark.parametrize(
    ("case", "family", "readout", "settings", "error"),
    [
        ("warp", "t5", {}, {}, r"method\.name: got 'warp'.*encoder"),
        ("warp", "gpt2", {}, {}, r"method\.name: got 'warp'.*encoder"),
        ("warp", "bert", {"pooling": "mean"}, {}, r"method\.insert_at.*readout\.pooling=mask"),
        ("prompt-tuning", "bert", {}, {"insert_at": "around"}, r"method\.insert_at.*readout\.pooling=mask"),
        ("prompt-tuning", "t5", {}, {"insert_at": "around"}, r"method\.insert_at.*an encoder"),
        ("prompt-tuning", "t5", {"name": "classifier", "pooling": "mask"}, {}, r"readout\.pooling.*an encoder"),
        ("linear-probe", "bert", {"pooling": "mask"}, {}, r"readout\.pooling.*without a mask"),
        ("warp", "bert", {"head_start": "solved"}, {}, r"readout\.head_start.*random or words"),
    ],
)
def test_settings_that_do_not_fit_are_errors(
    case: str, family: str, readout: dict[str, object], settings: dict[str, object], error: str
) -> None:
    with pytest.raises((BackboneError, ConfigurationError), match=error):
        make_model(tiny(family), case, readout=readout, **settings)


def test_two_texts_cannot_be_compared_at_one_mask() -> None:
    with pytest.raises(ConfigurationError, match=r"readout\.pairs.*joint"):
        make_model(tiny("bert"), "warp", task=PAIRS, readout={"pairs": "compare"})


def test_only_a_linear_head_on_a_mask_starts_from_words() -> None:
    for readout in ({"head": "mlp"}, {}):
        case = "warp" if readout else "prompt-tuning"
        with pytest.raises(ConfigurationError, match=r"readout\.head_start.*pooling=mask"):
            make_model(tiny("bert"), case, readout=dict(readout)).readout.start_from_words(tiny("bert"))
