"""New T5 models with random weights, and a tokenizer for them trained on text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from softcue.backbones.backbone import Backbone
from softcue.errors import ConfigurationError, DataError, near_matches

NUM_SENTINELS = 100
SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")  # T5's ids 0, 1 and 2
# A vocabulary is trained on passages spread evenly over the first ones. More text costs minutes and hardly changes it.
MAX_READ_PASSAGES = 20_000  # forty million characters
MAX_TRAINING_PASSAGES = 1500
SCORE_DIGITS = 9  # of the logarithm of a probability


@dataclass(frozen=True)
class T5Size:
    """The shape of a new T5: gated GELU as in T5 1.1, input and output words in one table."""

    width: int
    feed_forward: int
    layers: int  # of the encoder, and as many of the decoder
    heads: int
    head_width: int
    words: int  # of the vocabulary, without the sentinels


SIZES = {
    "tiny": T5Size(width=128, feed_forward=256, layers=2, heads=4, head_width=32, words=4000),
    "mini": T5Size(width=256, feed_forward=512, layers=4, heads=4, head_width=64, words=8000),
    "small": T5Size(width=512, feed_forward=1024, layers=8, heads=6, head_width=64, words=32000),  # T5 1.1 small
}


def make_new_t5(size_name: str, passages: Iterable[str], seed: int) -> Backbone:
    """A T5 of one of `SIZES` with random weights; its tokenizer is trained on the first passages.

    Example:
        backbone = make_new_t5("tiny", ["The parcel is late.", ...], seed=0)
    """
    from transformers import T5Config, T5ForConditionalGeneration

    if size_name not in SIZES:
        raise ConfigurationError(
            setting="new", got=size_name, expected="the name of a size", fix=near_matches(size_name, SIZES)
        )
    size = SIZES[size_name]
    first_passages = list(islice(passages, MAX_READ_PASSAGES))
    spread = first_passages[:: -(-len(first_passages) // MAX_TRAINING_PASSAGES) or 1]
    tokenizer = train_tokenizer(spread, size.words)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(
            T5Config(
                vocab_size=-(-len(tokenizer) // 64) * 64,  # a multiple of 64 is faster, as in T5
                d_model=size.width,
                d_kv=size.head_width,
                d_ff=size.feed_forward,
                num_layers=size.layers,
                num_heads=size.heads,
                feed_forward_proj="gated-gelu",
                dropout_rate=0.1,
                tie_word_embeddings=True,
                pad_token_id=0,
                eos_token_id=1,
                decoder_start_token_id=0,
            )
        )
    return Backbone(model.eval().requires_grad_(False), tokenizer, f"new {size_name} T5")


def train_tokenizer(passages: Sequence[str], num_words: int) -> Any:
    """A SentencePiece-like tokenizer (Unigram) with T5's special tokens and 100 sentinels, trained on text.

    Its ids are as in T5: <pad>, </s>, <unk>, then words, then the sentinels with <extra_id_0> as the last id.

    Example:
        >>> tokenizer = train_tokenizer(["the parcel is late", "the parcel is lost"] * 9, 40)
        >>> tokenizer.decode(tokenizer("the  parcel")["input_ids"], skip_special_tokens=True)
        'the parcel'
        >>> tokenizer.convert_ids_to_tokens([0, 1, 2, len(tokenizer) - 1])
        ['<pad>', '</s>', '<unk>', '<extra_id_0>']
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if not passages:
        raise DataError(setting="text", got="no text", expected="text to train a tokenizer on", fix="check the files")
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=num_words, special_tokens=list(SPECIAL_TOKENS), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(passages, trainer)
    tokenizer = _in_fixed_order(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(NUM_SENTINELS))]
    tokenizer.add_special_tokens(sentinels)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=sentinels,
        model_input_names=["input_ids", "attention_mask"],
    )


def _in_fixed_order(tokenizer: Any) -> Any:
    """The same Unigram tokenizer with its pieces in one order.

    The trainer sums in the order of a hash table, which differs each time: scores differ in their last digits, and so
    does the order of pieces whose scores are equal. Their ids, and all that is trained with them, would differ too.
    """
    from tokenizers import Tokenizer

    values = json.loads(tokenizer.to_str())
    vocabulary = [(piece, round(score, SCORE_DIGITS)) for piece, score in values["model"]["vocab"]]
    special, pieces = vocabulary[: len(SPECIAL_TOKENS)], vocabulary[len(SPECIAL_TOKENS) :]
    values["model"]["vocab"] = special + sorted(pieces, key=lambda item: (-item[1], item[0]))
    return Tokenizer.from_str(json.dumps(values))
