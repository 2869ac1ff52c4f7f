"""Graphs in the libraries that run them: ONNX Runtime and OpenVINO, in float32, bfloat16 or with 8-bit numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor

from softcue.backbones.runtimes.graph import BackboneGraph, Inputs, quiet, write_onnx
from softcue.errors import ConfigurationError, MissingExtraError
from softcue.files import wait_for_lock

Library = Literal["openvino", "onnx"]
NumberFormat = Literal["float32", "bfloat16", "int8"]
FORMATS: Mapping[Library, Sequence[NumberFormat]] = {
    "openvino": ("float32", "bfloat16", "int8"),
    "onnx": ("float32", "int8"),
}
_PACKAGES: Mapping[Library, Sequence[str]] = {
    "openvino": ("onnx", "onnxscript", "openvino"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
}


class Session(ABC):
    """A graph that is ready to run. One thread at a time runs it."""

    def __init__(self, input_names: Sequence[str]) -> None:
        self._input_names = input_names  # without those that the graph turned out not to read
        self._lock = Lock()  # a server compares a new cue beside the thread that predicts

    def run(self, inputs: Inputs) -> Tensor:
        """Return the hidden states. [B S D]"""
        arrays = {name: inputs[name].contiguous().numpy() for name in self._input_names}
        with self._lock:
            return torch.from_numpy(self._run(arrays))

    @abstractmethod
    def _run(self, arrays: dict[str, Any]) -> Any:
        """Run the graph on numpy arrays; the result is not written to later."""


class OnnxSession(Session):
    """A graph in ONNX Runtime, on as many threads as torch has."""

    def __init__(self, path: Path) -> None:
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self._session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        super().__init__([node.name for node in self._session.get_inputs()])

    def _run(self, arrays: dict[str, Any]) -> Any:
        return self._session.run(None, arrays)[0]


class OpenVinoSession(Session):
    """A graph in OpenVINO, on as many threads as torch has."""

    def __init__(self, path: Path, number_format: NumberFormat) -> None:
        import openvino

        # What is not in 8 bits is float32 there: bfloat16 would add its own rounding.
        precision = "bf16" if number_format == "bfloat16" else "f32"
        options = {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "NUM_STREAMS": 1,
        }
        self._model = openvino.Core().compile_model(path, "CPU", options)
        super().__init__([node.get_any_name() for node in self._model.inputs])

    def _run(self, arrays: dict[str, Any]) -> Any:
        return self._model(arrays, share_inputs=True)[0]  # a copy


def require_library(library: Library, number_format: NumberFormat) -> None:
    """Raise an error if a library is not installed, or has no such number format.

    Example:
        require_library("openvino", "bfloat16")
    """
    if number_format not in FORMATS[library]:
        raise ConfigurationError(
            setting="runtime_dtype",
            got=number_format,
            expected=f"{' or '.join(FORMATS[library])} with runtime={library}",
            fix="bfloat16 is a format of openvino",
        )
    for package in missing_packages(library, number_format):
        raise MissingExtraError(package, library)
    if number_format == "bfloat16" and not has_bfloat16():
        raise ConfigurationError(
            setting="runtime_dtype",
            got=number_format,
            expected="float32 or int8 on this processor, which has no bfloat16",
            fix="leave the option out, and the fastest one is taken",
        )


@cache
def has_bfloat16() -> bool:
    """Whether OpenVINO multiplies in bfloat16 on this processor. Where it does not, it is slower than in float32.

    Example:
        has_bfloat16()
    """
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def is_able(library: Library, number_format: NumberFormat) -> bool:
    """Whether a library is installed and has a fast number format on this processor.

    Example:
        is_able("openvino", "bfloat16")
    """
    is_installed = not missing_packages(library, number_format)
    return is_installed and (number_format != "bfloat16" or has_bfloat16())


def missing_packages(library: Library, number_format: NumberFormat) -> list[str]:
    """The packages of a library that are not installed.

    Example:
        >>> [name for name in missing_packages("onnx", "float32") if name == "torch"]
        []
    """
    packages = [*_PACKAGES[library], *(["nncf"] if (library, number_format) == ("openvino", "int8") else [])]
    return [package for package in packages if find_spec(package) is None]


def library_version(library: Library) -> str:
    """The version of a library: another one may compute other last digits.

    Example:
        library_version("onnx")     # "1.31.1"
    """
    return version(_PACKAGES[library][-1])


def build_session(
    graph: BackboneGraph, library: Library, number_format: NumberFormat, folder: Path, calibration: Iterable[Inputs]
) -> Session:
    """Write a graph into a folder, unless it is there, and open it. 8-bit numbers of OpenVINO are calibrated on inputs.

    Example:
        build_session(BackboneGraph(backbone, GraphKind()), "openvino", "bfloat16", Path("cache"), [])
    """
    path = folder / ("model.onnx" if library == "onnx" else "model.xml")
    with wait_for_lock(folder.with_suffix(".lock")):  # another process may be writing the same graph
        if not path.is_file():
            if library == "onnx":
                _write_in_place(path, lambda temporary: _write_for_onnx(graph, temporary, number_format))
            else:
                _write_in_place(
                    path, lambda temporary: _write_for_openvino(graph, temporary, number_format, calibration)
                )
    return OnnxSession(path) if library == "onnx" else OpenVinoSession(path, number_format)


def _write_in_place(path: Path, write: Any) -> None:
    """Write the files of a graph beside their place and move them there, the named one last: it says all are there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"new-{path.name}")
    write(temporary)
    for file in sorted(path.parent.glob(f"{temporary.stem}.*"), key=lambda file: file.suffix == path.suffix):
        file.replace(file.with_name(file.name.removeprefix("new-")))


def _write_for_onnx(graph: BackboneGraph, path: Path, number_format: NumberFormat) -> None:
    write_onnx(graph, path)
    if number_format == "int8":
        quantise_onnx(path)


def quantise_onnx(path: Path, left_out: Sequence[str] = ()) -> None:
    """Replace the matrices of an ONNX file by 8-bit numbers, one scale per channel, but for those of the named nodes.

    Activations become 8-bit numbers as they are computed, by the range of each batch.

    Example:
        quantise_onnx(Path("model.onnx"))
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(path))
    del model.graph.value_info[:]  # of weights that the exporter has transposed it has kept the old shape
    quantised = path.with_name(f"int8-{path.name}")
    with quiet():
        quantize_dynamic(
            model,
            str(quantised),
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["MatMul", "Gather"],
            # onnxruntime first turns a Gemm, such as the head, into a MatMul of this name.
            nodes_to_exclude=[*left_out, *(f"{name}_MatMul" for name in left_out)],
        )
    quantised.replace(path)


def _write_for_openvino(
    graph: BackboneGraph, path: Path, number_format: NumberFormat, calibration: Iterable[Inputs]
) -> None:
    import openvino

    passed_on = path.with_name("passed-on.onnx")
    write_onnx(graph, passed_on)
    with quiet():
        model = openvino.convert_model(passed_on)
        if number_format == "int8":
            model = _calibrate(model, graph.input_names, calibration)
        openvino.save_model(model, path, compress_to_fp16=False)
    del model  # it reads its weights from the file that goes
    for file in path.parent.glob(f"{passed_on.name}*"):
        file.unlink()


def _calibrate(model: Any, input_names: Sequence[str], calibration: Iterable[Inputs]) -> Any:
    """Compute matrix products in 8 bits: a scale per channel of weights, ranges of activations from real inputs."""
    import nncf

    batches = [{name: inputs[name].contiguous().numpy() for name in input_names} for inputs in calibration]
    return nncf.quantize(
        model, nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER, subset_size=max(1, len(batches))
    )
