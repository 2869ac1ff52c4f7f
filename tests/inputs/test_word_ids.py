from __future__ import annotations

import random
from typing import Any

import pytest
from tiny import tiny_tokenizer
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizerFast

from softcue.inputs import word_ids
from softcue.inputs.formatter import InputFormatter
from softcue.inputs.word_ids import WordIds, word_ids_of
from softcue.tasks import Task
from softcue.types import Example

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (
    *SPECIAL,
    *"abcdefghijklmnopqrstuvwxyz0123456789.,'$()",
    "##a",
    "##b",
    "##s",
    "the",
    "cafe",
    "東",
    "##1",
    "ss",
)
# Characters that a normalizer removes, splits, joins or decomposes, and what looks like a token.
FRAGMENTS = (
    *(
        "a",
        "B",
        "the",
        "café",
        "cafe\u0301",
        "\u0301",
        " ",
        "  ",
        "\t",
        "\n",
        "\u200d",
        "\x00",
        "\xa0",
        "\u3000",
        "\x85",
    ),
    *(
        "東",
        "京",
        ".",
        ",",
        "'s",
        "[UNK]",
        "[MASK]",
        "##",
        "#",
        "ß",
        "İ",
        "Σ",
        "ς",
        "\ufffd",
        "🏽",
        "👩‍👩",
        "한",
        "ᄒ",
        "ᅡ",
    ),
    *("\u0345", "1", "$", "x" * 101, "ﬁ", "\u2028", "\u1680"),
)


def bert_tokenizer(*added: str, normalizer: Any = None) -> Any:
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer or normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.add_tokens([AddedToken(content) for content in added])
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return BertTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, SPECIAL, strict=True)))


def odd_texts(num_texts: int) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(FRAGMENTS, k=draw.randint(0, 12))) for _ in range(num_texts)]


@pytest.mark.parametrize("added", [(), ("b2b", "c.d")])
def test_ids_by_words_equal_those_of_the_tokenizer(added: tuple[str, ...]) -> None:
    tokenizer = bert_tokenizer(*added)
    found = WordIds.of(tokenizer)
    assert found is not None
    texts = [*odd_texts(2000), "a b2b c.d xb2bx", "the b2b. c.d"]
    assert found.encode(texts) == list(map(tuple, tokenizer(texts)["input_ids"]))


def test_words_are_read_without_the_padding_and_truncation_of_another_caller() -> None:
    tokenizer = bert_tokenizer()
    found = WordIds.of(tokenizer)
    assert found is not None
    tokenizer(["a", "the cafe"], padding="max_length", truncation=True, max_length=3)
    assert found.encode(["the bass"]) == [tuple(tokenizer("the bass")["input_ids"])]


def test_known_words_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_ids, "NUM_CHARACTERS", 40)
    tokenizer = bert_tokenizer()
    found = WordIds.of(tokenizer)
    assert found is not None
    for text in odd_texts(50):
        assert found.encode([text]) == [tuple(tokenizer(text)["input_ids"])]
    assert sum(map(len, found._ids_by_word)) <= max(40, *map(len, odd_texts(50)))


@pytest.mark.parametrize("model_type", ["t5", "gpt2", "roberta"])
def test_other_tokenizers_read_whole_texts(model_type: str) -> None:
    assert word_ids_of(tiny_tokenizer(model_type)) is None


def test_tokens_and_normalizers_that_reach_beyond_a_space_need_whole_texts() -> None:
    assert WordIds.of(bert_tokenizer("new york")) is None
    assert WordIds.of(bert_tokenizer(normalizer=normalizers.Replace("a b", "c"))) is None


@pytest.mark.parametrize("insert_at", ["front", "start", "end", "appended"])
def test_rows_by_words_equal_rows_by_texts(insert_at: Any) -> None:
    tokenizer = bert_tokenizer()
    formatter = InputFormatter(Task(name="one"), tokenizer, "encoder", 12, insert_at)
    examples = [Example((text,)) for text in odd_texts(300)]
    assert formatter.sources(examples) == [formatter.source(example) for example in examples]
