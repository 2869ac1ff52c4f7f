from __future__ import annotations

from softcue.backbones.loading.new_t5 import SPECIAL_TOKENS, train_tokenizer

TEXTS = ["my invoice is wrong", "please refund me", "the parcel is late", "where is the box", "tracking says lost"]
PASSAGES = [f"{text} {number}. " * 3 for number in range(30) for text in TEXTS]


def test_tokenizer_of_the_same_text_is_the_same_each_time() -> None:
    tokenizers = [train_tokenizer(PASSAGES, 300).backend_tokenizer.to_str() for _ in range(4)]
    assert len(set(tokenizers)) == 1


def test_pieces_in_their_order_leave_the_special_tokens_first() -> None:
    tokenizer = train_tokenizer(PASSAGES, 300)
    assert tuple(tokenizer.convert_ids_to_tokens([0, 1, 2])) == SPECIAL_TOKENS
    assert tokenizer.unk_token_id == 2
    assert (
        tokenizer.decode(tokenizer("the parcel is late")["input_ids"], skip_special_tokens=True) == "the parcel is late"
    )
