"""Instance -> Prompt. Nothing in here knows transformers, tokenizers, labels or files."""

from softcue.prompts.contextualizer import ContextShape
from softcue.prompts.deep import DeepPrompt, PromptedLayers, ReparameterisedPrompt, Rule
from softcue.prompts.encoder import PromptEncoder
from softcue.prompts.hard_prompt import HardPrompt
from softcue.prompts.idpg import IDPG, GeneratorShape
from softcue.prompts.input_part import InputPart
from softcue.prompts.prompt_tuning import StaticPrompt
from softcue.prompts.quantizer import Quantizer, QuantizerShape
from softcue.prompts.vip import VIP, VIPIDP, LossWeights

__all__ = [
    "IDPG",
    "VIP",
    "VIPIDP",
    "ContextShape",
    "DeepPrompt",
    "GeneratorShape",
    "HardPrompt",
    "InputPart",
    "LossWeights",
    "PromptEncoder",
    "PromptedLayers",
    "Quantizer",
    "QuantizerShape",
    "ReparameterisedPrompt",
    "Rule",
    "StaticPrompt",
]
