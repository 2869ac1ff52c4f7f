"""The position of the prompt among the tokens: positions 0 to 4 of IDPG (Wu et al. 2022, figure 6), token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import SPECIAL, tiny, tiny_model, tiny_tokenizer
from tokenizers import normalizers, processors
from toy import make_model

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.inputs.collate import collate
from softcue.inputs.formatter import InputFormatter
from softcue.methods import METHODS
from softcue.tasks import Label, Task
from softcue.types import BackboneKind, Example

CLS, SEP, PAD = SPECIAL.index("<s>"), SPECIAL.index("</s>"), SPECIAL.index("<pad>")
LABELS = {"a": Label(words="the"), "b": Label(words="is")}
ONE = Task(name="one", labels=LABELS)
TWO = Task(name="two", text=("first", "second"), labels=LABELS)
FIRST, SECOND = "the parcel is late", "my order never came"
POSITIONS = ["start", "first-end", "second-start", "end", "appended"]
P = "prompt"


def tokenizer_of(kind: str, drops: str = "") -> Any:
    """`<s> a </s></s> b </s>` as in RoBERTa, or `[CLS] a [SEP] b [SEP]` as in BERT."""
    tokenizer = tiny_tokenizer("roberta" if kind == "roberta" else "bert")
    middle = "</s> </s>" if kind == "roberta" else "</s>"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=f"<s> $A {middle} $B:1 </s>:1", special_tokens=[("<s>", CLS), ("</s>", SEP)]
    )
    if drops:
        tokenizer.backend_tokenizer.normalizer = normalizers.Replace(drops, "")
    return tokenizer


def ids(text: str) -> list[int]:
    return list(tiny_tokenizer("bert")(text, add_special_tokens=False)["input_ids"])


def sequence(
    tokenizer: Any, position: Any, texts: tuple[str, ...], kind: BackboneKind = "encoder", limit: int = 96
) -> list[Any]:
    """The tokens of a row with the prompt at its position."""
    task = TWO if len(texts) == 2 else ONE
    config = METHODS["prompt-tuning"].Config.model_validate({"name": "prompt-tuning", "insert_at": position})
    row = InputFormatter(task, tokenizer, kind, limit, config.insert_at).source(Example(texts))  # type: ignore[attr-defined]
    return [*row.ids[: row.insert_at], P, *row.ids[row.insert_at :]]


A, B = ids(FIRST), ids(SECOND)
LITERAL: dict[tuple[str, int, int], list[Any]] = {
    # RoBERTa: <s> s1 </s></s> s2 </s>
    ("roberta", 2, 0): [CLS, P, *A, SEP, SEP, *B, SEP],  # right after <s>
    ("roberta", 2, 1): [CLS, *A, P, SEP, SEP, *B, SEP],  # before the first </s>
    ("roberta", 2, 2): [CLS, *A, SEP, SEP, P, *B, SEP],  # after the pair of </s>
    ("roberta", 2, 3): [CLS, *A, SEP, SEP, *B, P, SEP],  # before the last </s>
    ("roberta", 2, 4): [CLS, *A, SEP, SEP, *B, SEP, SEP, P, SEP],  # </s> prompt </s> after the last </s>
    ("roberta", 1, 0): [CLS, P, *A, SEP],
    ("roberta", 1, 1): [CLS, *A, P, SEP],
    ("roberta", 1, 3): [CLS, *A, P, SEP],
    ("roberta", 1, 4): [CLS, *A, SEP, SEP, P, SEP],
    # BERT: one [SEP] between the texts
    ("bert", 2, 0): [CLS, P, *A, SEP, *B, SEP],
    ("bert", 2, 1): [CLS, *A, P, SEP, *B, SEP],
    ("bert", 2, 2): [CLS, *A, SEP, P, *B, SEP],
    ("bert", 2, 3): [CLS, *A, SEP, *B, P, SEP],
    ("bert", 2, 4): [CLS, *A, SEP, *B, SEP, SEP, P, SEP],
    ("bert", 1, 0): [CLS, P, *A, SEP],
    ("bert", 1, 1): [CLS, *A, P, SEP],
    ("bert", 1, 3): [CLS, *A, P, SEP],
    ("bert", 1, 4): [CLS, *A, SEP, SEP, P, SEP],
}


@pytest.mark.parametrize(("kind", "num_texts", "position"), LITERAL)
def test_a_numbered_position_is_that_of_the_paper(kind: str, num_texts: int, position: int) -> None:
    texts = (FIRST, SECOND)[:num_texts]
    expected = LITERAL[kind, num_texts, position]
    for given in (position, str(position), POSITIONS[position]):
        assert sequence(tokenizer_of(kind), given, texts) == expected


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_front_puts_the_prompt_before_all_tokens(kind: str) -> None:
    assert sequence(tokenizer_of(kind), "front", (FIRST, SECOND))[:2] == [P, CLS]
    assert sequence(tokenizer_of(kind), "front", (FIRST,)) == [P, CLS, *A, SEP]


def test_text_to_text_backbones_have_the_positions_of_one_text() -> None:
    t5, gpt2 = tiny_tokenizer("t5"), tiny_tokenizer("gpt2")
    for position in ("front", 0, "start"):
        assert sequence(t5, position, (FIRST,), "encoder-decoder") == [P, *A, SEP]
        assert sequence(gpt2, position, (FIRST,), "decoder") == [P, *A]
    for position in (1, 3):
        assert sequence(t5, position, (FIRST,), "encoder-decoder") == [*A, P, SEP]
        assert sequence(gpt2, position, (FIRST,), "decoder") == [*A, P]
    assert sequence(t5, 4, (FIRST,), "encoder-decoder") == [*A, SEP, SEP, P, SEP]
    joined = ids(f"first: {FIRST} second: {SECOND}")
    assert sequence(t5, 3, (FIRST, SECOND), "encoder-decoder") == [*joined, P, SEP]
    assert sequence(gpt2, 0, (FIRST, SECOND), "decoder") == [P, *joined]


@pytest.mark.parametrize("name", ["prompt-tuning", "m-idpg-phm", "s-idpg-dnn", "p-tuning-v2", "prefix-tuning"])
def test_every_prompted_method_accepts_numbered_positions(name: str) -> None:
    for number, position in enumerate(POSITIONS):
        for given in (number, str(number)):
            config = METHODS[name].Config.model_validate({"name": name, "insert_at": given})
            assert config.insert_at == position  # type: ignore[attr-defined]
    for wrong in (5, -1, "5", True, 1.5, "middle", None):
        with pytest.raises(ValueError, match="insert_at"):
            METHODS[name].Config.model_validate({"name": name, "insert_at": wrong})


# --- positions that only some rows have ---


@pytest.mark.parametrize(
    ("model_type", "task", "position", "reason"),
    [
        ("bert", ONE, "second-start", "two texts"),
        ("bert", ONE, 2, "two texts"),
        ("t5", ONE, 2, "two texts"),
        ("t5", TWO, 1, "encoder"),
        ("t5", TWO, 2, "encoder"),
        ("gpt2", TWO, 1, "encoder"),
        ("gpt2", TWO, 2, "encoder"),
        ("gpt2", ONE, 4, "separator"),
        ("gpt2", TWO, 4, "separator"),
    ],
)
def test_position_that_the_texts_do_not_have_is_an_error(
    model_type: str, task: Task, position: Any, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"method\.insert_at.*{reason}"):
        make_model(tiny(model_type), "prompt-tuning", task=task, insert_at=position, init="uniform")


@pytest.mark.parametrize("position", [1, 3, "first-end", "end"])
def test_prompt_after_the_text_is_an_error_for_a_head_on_a_decoder(position: Any) -> None:
    """The prompt could not change the hidden states that the head reads."""
    with pytest.raises(ConfigurationError, match=r"method\.insert_at.*head on a decoder"):
        make_model(tiny("gpt2"), "prompt-tuning", task=ONE, readout={"name": "classifier"}, insert_at=position)
    make_model(tiny("gpt2"), "prompt-tuning", task=ONE, readout={"name": "generation"}, insert_at=position)


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_text_without_tokens_still_has_its_positions(kind: str) -> None:
    """The normalizer of BERT removes control characters, for example."""
    tokenizer = tokenizer_of(kind, drops="~")
    middle = [SEP, SEP] if kind == "roberta" else [SEP]
    assert sequence(tokenizer, 1, ("~", SECOND)) == [CLS, P, *middle, *B, SEP]
    assert sequence(tokenizer, 2, ("~", SECOND)) == [CLS, *middle, P, *B, SEP]
    assert sequence(tokenizer, 1, (FIRST, "~")) == [CLS, *A, P, *middle, SEP]
    assert sequence(tokenizer, 2, (FIRST, "~")) == [CLS, *A, *middle, P, SEP]


# --- position 4 ---


def roberta() -> Backbone:
    return Backbone(tiny_model("roberta"), tokenizer_of("roberta"), "tiny-roberta")


PAIRS = [
    Example((FIRST, SECOND)),
    Example(("ok", "the invoice for the new badge reader is wrong")),
    Example(("a", "b")),
]


@pytest.mark.parametrize("length", [1, 5])
@torch.no_grad()
def test_position_4_adds_the_prompt_and_two_tokens_to_every_row(length: int) -> None:
    backbone = roberta()
    plain = make_model(backbone, "no-prompt", task=TWO)
    model = make_model(backbone, "prompt-tuning", task=TWO, insert_at=4, prompt_length=length, init="uniform")
    before, after = (task_model.rows(backbone, PAIRS) for task_model in (plain, model))
    for old, new in zip(before, after, strict=True):
        assert list(new.ids) == [*old.ids, SEP, SEP]
    forward_pass, _ = model.read(backbone, collate(after, PAD))
    lengths = [len(row.ids) for row in before]
    assert forward_pass.embeds.shape[1] == max(lengths) + length + 2
    assert forward_pass.layout.mask.sum(dim=1).tolist() == [row_length + length + 2 for row_length in lengths]


@pytest.mark.parametrize("position", range(5))
@torch.no_grad()
def test_mask_positions_and_embeddings_agree_on_padded_rows(position: int) -> None:
    backbone = roberta()
    model = make_model(backbone, "prompt-tuning", task=TWO, insert_at=position, prompt_length=3, init="uniform")
    rows = model.rows(backbone, PAIRS)
    forward_pass, _ = model.read(backbone, collate(rows, PAD))
    total = forward_pass.embeds.shape[1]
    prompt = list(model.method.encoder.prompt)  # type: ignore[arg-type,union-attr]
    for number, row in enumerate(rows):
        words = list(backbone.word_table[list(row.ids)])
        expected = [*words[: row.insert_at], *prompt, *words[row.insert_at :]]
        missing = total - len(expected)
        assert torch.equal(forward_pass.embeds[number, : len(expected)], torch.stack(expected))
        assert forward_pass.layout.mask[number].tolist() == [True] * len(expected) + [False] * missing
        positions = forward_pass._inputs()["position_ids"][number, : len(expected)].tolist()
        assert positions == list(
            range(PAD + 1, PAD + 1 + len(expected))
        )  # RoBERTa counts positions from its padding id + 1


@pytest.mark.parametrize("case", ["prompt-tuning", "m-idpg-phm", "p-tuning-v2 kv"])
@pytest.mark.parametrize("position", range(5))
@torch.no_grad()
def test_single_pair_equals_the_pair_in_a_padded_batch(position: int, case: str) -> None:
    backbone = roberta()
    model = make_model(backbone, case, task=TWO, insert_at=position)
    together = model.read(backbone, collate(model.rows(backbone, PAIRS), PAD))[0].text()
    for number, example in enumerate(PAIRS):
        alone = model.read(backbone, collate(model.rows(backbone, [example]), PAD))[0].text()[0]
        torch.testing.assert_close(together[number, : len(alone)], alone, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_every_position_changes_the_hidden_states() -> None:
    backbone = roberta()
    vectors = []
    for position in range(5):
        model = make_model(backbone, "prompt-tuning", task=TWO, insert_at=position)
        vectors.append(model.read(backbone, collate(model.rows(backbone, PAIRS[:1]), PAD))[0].text()[0, 0])
    for number, vector in enumerate(vectors):
        assert all(not torch.allclose(vector, other, atol=1e-4) for other in vectors[:number])


def test_appended_separators_belong_to_the_last_segment_and_to_neither_text() -> None:
    formatter = InputFormatter(TWO, tokenizer_of("bert"), "encoder", 96, "appended")
    row = formatter.source(Example((FIRST, SECOND)))
    assert row.segments == (0,) * (len(A) + 2) + (1,) * (len(B) + 1 + 2)
    assert row.parts == (-1, *[0] * len(A), -1, *[1] * len(B), -1, -1, -1)


@pytest.mark.parametrize("position", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("limit", [14, 21])
def test_truncation_keeps_the_special_tokens_around_the_prompt(position: int, limit: int) -> None:
    long = (f"{FIRST} " * 8, f"{SECOND} " * 8)
    tokens = sequence(tokenizer_of("roberta"), position, long, limit=limit)
    assert limit - 3 <= len(tokens) - 1 <= limit
    at = tokens.index(P)
    frame = [token for token in tokens if token in (CLS, SEP, P)]
    if position == 4:
        assert tokens[-4:] == [SEP, SEP, P, SEP]
        assert frame == [CLS, SEP, SEP, SEP, SEP, P, SEP]
    else:
        assert (
            frame
            == {
                0: [CLS, P, SEP, SEP, SEP],
                1: [CLS, P, SEP, SEP, SEP],
                2: [CLS, SEP, SEP, P, SEP],
                3: [CLS, SEP, SEP, P, SEP],
            }[position]
        )
        neighbours = {0: (CLS, None), 1: (None, SEP), 2: (SEP, None), 3: (None, SEP)}[position]
        assert neighbours[0] in (None, tokens[at - 1]) and neighbours[1] in (None, tokens[at + 1])


@torch.no_grad()
def test_sentence_vector_does_not_depend_on_the_position_of_the_prompt() -> None:
    backbone = roberta()
    rows_by_position = [
        make_model(backbone, "m-idpg-phm", task=TWO, insert_at=position).rows(backbone, PAIRS) for position in range(5)
    ]
    for rows in rows_by_position[1:]:
        for row, first_row in zip(rows, rows_by_position[0], strict=True):
            assert row.representation is not None and first_row.representation is not None
            assert torch.equal(row.representation, first_row.representation)
