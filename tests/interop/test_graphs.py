"""The graph of a cue on an encoder: its scores are those of `Cue.predict` for batches of any size, or it is refused."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from serving_cues import PAIRS, QUESTIONS, STARS, SUBJECTS, save_cue
from tolerance import REORDERED_PROBABILITIES
from toy import CASES, TASK

from softcue.backbones import Backbone
from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError, DataError, MissingExtraError
from softcue.inference import predict
from softcue.inputs.collate import collate
from softcue.interop import ExportOptions, export_cue
from softcue.interop.agreement import Agreement, ComparedRows, RowsToCompare, made_up_examples
from softcue.interop.encoder_graph import EncoderGraph, check_exportable, trace
from softcue.interop.graph_folder import Runtime, check_template, write_graph_folder, write_tokenizer
from softcue.tasks import Task
from softcue.types import Example

# What a graph cannot hold, and a word of the reason.
REFUSED = {
    "efl": "several other rows",
    "m-idpg-phm-glove": "GloVe",
    "vip sample": "drawn",
    "warp": "mask token",
    "toy-add": "",  # its encoder asks for the number of rows by `len`
    "toy-replace": "",
}
EXPORTED = [case for case, (method, _) in CASES.items() if case not in REFUSED and "encoder" in method.kinds]
QUICK = [("bert", "prompt-tuning"), ("roberta", "m-idpg-phm kv"), ("bert", "lora"), ("albert", "p-tuning-v2 kv")]
FAMILIES = ["bert", "roberta", "distilbert", "mpnet"]
MECHANISMS = [
    *("prompt-tuning", "p-tuning-v2", "p-tuning-v2 kv", "p-tuning-v2 parallel", "prefix-tuning", "m-idpg-phm"),
    *("m-idpg-phm kv", "vip", "adapter", "compacter", "linear-probe", "fine-tuning", "lora", "prompt-tuning late"),
]


def cue_of(tmp_path: Path, case: str, family: str = "bert", task: Task = TASK) -> Cue:
    return save_cue(tmp_path / "cue", task, case, family)


def expected_scores(cue: Cue, examples: list[Example]) -> torch.Tensor:
    predictions = predict(cue.backbone, [(cue.model, example) for example in examples]).predictions
    return torch.tensor([list((one.scores or {"": one.value}).values()) for one in predictions])


def inputs_of(cue: Cue, names: tuple[str, ...], examples: list[Example], extra: int) -> list[torch.Tensor]:
    rows = [cue.model.formatter.source(example) for example in examples]
    batch = collate(rows, cue.backbone.tokenizer.pad_token_id)
    inputs = {"input_ids": batch.ids, "attention_mask": batch.mask.long(), "token_type_ids": batch.segments}
    padding = {"input_ids": cue.backbone.tokenizer.pad_token_id, "text_parts": -1}
    tensors: dict[str, Any] = {**inputs, "text_parts": batch.parts}
    return [torch.nn.functional.pad(tensors[name], (0, extra), value=padding.get(name, 0)) for name in names]


def assert_graph_is_the_cue(cue: Cue) -> None:
    graph = EncoderGraph(cue)
    module = trace(graph).module()
    examples = made_up_examples(cue)
    assert len(examples) >= 5
    for rows, extra in ((examples, 0), (examples[:1], 0), (examples[1:4], 3)):  # other sizes than the traced batch
        with torch.no_grad():
            scores = module(*inputs_of(cue, graph.input_names, rows, extra))
        REORDERED_PROBABILITIES.assert_close(scores, expected_scores(cue, rows), cue.model.method.config.name)


@pytest.mark.parametrize(("family", "case"), QUICK)
def test_a_graph_of_any_batch_gives_the_scores_of_the_cue(family: str, case: str, tmp_path: Path) -> None:
    assert_graph_is_the_cue(cue_of(tmp_path, case, family))


@pytest.mark.slow
@pytest.mark.parametrize("case", EXPORTED)
def test_every_method_has_a_graph_or_a_reason(case: str, tmp_path: Path) -> None:
    assert_graph_is_the_cue(cue_of(tmp_path, case))


@pytest.mark.slow
@pytest.mark.parametrize("case", MECHANISMS)
@pytest.mark.parametrize("family", FAMILIES[1:])
def test_every_mechanism_has_a_graph_on_other_families(family: str, case: str, tmp_path: Path) -> None:
    assert_graph_is_the_cue(cue_of(tmp_path, case, family))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["electra", "modernbert", "albert", "nomic_bert"])
def test_encoders_with_quirks_have_a_graph(family: str, tmp_path: Path) -> None:
    # the words of ELECTRA and ALBERT have another width than their layers, which one generator for all cannot make
    case = "s-idpg-phm" if family in ("electra", "albert") else "m-idpg-phm"
    assert_graph_is_the_cue(cue_of(tmp_path, case, family))


@pytest.mark.parametrize("insert_at", ["front", "end", "first-end", "second-start"])
def test_the_prompt_goes_where_the_formatter_puts_it(insert_at: str, tmp_path: Path) -> None:
    cue = cue_of(tmp_path, "prompt-tuning", task=PAIRS)
    object.__setattr__(cue.model.formatter, "insert_at", insert_at)
    graph = EncoderGraph(cue)
    examples = [*made_up_examples(cue)[:3], Example(("", "second")), Example(("first", "")), Example(("", ""))]
    rows = [cue.model.formatter.source(example) for example in examples]
    batch = collate(rows, cue.backbone.tokenizer.pad_token_id)
    places = graph._prompt_places(batch.ids, batch.mask, batch.parts)
    assert places.tolist() == [row.insert_at for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("task", [PAIRS, STARS, SUBJECTS], ids=lambda task: task.kind)
def test_pairs_numbers_and_sets_have_a_graph(task: Task, tmp_path: Path) -> None:
    assert_graph_is_the_cue(cue_of(tmp_path, "p-tuning-v2 kv", task=task))


@pytest.mark.parametrize("case", ["efl", "m-idpg-phm-glove", "vip sample", "warp"])
def test_what_has_no_graph_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=REFUSED[case]):
        check_exportable(cue_of(tmp_path, case))


def test_a_backbone_that_writes_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="of kind encoder-decoder"):
        check_exportable(cue_of(tmp_path, "prompt-tuning", "t5"))


def test_a_head_that_reads_every_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a head on one vector"):
        check_exportable(cue_of(tmp_path, "prompt-tuning", task=QUESTIONS))


def test_a_template_with_special_tokens_is_refused(tmp_path: Path) -> None:
    task = TASK.model_copy(update={"sentences": ("<s> {text}",)})
    with pytest.raises(ConfigurationError, match="template has special tokens"):
        check_exportable(cue_of(tmp_path, "prompt-tuning", task=task))


def test_a_backbone_in_bfloat16_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cue = cue_of(tmp_path, "prompt-tuning")
    monkeypatch.setattr(Backbone, "dtype", torch.bfloat16)
    with pytest.raises(ConfigurationError, match="load it in float32"):
        check_exportable(cue)


def test_a_tokenizer_that_needs_transformers_is_refused(tmp_path: Path) -> None:
    cue = cue_of(tmp_path, "prompt-tuning")
    backbone = SimpleNamespace(tokenizer=object(), name="tiny-bert")
    with pytest.raises(ConfigurationError, match="runs without transformers"):
        write_tokenizer(Cue(cue.model, backbone, cue.cue_file), tmp_path / "tokenizer.json")  # type: ignore[arg-type]


def test_rows_that_cannot_be_read_are_an_error_before_the_graph_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softcue.interop.onnx.require", lambda packages, extra: None)
    monkeypatch.setattr("softcue.interop.onnx.write_onnx", lambda graph, path: pytest.fail("it was made"))
    (tmp_path / "rows.csv").write_text("other\nhello\n")
    with pytest.raises(DataError):
        export_cue(
            cue_of(tmp_path, "prompt-tuning"), "onnx", tmp_path / "out", ExportOptions(str(tmp_path / "rows.csv"))
        )
    assert not (tmp_path / "out").exists()


def test_a_method_that_cannot_be_traced_is_refused_with_the_reason(tmp_path: Path) -> None:
    graph = EncoderGraph(cue_of(tmp_path, "prompt-tuning"))
    graph.model.method.prompt = lambda instance: int(instance.mask.sum())  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ConfigurationError, match="prompt-tuning on bert"):
        trace(graph)


def rows_of(equal: int | None, difference: float, number: int = 1000) -> ComparedRows:
    return ComparedRows("rows.csv", number, equal, difference)


def test_a_float_export_that_differs_is_refused_unless_forced() -> None:
    agreement = Agreement(rows_of(1000, 1e-6), rows_of(1000, 2e-3))
    with pytest.raises(ConfigurationError, match=r"differ by 0\.002"):
        agreement.check(is_int8=False, force=False)
    agreement.check(is_int8=False, force=True)
    Agreement(rows_of(1000, 9e-4), None).check(is_int8=False, force=False)
    with pytest.raises(ConfigurationError, match="differ by inf"):
        Agreement(rows_of(1000, float("inf")), None).check(is_int8=False, force=False)


def test_an_int8_export_may_differ_in_half_a_percent_of_the_labels() -> None:
    Agreement(rows_of(3, 0.5, 8), rows_of(995, 0.5)).check(is_int8=True, force=False)
    with pytest.raises(ConfigurationError, match="another label for 6 of 1000 rows"):
        Agreement(rows_of(1000, 0.0), rows_of(994, 0.1)).check(is_int8=True, force=False)
    with pytest.raises(ConfigurationError, match=r"0\.2 standard deviations"):
        Agreement(rows_of(None, 0.2), None).check(is_int8=True, force=False)


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cue = cue_of(tmp_path, "prompt-tuning")
    monkeypatch.setattr("softcue.interop.onnx.find_spec", lambda name: None)
    for to in ("onnx", "openvino", "mlflow"):
        with pytest.raises(MissingExtraError, match=rf"\.\[{to}\]"):
            export_cue(cue, to, tmp_path / "out")
        assert not (tmp_path / "out").exists()


NO_RUNTIME = Runtime("none", "none", "none", "", 'def run(inputs):\n    return inputs["input_ids"]')


@pytest.fixture
def no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = Agreement(rows_of(1, 0.0, 1), None)
    monkeypatch.setattr("softcue.interop.graph_folder.measure_agreement", lambda cue, run, rows: agreement)


def write_script(cue: Cue, folder: Path, options: ExportOptions | None = None) -> tuple[Any, tuple[str, ...]]:
    """`predict` of an export without a graph, which returns the token ids, and the notes of the export."""
    folder.mkdir()
    report = write_graph_folder(
        EncoderGraph(cue), folder, NO_RUNTIME, options or ExportOptions(), RowsToCompare([], "")
    )
    return runpy.run_path(str(folder / "predict.py"))["predict"], report.notes


@pytest.mark.usefixtures("no_comparison")
def test_a_second_text_that_is_empty_is_encoded_as_softcue_does(tmp_path: Path) -> None:
    task = PAIRS.model_copy(update={"may_be_empty": ("second",)})
    cue = cue_of(tmp_path, "prompt-tuning", task=task)
    predict, _ = write_script(cue, tmp_path / "out")
    (example,) = [one for one in made_up_examples(cue) if not one.texts[1]]
    assert predict([example.texts]).tolist() == [list(cue.model.formatter.source(example).ids)]
    together = [("My invoice is wrong.", ""), ("Where is it?", "Here it is.")]
    rows = [list(cue.model.formatter.source(Example(texts)).ids) for texts in together]
    padding = [cue.backbone.tokenizer.pad_token_id] * (len(rows[1]) - len(rows[0]))
    assert predict(together).tolist() == [rows[0] + padding, rows[1]]


@pytest.mark.usefixtures("no_comparison")
@pytest.mark.parametrize(("task", "num_scores"), [(TASK, len(TASK.labels)), (STARS, 1)], ids=["labels", "number"])
def test_no_rows_have_no_scores(task: Task, num_scores: int, tmp_path: Path) -> None:
    predict, _ = write_script(cue_of(tmp_path, "prompt-tuning", task=task), tmp_path / "out")
    scores = predict([])
    assert scores.shape == (0, num_scores) and scores.dtype == "float32"


@pytest.mark.usefixtures("no_comparison")
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_words_behind_the_last_column_of_a_template_are_refused_unless_forced(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if to == "openvino":
        pytest.importorskip("openvino")
    for module in ("onnx", "openvino"):
        monkeypatch.setattr(f"softcue.interop.{module}.require", lambda packages, extra: None)
        monkeypatch.setattr(f"softcue.interop.{module}.write_onnx", lambda graph, path: pytest.fail("it was made"))
    task = TASK.model_copy(update={"sentences": ("Request: {text} What is it about?",)})
    cue = cue_of(tmp_path, "prompt-tuning", task=task)
    with pytest.raises(ConfigurationError, match=r"got \"' What is it about\?' behind its last column\".*--force"):
        export_cue(cue, to, tmp_path / "out")
    _, notes = write_script(cue, tmp_path / "forced", ExportOptions(force=True))
    assert f"texts longer than {cue.model.formatter.limit} tokens lose the end of the template" in notes


@pytest.mark.usefixtures("no_comparison")
def test_a_template_that_ends_with_a_column_has_no_such_note(tmp_path: Path) -> None:
    cue = cue_of(tmp_path, "prompt-tuning", task=TASK.model_copy(update={"sentences": ("Request: {text}",)}))
    check_template(cue, force=False)
    _, notes = write_script(cue, tmp_path / "out")
    assert not any("template" in note for note in notes)


def write_rows(path: Path, columns: tuple[str, ...]) -> Path:
    texts = ["My invoice is wrong.", "Where is <s> it </s>?", "ok", "?", "I cannot sign in " * 5, "late " * 60]
    path.write_text("".join(json.dumps(dict.fromkeys(columns, text)) + "\n" for text in texts))
    return path


NO_TORCH = """import runpy, sys
sys.argv = ["predict.py", *sys.argv[2:]]
runpy.run_path({path!r}, run_name="__main__")
assert not {{"torch", "softcue", "transformers"}} & set(sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "case", "task", "int8"),
    [
        ("onnx", "p-tuning-v2 parallel", TASK, False),
        ("onnx", "m-idpg-phm", PAIRS, False),
        ("onnx", "vip", SUBJECTS, False),
        ("onnx", "p-tuning-v2 kv", STARS, False),
        ("onnx", "adapter", TASK, True),
        ("openvino", "p-tuning-v2 parallel", TASK, False),
        ("openvino", "m-idpg-phm kv", PAIRS, False),
        ("openvino", "prompt-tuning", STARS, True),
    ],
)
def test_the_script_of_an_export_predicts_without_torch(
    to: str, case: str, task: Task, int8: bool, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime" if to == "onnx" else "openvino")
    cue = cue_of(tmp_path, case, task=task)
    folder, data = tmp_path / "export", write_rows(tmp_path / "rows.jsonl", task.text)
    # A random model of width 32 has no room for 8 bits.
    report = export_cue(cue, to, folder, ExportOptions(data=str(data), int8=int8, force=int8))
    assert "rows" in report.facts
    about = json.loads((folder / "export.json").read_text())
    assert about["agreement"]["data"]["rows"] == 6 and about["agreement"]["data"]["cut_rows"] == 1
    if not int8:
        assert about["agreement"]["data"]["largest_difference"] < 1e-4
    assert not list(folder.glob("*passed-on*")) and not list(folder.glob("int8-*"))
    texts = ["My invoice is wrong."] * len(task.text)
    program = NO_TORCH.format(path=str(folder / "predict.py"))
    done = subprocess.run([sys.executable, "-c", program, "", *texts], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    scores = list(printed.values()) if isinstance(printed, dict) else [printed]
    expected = expected_scores(cue, [Example(tuple(texts))])[0]
    if not int8:
        REORDERED_PROBABILITIES.assert_close(torch.tensor(scores), expected)
    readme = (folder / "README.md").read_text()
    assert (folder / "predict.py").read_text() in readme


@pytest.mark.slow
def test_an_export_that_predicts_something_else_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    cue = cue_of(tmp_path, "prompt-tuning")
    monkeypatch.setattr(EncoderGraph, "_prompt_places", lambda graph, ids, mask, parts: torch.zeros_like(ids[:, 0]))
    with pytest.raises(ConfigurationError, match="scores that differ"):
        export_cue(cue, "onnx", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
    report = export_cue(cue, "onnx", tmp_path / "out", ExportOptions(force=True))
    assert any("only made-up texts" in note for note in report.notes)
