"""`softcue export --to openvino`: the graph of a cue on an encoder for OpenVINO, with 8-bit weights if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softcue.backbones.runtimes import quiet
from softcue.cue import Cue
from softcue.cue.rows_to_compare import read_rows_to_compare
from softcue.interop.encoder_graph import EncoderGraph
from softcue.interop.export import ExportOptions, ExportReport
from softcue.interop.graph_folder import Runtime, check_template, write_graph_folder
from softcue.interop.onnx import is_of_cue, require, write_onnx

# Without the hint OpenVINO computes in bfloat16 on processors that have it: MiniLM's scores then differ by 0.02.
OPENVINO = Runtime(
    name="OpenVINO",
    file="model.xml",
    package="openvino",
    imports="from openvino import Core",
    session='session = Core().compile_model(here / about["file"], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})\n\n\n'
    "def run(inputs):\n    return session(inputs)[0]",
)


def export_openvino(cue: Cue, folder: Path, options: ExportOptions) -> ExportReport:
    """Write `model.xml` and `model.bin` with tokenizer, record and script, and compare them with the cue.

    Example:
        export_cue(softcue.load("cues/tickets"), "openvino", "tickets-openvino")
    """
    require(("onnx", "onnxscript", "openvino", *(("nncf",) if options.int8 else ())), "openvino")
    import openvino

    if options.int8:
        import nncf  # noqa: F401 - as it is imported it sets the level of its messages, which `quiet` changes

    graph = EncoderGraph(cue)
    check_template(cue, options.force)
    rows = read_rows_to_compare(cue, options.data)  # first: the rest takes long
    passed_on = folder / "passed-on.onnx"
    write_onnx(graph, passed_on)
    with quiet():
        model = openvino.convert_model(passed_on)
        if options.int8:
            model = _compress(model)
        openvino.save_model(model, folder / OPENVINO.file, compress_to_fp16=False)
    del model  # it reads its weights from the file that goes
    for file in folder.glob(f"{passed_on.name}*"):
        file.unlink()
    return write_graph_folder(graph, folder, OPENVINO, options, rows)


def _compress(model: Any) -> Any:
    """Store the backbone's matrices as 8-bit numbers; what the cue holds, prompts and head, stays as it is.

    Activations stay float32: a matrix is turned into float32 as it is used.
    """
    import nncf

    left_out = [
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if any(is_of_cue(value.get_source_output().get_node().get_friendly_name()) for value in node.inputs())
    ]
    return nncf.compress_weights(model, ignored_scope=nncf.IgnoredScope(names=left_out, validate=False))
