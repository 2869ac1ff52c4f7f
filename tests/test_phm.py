"""PHM against the sum of explicit Kronecker products (Wu et al. 2022, equation 4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import tiny
from torch import Tensor
from toy import EXAMPLES, make_model

import softcue.prompts.idpg as idpg
from softcue.errors import ConfigurationError
from softcue.inputs.collate import collate
from softcue.phm import check_divides, kronecker_sum
from softcue.prompts.idpg import Generator, GeneratorShape
from softcue.types import Instance

SIZES = [(1, 3, 5), (2, 1, 1), (2, 3, 4), (3, 4, 2), (4, 8, 40), (5, 2, 3), (16, 2, 4)]  # n, rows of B, columns of B


def literal(left: Tensor, right: Tensor) -> Tensor:
    """Number by number: W[a*C + c, b*D + d] = sum_i A_i[a, b] B_i[c, d]."""
    n, rows, columns = right.shape
    product = torch.zeros(n * rows, n * columns, dtype=left.dtype)
    for i in range(n):
        for a in range(n):
            for b in range(n):
                product[a * rows : (a + 1) * rows, b * columns : (b + 1) * columns] += left[i, a, b] * right[i]
    return product


@pytest.mark.parametrize(("n", "rows", "columns"), SIZES)
def test_the_sum_equals_explicit_kronecker_products_in_value_and_gradient(n: int, rows: int, columns: int) -> None:
    left = torch.randn(n, n, n, dtype=torch.float64, requires_grad=True)
    right = torch.randn(n, rows, columns, dtype=torch.float64, requires_grad=True)
    seen = torch.randn(n * rows, n * columns, dtype=torch.float64)
    explicit = sum(torch.kron(left[i], right[i]) for i in range(n))
    assert isinstance(explicit, Tensor)
    product = kronecker_sum(left, right)
    assert product.shape == (n * rows, n * columns)
    torch.testing.assert_close(product, explicit, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(product, literal(left.detach(), right.detach()), rtol=1e-12, atol=1e-12)
    # not linear, so that a wrong value would also give a wrong gradient
    wanted = torch.autograd.grad((explicit * seen).tanh().sum(), [left, right])
    gradient = torch.autograd.grad((product * seen).tanh().sum(), [left, right])
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-12)


def test_a_matrix_of_ones_and_zeros_is_put_together_block_by_block() -> None:
    left = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [0.0, 0.0]]])
    right = torch.tensor([[[1.0, 2.0, 3.0]], [[10.0, 20.0, 30.0]]])
    assert kronecker_sum(left, right).tolist() == [[1, 2, 3, 20, 40, 60], [0, 0, 0, 0, 0, 0]]


def shape(**changes: Any) -> GeneratorShape:
    values = {
        "inputs": 12,
        "bottleneck": 8,
        "outputs": 20,
        "phm_n": 4,
        "shares_a": False,
        "activation": "tanh",
        "dropout": 0.0,
        "init_std": 0.5,
    }
    return GeneratorShape(**{**values, **changes})


@pytest.mark.parametrize("shares_a", [True, False])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_batch_goes_through_the_generator_as_each_example_alone_does_literally(n: int, shares_a: bool) -> None:
    generator = Generator(shape(phm_n=n, shares_a=shares_a)).double()
    generator.initialize(torch.Generator().manual_seed(1))
    assert len(generator.a) == (1 if shares_a else 2)
    batch = torch.randn(5, 12, dtype=torch.float64)
    output = generator(batch, generator.matrices())
    first = literal(generator.a[0].detach(), generator.b[0].detach())  # [12 8]
    second = literal(generator.a[0 if shares_a else 1].detach(), generator.b[1].detach())  # [8 20]
    for row, example in zip(output, batch, strict=True):
        inner = torch.tensor([sum(float(example[r] * first[r, m]) for r in range(12)) for m in range(8)]).double()
        inner = (inner + generator.bias.detach()).tanh()
        outer = [sum(float(inner[m] * second[m, o]) for m in range(8)) for o in range(20)]
        torch.testing.assert_close(row, torch.tensor(outer).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("sharing", "num_generators"), [("S", 1), ("M", 1), ("L", 3)])
@pytest.mark.parametrize("source", ["previous", "first"])
def test_kronecker_products_are_built_once_per_pass_for_all_rows_and_layers(
    sharing: str, num_generators: int, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "m-idpg-phm", sharing=sharing, input=source, prompt_length=2)
    batch = collate(model.rows(backbone, EXAMPLES), 0)
    built: list[tuple[int, ...]] = []

    def counting(left: Tensor, right: Tensor) -> Tensor:
        product = kronecker_sum(left, right)
        built.append(tuple(product.shape))
        return product

    inputs: list[object] = []
    original = Generator.matrices
    monkeypatch.setattr(Generator, "matrices", lambda self: (inputs.append(self), original(self))[1])
    monkeypatch.setattr(idpg, "kronecker_sum", counting)
    with torch.no_grad():
        model.read(backbone, batch)[0].hidden()
    assert len(inputs) == len({id(value) for value in inputs}) == num_generators
    assert built == [(32, 8), (8, 2 * 32)] * num_generators  # no axis of examples, no axis of layers


def test_no_tensor_of_a_pass_holds_a_matrix_per_example() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "s-idpg-phm", prompt_length=4)
    sizes: list[int] = []
    rows = 64
    instance = Instance(torch.zeros(rows, 3, 32), torch.ones(rows, 3).bool(), torch.randn(rows, 32))
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: sizes.append(kept.numel()) or kept, lambda kept: kept):
        model.method.prompt(instance).tokens.sum().backward()  # type: ignore[union-attr]
    matrix = 8 * 4 * 32  # of W2, the larger one
    assert sizes
    assert max(sizes) < rows * matrix / 4


def test_what_does_not_divide_names_the_setting_and_what_fits() -> None:
    check_divides("method.phm_n", 4, {"width": 12, "bottleneck": 8})
    with pytest.raises(ConfigurationError, match=r"method\.phm_n: got 16;.*bottleneck.*8.*\[1, 2, 4, 8\]"):
        check_divides("method.phm_n", 16, {"width": 32, "bottleneck": 8})
    with pytest.raises(ConfigurationError, match=r"method\.phm_n"):
        make_model(tiny("bert"), "m-idpg-phm", phm_n=16, bottleneck=8)
    with pytest.raises(ConfigurationError, match=r"method\.phm_n"):
        make_model(tiny("bert"), "m-idpg-phm", phm_n=5, bottleneck=10, prompt_length=5)  # 32 is no multiple of 5
