"""Other libraries than torch for the frozen layers of an encoder, in passes without gradients."""

from softcue.backbones.runtimes.choice import DtypeSetting, RuntimeChoice, RuntimeSetting
from softcue.backbones.runtimes.graph import OPSET, quiet
from softcue.backbones.runtimes.runtime import Recorder, Runtime, RuntimeName
from softcue.backbones.runtimes.sessions import quantise_onnx

__all__ = [
    "OPSET",
    "DtypeSetting",
    "Recorder",
    "Runtime",
    "RuntimeChoice",
    "RuntimeName",
    "RuntimeSetting",
    "quantise_onnx",
    "quiet",
]
