"""What can be trained: name -> class. Adding a method is one file and one line here."""

from __future__ import annotations

from softcue.methods.method import Method, MethodConfig
from softcue.methods.prompt_tuning import PromptTuning
from softcue.methods.prompted import NoPrompt
from softcue.methods.task_model import TaskModel, predict_mixed

__all__ = ["METHODS", "Method", "MethodConfig", "TaskModel", "predict_mixed"]

METHODS: dict[str, type[Method]] = {
    "prompt-tuning": PromptTuning,
    "no-prompt": NoPrompt,
}
