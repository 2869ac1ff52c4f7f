"""What can be trained: name -> class. Adding a method is one file and one line here."""

from __future__ import annotations

from softcue.methods.adapter import AdapterTuning, Compacter
from softcue.methods.efl import EFL
from softcue.methods.fine_tuning import FineTuning
from softcue.methods.idpg import MultiLayerDNN, MultiLayerGloVe, MultiLayerPHM, SingleLayerDNN, SingleLayerPHM
from softcue.methods.linear_probe import LinearProbe
from softcue.methods.method import Method, MethodConfig
from softcue.methods.p_tuning_v2 import PrefixTuning, PTuningV2
from softcue.methods.prompt_tuning import PromptTuning
from softcue.methods.prompted import NoPrompt
from softcue.methods.vip import Contextualised, InstanceProjected, VectorQuantised

__all__ = ["METHODS", "Method", "MethodConfig"]

METHODS: dict[str, type[Method]] = {
    "prompt-tuning": PromptTuning,
    "s-idpg-phm": SingleLayerPHM,
    "s-idpg-dnn": SingleLayerDNN,
    "m-idpg-phm": MultiLayerPHM,
    "m-idpg-dnn": MultiLayerDNN,
    "m-idpg-phm-glove": MultiLayerGloVe,
    "vip": VectorQuantised,
    "vip-c": Contextualised,
    "vip-idp": InstanceProjected,
    "p-tuning-v2": PTuningV2,
    "prefix-tuning": PrefixTuning,
    "adapter": AdapterTuning,
    "compacter": Compacter,
    "fine-tuning": FineTuning,
    "efl": EFL,
    "linear-probe": LinearProbe,
    "no-prompt": NoPrompt,
}
