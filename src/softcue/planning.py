"""The memory that training needs, from a model's configuration alone, and what to set so that it fits a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch

from softcue.backbones import Backbone
from softcue.backbones.loading.shapes import backbone_like
from softcue.configuration import RunConfig, find_method_name, merged, resolve
from softcue.errors import ConfigurationError
from softcue.inference import TaskModel, make_task_model
from softcue.machine import GIGABYTE
from softcue.methods import METHODS
from softcue.tasks import Label, Task
from softcue.training.step_memory import USABLE, StepMemory, measure_step

Dtype = Literal["float32", "bfloat16"]
Quantization = Literal["none", "int8", "int4"]
BITS: dict[Quantization, int] = {"int8": 8, "int4": 4}
INT4_GROUP = 128  # values that share a scale and a zero point
TARGET_LENGTH = 4  # tokens of a label and its end
NUM_GPUS = (1, 2, 4, 8)


@dataclass(frozen=True)
class MemoryLayout:
    """How a run uses memory: what a plan may change."""

    rows: int  # in memory at once: training.micro_batch_size
    checkpoints_layers: bool = False
    dtype: Dtype = "bfloat16"
    quantization: Quantization = "none"
    gpus: int = 1  # over which the layers are split

    def settings(self, other: MemoryLayout) -> list[str]:
        """The settings in which this layout differs from another one."""
        settings = []
        if self.dtype != other.dtype:
            settings.append(f"backbone.dtype={self.dtype}")
        if self.quantization != other.quantization:
            settings.append(f"backbone.quantization={self.quantization}")
        if self.checkpoints_layers != other.checkpoints_layers:
            settings.append("backbone.gradient_checkpointing=true")
        if self.rows != other.rows:
            settings.append(f"training.micro_batch_size={self.rows}")
        if self.gpus != other.gpus:
            settings.append(f"{self.gpus} GPUs")
        return settings


class MemoryPlan:
    """The memory of one method on one backbone, for batches of so many rows of so many tokens.

    Without a method it is that of the default for the backbone's kind.

    Example:
        plan = MemoryPlan("llama-2-7b", "prompt-tuning", rows=16, length=512)
        plan.memory(MemoryLayout(rows=16)).peak / 2**30
    """

    def __init__(
        self,
        backbone: str,
        method: str | None,
        rows: int,
        length: int,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.rows, self.length = backbone, rows, length
        self.settings = settings or {}
        self.method = method or find_method_name({"method": self.settings}, backbone_like(backbone).kind)
        self._models: dict[tuple[Dtype, bool], tuple[Backbone, TaskModel, RunConfig]] = {}
        self._measured: dict[tuple[Dtype, bool, int], StepMemory] = {}

    @cached_property
    def notes(self) -> list[str]:
        """What the figures leave out."""
        backbone, model, _ = self._model("float32", False)
        if self._needs_keys(backbone, model):
            return [
                f"method.rule={getattr(model.method.config, 'rule', '')}: keys are found only in a model with weights, "
                "so activations are those of method.rule=add, which are larger"
            ]
        return []

    @staticmethod
    def _needs_keys(backbone: Backbone, model: TaskModel) -> bool:
        rule = getattr(model.method.config, "rule", "add")
        return rule in ("kv", "parallel") and backbone.structure.source.layers[0].keys is None

    def _model(self, dtype: Dtype, checkpoints_layers: bool) -> tuple[Backbone, TaskModel, RunConfig]:
        key = dtype, checkpoints_layers
        if key not in self._models:
            backbone = backbone_like(self.name)
            backbone.model.to(getattr(torch, dtype))
            if checkpoints_layers:
                backbone.checkpoint_layers()
            config = resolve(merged({"method": {**self.settings, "name": self.method}}), backbone.kind)
            if layer := getattr(config.method, "insert_layer", 0):
                raise ConfigurationError(
                    setting="method.insert_layer",
                    got=layer,
                    expected="0 in a plan: states of the layers below are kept from texts, which it has not",
                    fix="leave it out: a run that enters later needs less",
                )
            self._models[key] = backbone, self._task_model(backbone, config), config
        return self._models[key]

    def _task_model(self, backbone: Backbone, config: RunConfig, rule: str | None = None) -> TaskModel:
        labels = {str(number): Label(words=str(number), description=str(number)) for number in range(2)}
        method = config.method if rule is None else config.method.model_copy(update={"rule": rule})
        readout = config.readout.model_copy(update={"head_start": "random"})
        with torch.device("meta"):
            task = Task(name="plan", labels=labels)
            return make_task_model(task, (METHODS[self.method], method), readout, backbone, None)

    def _measure(self, dtype: Dtype, checkpoints_layers: bool, rows: int) -> StepMemory:
        key = dtype, checkpoints_layers, rows
        if key not in self._measured:
            backbone, model, config = self._model(dtype, checkpoints_layers)
            length = min(self.length, backbone.max_length - model.method.reserved_length - TARGET_LENGTH)
            measured = measure_step(backbone, model, rows, length, TARGET_LENGTH, config.training)
            if self._needs_keys(backbone, model):
                positions = self._task_model(backbone, config, rule="add")
                activations = measure_step(
                    backbone, positions, rows, length, TARGET_LENGTH, config.training
                ).activations
                counted = model.counts()
                trained = 4 * (counted.gradient + counted.head)  # float32
                measured = StepMemory(measured.weights, trained, trained, 2 * trained, activations)
            self._measured[key] = measured
        return self._measured[key]

    def memory(self, layout: MemoryLayout) -> StepMemory:
        """The memory of the fullest GPU with a layout.

        Pieces of a batch need memory in proportion to their rows, beside a part that is always there.
        """
        whole = self._measure(layout.dtype, layout.checkpoints_layers, self.rows)
        activations = float(whole.activations)
        if layout.rows < self.rows:
            single = self._measure(layout.dtype, layout.checkpoints_layers, 1)
            per_row = (whole.activations - single.activations) / (self.rows - 1)
            activations = single.activations + per_row * (layout.rows - 1)
        in_layers, elsewhere, largest = self._weights(layout)
        backbone = self._model(layout.dtype, layout.checkpoints_layers)[0]
        share = -(-backbone.num_layers // layout.gpus) / backbone.num_layers  # of the layers on the fullest GPU
        kept = activations  # for the backward pass, in proportion to layers
        if layout.checkpoints_layers:  # the inputs of layers; the rest belongs to the layer that runs again
            inputs = layout.rows * self.length * backbone.hidden_width * backbone.dtype.itemsize
            kept = min(activations, float(backbone.num_layers * inputs))
        activations += kept * share - kept
        if layout.quantization != "none":
            activations += largest  # a matrix is unpacked while it is used
        return replace(whole, weights=int(in_layers * share + elsewhere), activations=int(activations))

    def _weights(self, layout: MemoryLayout) -> tuple[float, float, float]:
        """Bytes of the weights in layers, of the others, and of the largest matrix of a layer when it is unpacked."""
        backbone = self._model(layout.dtype, layout.checkpoints_layers)[0]
        total = self._measure(layout.dtype, layout.checkpoints_layers, self.rows).weights
        matrices = [weight for module in backbone.linears.values() if isinstance(weight := module.weight, torch.Tensor)]
        full = sum(weight.nbytes for weight in matrices)
        packed = float(full)
        if bits := BITS.get(layout.quantization):
            numel = sum(weight.numel() for weight in matrices)
            scales = sum(2 * weight.shape[0] for weight in matrices) if bits == 8 else 4 * numel / INT4_GROUP
            packed = numel * bits / 8 + scales
        return packed, float(total - full), max((float(weight.nbytes) for weight in matrices), default=0.0)

    def _layouts(self, start: MemoryLayout) -> Iterator[MemoryLayout]:
        """Layouts that need less and less memory; the earlier ones cost less time or precision."""
        for gpus in [gpus for gpus in NUM_GPUS if gpus >= start.gpus]:
            formats: list[tuple[Dtype, Quantization]] = [(start.dtype, start.quantization)]
            formats += [("bfloat16", "none")] * (start.dtype == "float32" and start.quantization == "none")
            formats += [("bfloat16", "int8")] * (start.quantization == "none")
            formats += [("bfloat16", "int4")] * (start.quantization != "int4")
            for dtype, quantization in formats:
                for checkpoints_layers in (False, True) if not start.checkpoints_layers else (True,):
                    rows = start.rows
                    while rows:
                        yield MemoryLayout(rows, checkpoints_layers, dtype, quantization, gpus)
                        rows //= 2

    def fitting(self, start: MemoryLayout, bytes_of_gpu: float) -> MemoryLayout | None:
        """The first layout, from this one on, whose peak fits a GPU of so many bytes; None if none does."""
        for layout in self._layouts(start):
            if self.memory(layout).peak <= USABLE * bytes_of_gpu:
                return layout
        return None


def parse_size(text: str) -> int:
    """Return the bytes that a size such as `24GB` means.

    Example:
        >>> parse_size("24GB") == 24 * 2**30, parse_size("512 MB") == 2**29
        (True, True)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(GB|MB|GiB|MiB)?\s*", text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ConfigurationError(
            setting="--gpu", got=text, expected="the memory of one GPU, such as 24GB", fix="give a number and GB"
        )
    unit = 2**20 if (match[2] or "GB").lower().startswith("m") else GIGABYTE
    return int(float(match[1]) * unit)
