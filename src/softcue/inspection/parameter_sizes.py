"""Parameters of methods by model size, counted on models without weights (Lester et al. 2021, figure 4).

The paper's figure fixes the architecture to T5 1.1 and the length of prompts and prefixes to 1 to 100; its bands show
mean and standard deviation, here over every length. Two of its lines are not methods that softcue can build on a T5
and are computed: WARP has prompt vectors at the input and one vector for each class at the output, prompt design 500
to 2,000 token ids. A prefix of softcue is in the encoder only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan, sqrt
from typing import Any

import torch

from softcue.backbones import Backbone
from softcue.backbones.loading.shapes import backbone_like, list_shapes
from softcue.configuration import merged, resolve
from softcue.errors import BackboneError, ConfigurationError
from softcue.inference import make_task_model
from softcue.methods import METHODS
from softcue.tasks import Label, Task
from softcue.types import Counts

MethodRow = tuple[str, Mapping[str, Any]]  # name of a method, and settings

FIGURE_SIZES = ("t5-small", "t5-base", "t5-large", "t5-xl", "t5-xxl")
FIGURE_LENGTHS = (1, 100)  # of prompts and prefixes
FIGURE_TOKENS = (500, 2000)  # of prompt design, footnote 9
FIGURE_METHODS: dict[str, MethodRow] = {
    "model tuning": ("fine-tuning", {}),
    "prefix tuning (train)": ("prefix-tuning", {}),
    "prefix tuning (infer)": ("prefix-tuning", {"reparameterise": 0}),
    "prompt tuning": ("prompt-tuning", {}),
}


@dataclass(frozen=True)
class ModelSize:
    """A backbone and how many parameters it has."""

    name: str
    parameters: int
    family: str  # models of one family are connected by a line


@dataclass(frozen=True)
class SizeLine:
    """Task parameters of one method on each backbone; None where it cannot be built."""

    name: str
    means: list[float | None]
    deviations: list[float] | None = None  # standard deviations over lengths of the prompt


@dataclass(frozen=True)
class ParameterSizes:
    """Task parameters by method and model size. Task parameters are those a task stores, without a head."""

    title: str
    models: list[ModelSize]
    lines: list[SizeLine]
    counts: dict[str, list[Counts | None]]  # by method; empty for the figure of the paper
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        methods = [
            {"name": name, "counts": [None if count is None else asdict(count) for count in counts]}
            for name, counts in self.counts.items()
        ]
        return {
            "title": self.title,
            "backbones": [asdict(model) for model in self.models],
            "methods": methods,
            "lines": [asdict(line) for line in self.lines],
            "notes": self.notes,
        }

    def curves(self, as_share: bool = False) -> dict[str, list[tuple[float, float]]]:
        """Model parameters and task parameters (or their share in percent), for a chart; zeros are left out.

        Between families of models stands a point that is not a number, which interrupts the line.
        """
        families = list(dict.fromkeys(model.family for model in self.models))
        curves = {}
        for line in self._drawn():
            points: list[tuple[float, float]] = []
            for family in families:
                members = sorted(
                    (float(model.parameters), mean * _factor(model, as_share))
                    for model, mean in zip(self.models, line.means, strict=True)
                    if mean and model.family == family
                )
                points += [(nan, nan), *members] if points and members else members
            curves[line.name] = points
        return curves

    def bands(self, as_share: bool = False) -> dict[str, list[tuple[float, float, float]]]:
        """Model parameters, mean minus and mean plus one standard deviation of lines that have them, for a chart."""
        bands = {}
        for line in self._drawn():
            if line.deviations is None:
                continue
            points = zip(self.models, line.means, line.deviations, strict=True)
            bands[line.name] = [
                (
                    float(model.parameters),
                    (mean - deviation) * _factor(model, as_share),
                    (mean + deviation) * _factor(model, as_share),
                )
                for model, mean, deviation in points
                if mean is not None
            ]
        return bands

    def _drawn(self) -> list[SizeLine]:
        """The lines with a point, those with most parameters first; equal lines are one."""
        lines: list[SizeLine] = []
        for line in self.lines:
            same = next((other for other in lines if other.means == line.means), None)
            if same is not None:
                lines[lines.index(same)] = replace(same, name=f"{same.name}, {line.name}")
            elif any(line.means):
                lines.append(line)
        return sorted(lines, key=lambda line: -max(mean or 0.0 for mean in line.means))

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows: task parameters on each backbone, with their share of its parameters."""
        columns = ["task parameters", *(f"{model.name} ({model.parameters:,})" for model in self.models)]
        rows = [
            [line.name, *(_cell(model, mean) for model, mean in zip(self.models, line.means, strict=True))]
            for line in self.lines
        ]
        return columns, rows


def sizes_named(words: str) -> list[str]:
    """Names of backbones from words such as `t5` (all shapes of a family), `gpt2,gpt2-xl`, or folders.

    Example:
        >>> sizes_named("roberta"), sizes_named("minilm,t5-xl")
        (['roberta-base', 'roberta-large'], ['minilm', 't5-xl'])
    """
    names: list[str] = []
    for word in (part.strip() for part in words.split(",")):
        members = [name for name in list_shapes() if name.startswith(f"{word}-")]
        # A name that is a shape itself, as gpt2 is, means that one.
        names += [word] if word in list_shapes() or not members else members
    return list(dict.fromkeys(names))


def count_methods(
    backbone: Backbone, rows: Mapping[str, MethodRow], recipe: str, num_classes: int = 2
) -> tuple[dict[str, Counts], dict[str, ConfigurationError | BackboneError]]:
    """Count the parameters of methods on a backbone, by name; those that cannot be built on it, with the reason.

    Example:
        >>> counts, _ = count_methods(backbone_like("t5-xxl"), {"pt": ("prompt-tuning", {"prompt_length": 5})}, "paper")
        >>> counts["pt"].gradient
        20480
    """
    labels = {str(number): Label(words=str(number), description=str(number)) for number in range(num_classes)}
    task = Task(name="count", labels=labels)
    counts: dict[str, Counts] = {}
    skipped: dict[str, ConfigurationError | BackboneError] = {}
    for name, (method_name, values) in rows.items():
        config = resolve(merged({"method": {**values, "name": method_name}}), backbone.kind, recipe)
        try:
            with torch.device("meta"):  # a prefix network of T5-XXL has 100 million parameters
                model = make_task_model(task, (METHODS[method_name], config.method), config.readout, backbone, None)
        except (ConfigurationError, BackboneError) as error:
            skipped[name] = error  # for example, n of PHM may not divide this backbone's width
            continue
        counts[name] = model.counts()
    return counts, skipped


def count_by_size(
    names: Sequence[str], rows: Mapping[str, MethodRow], recipe: str, num_classes: int = 2
) -> ParameterSizes:
    """Count the parameters of methods on several backbones.

    Example:
        count_by_size(["t5-small", "t5-xxl"], {"vip": ("vip", {})}, "paper").curves()
    """
    models, notes = [], []
    counts: dict[str, list[Counts | None]] = {name: [] for name in rows}
    for name in names:
        backbone = backbone_like(name)
        models.append(_size_of(backbone))
        on_backbone, skipped = count_methods(backbone, rows, recipe, num_classes)
        notes += [f"{row} cannot be built on {name}: {reason}" for row, reason in skipped.items()]
        for row, values in counts.items():
            values.append(on_backbone.get(row))
    counts = {row: values for row, values in counts.items() if any(value is not None for value in values)}
    lines = [
        SizeLine(row, [None if value is None else float(value.stored) for value in values])
        for row, values in counts.items()
    ]
    without = [line.name for line in lines if not any(line.means)]
    if without:
        notes.append(f"no task parameters besides a head: {', '.join(without)}")
    return ParameterSizes(f"parameters by model size, {recipe} recipe", models, lines, counts, notes)


def figure_4(num_classes: int = 2) -> ParameterSizes:
    """The lines of figure 4 of Lester et al. 2021, on the sizes of T5 1.1.

    Example:
        figure_4().curves()["prompt tuning"]
    """
    low, high = FIGURE_LENGTHS
    rows: dict[str, MethodRow] = {}
    for name, (method_name, values) in FIGURE_METHODS.items():
        has_length = "prompt_length" in METHODS[method_name].Config.model_fields
        for length in FIGURE_LENGTHS:
            settings = {**values, "prompt_length": length} if has_length else values
            rows[f"{name} {length}"] = method_name, settings
    models, widths, counts = [], [], []
    for size in FIGURE_SIZES:
        backbone = backbone_like(size)
        models.append(_size_of(backbone))
        widths.append(backbone.width)
        counts.append(count_methods(backbone, rows, "paper", num_classes)[0])
    lines = []
    for name in FIGURE_METHODS:
        # All these counts are linear in the length, so the ends give mean and deviation over every length.
        ends = [(count[f"{name} {low}"].stored, count[f"{name} {high}"].stored) for count in counts]
        lines.append(_line_over(name, ends, high - low + 1))
    vectors = [((low + num_classes) * width, (high + num_classes) * width) for width in widths]
    lines.insert(3, _line_over("WARP", vectors, high - low + 1))
    lines.append(_line_over("prompt design", [FIGURE_TOKENS] * len(models), FIGURE_TOKENS[1] - FIGURE_TOKENS[0] + 1))
    notes = [
        f"prompts and prefixes of {low} to {high} vectors: mean and standard deviation over every length",
        f"WARP is computed: prompt vectors and one output vector for each of {num_classes} classes",
        f"prompt design is computed: {FIGURE_TOKENS[0]} to {FIGURE_TOKENS[1]:,} token ids",
        "a prefix of softcue is in the encoder; one in the decoder too, as with BART, doubles it",
    ]
    return ParameterSizes("Lester et al. 2021, figure 4: task parameters on T5 1.1", models, lines, {}, notes)


def _line_over(name: str, ends: Sequence[tuple[float, float]], num_lengths: int) -> SizeLine:
    """Mean and standard deviation of values that grow evenly from one end to the other."""
    means: list[float | None] = [(low + high) / 2 for low, high in ends]
    # the deviation of 1, 2, ... n is sqrt((n^2 - 1) / 12), their range n - 1
    share = sqrt((num_lengths**2 - 1) / 12) / (num_lengths - 1)
    deviations = [share * (high - low) for low, high in ends]
    return SizeLine(name, means, deviations if any(deviations) else None)


def _size_of(backbone: Backbone) -> ModelSize:
    num_parameters = sum(weight.numel() for weight in backbone.weights().values())
    return ModelSize(backbone.name, num_parameters, str(backbone.model.config.model_type))


def _factor(model: ModelSize, as_share: bool) -> float:
    return 100 / model.parameters if as_share else 1.0


def _cell(model: ModelSize, mean: float | None) -> str:
    if mean is None:
        return "-"
    share = 100 * mean / model.parameters
    return f"{mean:,.0f} ({f'{share:.2g}' if 0 < share < 10 else f'{share:.0f}'}\N{NO-BREAK SPACE}%)"
