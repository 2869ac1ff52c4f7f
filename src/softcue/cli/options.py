"""Options that several commands have, and how their values are read."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli.completion import complete_task


class DtypeOption(StrEnum):
    """Number formats of a backbone, as `backbone.dtype` has them."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class AttentionOption(StrEnum):
    """Kinds of attention, as `backbone.attention` has them."""

    AUTO = "auto"
    EAGER = "eager"
    SDPA = "sdpa"
    FLASH_ATTENTION_2 = "flash_attention_2"


class QuantizationOption(StrEnum):
    """Bits of a backbone's matrices, as `backbone.quantization` has them."""

    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"


# How a backbone is loaded; without them, as the cue records it.
Device = Annotated[str | None, typer.Option(help="Device of the backbone: cpu, cuda, cuda:1, ...")]
Dtype = Annotated[DtypeOption | None, typer.Option(help="Number format of the backbone; else that of the training.")]
AttentionKind = Annotated[AttentionOption | None, typer.Option(help="How attention is computed; else the fastest.")]
QuantizationKind = Annotated[
    QuantizationOption | None,
    typer.Option(help="Keep the backbone's matrices in 8 or 4 bits; else as in training."),
]
if TYPE_CHECKING:
    from softcue.serving.vllm.connect import VllmSettings

AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Open a backbone whose weights are a pickle; only if you trust it.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="FILE=CUE: the file's column for one the cue reads; may be repeated."),
]
RequireSignature = Annotated[
    Path | None,
    typer.Option(help="Public keys: load only cues that one of them has signed (`softcue sign`)."),
]
Runtime = Annotated[
    str,
    typer.Option(help="What runs the frozen layers of an encoder: torch, openvino, onnx, or auto for the fastest."),
]
RuntimeDtype = Annotated[
    str, typer.Option(help="Number format of that runtime: float32, bfloat16, int8, or auto for the fastest.")
]
RuntimeData = Annotated[
    Path | None,
    typer.Option(help="Rows to compare a runtime with torch on: a file, or a folder of published files."),
]
# Common settings of a training run, for all commands that train.
TaskName = Annotated[
    str | None,
    typer.Option(help="A name from `softcue tasks`, or a task file (.yaml).", autocompletion=complete_task),
]
TextColumns = Annotated[
    str | None, typer.Option(help="The column to read, or several: COL,COL, or the option repeated.")
]
LabelColumn = Annotated[str | None, typer.Option(help="The column with the target.")]
MultiLabel = Annotated[bool, typer.Option("--multi-label", help="A row has a set of labels: none, one or several.")]
Separator = Annotated[str | None, typer.Option(help="What stands between the labels of a row (multi-label); usually ;")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training rows.")]
LearningRate = Annotated[
    float | None, typer.Option("--learning-rate", help="Of the prompt vectors; fine-tuning: of all weights.")
]
NetworkLearningRate = Annotated[
    float | None, typer.Option("--network-learning-rate", help="Of heads, generators and adapters.")
]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Rows per step.")]
PromptLength = Annotated[int | None, typer.Option("--prompt-length", help="Number of prompt vectors.")]
MaxLength = Annotated[int | None, typer.Option("--max-length", help="Cut inputs to this many tokens, prompt included.")]
FewShot = Annotated[int | None, typer.Option("--few-shot", help="Train on this many rows only (seeded).")]
ShotsPerClass = Annotated[
    int | None, typer.Option("--shots-per-class", help="Train on this many rows of each class or label only.")
]
InitFrom = Annotated[Path | None, typer.Option("--init-from", help="Start from the parameters of this cue.")]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read.")]

VllmUrl = Annotated[
    str | None,
    typer.Option(
        help="With --engine vllm: a vLLM that runs already with --enable-prompt-embeds, at a loopback or private "
        "address; its key is in SOFTCUE_VLLM_KEY. Else one is started."
    ),
]
VllmPython = Annotated[
    str | None,
    typer.Option(
        help="With --engine vllm: the Python of the environment in which vLLM is installed, to start one.",
        envvar="SOFTCUE_VLLM_PYTHON",
    ),
]
VllmArguments = Annotated[
    str | None,
    typer.Option(help="With --engine vllm: more options for the vLLM that is started, in one word."),
]


def vllm_settings(is_chosen: bool, url: str | None, python: str | None, arguments: str | None) -> VllmSettings | None:
    """The options of vLLM as settings; None with another engine, which has none of them.

    Example:
        >>> vllm_settings(True, "http://127.0.0.1:8100", None, None).url
        'http://127.0.0.1:8100'
    """
    from softcue.errors import ConfigurationError

    if not is_chosen:
        for option, value in (("vllm_url", url), ("vllm_arguments", arguments)):
            if value is not None:
                raise ConfigurationError(
                    setting=option, got=value, expected="no such option with another engine", fix="pass --engine vllm"
                )
        return None
    from softcue.serving.vllm.client import check_is_private
    from softcue.serving.vllm.connect import VllmSettings

    if url is not None and arguments is not None:
        raise ConfigurationError(
            setting="vllm_arguments", got=arguments, expected="none for a vLLM that runs already", fix="leave it out"
        )
    if url is None and python is None:
        raise ConfigurationError(
            setting="vllm_url",
            got=None,
            expected="a vLLM that runs, or the Python that has it",
            fix="pass --vllm-url URL or --vllm-python FILE",
        )
    if url is not None:
        check_is_private(url)
        return VllmSettings(url=url)
    return VllmSettings(python=python, arguments=arguments or "")


def split_names(names: str) -> list[str]:
    """Split `A,B,...` of an option into names.

    Example:
        >>> split_names("prompt-tuning, vip,")
        ['prompt-tuning', 'vip']
    """
    return [name.strip() for name in names.split(",") if name.strip()]


def read_method_name(method: str | None, settings: Mapping[str, Any]) -> str | None:
    """The method that --method or `method.name=` says; both may say the same. None if neither does.

    Example:
        >>> read_method_name(None, {"method": {"name": "vip"}})
        'vip'
    """
    from softcue.errors import ConfigurationError

    named: str | None = settings.get("method", {}).get("name", method)
    if method not in (None, named):
        raise ConfigurationError(
            setting="method.name", got=named, expected=f"{method}, as --method says", fix="leave method.name out"
        )
    return named
