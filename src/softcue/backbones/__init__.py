"""Frozen language models. The only package that imports transformers' models."""

from softcue.backbones.backbone import Backbone
from softcue.backbones.decoding import Decoding, Listener
from softcue.backbones.fingerprint import Fingerprint
from softcue.backbones.loading import BackboneConfig, load_backbone
from softcue.backbones.reading import Reading
from softcue.backbones.representation import Pooling, Summary, compared, pooled

__all__ = [
    "Backbone",
    "BackboneConfig",
    "Decoding",
    "Fingerprint",
    "Listener",
    "Pooling",
    "Reading",
    "Summary",
    "compared",
    "load_backbone",
    "pooled",
]
