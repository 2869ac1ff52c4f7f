"""What can be trained. A new method is one file and one line in METHODS, or an entry point of another package."""

from __future__ import annotations

from collections.abc import Mapping

from softcue.listing import Listing, make_callable
from softcue.methods.adapter import AdapterTuning, Compacter
from softcue.methods.efl import EFL
from softcue.methods.fine_tuning import FineTuning
from softcue.methods.idpg import MultiLayerDNN, MultiLayerGloVe, MultiLayerPHM, SingleLayerDNN, SingleLayerPHM
from softcue.methods.linear_probe import LinearProbe, NoPrompt
from softcue.methods.lora import LoRA
from softcue.methods.manual_prompt import ManualPrompt
from softcue.methods.method import DeepConfig, Method, MethodConfig, Prompted, PromptedConfig
from softcue.methods.method_list import ListedMethod, describe_methods
from softcue.methods.p_tuning_v2 import PrefixTuning, PTuningV2
from softcue.methods.prompt_tuning import PromptTuning
from softcue.methods.registry import MethodRegistry
from softcue.methods.vip import VIPCMethod, VIPIDPMethod, VIPMethod
from softcue.methods.warp import WARP

__all__ = [
    "DEFAULT_METHODS",
    "METHODS",
    "DeepConfig",
    "ListedMethod",
    "Method",
    "MethodConfig",
    "Prompted",
    "PromptedConfig",
    "list_methods",
    "register_method",
]

METHODS = MethodRegistry(
    {
        "prompt-tuning": PromptTuning,
        "s-idpg-phm": SingleLayerPHM,
        "s-idpg-dnn": SingleLayerDNN,
        "m-idpg-phm": MultiLayerPHM,
        "m-idpg-dnn": MultiLayerDNN,
        "m-idpg-phm-glove": MultiLayerGloVe,
        "vip": VIPMethod,
        "vip-c": VIPCMethod,
        "vip-idp": VIPIDPMethod,
        "p-tuning-v2": PTuningV2,
        "prefix-tuning": PrefixTuning,
        "warp": WARP,
        "adapter": AdapterTuning,
        "compacter": Compacter,
        "lora": LoRA,
        "fine-tuning": FineTuning,
        "efl": EFL,
        "linear-probe": LinearProbe,
        "no-prompt": NoPrompt,
        "manual-prompt": ManualPrompt,
    }
)
# What is trained where no method is named: the best of the prompts on each kind of backbone (decision 70).
DEFAULT_METHODS: Mapping[str, str] = {
    "encoder": "p-tuning-v2",
    "encoder-decoder": "prompt-tuning",
    "decoder": "prompt-tuning",
}


def register_method(name: str, method_class: type[Method]) -> None:
    """Add a method from outside softcue, for this process. A name that is taken is an error.

    An installed package can use the entry-point group `softcue.methods` instead.

    Example:
        softcue.register_method("my-method", MyMethod)
        softcue.train("cues/tickets", task="tickets", backbone="minilm", method="my-method")
    """
    METHODS.register(name, method_class)


def list_methods() -> Listing[ListedMethod]:
    """List the methods that can be trained: softcue's own, and those of other packages.

    `softcue.methods()` is the same.

    Example:
        >>> import softcue
        >>> softcue.methods()["prompt-tuning"].paper
        'Lester et al. 2021'
    """
    return describe_methods(METHODS)


make_callable(__name__, list_methods)
