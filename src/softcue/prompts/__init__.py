"""Instance -> Prompt. Nothing in here knows transformers, tokenizers, labels or files."""

from softcue.prompts.encoder import PromptEncoder
from softcue.prompts.static import StaticPrompt

__all__ = ["PromptEncoder", "StaticPrompt"]
