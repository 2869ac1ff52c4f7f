"""The memory of a training step, from the real step on torch's meta device, where a tensor is a shape without memory.

The step's own code runs: prompt, backbone, readout, backward pass, optimizer. What it allocates is added up, what it
frees is taken off. Batches are laid out on the host, so nothing has to be read from the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from softcue.backbones import Backbone
from softcue.inference import TaskModel
from softcue.inputs.collate import collate
from softcue.machine import GIGABYTE, read_memory
from softcue.randomness import rows_of_global_batch
from softcue.training.config import TrainingConfig
from softcue.training.optimizers import make_optimizer
from softcue.types import Batch, TokenizedRow

META = torch.device("meta")
LARGE_STATE = 0.02  # share of the first step's memory
USABLE = 0.92  # of a device's memory: the rest is for its context, and for gaps between blocks
aten = torch.ops.aten


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step on one device."""

    weights: int  # of the backbone, with its buffers
    trained: int  # trainable parameters that are not among these weights
    gradients: int
    optimizer: int
    activations: int  # what the step holds at its peak beside all that

    @property
    def peak(self) -> int:
        """All of it at once."""
        return self.weights + self.trained + self.gradients + self.optimizer + self.activations


class MemoryMeter(TorchDispatchMode):
    """Adds up the bytes of tensors on the meta device that are alive at once.

    Example:
        >>> with MemoryMeter() as meter:
        ...     total = torch.empty(256, device="meta").exp().sum()
        >>> meter.peak, meter.live
        (2048, 4)
    """

    def __init__(self, existing: Iterable[Tensor] = (), has_equal_lengths: bool = False) -> None:
        """`existing` are tensors that were there before: views of them need no memory."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_equal_lengths = has_equal_lengths
        self.live = self.peak = 0
        self._existing = {tensor.untyped_storage()._cdata for tensor in existing}
        self._storages: dict[int, tuple[int, weakref.ref[Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it allocated."""
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            # There is no value. A mask is all true if no row is padded; a codebook has values.
            return self.has_equal_lengths or getattr(args[0], "softcue_is_any", False)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.is_meta:
                self._count(tensor)
        if func is aten.any.default and result.is_meta:
            result.softcue_is_any = True
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages or key in self._existing:
            return
        self._storages[key] = storage.nbytes(), weakref.ref(storage, lambda _: self._free(key))
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)

    def _free(self, key: int) -> None:
        self.live -= self._storages.pop(key)[0]


@contextmanager
def fused_attention() -> Iterator[None]:
    """Let attention on the meta device keep no matrix of all pairs of positions, as on a GPU or a processor.

    A function is replaced, because a mode of torch would not be active where a layer runs again in the backward pass.
    """
    attend = torch.nn.functional.scaled_dot_product_attention

    def replacement(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Any:
        has_trained_mask = attn_mask is not None and attn_mask.requires_grad  # T5's positions when it is fine-tuned
        fused = _fused_attention if query.is_meta and not has_trained_mask else attend
        return fused(query, key, value, attn_mask=attn_mask, **options)

    torch.nn.functional.scaled_dot_product_attention = replacement  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = attend


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = attn_mask.to(query.dtype)
    output: Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return output


def measure_step(
    backbone: Backbone,
    model: TaskModel,
    num_rows: int,
    length: int,
    target_length: int,
    config: TrainingConfig | None = None,
    has_equal_lengths: bool = False,
) -> StepMemory:
    """Return the memory of one step on rows of this many tokens. Nothing is computed, and the models stay as they are.

    `length` counts the tokens of the text, `target_length` those of the target on backbones that write it. Rows that
    `has_equal_lengths` of all need no mask of attention.

    Example:
        measure_step(backbone, model, num_rows=16, length=128, target_length=2).peak
    """
    view = model.method.view_of(backbone)
    modules = list({id(module): module for module in (model, view.model, view.whole.model)}.values())
    was_training = model.training
    with without_values(modules):
        optimizer = make_optimizer(model, config or TrainingConfig())
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        weights = _count_bytes(tensor for module in modules[1:] for tensor in _tensors_of(module))
        existing = [tensor for module in modules for tensor in _tensors_of(module)]
        meter = MemoryMeter(existing, has_equal_lengths)
        with meter, fused_attention(), rows_of_global_batch(range(num_rows), num_rows):
            batch = _make_batch(backbone, model, num_rows, length, target_length)
            model.train()
            _take_step(view, model, batch)
            gradients = _count_bytes(parameter.grad for parameter in trainable if parameter.grad is not None)
            optimizer.step()
            states = _count_bytes(
                value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
            )
            optimizer.zero_grad(set_to_none=True)
            if states > LARGE_STATE * meter.peak:  # the optimizer's state is there from the second step on
                _take_step(view, model, batch)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    model.train(was_training)
    trained = _count_bytes(existing) - weights
    return StepMemory(weights, trained, gradients, states, max(0, meter.peak - gradients - states))


def rows_that_fit(
    backbone: Backbone, model: TaskModel, length: int, target_length: int, config: TrainingConfig, free: float
) -> int:
    """Return how many rows a device with so many free bytes holds at once: at least 1, at most a batch.

    The weights are there already. What a row needs is the difference between a step on two rows and on one.

    Example:
        rows_that_fit(backbone, model, length=128, target_length=2, config=TrainingConfig(), free=2**33)
    """
    single, pair = (measure_step(backbone, model, rows, length, target_length, config) for rows in (1, 2))
    room = USABLE * free - single.gradients - single.optimizer - single.activations
    per_row = max(1, pair.activations - single.activations)
    return max(1, min(config.batch_size, 1 + int(room // per_row)))


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether an error of torch means that a device, or the host, has no memory left.

    Example:
        >>> is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory")), is_out_of_memory(RuntimeError("shape"))
        (True, False)
    """
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _take_step(view: Backbone, model: TaskModel, batch: Batch) -> None:
    """Forward and backward pass."""
    output = model(view.whole, batch)
    loss = output.losses.sum() + output.aux_loss
    encoder = model.method.prompt_encoder()
    if output.compared is not None and encoder is not None:
        loss = loss + encoder.batch_loss(output.compared)[0]
    loss.backward()


def _make_batch(backbone: Backbone, model: TaskModel, num_rows: int, length: int, target_length: int) -> Batch:
    """Rows of one length on the meta device; the host has their token numbers, which are all the same."""
    word = max(backbone.tokenizer.all_special_ids, default=0) + 1
    ids = (word,) * length
    takes_segments = backbone.structure.takes_segments
    row = TokenizedRow(
        ids,
        (0,) * length if takes_segments else None,
        insert_at=0,
        target_ids=(word,) * target_length if model.readout.needs_target else (),
        label=None if model.readout.needs_target else 0,
        parts=tuple(2 * token // length for token in range(length)) if model.readout.summary == "compared" else None,
    )
    batch = collate([row] * num_rows, backbone.tokenizer.pad_token_id)
    batch = batch.to(META)
    if model.representation is not None:
        width = model.representation.width(backbone)
        vectors = torch.empty(num_rows, width, device=META)
        plain = collate([row] * num_rows, backbone.tokenizer.pad_token_id).to(META)
        batch = Batch(**{**vars(batch), "representation": vectors, "plain": plain})
    return batch


@contextmanager
def without_values(modules: Sequence[nn.Module]) -> Iterator[None]:
    """While active, all parameters and buffers of these modules are shapes on the meta device.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> with without_values([layer]):
        ...     layer.weight.device
        device(type='meta')
        >>> layer.weight.device
        device(type='cpu')
    """
    copies: dict[int, Tensor] = {}  # tensors that modules share stay shared
    undo: list[Callable[[], None]] = []

    def restore(place: dict[str, Any], name: str, tensor: Tensor) -> Callable[[], None]:
        return lambda: place.__setitem__(name, tensor)

    for module in {id(part): part for whole in modules for part in whole.modules()}.values():
        places: list[dict[str, Any]] = [module._parameters, module._buffers]
        for place in places:
            for name, tensor in place.items():
                if tensor is None or tensor.is_meta:
                    continue
                if id(tensor) not in copies:
                    copy: Tensor = torch.empty_like(tensor, device=META, requires_grad=False)
                    if isinstance(tensor, nn.Parameter):
                        copy = nn.Parameter(copy, requires_grad=tensor.requires_grad)
                    copies[id(tensor)] = copy
                undo.append(restore(place, name, tensor))
                place[name] = copies[id(tensor)]
    try:
        yield
    finally:
        for step in undo:
            step()


def free_memory(device: torch.device) -> float | None:
    """The bytes that are free on a device, as far as the system tells.

    Example:
        free_memory(torch.device("cuda:0"))
    """
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    memory = read_memory()
    sizes = [size for size in (memory.available, memory.limit) if size is not None]
    return min(sizes) * GIGABYTE if sizes else None


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    return sum({id(tensor): tensor.nbytes for tensor in tensors}.values())
