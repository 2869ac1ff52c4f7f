"""Parameterised hypercomplex multiplication: W = sum_i A_i (x) B_i (Wu et al. 2022, equation 4; Compacter).

A_i is n x n and B_i is (in/n) x (out/n): n^3 + in*out/n parameters instead of in*out. W is built once per pass for all
rows and layers that share it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softcue.errors import ConfigurationError


def kronecker_sum(left: Tensor, right: Tensor) -> Tensor:
    """Return sum_i A_i (x) B_i. [n a b], [n c d] -> [a*c b*d]

    Example:
        >>> left, right = torch.randn(2, 2, 2), torch.randn(2, 3, 4)
        >>> explicit = torch.kron(left[0], right[0]) + torch.kron(left[1], right[1])
        >>> torch.allclose(kronecker_sum(left, right), explicit, atol=1e-6)
        True
    """
    _, a, b = left.shape
    _, c, d = right.shape
    return torch.einsum("nab,ncd->acbd", left, right).reshape(a * c, b * d)


def check_divides(setting: str, n: int, sizes: dict[str, int]) -> None:
    """Raise an error if n does not divide all sizes: PHM splits each side of its matrices into n equal parts.

    Example:
        >>> check_divides("method.phm_n", 4, {"width": 12})
    """
    for name, size in sizes.items():
        if size % n:
            divisors = [k for k in range(1, 65) if all(value % k == 0 for value in sizes.values())]
            raise ConfigurationError(
                setting=setting, got=n, expected=f"a divisor of the {name}, {size}", fix=f"use one of {divisors}"
            )
