"""AdamW, and Adafactor exactly as Lester et al. (2021) ran it, or with T5's parameter scaling.

Adafactor is written here because neither torch's nor transformers' version can express the rule: no first moment,
second moments factored only if both sides of a matrix are 128 or longer, beta2 = 1 - t^-0.8, updates clipped to RMS 1,
and weight decay that is not multiplied by the learning rate. Lester et al. turn parameter scaling off. T5's fine-tuning
has it: a step is relative to the RMS of the parameter, and 0.001 moves every matrix by a thousandth of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from softcue.inference import TaskModel
from softcue.methods.method import Method
from softcue.training.checkpoints import other_run_error
from softcue.training.config import TrainingConfig
from softcue.training.joint_model import JointModel

FACTORED_FROM = 128  # t5x: a matrix is factored when both of its sides are at least this long
DECAY_EXPONENT = 0.8
CLIP_RMS = 1.0
EPSILON = 1e-30
SMALLEST_SCALE = 1e-3  # epsilon 2 of Adafactor: a parameter near zero still moves
CONSTANT_STEPS = 10_000  # of the schedule `relative-step`, before the rates fall


class Adafactor(torch.optim.Optimizer):
    """Adafactor by the rule of t5x, with the settings of the paper's appendix A.

    Example:
        >>> prompt = nn.Parameter(torch.zeros(2, 4))
        >>> optimizer = Adafactor([{"params": [prompt], "lr": 0.3}], weight_decay=1e-5)
        >>> prompt.grad = torch.ones(2, 4)
        >>> _ = optimizer.step()
        >>> prompt[0, 0].item()
        -0.30000001192092896
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], weight_decay: float, scales_by_parameter: bool = False
    ) -> None:
        super().__init__(groups, {"lr": 0.3, "weight_decay": weight_decay})
        self.scales_by_parameter = scales_by_parameter

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["weight_decay"])

    def _update(self, parameter: Tensor, rate: float, weight_decay: float) -> None:
        state, gradient = self.state[parameter], parameter.grad.float()  # type: ignore[union-attr]
        is_factored = parameter.dim() == 2 and min(parameter.shape) >= FACTORED_FROM
        if not state:
            state["step"] = torch.zeros(())
            if is_factored:
                state["rows"] = gradient.new_zeros(parameter.shape[0])
                state["columns"] = gradient.new_zeros(parameter.shape[1])
            else:
                state["moment"] = torch.zeros_like(gradient)
        state["step"] += 1
        beta2 = 1.0 - float(state["step"]) ** -DECAY_EXPONENT
        square = gradient.square() + EPSILON
        if is_factored:
            state["rows"].lerp_(square.mean(dim=1), 1.0 - beta2)
            state["columns"].lerp_(square.mean(dim=0), 1.0 - beta2)
            rows, columns = state["rows"], state["columns"]
            update = gradient * (rows / rows.mean()).rsqrt().unsqueeze(1) * columns.rsqrt().unsqueeze(0)
        else:
            state["moment"].lerp_(square, 1.0 - beta2)
            update = gradient * state["moment"].rsqrt()
        update /= (update.square().mean().sqrt() / CLIP_RMS).clamp(min=1.0)
        if self.scales_by_parameter:
            rate = rate * max(SMALLEST_SCALE, float(parameter.float().square().mean().sqrt()))
        # new = (1 - weight_decay) * old - rate * update: the decay is not multiplied by the learning rate
        parameter.mul_(1.0 - weight_decay).sub_(update.to(parameter.dtype), alpha=rate)


def make_optimizer(model: TaskModel | JointModel, config: TrainingConfig) -> torch.optim.Optimizer:
    """An optimizer with up to four groups of parameters, each with its learning rate (`group_parameters`)."""
    head_rate = config.network_learning_rate if config.head_learning_rate is None else config.head_learning_rate
    rates = {
        "learning_rate": prompt_rate(model.method, config),
        "backbone_learning_rate": config.backbone_learning_rate,
        "network_learning_rate": config.network_learning_rate,
        "head_learning_rate": head_rate,
    }
    groups = [
        {"params": parameters, "lr": rates[name], "base_rate": rates[name]}
        for name, parameters in group_parameters(model).items()
        if parameters
    ] or [{"params": [], "lr": 0.0, "base_rate": 0.0}]  # a method may train nothing
    if config.optimizer == "adafactor":
        return Adafactor(groups, config.weight_decay, config.parameter_scaling)
    return torch.optim.AdamW(
        groups, weight_decay=config.weight_decay, betas=(config.beta1, config.beta2), eps=config.epsilon
    )


def prompt_rate(method: Method, config: TrainingConfig) -> float:
    """The learning rate of prompt vectors; a relative rate is for those that stand among words.

    Rounded to four digits, as it is written into config.yaml.
    """
    if not config.relative_rate or method.prompt_unit is None:
        return config.learning_rate
    return float(f"{config.relative_rate * method.prompt_unit:.4g}")


def group_parameters(model: TaskModel | JointModel) -> dict[str, list[nn.Parameter]]:
    """The trainable parameters by the setting that is their learning rate."""
    readouts = [model.readout] if isinstance(model, TaskModel) else [task.readout for task in model.models]
    solved = [readout for readout in readouts if readout.config.head_start == "solved"]
    groups: dict[str, list[nn.Parameter]] = {
        "learning_rate": model.method.prompt_parameters(),
        "backbone_learning_rate": [] if model.method.weights is None else list(model.method.weights.parameters()),
        "head_learning_rate": [parameter for readout in solved for parameter in readout.parameters()],
        "network_learning_rate": list(model.parameters()),
    }
    grouped: set[int] = set()
    for name, parameters in groups.items():  # each parameter belongs to the first group that has it
        groups[name] = [p for p in parameters if p.requires_grad and id(p) not in grouped]
        grouped |= {id(parameter) for parameter in groups[name]}
    return groups


def rate_factor(config: TrainingConfig, step: int, num_steps: int) -> float:
    """The factor on all learning rates at step number `step` (from 0).

    Example:
        >>> rate_factor(TrainingConfig(schedule="linear", warmup_steps=2), 1, 12)
        1.0
        >>> rate_factor(TrainingConfig(schedule="linear", warmup_steps=2), 7, 12)
        0.5
    """
    done = step + 1
    warmup = config.warmup_steps or round(config.warmup_share * num_steps)
    if done < warmup:
        return done / warmup
    if config.schedule == "linear":
        return min(1.0, max(0, num_steps - step) / max(1, num_steps - warmup))
    if config.schedule == "inverse-sqrt":
        return float((max(1, warmup) / max(done, warmup, 1)) ** 0.5)
    if config.schedule == "relative-step":
        return float(min(1.0, CONSTANT_STEPS / done) ** 0.5)
    return 1.0


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name, for checkpoints without pickle."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}|{key}": torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def load_optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the tensors that `optimizer_tensors` returned."""
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        name, _, key = full_name.partition("|")
        parameter = parameters.get(name)
        if parameter is None or value.numel() > max(1, parameter.numel()):
            raise other_run_error(f"an optimizer with '{full_name}' {list(value.shape)}", "the optimizer of this model")
        # AdamW keeps its step counter on the CPU, whatever the device of the moments.
        device = "cpu" if value.dim() == 0 else parameter.device
        optimizer.state[parameter][key] = value.to(device)
