from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ONE_OF_EACH_KIND, tiny_model, tiny_tokenizer
from torch import Tensor
from toy import EXAMPLES, make_model

from softcue.backbones import Backbone, BackboneConfig, compilation, load_backbone
from softcue.backbones.compilation import compile_layers
from softcue.backbones.loading import load as loading
from softcue.backbones.loading.autotune import make_trial_pass
from softcue.configuration import resolve
from softcue.errors import ConfigurationError
from softcue.inputs.collate import collate

# dynamo hides this warning in a way that does not work when warnings are errors
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:backbone.compile has no effect on passes in which"),
]

# Methods that change only the input of layers; that change layers inside or their weights; that run several passes.
OUTSIDE, INSIDE = ["prompt-tuning", "toy-add"], ["prefix-tuning", "adapter", "fine-tuning"]
SEVERAL = ["m-idpg-phm kv", "prompt-tuning late"]


@pytest.fixture(autouse=True)
def _reset_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class Counting:
    """A compiler that does not change graphs and counts their runs."""

    def __init__(self, fault: str = "") -> None:
        self.num_runs, self.fault = 0, fault

    def __call__(self, graph: Any, inputs: object) -> Callable[..., Any]:
        if self.fault == "at once":
            raise RuntimeError("no C++ compiler\nand a long story")

        def run(*args: Any) -> Any:
            self.num_runs += 1
            if self.fault == "later":
                raise RuntimeError("no C++ compiler")
            outputs = graph(*args)
            return tuple(value * 1.01 for value in outputs) if self.fault == "other numbers" else outputs

        return run


def make_pair(family: str, compiler: Any) -> tuple[Backbone, Backbone]:
    """A plain and a compiled backbone with the same weights."""
    models = [tiny_model(family).requires_grad_(False) for _ in range(2)]
    compile_layers(models[1], compiler)
    plain, compiled = (Backbone(model, tiny_tokenizer(family), family) for model in models)
    return plain, compiled


def run_model(backbone: Backbone, case: str, num_rows: int) -> list[Tensor]:
    """Loss, hidden states and gradients."""
    model = make_model(backbone, case)
    rows = []
    for example in EXAMPLES[:num_rows]:
        # Not from disk: M(x) that another test or the other backbone has stored would need no pass of this one.
        rows += model.rows(backbone, [example], with_target=True, use_disk_cache=False)
    batch = collate(rows, backbone.tokenizer.pad_token_id)
    losses, *_ = model(backbone, batch)
    losses.sum().backward()
    with torch.no_grad():
        states = model.read(model.method.view_of(backbone), batch)[0].text()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [losses.sum().detach(), states[batch.mask], *gradients]


def assert_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    for value, expected_value in zip(actual, expected, strict=True):
        tolerance = 1e-5 + 1e-4 * float(expected_value.abs().max())
        torch.testing.assert_close(value, expected_value, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize(
    "family", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ONE_OF_EACH_KIND[1:])]
)
def test_compiled_layers_give_the_plain_numbers_whatever_prompts_do(family: str) -> None:
    compiler = Counting()
    plain, compiled = make_pair(family, compiler)
    for case in (*OUTSIDE, *INSIDE, *SEVERAL):
        before = compiler.num_runs
        for num_rows in (5, 3):  # batches and lengths change
            assert_same(run_model(compiled, case, num_rows), run_model(plain, case, num_rows))
        if case in INSIDE:
            assert compiler.num_runs == before, case
        elif case == "toy-add" or family != "gpt2":  # a decoder keeps the shared prefix in a cache
            assert compiler.num_runs > before, case


@pytest.mark.parametrize(
    ("family", "case", "reason"),
    [
        ("bert", "prefix-tuning", "prompts are keys and values of a layer's attention"),
        ("bert", "adapter", "sub-layers are changed, as by adapters and LoRA"),
        ("gpt2", "prompt-tuning", "layers read a cache, as with a prompt that all rows share"),
    ],
)
def test_passes_that_run_uncompiled_say_why_once(family: str, case: str, reason: str) -> None:
    _, compiled = make_pair(family, Counting())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for num_rows in (5, 3):
            run_model(compiled, case, num_rows)
    messages = [str(warning.message) for warning in caught if "backbone.compile" in str(warning.message)]
    assert messages == [f"backbone.compile has no effect on passes in which {reason}"]


@pytest.mark.parametrize("fault", ["at once", "other numbers"])
def test_a_compiler_that_fails_is_not_used_and_warns_in_one_line(fault: str) -> None:
    wanted = make_trial_pass(tiny_model("bert").requires_grad_(False))()
    model = tiny_model("bert").requires_grad_(False)
    with pytest.warns(UserWarning, match="backbone.compile: going on without compiled layers: ") as caught:
        compile_layers(model, Counting(fault))
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    for actual, expected in zip(make_trial_pass(model)(), wanted, strict=True):
        assert torch.equal(actual, expected)
    backbone = Backbone(model, tiny_tokenizer("bert"), "bert")
    assert not any(
        "forward" in vars(layer) for layer in backbone.layers
    )  # as before, so that layers can be checkpointed


def test_a_compiler_that_fails_later_is_not_used_from_then_on_and_warns_in_one_line() -> None:
    compiler = Counting()
    plain, compiled = make_pair("bert", compiler)
    compiler.fault = "later"
    wanted = run_model(plain, "prompt-tuning", 5)
    with pytest.warns(UserWarning, match="going on without compiled layers: .*no C\\+\\+ compiler") as caught:
        results = run_model(compiled, "prompt-tuning", 5)
    assert len(caught) == 1
    assert all(map(torch.equal, results, wanted))
    num_runs = compiler.num_runs
    with warnings.catch_warnings(record=True) as later_warnings:
        assert all(map(torch.equal, run_model(compiled, "prompt-tuning", 3), run_model(plain, "prompt-tuning", 3)))
    assert later_warnings == []
    assert compiler.num_runs == num_runs


def test_an_error_of_the_layer_itself_does_not_turn_off_compiled_layers(recwarn: pytest.WarningsRecorder) -> None:
    compiler = Counting()
    model = tiny_model("bert").requires_grad_(False)
    compile_layers(model, compiler)
    with pytest.raises(RuntimeError):
        model.base_model.encoder.layer[0](torch.zeros(2, 3, 7))  # too narrow
    before = compiler.num_runs
    make_trial_pass(model)()
    assert compiler.num_runs > before
    assert len(recwarn) == 0


def test_loading_compiles_where_asked(model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Counting()
    monkeypatch.setattr(loading, "compile_layers", lambda model: compilation.compile_layers(model, compiler))
    name = str(model_folders["bert"])
    plain, compiled = (load_backbone(BackboneConfig(name=name, compile=use_compile)) for use_compile in (False, True))
    num_runs = compiler.num_runs
    assert num_runs > 0
    assert run_model(plain, "prompt-tuning", 5) and compiler.num_runs == num_runs
    assert run_model(compiled, "prompt-tuning", 5) and compiler.num_runs > num_runs
    assert compiled.fingerprint == plain.fingerprint


def test_compiling_and_checkpointing_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="either compile or gradient_checkpointing"):
        resolve({"backbone": {"compile": True, "gradient_checkpointing": True}})


@pytest.mark.slow
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_torchs_own_compiler_gives_the_plain_numbers(family: str) -> None:
    plain, compiled = make_pair(family, "inductor")
    assert all("forward" in vars(layer) for layer in compiled.layers)
    for num_rows in (5, 3):
        for case in ("prompt-tuning", "toy-add", "adapter"):
            assert_same(run_model(compiled, case, num_rows), run_model(plain, case, num_rows))


@pytest.mark.slow
def test_without_a_cpp_compiler_layers_run_uncompiled(model_folders: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "import torch._inductor.config as c; c.cpp.cxx = ('/no/such/compiler',)\n"
        "from softcue.backbones import BackboneConfig, load_backbone\n"
        f"backbone = load_backbone(BackboneConfig(name={str(model_folders['bert'])!r}, compile=True))\n"
        "print('compiled' if 'forward' in vars(backbone.layers[0]) else 'plain')\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "plain\n"
    assert done.stderr.count("going on without compiled layers") == 1
