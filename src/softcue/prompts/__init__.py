"""Instance -> Prompt. Nothing in here knows transformers, tokenizers, labels or files."""

from softcue.prompts.deep import DeepPrompt, Levels, ReparameterisedPrompt, Rule
from softcue.prompts.encoder import PromptEncoder
from softcue.prompts.idpg import IDPG, GeneratorShape
from softcue.prompts.static import StaticPrompt

__all__ = [
    "IDPG",
    "DeepPrompt",
    "GeneratorShape",
    "Levels",
    "PromptEncoder",
    "ReparameterisedPrompt",
    "Rule",
    "StaticPrompt",
]
