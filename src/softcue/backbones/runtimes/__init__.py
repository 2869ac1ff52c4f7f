"""Other libraries than torch for the frozen layers of an encoder, in passes without gradients."""

from softcue.backbones.runtimes.choice import DtypeSetting, RuntimeChoice, RuntimeSetting
from softcue.backbones.runtimes.graph import OPSET, quiet
from softcue.backbones.runtimes.runtime import LayerRuntime, Recorder, RuntimeName
from softcue.backbones.runtimes.sessions import quantise_onnx

__all__ = [
    "OPSET",
    "DtypeSetting",
    "LayerRuntime",
    "Recorder",
    "RuntimeChoice",
    "RuntimeName",
    "RuntimeSetting",
    "quantise_onnx",
    "quiet",
]
