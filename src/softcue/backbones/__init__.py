"""Frozen language models. The only package that imports transformers' models."""

from softcue.backbones.backbone import Backbone
from softcue.backbones.loading.fingerprint import Fingerprint
from softcue.backbones.loading.load import BackboneConfig, load_backbone
from softcue.backbones.passes.decoding import Decoding, TokenListener
from softcue.backbones.passes.forward_pass import ForwardPass, Pooling, Summary, compare_texts, pool

__all__ = [
    "Backbone",
    "BackboneConfig",
    "Decoding",
    "Fingerprint",
    "ForwardPass",
    "Pooling",
    "Summary",
    "TokenListener",
    "compare_texts",
    "load_backbone",
    "pool",
]
