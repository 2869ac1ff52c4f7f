"""Looking inside a cue."""

from softcue.inspection.nearest import NearestWords, nearest_words

__all__ = ["NearestWords", "nearest_words"]
