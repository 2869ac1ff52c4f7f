"""Which runtime is asked for, and which of them this machine has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast, get_args

from softcue.backbones.runtimes.runtime import RuntimeName
from softcue.backbones.runtimes.sessions import FORMATS, Library, NumberFormat, is_able, require_library
from softcue.errors import ConfigurationError

RuntimeSetting = Literal["torch", "openvino", "onnx", "auto"]
DtypeSetting = Literal["auto", "float32", "bfloat16", "int8"]


@dataclass(frozen=True)
class RuntimeChoice:
    """Which runtime is asked for; `auto` measures.

    Example:
        RuntimeChoice("openvino", "bfloat16")
    """

    runtime: RuntimeSetting = "torch"
    dtype: DtypeSetting = "auto"
    data: str | None = None  # rows to compare cues on: a file, or a folder of published files; None: their own rows

    @classmethod
    def of(cls, runtime: str, dtype: str, data: str | Path | None = None) -> Self:
        """Check values that a user wrote.

        Example:
            >>> RuntimeChoice.of("onnx", "int8")
            RuntimeChoice(runtime='onnx', dtype='int8', data=None)
        """
        for setting, value, kind in (("runtime", runtime, RuntimeSetting), ("runtime_dtype", dtype, DtypeSetting)):
            if value not in get_args(kind):
                expected = f"one of {', '.join(get_args(kind))}"
                raise ConfigurationError(setting=setting, got=value, expected=expected, fix="choose one of them")
        if data is not None and not Path(data).exists():
            raise ConfigurationError(
                setting="runtime_data",
                got=data,
                expected="a file of rows, or a folder of published files",
                fix="check the path",
            )
        return cls(cast(RuntimeSetting, runtime), cast(DtypeSetting, dtype), None if data is None else str(data))

    def candidates(self) -> list[RuntimeName]:
        """The libraries and number formats to choose from; raises an error if what is asked for is not there."""
        if self.runtime == "torch":
            return []
        libraries: Sequence[Library] = tuple(FORMATS) if self.runtime == "auto" else (self.runtime,)
        names = [
            RuntimeName(library, number_format)
            for library in libraries
            for number_format in FORMATS[library]
            if self.dtype in ("auto", number_format)
        ]
        able = [name for name in names if is_able(name.library, name.number_format)]
        if not able and self.runtime != "auto":
            number_format: NumberFormat = "float32" if self.dtype == "auto" else self.dtype
            require_library(self.runtime, number_format)
        return able
