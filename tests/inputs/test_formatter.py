from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import DECODERS, tiny_tokenizer

from softcue.errors import ConfigurationError
from softcue.inputs.collate import batch_by_length, collate
from softcue.inputs.formatter import ANSWER_PREFIX, InputFormatter, InsertAt, pad_punctuation, target_tokens
from softcue.tasks import Task
from softcue.types import BackboneKind, Example, TokenizedRow

ONE = Task(name="one")
TWO = Task(name="two", text=("first", "second"))
KINDS: dict[str, BackboneKind] = {"bert": "encoder", "t5": "encoder-decoder", "gpt2": "decoder", "opt": "decoder"}
PAD, END, BEGIN, UNKNOWN, MASK = range(5)  # tests/tiny.py's special tokens
LONG = "Please send the invoice for the new badge reader to our office in the north of town. " * 4


def formatter(model_type: str, limit: int = 96, task: Task = ONE, **settings: Any) -> InputFormatter:
    return InputFormatter(task, tiny_tokenizer(model_type), KINDS[model_type], limit, **settings)


def text_of(converter: InputFormatter, tokens: TokenizedRow) -> str:
    return str(converter.tokenizer.decode(tokens.ids, skip_special_tokens=True))


def plain_ids(model_type: str, text: str) -> list[int]:
    return list(tiny_tokenizer(model_type)(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize(
    ("text", "padded"),
    [
        ("Levi's Stadium, Santa Clara (CA).", "Levi ' s Stadium , Santa Clara ( CA ) ."),
        ("$3.50 -- 50%", "$ 3 . 50 - - 50 %"),
        ("snake_case  2\u00b2\n“é”", "snake_case 2\u00b2 “ é ”"),
        ("plain words", "plain words"),
        ("", ""),
    ],
)
def test_punctuation_is_padded_as_by_t5(text: str, padded: str) -> None:
    assert pad_punctuation(text) == padded
    assert pad_punctuation(padded) == padded


@pytest.mark.parametrize("model_type", ["t5", "gpt2", "bert"])
def test_only_text_to_text_backbones_read_padded_texts(model_type: str) -> None:
    task = Task(name="qa", kind="span", text=("q", "c"), template="question: {q} context: {c}")
    converter = formatter(model_type, task=task, pad_punctuation=True)
    example = Example(("Who's in?", "Ann, Bo."))
    text = text_of(converter, converter.source(example))
    if model_type == "bert":
        assert converter.source(example) == formatter(model_type, task=task).source(example)
    else:
        assert text == "question: Who ' s in ? context: Ann , Bo ."
    long = Example(("Who's in?", "Ann, Bo. " * 60))
    row = formatter(model_type, 40, task=task, pad_punctuation=True).source(long)
    assert len(row.ids) <= 40 and row.is_truncated


@pytest.mark.parametrize("model_type", KINDS)
def test_short_text_is_not_changed(model_type: str) -> None:
    row = formatter(model_type).source(Example(("hello there",)))
    frame = {"bert": ([BEGIN], [END]), "t5": ([], [END]), "gpt2": ([], []), "opt": ([BEGIN], [])}[model_type]
    assert list(row.ids) == [*frame[0], *plain_ids(model_type, "hello there"), *frame[1]]
    assert not row.is_truncated
    assert (row.segments is not None) == (model_type == "bert")


@pytest.mark.parametrize("model_type", KINDS)
def test_text_of_exactly_the_limit_is_not_truncated(model_type: str) -> None:
    whole = formatter(model_type, limit=10_000).source(Example((LONG,)))
    exact = formatter(model_type, limit=len(whole.ids)).source(Example((LONG,)))
    shorter = formatter(model_type, limit=len(whole.ids) - 1).source(Example((LONG,)))
    assert (exact.ids, exact.is_truncated) == (whole.ids, False)
    assert shorter.is_truncated
    assert len(shorter.ids) == len(whole.ids) - 1


@pytest.mark.parametrize("model_type", KINDS)
@pytest.mark.parametrize("limit", [12, 13, 30, 31])
def test_truncated_text_fills_the_limit_and_keeps_its_beginning(model_type: str, limit: int) -> None:
    converter = formatter(model_type, limit)
    row = converter.source(Example((LONG,)))
    assert row.is_truncated
    assert limit - 2 <= len(row.ids) <= limit
    assert LONG.startswith(text_of(converter, row))
    assert row.segments is None or len(row.segments) == len(row.ids)


@pytest.mark.parametrize("limit", [8, 20, 50])
def test_truncation_keeps_suffix_and_special_tokens_of_an_encoder(limit: int) -> None:
    row = formatter("bert", limit, suffix=" <mask>").source(Example((LONG,)))
    assert len(row.ids) <= limit
    assert row.ids[0] == BEGIN
    assert row.ids[-2:] == (MASK, END)
    assert row.is_truncated


def test_truncation_keeps_the_end_token_of_an_encoder_decoder() -> None:
    row = formatter("t5", 20, suffix=" topic:").source(Example((LONG,)))
    suffix = plain_ids("t5", " topic:")
    assert list(row.ids[-len(suffix) - 1 :]) == [*suffix, END]


@pytest.mark.parametrize("model_type", ["gpt2", "opt"])
def test_truncation_keeps_the_answer_prefix_of_a_decoder(model_type: str) -> None:
    prefix = plain_ids(model_type, ANSWER_PREFIX)
    for text in (LONG, "short"):
        row = formatter(model_type, 30, answer_prefix=ANSWER_PREFIX).source(Example((text,)))
        assert list(row.ids[-len(prefix) :]) == prefix
        assert (row.ids[0] == BEGIN) == (model_type == "opt")


def test_decoder_that_generates_no_target_gets_no_answer_prefix() -> None:
    assert list(formatter("gpt2").source(Example(("hi",))).ids) == plain_ids("gpt2", "hi")


def test_decoder_source_never_ends_with_the_end_token() -> None:
    tokenizer = tiny_tokenizer("t5")  # adds </s>, as some decoders' tokenizers do
    row = InputFormatter(ONE, tokenizer, "decoder", 96).source(Example(("hi there",)))
    assert END not in row.ids


def test_longest_of_two_texts_is_truncated() -> None:
    short = "a short one"
    converter = formatter("bert", 40, task=TWO)
    for texts in ((LONG, short), (short, LONG)):
        row = converter.source(Example(texts))
        assert len(row.ids) <= 40
        kept = _between_ends(row.ids)
        assert kept[texts.index(short)] == plain_ids("bert", short)
        assert row.is_truncated


def test_two_long_texts_are_truncated_alike() -> None:
    first, second = _between_ends(formatter("bert", 43, task=TWO).source(Example((LONG, LONG))).ids)
    assert abs(len(first) - len(second)) <= 2
    assert len(first) + len(second) >= 38


def test_two_texts_of_an_encoder_have_two_segments() -> None:
    row = formatter("bert", task=TWO, suffix=" <mask>").source(Example(("one", "two")))
    first, second = len(plain_ids("bert", "one")), len(plain_ids("bert", "two <mask>"))
    assert row.segments == (0,) * (first + 2) + (1,) * (second + 1)
    assert row.ids[-2:] == (MASK, END)


@pytest.mark.parametrize("model_type", ["t5", "gpt2"])
def test_truncation_keeps_the_template_around_two_texts(model_type: str) -> None:
    task = Task(name="t", text=("a", "b"), template="Q: {a} A: {b} same?")
    converter = formatter(model_type, 40, task=task)
    row = converter.source(Example((LONG, "ok")))
    assert len(row.ids) <= 40
    assert text_of(converter, row).startswith("Q: Please")
    assert text_of(converter, row).endswith(" A: ok same?")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("model_type", KINDS)
@pytest.mark.parametrize("text", ["🙂" * 30, "late " + "🙂👍🏽" * 20, "日本語の文章です。" * 10, "é" * 60])
def test_characters_of_several_tokens_are_never_split(model_type: str, text: str) -> None:
    for limit in range(12, 20):
        converter = formatter(model_type, limit)
        row = converter.source(Example((text,)))
        assert len(row.ids) <= limit
        assert text.startswith(text_of(converter, row))


@pytest.mark.parametrize(
    ("limit", "text", "settings"),
    [(2, LONG, {}), (3, LONG, {"suffix": " <mask>"}), (4, LONG, {"task": TWO}), (4, "🙂🙂", {})],
)
def test_limit_without_room_for_text_is_an_error(limit: int, text: str, settings: dict[str, Any]) -> None:
    texts = (text,) * len(settings.get("task", ONE).text)
    with pytest.raises(ConfigurationError) as caught:
        formatter("bert", limit, **settings).source(Example(texts))
    message = str(caught.value)
    assert message.startswith(f"backbone.max_length less prompt and answer: got {limit}; expected room for ")
    assert "shorten method.prompt_length or raise backbone.max_length" in message


@pytest.mark.parametrize(
    ("model_type", "insert_at", "index"),
    [
        ("bert", "front", 0),
        ("bert", "start", 1),
        ("bert", "end", -1),
        ("t5", "front", 0),
        ("t5", "start", 0),
        ("t5", "end", -1),
        ("gpt2", "front", 0),
        ("gpt2", "start", 0),
        ("gpt2", "end", 0),
        ("opt", "front", 0),
        ("opt", "start", 1),
        ("opt", "end", 0),
    ],
)
def test_prompt_goes_next_to_the_special_tokens(model_type: str, insert_at: InsertAt, index: int) -> None:
    row = formatter(model_type, insert_at=insert_at).source(Example(("hello there",)))
    from_the_end = insert_at == "end"
    assert row.insert_at == (len(row.ids) + index if from_the_end else index)


def test_prompt_at_the_end_comes_before_the_mask() -> None:
    row = formatter("bert", insert_at="end", suffix=" <mask>").source(Example(("hi",)))
    assert row.ids[row.insert_at :] == (MASK, END)


def test_unknown_words_count_as_text() -> None:
    rows = [formatter("t5", insert_at=insert_at).source(Example(("<unk> hi <unk>",))) for insert_at in ("start", "end")]
    assert rows[0].ids[0] == rows[0].ids[-2] == UNKNOWN
    assert [row.insert_at for row in rows] == [0, len(rows[1].ids) - 1]


def test_leading_token_that_also_means_unknown_counts_as_special() -> None:
    tokenizer = tiny_tokenizer("opt")
    tokenizer.unk_token = "<s>"
    row = InputFormatter(ONE, tokenizer, "decoder", 96).source(Example(("hi",)))
    assert row.insert_at == 1


@pytest.mark.parametrize("model_type", DECODERS)
@pytest.mark.parametrize("words", ["billing", "not at all", "é", "3", "UPPER, case!"])
def test_target_tokens_of_a_decoder_continue_a_real_source(model_type: str, words: str) -> None:
    tokenizer = tiny_tokenizer(model_type)
    source = InputFormatter(ONE, tokenizer, "decoder", 96, answer_prefix=ANSWER_PREFIX).source(
        Example(("Where is it?",))
    )
    together = tuple(tokenizer(f"Where is it?{ANSWER_PREFIX} {words}")["input_ids"])
    assert source.ids + target_tokens(tokenizer, "decoder", words) == (*together, tokenizer.eos_token_id)


@pytest.mark.parametrize(("model_type", "begin"), [("t5", ()), ("bart", (BEGIN,))])
def test_target_of_an_encoder_decoder_has_one_end_token(model_type: str, begin: tuple[int, ...]) -> None:
    ids = target_tokens(tiny_tokenizer(model_type), "encoder-decoder", "billing")
    assert ids == (*begin, *plain_ids(model_type, "billing"), END)


def test_target_gets_an_end_token_if_the_tokenizer_adds_none() -> None:
    assert target_tokens(tiny_tokenizer("gpt2"), "encoder-decoder", "hi") == (*plain_ids("gpt2", "hi"), END)


ROWS = [
    TokenizedRow((5, 6, 7), (0, 0, 1), 1, target_ids=(9,), label=1),
    TokenizedRow((8,), (0,), 0, target_ids=(9, 10), label=0),
]


def test_collate_pads_on_the_right() -> None:
    batch = collate(ROWS, pad_id=3)
    assert batch.ids.tolist() == [[5, 6, 7], [8, 3, 3]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.segments is not None
    assert batch.segments.tolist() == [[0, 0, 1], [0, 0, 0]]
    assert batch.insert_at.tolist() == [1, 0]


def test_collate_pads_the_source_on_the_left_and_the_target_on_the_right() -> None:
    batch = collate(ROWS, pad_id=3, side="left")
    assert batch.ids.tolist() == [[5, 6, 7], [3, 3, 8]]
    assert batch.mask.tolist() == [[True, True, True], [False, False, True]]
    assert batch.insert_at.tolist() == [1, 0]  # counted in the tokens of the row, without padding
    assert batch.target_ids.tolist() == [[9, 3], [9, 10]]
    assert batch.target_mask.tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize(("labels", "dtype"), [((1, 0), torch.long), ((0.5, 2.0), torch.float32), ((1, None), None)])
def test_collate_takes_labels_only_if_every_row_has_one(labels: Any, dtype: torch.dtype | None) -> None:
    batch = collate([TokenizedRow((5,), None, 0, label=label) for label in labels], pad_id=0)
    assert (batch.labels is None) if dtype is None else (batch.labels is not None and batch.labels.dtype == dtype)
    assert batch.segments is None
    assert batch.target_ids.shape == (2, 0)
    assert batch.ids.dtype == torch.long


def test_collate_mixes_rows_with_and_without_segments() -> None:
    batch = collate([ROWS[0], TokenizedRow((8, 8), None, 0)], pad_id=0)
    assert batch.segments is not None
    assert batch.segments.tolist() == [[0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_batches_by_length_hold_every_row_once_longest_first(batch_size: int) -> None:
    lengths = torch.randint(1, 40, (50,)).tolist()
    batches = batch_by_length(lengths, batch_size, max_tokens=0)
    order = [row for batch in batches for row in batch]
    assert sorted(order) == list(range(50))
    assert all(0 < len(batch) <= batch_size for batch in batches)
    assert [lengths[row] for row in order] == sorted(lengths, reverse=True)


def test_no_rows_give_no_batches() -> None:
    assert batch_by_length([], 4, max_tokens=0) == []


def _between_ends(ids: tuple[int, ...]) -> list[list[int]]:
    """The two texts of `<s> first </s> second </s>`."""
    middle = ids.index(END)
    assert ids[0] == BEGIN
    assert ids[-1] == END
    return [list(ids[1:middle]), list(ids[middle + 1 : -1])]


# --- special tokens in a user's text ---


@pytest.mark.parametrize("model_type", KINDS)
@pytest.mark.parametrize("word", ["</s>", "<mask>", "<s>", "<pad>"])
def test_special_tokens_in_a_text_are_text(model_type: str, word: str) -> None:
    converter = formatter(model_type)
    special = set(converter.tokenizer.all_special_ids)

    def marks(ids: tuple[int, ...]) -> list[int]:
        return [token for token in ids if token in special]

    plain, written = (converter.source(Example((text,))).ids for text in ("my parcel", f"my {word} parcel"))
    assert marks(written) == marks(plain)
    assert f" {word[1:]} parcel" in converter.tokenizer.decode(written)
    task = ONE.model_copy(update={"template": "<{text}>", "sentences": ("<{text}>",)})
    together = formatter(model_type, task=task).source(Example((word[1:-1],)))  # template and text make the token
    assert marks(together.ids) == marks(plain)


@pytest.mark.parametrize("model_type", ["bert", "t5"])
def test_special_tokens_of_a_suffix_stay_tokens(model_type: str) -> None:
    converter = formatter(model_type, suffix=" it is <mask>")
    for text in ("my parcel", "my <mask> parcel <mask>"):
        assert converter.source(Example((text,))).ids.count(MASK) == 1


@pytest.mark.parametrize("model_type", ["bert", "gpt2"])
def test_long_texts_of_special_tokens_are_cut_and_split(model_type: str) -> None:
    converter = formatter(model_type)
    example = Example((" ".join(["</s>"] * 300),))
    row = converter.source(example)
    assert row.is_truncated
    assert len(row.ids) <= converter.limit
    windows = converter.windows(example)
    assert len(windows) > 1
    assert not any(converter.source(window).is_truncated for window in windows)


def test_offsets_of_special_tokens_are_those_of_their_characters() -> None:
    text = "my </s> parcel"
    row = formatter("bert", offset_unit="token").source(Example((text,)))
    assert row.offsets is not None
    assert "".join(text[start:end] for start, end in row.offsets if start >= 0) == text.replace(" ", "")


@pytest.mark.parametrize("model_type", KINDS)
@pytest.mark.parametrize("task", [ONE, TWO])
def test_many_texts_give_the_rows_of_each_alone(model_type: str, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.inputs.formatter.TEXTS_AT_ONCE", 3)
    texts = ["Hello.", LONG, "a </s> in the text", "Où?", "ok", "refund <mask> me", " x "]
    examples = [Example((text, f"{text} too")[: len(task.text)]) for text in texts]
    examples += [Example(("ok", "")[: len(task.text)])]
    settings: dict[str, Any] = {"offset_unit": "word"} if model_type == "bert" else {}
    converter = formatter(model_type, 40, task, **settings)
    rows = converter.sources(examples)
    assert rows == [converter.source(example) for example in examples]
    assert [row.is_truncated for row in rows].count(True) == 1
    assert converter.sources([]) == []


def test_tokenizer_that_takes_one_text_at_a_time_is_asked_for_each() -> None:
    class WordLengths:
        all_special_ids, all_special_tokens, special_tokens_map, unk_token, eos_token_id = (), (), {}, None, 1

        def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
            return {"input_ids": [len(word) for word in text.split()]}

    converter = InputFormatter(ONE, WordLengths(), "encoder-decoder", 8)
    rows = converter.sources([Example(("one three",)), Example(("a",))])
    assert [row.ids for row in rows] == [(3, 5), (1,)]


@pytest.mark.parametrize("family", ["gpt2", "t5", "bert"])
def test_text_without_tokens_is_one_token(family: str) -> None:
    task = Task(name="t", may_be_empty=("text",))
    formatter = InputFormatter(task, tiny_tokenizer(family), KINDS[family], 40)
    assert formatter.source(task.example_from([""])).ids
