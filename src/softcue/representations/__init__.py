"""M(x): what a method reads of its input, sentence vectors and word vectors, and where they are kept."""

from softcue.representations.source import Representation, plain_rows, represented, represented_with_dropout

__all__ = ["Representation", "plain_rows", "represented", "represented_with_dropout"]
