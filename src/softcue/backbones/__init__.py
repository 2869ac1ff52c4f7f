"""Frozen language models. The only package that imports transformers' models."""

from softcue.backbones.backbone import Backbone
from softcue.backbones.backbone_list import ListedBackbone, list_backbones
from softcue.backbones.loading.fingerprint import Fingerprint
from softcue.backbones.loading.load import Attention, BackboneConfig, NumberFormat, load_backbone
from softcue.backbones.loading.shared import forget_backbones, share_backbone
from softcue.backbones.passes.decoding import Decoding, TokenListener
from softcue.backbones.passes.forward_pass import ForwardPass, Pooling, Summary, compare_texts, pool
from softcue.backbones.quantized_linear import Quantization
from softcue.listing import make_callable

__all__ = [
    "Attention",
    "Backbone",
    "BackboneConfig",
    "Decoding",
    "Fingerprint",
    "ForwardPass",
    "ListedBackbone",
    "NumberFormat",
    "Pooling",
    "Quantization",
    "Summary",
    "TokenListener",
    "compare_texts",
    "forget_backbones",
    "list_backbones",
    "load_backbone",
    "pool",
    "share_backbone",
]

make_callable(__name__, list_backbones)
