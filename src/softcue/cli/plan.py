"""`softcue plan`: the memory of training before anything is downloaded, and what to set so that it fits."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from softcue.cli.completion import complete_method
from softcue.cli.options import read_method_name


class PlannedDtype(StrEnum):
    """Number formats of a backbone's weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class PlannedQuantization(StrEnum):
    """How the weights of a backbone's layers may be packed."""

    none = "none"
    int8 = "int8"
    int4 = "int4"


def plan(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[method.key=value ...]", help="Settings of the method.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="A known shape, such as llama-2-7b, or a folder with config.json; weights are not read.")
    ] = "minilm",
    method: Annotated[
        str | None,
        typer.Option(help="What is trained; else the default of the backbone's kind.", autocompletion=complete_method),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a batch that are in memory at once.")] = 16,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a text.")] = 128,
    gpu: Annotated[
        str | None, typer.Option(help="The memory of one GPU, such as 24GB: say what to set to fit.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs over which the layers are split.")] = 1,
    dtype: Annotated[PlannedDtype, typer.Option(help="Number format of the frozen weights.")] = PlannedDtype.bfloat16,
    quantization: Annotated[
        PlannedQuantization, typer.Option(help="Packing of the layers' weights.")
    ] = PlannedQuantization.none,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Layers run again in the backward pass.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the memory of a training step: weights, activations, optimizer and peak, from the model's configuration.

    The real step runs on tensors without memory. With --gpu it says what to set so that the step fits.
    """
    from softcue.cli.output import print_json, print_table
    from softcue.configuration import parse_overrides
    from softcue.errors import ConfigurationError
    from softcue.methods import METHODS
    from softcue.planning import MemoryLayout, MemoryPlan, parse_size

    settings = parse_overrides(words or [])
    if set(settings) - {"method"}:
        raise ConfigurationError(
            setting="settings",
            got=" ".join(words or []),
            expected="method.key=value",
            fix="other settings are options of this command, such as --rows and --dtype",
        )
    named = read_method_name(method, settings)
    if named is not None:
        METHODS.find(named)  # an error if there is no such method
    size = None if gpu is None else parse_size(gpu)
    planned = MemoryPlan(backbone, method, rows, length, settings.get("method", {}))
    start = MemoryLayout(rows, gradient_checkpointing, dtype.value, quantization.value, gpus)
    memory = planned.memory(start)
    fitting = None if size is None else planned.fitting(start, size)
    advice = None if fitting is None else fitting.settings(start)
    if as_json:
        figures = {**asdict(memory), "peak": memory.peak}
        result = {"backbone": backbone, "method": planned.method, "rows": rows, "length": length, "bytes": figures}
        if size is not None:
            fits = fitting is not None
            result |= {
                "fits": fits and not advice,
                "set": advice,
                "peak_then": planned.memory(fitting).peak if fitting else None,
            }
        print_json({**result, "notes": planned.notes})
        return
    parts = {"weights": memory.weights, "trained parameters": memory.trained, "gradients": memory.gradients}
    parts |= {"optimizer": memory.optimizer, "activations": memory.activations, "peak": memory.peak}
    where = "" if gpus == 1 else f", the fullest of {gpus} GPUs"
    packed = "" if quantization is PlannedQuantization.none else f", {quantization.value} layers"
    title = f"{planned.method} on {backbone}: {rows} rows of {length} tokens, {dtype.value}{packed}{where}"
    print_table(title, ["memory", "GB"], [[name, f"{value / 2**30:.2f}"] for name, value in parts.items()])
    for note in planned.notes:
        typer.echo(note)
    if size is None:
        return
    if fitting is None:
        typer.echo(
            f"one row does not fit into {gpu}, not even in int4 over 8 GPUs: lower --length or take a smaller backbone"
        )
    elif not advice:
        typer.echo(f"fits into {gpu}")
    else:
        peak = planned.memory(fitting).peak / 2**30
        typer.echo(f"does not fit into {gpu}. Set {' '.join(advice)}: {peak:.2f} GB")
