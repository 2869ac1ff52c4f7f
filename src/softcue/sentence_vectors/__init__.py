"""M(x): what a method reads of its input, sentence vectors and word vectors, and where they are kept."""

from softcue.sentence_vectors.sentence_vector import (
    SentenceVector,
    plain_rows,
    sentence_vectors_of,
    sentence_vectors_with_dropout,
)

__all__ = ["SentenceVector", "plain_rows", "sentence_vectors_of", "sentence_vectors_with_dropout"]
