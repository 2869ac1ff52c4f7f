"""Continued pre-training of whole encoder-decoder models on plain text, such as Lester et al.'s LM adaptation."""

from softcue.adaptation.config import AdaptationConfig
from softcue.adaptation.run import AdaptedModel, adapt

__all__ = ["AdaptationConfig", "AdaptedModel", "adapt"]
