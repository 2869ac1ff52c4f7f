"""What a run tells its user when it went badly: what happened, and which settings to try."""

from __future__ import annotations

from collections.abc import Mapping

from softcue.inference import TaskModel
from softcue.training.checkpoints import TrainingState
from softcue.training.config import TrainingConfig

FAR_RATE = 10.0  # times the recipe's learning rate: beyond it, a step of three times is no advice


def rates_to_try(
    model: TaskModel, config: TrainingConfig, recipe_rates: Mapping[str, float], only_lower: bool = False
) -> list[str]:
    """Return learning rates to try, as settings.

    The recipe's, where a rate is more than ten times as high or as low. Else a third and three times the rate, of
    prompt vectors if there are any, else of networks; with `only_lower`, a third. `recipe_rates` are the recipe's by
    the name of their setting.

    Example:
        rates_to_try(model, TrainingConfig(learning_rate=50.0), {"learning_rate": 0.01})
        # ["training.learning_rate=0.01 as in the recipe (now 50)"]
    """
    far = [
        f"training.{name}={recipe_rate:.4g} as in the recipe (now {rate:g})"
        for name, recipe_rate in recipe_rates.items()
        if (rate := getattr(config, name)) and not recipe_rate / FAR_RATE <= rate <= recipe_rate * FAR_RATE
    ]
    if far:
        return far
    name = "learning_rate" if model.method.prompt_parameters() else "network_learning_rate"
    rate = getattr(config, name)
    if not rate:
        return [f"training.{name} above 0"]
    return [f"training.{name}={rate / 3:.2g}" + ("" if only_lower else f" or {rate * 3:.2g}")]


def length_to_try(config: TrainingConfig, steps_per_epoch: int, state: TrainingState) -> str:
    """Return the setting that decided how long a run trained, with the advice to raise it.

    Example:
        >>> length_to_try(TrainingConfig(epochs=10, min_steps=150), steps_per_epoch=7, state=TrainingState())
        'more training.min_steps (now 150)'
        >>> length_to_try(TrainingConfig(epochs=10), steps_per_epoch=7, state=TrainingState())
        'more training.epochs (now 10)'
    """
    if state.is_over and not state.num_skipped:
        return f"a higher training.patience (now {config.patience}, it stopped at step {state.step})"
    if config.steps:
        return f"more training.steps (now {config.steps})"
    if config.takes_min_steps(steps_per_epoch):
        return f"more training.min_steps (now {config.min_steps})"
    return f"more training.epochs (now {config.epochs})"


def describe_start(model: TaskModel, config: TrainingConfig, state: TrainingState) -> str:
    """Return what to say of a run that took steps and kept its start; empty if a step was kept.

    Example:
        describe_start(model, config, TrainingState(step=9, best_step=6))     # ""
    """
    later = [entry["score"] for entry in state.history if entry["step"] > 0]
    if state.best_score is None or state.best_step or not later:
        return ""
    readout = model.readout
    like = "the cue of training.init_from" if config.init_from else "the frozen backbone"
    if readout.config.head_start == "solved" and not readout.is_taken_over:
        like += " with its solved head"
    elif not readout.is_taken_over and any(True for _ in readout.parameters()):
        like += " with an untrained head"
    elif not config.init_from:
        like += " without training (zero-shot)"
    subject = "the prompt is" if model.method.prompt_encoder() is not None else "all that the method trains is"
    text = (
        f"no step was better than the start ({state.best_score:.1f} before the first step, at most {max(later):.1f} "
        f"after it), so {subject} as it began: the cue predicts much like {like}"
    )
    num_collapsed = min(state.num_collapsed, len(later))
    if num_collapsed == 1:
        text += "; in the last evaluation all validation rows got the same label"
    elif num_collapsed:
        text += f"; in each of the last {num_collapsed} evaluations all validation rows got the same label"
    return text


def describe_cut(model: TaskModel) -> str:
    """Return to how many tokens texts, and answers if there are any, are cut.

    Example:
        describe_cut(model)     # "texts to 92 tokens (128 less prompt and answer), answers to 16"
    """
    num_answer = model.readout.max_target_length
    reserved = ["prompt"] if model.method.reserved_length else []
    if num_answer and model.formatter.kind == "decoder":
        reserved.append("answer")
    text = f"texts to {model.formatter.limit} tokens"
    if reserved:
        text += f" ({model.max_length} less {' and '.join(reserved)})"
    return text + (f", answers to {num_answer}" if num_answer else "")
