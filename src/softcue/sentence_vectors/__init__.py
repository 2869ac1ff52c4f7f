"""Sentence vectors M(x), from the backbone or from word vectors, and their cache on disk."""

from softcue.sentence_vectors.sentence_vector import (
    SentenceVector,
    plain_rows,
    sentence_vectors_of,
    sentence_vectors_of_batch,
)

__all__ = ["SentenceVector", "plain_rows", "sentence_vectors_of", "sentence_vectors_of_batch"]
