"""`softcue export --to onnx`: a cue on an encoder as one ONNX file, with 8-bit weights of the backbone if asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from softcue.backbones.runtimes import OPSET, quantise_onnx, quiet
from softcue.cue import Cue
from softcue.cue.rows_to_compare import read_rows_to_compare
from softcue.errors import MissingExtraError, first_line
from softcue.interop.encoder_graph import EncoderGraph, refused, trace
from softcue.interop.export import ExportOptions, ExportReport
from softcue.interop.graph_folder import Runtime, check_template, write_graph_folder

ONNX = Runtime(
    name="ONNX Runtime",
    file="model.onnx",
    package="onnxruntime",
    imports="from onnxruntime import InferenceSession",
    session='session = InferenceSession(str(here / about["file"]))\n\n\n'
    "def run(inputs):\n    return session.run(None, inputs)[0]",
)


def require(packages: Sequence[str], extra: str) -> None:
    """Raise an error if one of the packages of an extra is not installed.

    Example:
        >>> require(["torch"], "onnx")
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(package, extra)


def export_onnx(cue: Cue, folder: Path, options: ExportOptions) -> ExportReport:
    """Write `model.onnx` with tokenizer, record and script, and compare it with the cue.

    Example:
        export_cue(softcue.load("cues/tickets"), "onnx", "tickets-onnx")
    """
    require(("onnx", "onnxscript", "onnxruntime"), "onnx")
    graph = EncoderGraph(cue)
    check_template(cue, options.force)
    rows = read_rows_to_compare(cue, options.data)  # first: the rest takes long
    write_onnx(graph, folder / ONNX.file)
    if options.int8:
        _quantise(folder / ONNX.file)
    return write_graph_folder(graph, folder, ONNX, options, rows)


def write_onnx(graph: EncoderGraph, path: Path) -> None:
    """Write a graph as an ONNX file.

    Example:
        write_onnx(EncoderGraph(cue), Path("model.onnx"))
    """
    program = trace(graph)
    try:
        with quiet():
            exported = torch.onnx.export(
                program,
                input_names=list(graph.input_names),
                output_names=["scores"],
                opset_version=OPSET,
                verbose=False,
            )
    except Exception as error:  # any: an operation that ONNX does not have
        config = graph.cue.backbone.model.config
        raise refused(f"{graph.cue.model.method.config.name} on {config.model_type}", first_line(error)) from error
    assert exported is not None
    exported.save(str(path))


def _quantise(path: Path) -> None:
    """Replace the backbone's matrices by 8-bit numbers; what the cue holds, prompts and head, stays as it is."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    quantise_onnx(path, [node.name for node in model.graph.node if any(map(is_of_cue, node.input))])


def is_of_cue(name: str) -> bool:
    """Whether a weight of this name belongs to the cue and not to the backbone.

    Example:
        >>> is_of_cue("model.readout.head.1.weight"), is_of_cue("backbone.0.embeddings.word_embeddings.weight")
        (True, False)
    """
    return name.startswith("model.")
