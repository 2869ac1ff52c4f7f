"""Frozen linear modules whose matrix is kept in 8 or 4 bits, and how a model gets them.

torchao chooses the scales and rounds. The matrix is unpacked for each product, in the number format of the states, so
the same numbers are computed on every device, and gradients reach the input. torchao's own modules do neither for both
widths: its 4-bit formats differ from device to device and have no gradient, and its 8-bit one keeps an unpacked copy of
every matrix until the backward pass.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.errors import BackboneError, MissingExtraError

Quantization = Literal["none", "int8", "int4"]
# Columns of a row that share a scale in 4 bits: the first that divides the row. 8 bits have one scale per row.
GROUP_SIZES = (64, 32, 16)
VALUES_AT_ONCE = 1 << 20  # of a matrix while it is rounded: torchao needs some 20 bytes for each
SMALLEST_SHARE = 0.5  # of the weights inside layers, below which a quantized model is not what was asked for


class QuantizedLinear(nn.Linear):
    """A frozen linear module whose matrix is integers and scales.

    `codes` are signed bytes [O I], or two unsigned 4-bit numbers per byte [O I/2]. A group of columns shares a scale
    and, in 4 bits, a zero point. Each [O G]
    """

    def __init__(self, linear: nn.Linear, bits: int, dtype: torch.dtype, device: torch.device) -> None:
        """Make room for the matrix of a linear module; what is not integers gets the number format."""
        nn.Module.__init__(self)  # not Linear's, which makes a matrix
        self.out_features, self.in_features, self.bits = linear.out_features, linear.in_features, bits
        width = self.in_features * bits // 8
        integers = torch.int8 if bits == 8 else torch.uint8
        self.group = self.in_features if bits == 8 else group_size(self.in_features)
        groups = (self.out_features, self.in_features // self.group)
        self.codes = _frozen(torch.empty(self.out_features, width, dtype=integers, device=device))
        self.scales = _frozen(torch.empty(groups, dtype=dtype, device=device))
        self.zeros = None if bits == 8 else _frozen(torch.empty(groups, dtype=torch.int8, device=device))
        self.bias = None if linear.bias is None else _frozen(linear.bias.detach().to(device, dtype))

    @classmethod
    def of(cls, linear: nn.Linear, bits: int, dtype: torch.dtype, device: torch.device) -> QuantizedLinear:
        """Quantize a linear module.

        Example:
            >>> import pytest
            >>> _ = pytest.importorskip("torchao")
            >>> linear = nn.Linear(32, 4)
            >>> quantized = QuantizedLinear.of(linear, 8, torch.float32, torch.device("cpu"))
            >>> bool((quantized.weight - linear.weight).abs().max() < 0.01)
            True
        """
        quantized = cls(linear, bits, dtype, device)
        quantized.fill(linear.weight)
        return quantized

    def fill(self, weight: Tensor) -> None:
        """Round a matrix into this module, some rows at a time. [O I]"""
        num_rows = max(1, VALUES_AT_ONCE // self.in_features)
        for start in range(0, self.out_features, num_rows):
            rows = slice(start, start + num_rows)
            values = weight.detach()[rows].to(self.codes.device).float()
            codes, scales, zeros = _round(values, self.group, self.bits, self.scales.dtype)
            self.codes.data[rows], self.scales.data[rows] = codes, scales
            if self.zeros is not None:
                self.zeros.data[rows] = zeros

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The matrix, unpacked for each reader. [O I]"""
        return _unpack(self.codes, self.scales, self.zeros, self.scales.dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name in torch)
        """Multiply as a linear module does. [... I] -> [... O]"""
        if torch.is_grad_enabled() and input.requires_grad:
            parts = (self.codes, self.scales, self.zeros, self.bias)
            product: Tensor = _Product.apply(input, *parts)  # type: ignore[no-untyped-call]
            return product
        return functional.linear(input, _unpack(self.codes, self.scales, self.zeros, input.dtype), self.bias)


def _frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _round(weight: Tensor, group: int, bits: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and zero points of some rows. [R I] -> [R I] or [R I/2], [R G], [R G]"""
    from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine

    low, high, integers = (-128, 127, torch.int8) if bits == 8 else (0, 15, torch.uint8)
    mapping = MappingType.SYMMETRIC if bits == 8 else MappingType.ASYMMETRIC
    scales, zeros = choose_qparams_affine(
        weight, mapping, (1, group), integers, low, high, scale_dtype=torch.float32, zero_point_dtype=torch.int8
    )
    scales, zeros = scales.reshape(len(weight), -1), zeros.reshape(len(weight), -1)
    scales = scales.to(dtype)  # rounded before the codes are chosen for them
    codes = quantize_affine(weight, (1, group), scales.float(), zeros, integers, low, high)
    return (codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4), scales, zeros


class _Product(torch.autograd.Function):
    """A product that keeps the codes until the backward pass, and not the matrix unpacked from them."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        # Not the module: its tensors are gone by then if accelerate keeps the layer on disk between passes.
        ctx.save_for_backward(codes, scales, zeros)
        return functional.linear(states, _unpack(codes, scales, zeros, states.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [gradient] = gradients
        codes, scales, zeros = ctx.saved_tensors
        return gradient @ _unpack(codes, scales, zeros, gradient.dtype), None, None, None, None


def _unpack(codes: Tensor, scales: Tensor, zeros: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The matrix in a number format. [O I]"""
    # The trace that finds a model's structure keeps every tensor it sees: here, all matrices unpacked at once.
    with torch._C.DisableTorchFunction():
        if zeros is not None:
            codes = torch.stack((codes & 15, codes >> 4), dim=-1)  # [O I/2 2]
        groups = codes.reshape(*scales.shape, -1).to(dtype)  # [O G I/G]
        if zeros is not None:
            groups = groups - zeros.unsqueeze(-1).to(dtype)
        return (groups * scales.unsqueeze(-1).to(dtype)).reshape(len(codes), -1)


def group_size(width: int) -> int:
    """The number of columns that share a scale in 4 bits; 0 if a row of this width has no such groups.

    Example:
        >>> group_size(4096), group_size(48), group_size(10)
        (64, 16, 0)
    """
    return next((size for size in GROUP_SIZES if width % size == 0), 0)


def quantization_of(model: Any) -> str:
    """How the weights of a model are quantized: none, int8, int4, or the method of a quantized checkpoint.

    Example:
        >>> quantization_of(nn.Linear(2, 2))
        'none'
    """
    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            return f"int{module.bits}"
    settings = getattr(getattr(model, "config", None), "quantization_config", None)
    return "none" if settings is None else checkpoint_quantization(settings)


def checkpoint_quantization(settings: Any) -> str:
    """The method and width of a checkpoint that is quantized already, from `quantization_config` of its config.json.

    Example:
        >>> checkpoint_quantization({"quant_method": "gptq", "bits": 4})
        'gptq-4bit'
    """
    values = settings if isinstance(settings, dict) else settings.to_dict()
    method = str(getattr(values.get("quant_method"), "value", values.get("quant_method") or "bitsandbytes"))
    bits = values.get("bits") or (4 if values.get("load_in_4bit") else 8 if values.get("load_in_8bit") else None)
    return f"{method}-{bits}bit" if bits else method


def require_torchao() -> None:
    """Raise an error if torchao is not installed."""
    try:
        import torchao  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("torchao", "quantization") from error


def num_weights(model: nn.Module) -> int:
    """The number of weights of a model; two 4-bit ones in a byte count as two.

    Example:
        >>> num_weights(nn.Linear(2, 3))
        9
    """
    quantized = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    values = [value for module in quantized for value in (module.codes, module.scales, module.zeros)]
    packed = sum(value.numel() for value in values if value is not None)
    whole = sum(module.out_features * module.in_features for module in quantized)
    return sum(value.numel() for value in model.parameters()) - packed + whole


def linears_to_quantize(model: Any, bits: int) -> dict[str, nn.Linear]:
    """The linear modules of a transformers model that are quantized, by name.

    Left as they are: output words and whatever shares its matrix with other modules, modules that transformers keeps
    in float32 (T5's second feed-forward matrix), and, in 4 bits, rows that do not fall into groups.
    """
    uses: dict[int, int] = {}
    for module in model.modules():
        for value in module.parameters(recurse=False):
            uses[id(value)] = uses.get(id(value), 0) + 1
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        and module is not head
        and not stays_float32(model, name, torch.float16)
        and uses[id(module.weight)] == 1
        and (bits == 8 or group_size(module.in_features))
    }


def stays_float32(model: Any, name: str, dtype: torch.dtype) -> bool:
    """Whether transformers keeps a weight in float32 when the model has another number format.

    Example:
        stays_float32(t5, "encoder.block.0.layer.1.DenseReluDense.wo.weight", torch.float16)     # True
    """
    names: set[str] = set()
    if dtype == torch.float16:
        names |= set(model._keep_in_fp32_modules or ())
    if dtype in (torch.float16, torch.bfloat16):
        names |= set(model._keep_in_fp32_modules_strict or ())
    return any(f".{part}." in f".{name}." for part in names)


def check_share(model: Any, name: str) -> None:
    """Raise an error if few of the weights inside a model's layers are quantized: it would not be smaller."""
    tables = [value for module in model.modules() if isinstance(module, nn.Embedding) for value in module.parameters()]
    head = model.get_output_embeddings()
    tables += [] if head is None else list(head.parameters())
    outside = sum(value.numel() for value in {id(value): value for value in tables}.values())
    inside = num_weights(model) - outside
    quantized = sum(m.out_features * m.in_features for m in model.modules() if isinstance(m, QuantizedLinear))
    if quantized < SMALLEST_SHARE * inside:
        raise BackboneError(
            setting="backbone.quantization",
            got=name,
            expected="a model whose layers are made of linear modules",
            fix=f"set backbone.quantization=none: only {100 * quantized // max(1, inside)} % of the weights in its "
            "layers are in linear modules (GPT-2 and mixtures of experts have others)",
        )
