"""How the structure of a model is found: by watching one forward pass over a few tokens.

**Layers** are the children of the largest list of modules that run on the text. **Sub-layers** are the modules whose
output is added to the residual stream: hooks note which module returned a tensor, and a TorchFunctionMode notes which
tensors are added. **Keys and values** are found by gradients within a layer. What a module computes at one position
changes the output at another position only if it holds keys or values. A token that attends to itself alone takes no
gradient through its keys, since its attention weight is always 1, so what changes its output are values.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from softcue.backbones.key_steps import FoundSteps, find_key_steps
from softcue.backbones.structure import ATTRIBUTE, LayerStructure, Projection, Stack, Structure
from softcue.errors import BackboneError, first_line
from softcue.types import BackboneKind

LENGTH, TARGET_LENGTH = 5, 3  # tokens of the traced text and target; they differ, so that shapes tell them apart
ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
# Operations whose result is still the same state, in another shape or format, or scaled by a number.
SAME_STATE = {"view", "reshape", "flatten", "contiguous", "to", "float", "type_as", "clone", "dropout", "squeeze"}
SCALINGS = {"mul", "__mul__", "__rmul__", "mul_", "__imul__", "div", "__truediv__"}
# The relative size of a gradient that counts as zero: attention weights that are 1 up to rounding. On four real models
# the gradient of keys was below 1e-6 of the largest one of values, in float32 and bfloat16; the typical gradient of
# each head's values was above 0.03 of it.
ZERO_GRADIENT = 1e-4
# The largest relative difference of states that should be equal.
LARGEST_DIFFERENCE = {torch.float64: 1e-6, torch.float32: 1e-3}
ROUGH_DIFFERENCE = 0.1  # in formats with fewer digits
# The same in two rows of one batch, where sums are taken in the same order.
SAME_SHAPE_DIFFERENCE = {torch.float64: 1e-12, torch.float32: 1e-5}
ROUGH_SAME_SHAPE_DIFFERENCE = 1e-3
# The same of keys that were rotated in another number format: bfloat16 has eight binary digits.
ROUGH_STEP_DIFFERENCE = 0.01


def structure_of(model: Any) -> Structure:
    """Return the structure of a transformers model, found once and kept with the model and its copies.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(hidden_size=24, num_hidden_layers=3, num_attention_heads=2))
        >>> structure_of(model).source.layers[0].sublayers
        ('attention.output.dropout', 'output.dropout')
    """
    if ATTRIBUTE not in vars(model):
        set_structure(model, find_structure(model))
    structure: Structure = getattr(model, ATTRIBUTE)
    return structure


def set_structure(model: Any, structure: Structure) -> None:
    """Keep the structure with the model."""
    setattr(model, ATTRIBUTE, structure)


def find_structure(model: Any) -> Structure:
    """Find the structure of a model in eval mode. A model it cannot be found of is an error that says why."""
    was_training = model.training
    try:
        with torch.inference_mode(False), torch.no_grad():
            return _Tracer(model.eval()).find()
    except BackboneError:
        raise
    except Exception as error:
        reason = first_line(error)
        reason = f"a pass over {LENGTH} tokens failed: {reason[:200].rstrip('.')}"
        if model.dtype != torch.float32:
            reason = f"set backbone.dtype=float32; in {str(model.dtype).removeprefix('torch.')} {reason}"
        raise no_structure_error(model, reason) from error
    finally:
        model.train(was_training)


def no_structure_error(model: Any, reason: str) -> BackboneError:
    """The error for a model that does not follow the conventions of transformers."""
    return BackboneError(
        setting="backbone model_type",
        got=getattr(model.config, "model_type", type(model).__name__),
        expected="a text model of transformers with a list of layers that run on hidden states",
        fix=reason if reason.startswith("set ") else f"take another backbone: {reason}",
    )


@dataclass
class _LayerRun:
    """One run of a layer, and what was seen in it."""

    path: str  # below the base model
    layer: nn.Module
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    hidden: Tensor  # [B S D]
    stream: dict[int, Tensor] = field(default_factory=dict)  # states of the residual stream, by identity
    producers: dict[int, list[tuple[str, bool]]] = field(default_factory=dict)  # modules that returned a tensor
    kept: list[Tensor] = field(default_factory=list)  # alive, so that no identity is used twice
    num_calls: dict[str, int] = field(default_factory=dict)  # of each module of the layer
    times: dict[int, int] = field(default_factory=dict)  # when a tensor was first returned by a module
    summands: list[int] = field(default_factory=list)  # identities of the outputs that enter a residual sum
    branches: dict[int, list[int]] = field(default_factory=dict)  # sums of outputs that are not on the stream (yet)
    reads_source: bool = False  # a module has run on the source states since the last sum
    cross_summand: int | None = None
    has_unnamed_summand: bool = False  # a summand that no module returned


class _SumRecorder(TorchFunctionMode):
    """Notes the residual sums of the running layer."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if self.tracer.is_meta and name == "__bool__":
            return True  # such as "is nothing padded?", which a tensor without memory cannot answer
        if self.tracer.is_meta and name.endswith("grouped_mm"):  # of experts; without memory it takes bfloat16 only
            return args[0].new_empty(len(args[0]), args[1].shape[-1])
        result = func(*args, **(kwargs or {}))
        run = self.tracer.run
        if run is not None and isinstance(result, Tensor):
            if name in ADDITIONS and len(args) == 2:
                self.tracer.note_sum(run, args[0], args[1], result)
            elif name in SAME_STATE or (name in SCALINGS and _is_number(args[-1])):
                self.tracer.note_same(run, args[0], result)
            elif name in SCALINGS and _is_number(args[0]):
                self.tracer.note_same(run, args[1], result)
        return result


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)


class _Tracer:
    """Watches one pass of a model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.base: Any = model.base_model
        self.config = model.config
        self.table: Tensor = model.get_input_embeddings().weight  # [V D]
        self.is_meta = self.table.is_meta
        self.is_encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False)) and hasattr(
            self.base, "decoder"
        )
        self.source_module: Any = model.get_encoder() if self.is_encoder_decoder else self.base
        self.inputs: dict[str, Any] = {}  # of the traced pass
        self.run: _LayerRun | None = None
        self.runs: dict[str, list[_LayerRun]] = {}  # by the path of their module list
        self.lists = self._outer_lists()

    def find(self) -> Structure:
        arguments = inspect.signature(self.source_module.forward).parameters
        model_arguments = inspect.signature(self.model.forward).parameters
        first_position, word_scale = self._trace(arguments)
        source_list, decoder_list = self._choose_lists()
        hidden_width = self.runs[source_list][0].hidden.shape[-1]
        source = self._describe(self.runs[source_list], finds_keys=True)
        kind: BackboneKind = "encoder-decoder"
        if not self.is_encoder_decoder:
            kind = "decoder" if self._is_causal() else "encoder"
        segment_tables = [
            module.num_embeddings
            for name, module in self.base.named_modules()
            if "token_type" in name and isinstance(module, nn.Embedding)
        ]
        decoder = None if decoder_list is None else self._describe(self.runs[decoder_list])
        why_no_keys = next((layer.why_no_keys for layer in source.layers if layer.why_no_keys), "")
        key_widths = {layer.keys.num_columns for layer in source.layers if layer.keys is not None}
        if self.is_meta and not why_no_keys:
            key_widths = {key_width_of(self.config)}
        if len(key_widths) > 1:
            why_no_keys = "its layers have keys of different widths"
        all_layers = [*source.layers, *(decoder.layers if decoder else ())]
        why_no_sublayers = ""
        if not all(layer.sublayers for layer in all_layers):
            why_no_sublayers = "no module's output alone enters a residual sum of its layers"
        elif decoder_list is not None and self.runs[decoder_list][0].hidden.shape[-1] != hidden_width:
            why_no_sublayers = "its encoder and decoder differ in width"
        key_steps = self._find_key_steps(source)
        source = source.model_copy(
            update={
                "layers": tuple(
                    layer.model_copy(update={"key_steps": steps})
                    for layer, steps in zip(source.layers, key_steps.steps, strict=True)
                )
            }
        )
        return Structure(
            kind=kind,
            source=source,
            decoder=decoder,
            first_position=first_position,
            takes_segments="token_type_ids" in arguments and max(segment_tables, default=0) > 1,
            takes_logits_to_keep="logits_to_keep" in model_arguments,
            word_scale=word_scale,
            hidden_width=hidden_width,
            key_width=0 if why_no_keys else key_widths.pop(),
            query_width=self._query_width(source),
            head_width=self._head_width,
            why_no_keys=why_no_keys,
            why_no_sublayers=why_no_sublayers,
            rotary=key_steps.rotary,
            has_position_bias=key_steps.has_position_bias,
        )

    def _find_key_steps(self, source: Stack) -> FoundSteps:
        """Find how keys reach the attention of each source layer."""
        if self.is_meta:
            return FoundSteps([None] * len(source.layers))

        def is_same(states: Tensor, expected: Tensor) -> bool:
            bound = SAME_SHAPE_DIFFERENCE.get(expected.dtype, ROUGH_STEP_DIFFERENCE)
            return relative_difference(states.flatten(0, 1), expected.flatten(0, 1)) <= bound

        layers = [self.base.get_submodule(path) for path in source.runs]
        pairs = list(zip(layers, source.layers, strict=True))
        return find_key_steps(self.base, pairs, lambda: self._run_source(self.inputs), is_same)

    @property
    def _source_config(self) -> Any:
        """The configuration of the module that reads the source text."""
        return getattr(self.source_module, "config", self.config)

    @property
    def _head_width(self) -> int:
        return head_width_of(self._source_config)

    def _query_width(self, source: Stack) -> int:
        """The width of queries, which must be that of the joined heads in all layers; 0 if they were not found."""
        if self.is_meta:
            return int(getattr(self._source_config, "num_attention_heads", 0)) * self._head_width
        widths = {
            layer.queries.num_columns if layer.queries and layer.attention_output else 0 for layer in source.layers
        }
        return widths.pop() if len(widths) == 1 else 0

    # The pass

    def _outer_lists(self) -> list[str]:
        """Paths of the module lists that are not inside another one."""
        paths: list[str] = []
        for path, module in self.base.named_modules():
            is_inside = any(path.startswith(f"{outer}.") for outer in paths)
            if isinstance(module, nn.ModuleList) and len(module) and not is_inside:
                paths.append(path)
        return paths

    def _trace(self, arguments: Mapping[str, Any]) -> tuple[int | None, float]:
        """Run the traced pass, whose states equal those of a plain pass over token ids.

        Returns the first position and the scale of word embeddings with which they are equal.
        """
        first_positions = self._first_positions() if "position_ids" in arguments else [None]
        candidates = [(position, scale) for scale in self._word_scales() for position in first_positions]
        if self.is_meta:
            self._run_traced(*candidates[0])
            return candidates[0]
        plain = self._run_source({"input_ids": self._ids(2, LENGTH)[:1]})
        if not bool(plain.isfinite().all()):
            raise no_structure_error(self.model, "its states are not finite numbers, so its weights may be damaged")
        differences = []
        for candidate in candidates:
            differences.append(relative_difference(self._run_traced(*candidate)[0], plain[0]))
            if differences[-1] <= SAME_SHAPE_DIFFERENCE.get(plain.dtype, ROUGH_SAME_SHAPE_DIFFERENCE):
                return candidate
        # In formats with few digits a wrong position may differ by little more than rounding: the best one counts.
        # Where several are as good (rotary positions), the first does.
        best = next(number for number, value in enumerate(differences) if value <= 3 * min(differences))
        if differences[best] > LARGEST_DIFFERENCE.get(plain.dtype, ROUGH_DIFFERENCE):
            raise no_structure_error(self.model, "its states from word embeddings are not those from token ids")
        self._run_traced(*candidates[best])
        return candidates[best]

    def _run_traced(self, first_position: int | None, word_scale: float) -> Tensor:
        """Run a watched pass over two rows of word embeddings, of which the second has one token. [B S D]"""
        ids = self._ids(2, LENGTH)
        words = self.model.get_input_embeddings()(ids)
        inputs: dict[str, Any] = {"inputs_embeds": words * word_scale if word_scale != 1.0 else words}
        if not self.is_meta:  # transformers makes masks from the numbers in these
            inputs["attention_mask"] = torch.ones_like(ids)
            inputs["attention_mask"][1, 1:] = 0
            if first_position is not None:
                inputs["position_ids"] = torch.arange(LENGTH, device=ids.device).expand(2, -1) + first_position
        self.inputs = inputs
        self.runs.clear()
        with self._watching():
            states = self._run_source(inputs)
            if self.is_encoder_decoder:
                self._run_decoder(states, inputs.get("attention_mask"))
        return states

    def _ids(self, num_rows: int, length: int) -> Tensor:
        """Token ids that are not special."""
        special = {
            value
            for name in ("pad_token_id", "bos_token_id", "eos_token_id", "mask_token_id", "sep_token_id")
            for value in token_ids_of(self.config, name)
        }
        words = ordinary_words(len(self.table), special, num_rows * length)
        return torch.tensor(words, device=self.table.device).view(num_rows, length)

    def _first_positions(self) -> Sequence[int]:
        """Candidates for the number of the first position: 0, or behind the number of padding (RoBERTa, MPNet)."""
        if self.is_meta:  # nothing can be compared
            tables = [module for name, module in self.source_module.named_modules() if "position" in name]
            numbers = [getattr(module, "padding_idx", None) for module in tables]
            return [next((number + 1 for number in numbers if number is not None), 0)]
        paddings = [getattr(self.config, "pad_token_id", None)]
        paddings += [getattr(module, "padding_idx", None) for module in self.source_module.modules()]
        return [0, *dict.fromkeys(number + 1 for number in paddings if isinstance(number, int) and number >= 0)]

    def _word_scales(self) -> Iterator[float]:
        yield 1.0
        for module in self.source_module.modules():
            scale = getattr(module, "embed_scale", None)
            if isinstance(scale, (int, float)) and scale != 1.0:
                yield float(scale)

    def _run_source(self, inputs: dict[str, Any]) -> Tensor:
        return self._states_of(self.source_module(**inputs, **self._no_cache(self.source_module)))

    def _run_decoder(self, states: Tensor, mask: Tensor | None) -> None:
        ids = self._ids(2, TARGET_LENGTH)
        decoder = self.model.get_decoder()
        inputs = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
        decoder(input_ids=ids, **inputs, **self._no_cache(decoder))

    @staticmethod
    def _no_cache(module: Any) -> dict[str, Any]:
        return {"use_cache": False} if "use_cache" in inspect.signature(module.forward).parameters else {}

    def _states_of(self, output: Any) -> Tensor:
        states = getattr(output, "last_hidden_state", None)
        if not isinstance(states, Tensor):
            raise no_structure_error(self.model, f"its base {type(self.base).__name__} returns no hidden states")
        return states

    # Watching

    @contextmanager
    def _watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for list_path in self.lists:
                for name, layer in self.base.get_submodule(list_path).named_children():
                    path = f"{list_path}.{name}"
                    handles = [layer.register_forward_pre_hook(self._enter(list_path, path), with_kwargs=True)]
                    handles += [
                        module.register_forward_hook(self._note_output(inner))
                        for inner, module in layer.named_modules()
                        if inner
                    ]
                    handles.append(layer.register_forward_hook(self._leave))
                    for handle in handles:
                        stack.callback(handle.remove)
            stack.enter_context(_SumRecorder(self))
            yield
        self.run = None

    def _enter(self, list_path: str, path: str) -> Callable[..., None]:
        def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = hidden_input(args, kwargs)
            if hidden is None or hidden.dim() != 3 or len(hidden) != 2 or self.run is not None:
                return
            self.run = _LayerRun(path, layer, (args, dict(kwargs)), hidden, {id(hidden): hidden})
            self.runs.setdefault(list_path, []).append(self.run)

        return enter

    def _leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        run = self.run
        if run is not None and layer is run.layer:
            states = output[0] if isinstance(output, (tuple, list)) and output else output
            if id(states) not in run.stream:  # a sum was not seen
                run.has_unnamed_summand = True
            self.run = None

    def _note_output(self, path: str) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            run = self.run
            if run is None:
                return
            run.num_calls[path] = run.num_calls.get(path, 0) + 1
            source = args[0] if args and isinstance(args[0], Tensor) else None
            if source is not None and source.dim() == 3 and source.shape[1] == LENGTH != run.hidden.shape[1]:
                run.reads_source = True
            is_alone = isinstance(output, Tensor)
            value = output[0] if isinstance(output, tuple) and output else output
            if not isinstance(value, Tensor):
                return
            run.kept.append(value)
            is_norm = "norm" in type(module).__name__.lower()
            if is_norm and source is not None and id(source) in run.stream:
                run.stream[id(value)] = value
                return
            run.branches.pop(id(value), None)  # a sub-layer that adds parts of itself
            run.producers.setdefault(id(value), []).append((path, is_alone))
            run.times.setdefault(id(value), len(run.times))

        return note

    def note_same(self, run: _LayerRun, source: Any, result: Tensor) -> None:
        """The result is the same state as the source."""
        run.kept += [result]
        if id(source) in run.stream:
            run.stream[id(result)] = result
        if id(source) in run.branches:
            run.branches.setdefault(id(result), run.branches[id(source)])
        if id(source) in run.producers and id(result) not in run.producers:
            run.producers[id(result)] = run.producers[id(source)]
            run.times[id(result)] = run.times[id(source)]

    def note_sum(self, run: _LayerRun, first: Any, second: Any, result: Tensor) -> None:
        """Note a sum of two states, if it is one of the residual stream."""
        run.kept.append(result)
        is_state = [
            isinstance(summand, Tensor) and summand.numel() == run.hidden.numel() and summand.shape == result.shape
            for summand in (first, second)
        ]
        if not all(is_state) or result.shape[-1] != run.hidden.shape[-1]:
            return
        added = [id(summand) for summand in (first, second) if id(summand) not in run.stream]
        outputs = [run.branches.get(number) or [number] * (number in run.producers) for number in added]
        if len(added) == 2:  # two branches (GPT-J), or two parts of one sub-layer (experts and shared experts)
            if all(outputs):
                run.branches[id(result)] = [*outputs[0], *outputs[1]]
            return
        if not all(outputs):
            run.has_unnamed_summand = True
        for number in itertools.chain(*outputs):
            run.summands.append(number)
            if run.reads_source:
                run.cross_summand, run.reads_source = number, False
        run.stream[id(result)] = result

    # Conclusions

    def _choose_lists(self) -> tuple[str, str | None]:
        """The module lists of the source and of the decoder: those with the most weights."""

        def largest(length: int) -> str | None:
            paths = [path for path, runs in self.runs.items() if runs[0].hidden.shape[1] == length]
            return max(paths, key=self._num_weights, default=None)

        source, decoder = largest(LENGTH), largest(TARGET_LENGTH) if self.is_encoder_decoder else None
        if source is None or (self.is_encoder_decoder and decoder is None):
            raise no_structure_error(self.model, "no list of layers runs on hidden states [batch, tokens, width]")
        return source, decoder

    def _num_weights(self, path: str) -> int:
        return sum(value.numel() for value in self.base.get_submodule(path).parameters())

    def _describe(self, runs: Sequence[_LayerRun], finds_keys: bool = False) -> Stack:
        """Describe the layers of a stack; layers that are alike are analysed once."""
        described: dict[object, LayerStructure] = {}
        layers = []
        for run in runs:
            sublayers, cross_attention = self._sublayers_of(run)
            shape = _shape_of(run.layer), sublayers, cross_attention
            if shape not in described:
                structure = LayerStructure(sublayers=sublayers, cross_attention=cross_attention)
                if finds_keys:
                    structure = structure.model_copy(update=self._find_keys(run))
                described[shape] = structure
            layers.append(described[shape])
        return Stack(runs=tuple(run.path for run in runs), layers=tuple(layers))

    def _sublayers_of(self, run: _LayerRun) -> tuple[tuple[str, ...], str | None]:
        def module_of(summand: int) -> str | None:
            once = [(path, is_alone) for path, is_alone in run.producers[summand] if run.num_calls[path] == 1]
            candidates = [path for path, is_alone in once if is_alone] or [path for path, _ in once]
            return candidates[-1] if candidates else None

        summands = sorted(dict.fromkeys(run.summands), key=lambda summand: run.times[summand])
        modules = {summand: module_of(summand) for summand in summands}
        if run.has_unnamed_summand or None in modules.values():
            return (), None
        cross_attention = None if run.cross_summand is None else modules.pop(run.cross_summand)
        return tuple(path for path in modules.values() if path is not None), cross_attention

    def _is_causal(self) -> bool:
        """Whether states do not depend on later positions: in two rows of a batch only the last token differs."""
        if is_masked_model(self.model):
            return False
        if self.is_meta:
            return is_causal_model(self.model)
        ids = self._ids(2, LENGTH)
        ids[1, :-1] = ids[0, :-1]
        states = self._run_source({"input_ids": ids})
        bound = SAME_SHAPE_DIFFERENCE.get(states.dtype, ROUGH_SAME_SHAPE_DIFFERENCE)
        return relative_difference(states[1, :-1], states[0, :-1]) <= bound

    def _find_keys(self, run: _LayerRun) -> dict[str, Any]:
        """Find the modules and columns of keys and values in a layer, or the reason why they cannot be set."""
        projections = {
            path: module
            for path, module in run.layer.named_modules()
            if getattr(module, "weight", None) is not None and getattr(module.weight, "ndim", 0) == 2
        }
        repeated = [path for path in projections if run.num_calls.get(path, 0) > 1]
        once = {path: module for path, module in projections.items() if run.num_calls.get(path, 0) == 1}
        if self.is_meta:
            return {"why_no_keys": _repeated_reason(repeated) if repeated else ""}
        columns, queries, outputs, inputs = self._columns_by_gradient(run, once)
        keys, values = ([path for path, parts in columns.items() if parts[which]] for which in (0, 1))
        reason = ""
        if len(keys) != 1 or len(values) != 1:
            alone = "no module alone computes the keys, or the values, of a layer"
            reason = _repeated_reason(repeated) if repeated else alone
        elif len(columns[keys[0]][0]) != len(columns[values[0]][1]):
            reason = "its keys and values are not vectors of one width"
        if reason:
            return {"why_no_keys": reason}
        structure: dict[str, Any] = {
            name: Projection(module=paths[0], columns=_runs(columns[paths[0]][which]))
            for which, (name, paths) in enumerate((("keys", keys), ("values", values)))
        }
        with_queries = [path for path, query_columns in queries.items() if query_columns]
        readers = self._readers_of_heads(outputs[values[0]][1, 0, columns[values[0]][1]], inputs)
        if len(with_queries) == 1 and len(readers) == 1:
            query_columns = queries[with_queries[0]]
            if len(query_columns) == inputs[readers[0]].shape[-1]:
                structure["queries"] = Projection(module=with_queries[0], columns=_runs(query_columns))
                structure["attention_output"] = readers[0]
        return structure

    def _readers_of_heads(self, value: Tensor, inputs: Mapping[str, Tensor]) -> list[str]:
        """The modules that read the joined outputs of all heads.

        In the row with one token attention weights are 1, so a head's output is the token's value [K] there. Several
        heads may share a value.
        """
        head_width = self._head_width
        readers = []
        for path, states in inputs.items():
            if len(states) != 2 or len(value) % head_width or states.shape[-1] % len(value):
                continue
            joined = states[1, 0]  # [Q]
            repeated = value.view(-1, head_width).repeat_interleave(len(joined) // len(value), dim=0).flatten()
            if relative_difference(joined, repeated) <= ROUGH_SAME_SHAPE_DIFFERENCE:
                readers.append(path)
        return readers

    def _columns_by_gradient(
        self, run: _LayerRun, modules: Mapping[str, nn.Module]
    ) -> tuple[dict[str, tuple[list[int], list[int]]], dict[str, list[int]], dict[str, Tensor], dict[str, Tensor]]:
        """For each module the columns of its output that hold keys and values, and those that hold queries.

        Also the outputs and the inputs of the modules, each [B S X].
        """
        with _gradients(run, modules) as (output, outputs, inputs):
            paths = [path for path, value in outputs.items() if value.dim() == 3 and value.requires_grad]
            tensors = [outputs[path] for path in paths]
            if not tensors:
                return {}, {}, {}, {}
            weights = _weights(output)

            def gradients_of(loss: Tensor) -> list[Tensor]:
                gradients = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
                return [
                    torch.zeros_like(tensor) if gradient is None else gradient
                    for gradient, tensor in zip(gradients, tensors, strict=True)
                ]

            elsewhere = gradients_of((output[0, -2:] * weights).sum())
            alone = gradients_of((output[1, 0] * weights).sum())
            last = gradients_of((output[0, -1] * weights).sum())
        reaching, sizes = {}, {}
        for path, other, single in zip(paths, elsewhere, alone, strict=True):
            columns = other[0, : LENGTH - 2].abs().amax(dim=0).nonzero().flatten()
            if len(columns):
                reaching[path], sizes[path] = columns, single[1, 0].abs().float()
        largest = max((float(sizes[path][columns].max()) for path, columns in reaching.items()), default=0.0)
        bound = ZERO_GRADIENT * largest
        head_width = self._head_width
        by_module = {}
        for path, columns in reaching.items():
            is_value = _majority(sizes[path][columns] > bound, head_width)
            by_module[path] = columns[~is_value].tolist(), columns[is_value].tolist()
        # A query acts at its position only, and not at all where there is only one token to attend to.
        queries = {}
        for path, at_last, single in zip(paths, last, alone, strict=True):
            acts = at_last[0, -1].abs().float()
            is_query = (acts > ZERO_GRADIENT * acts.max()) & (single[1, 0].abs().float() <= bound)
            is_query[[column for part in by_module.get(path, ([], [])) for column in part]] = False
            is_query = _majority(is_query, head_width)
            queries[path] = is_query.nonzero().flatten().tolist()
        return by_module, queries, {path: outputs[path].detach() for path in paths}, inputs


def ordinary_words(num_words: int, special: Collection[int], count: int) -> list[int]:
    """Token ids that are not special and differ, spread over the vocabulary.

    Example:
        >>> ordinary_words(100, special={0, 51}, count=3)
        [17, 49, 82]
    """
    skipped = sorted(number for number in set(special) if 0 <= number < num_words)
    num_ordinary = num_words - len(skipped)
    if num_ordinary < count:
        raise ValueError(f"its vocabulary has {num_ordinary} words that are not special, and {count} are needed")
    step = num_ordinary // count
    words = []
    for number in range(step // 2, step // 2 + step * count, step):  # among the ordinary words
        for special_number in skipped:
            number += special_number <= number
        words.append(number)
    return words


def hidden_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The hidden states among the inputs of a layer: the first one, or `hidden_states`."""
    value = args[0] if args else kwargs.get("hidden_states")
    return value if isinstance(value, Tensor) else None


def head_width_of(config: Any) -> int:
    """The width of the keys of one attention head, by the configuration; 1 for models without attention."""
    for name in ("head_dim", "d_kv", "attention_head_size"):
        if isinstance(width := getattr(config, name, None), int) and width > 0:
            return width
    return int(config.hidden_size) // int(getattr(config, "num_attention_heads", config.hidden_size))


def key_width_of(config: Any) -> int:
    """The width of one token's keys over all heads, by the configuration; for models without weights."""
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        num_heads = 1
    return int(num_heads) * head_width_of(config)


@contextmanager
def _gradients(
    run: _LayerRun, modules: Mapping[str, nn.Module]
) -> Iterator[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    """Run a layer again with gradients: its output, and the outputs and inputs of some of its modules."""
    args, kwargs = run.inputs
    hidden = run.hidden.detach().clone().requires_grad_()
    outputs: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}

    def note(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                outputs[path] = output
            if arguments and isinstance(arguments[0], Tensor) and arguments[0].dim() == 3:
                inputs[path] = arguments[0].detach()

        return hook

    with torch.enable_grad(), ExitStack() as stack:
        for path, module in modules.items():
            stack.callback(module.register_forward_hook(note(path)).remove)
        if args:
            output = run.layer(hidden, *args[1:], **kwargs)
        else:
            output = run.layer(**{**kwargs, "hidden_states": hidden})
        yield output if isinstance(output, Tensor) else output[0], outputs, inputs


def _repeated_reason(paths: Sequence[str]) -> str:
    return f"{' and '.join(paths)} {'runs' if len(paths) == 1 else 'run'} more than once in a layer"


def _weights(output: Tensor) -> Tensor:
    """Uneven weights [D]: the gradient of an equal sum vanishes behind a norm."""
    return torch.arange(1, output.shape[-1] + 1, device=output.device, dtype=torch.float32).cos().to(output.dtype)


def _majority(is_value: Tensor, head_width: int) -> Tensor:
    """Let the columns of a head decide together: single columns may have no gradient by chance."""
    if len(is_value) % head_width:
        return is_value
    by_head = is_value.view(-1, head_width).float().mean(dim=1) > 0.5
    return by_head.repeat_interleave(head_width)


def _runs(columns: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Sorted column numbers as runs, each from its first to behind its last."""
    runs: list[tuple[int, int]] = []
    for column in columns:
        if runs and runs[-1][1] == column:
            runs[-1] = runs[-1][0], column + 1
        else:
            runs.append((column, column + 1))
    return tuple(runs)


def _shape_of(layer: nn.Module) -> tuple[Any, ...]:
    """All by which a layer may differ from the others in structure: names, classes and shapes of its modules."""
    return tuple(
        (path, type(module), tuple(tuple(value.shape) for value in module.parameters(recurse=False)))
        for path, module in layer.named_modules()
    )


def token_ids_of(config: Any, name: str) -> list[int]:
    """The token ids under a key of a configuration: none, one, or several, such as the end tokens of chat models.

    Example:
        >>> from types import SimpleNamespace
        >>> [token_ids_of(SimpleNamespace(eos_token_id=value), "eos_token_id") for value in (None, 2, [2, 7])]
        [[], [2], [2, 7]]
    """
    ids = getattr(config, name, None)
    if ids is None:
        return []
    return [int(number) for number in ids] if isinstance(ids, (list, tuple)) else [int(ids)]


def relative_difference(states: Tensor, expected: Tensor) -> float:
    """The difference of states [T D], relative to how far the expected ones are from their mean.

    Few values that are large in every state (as in many trained models) so count no more than others.

    Example:
        >>> relative_difference(torch.tensor([[9.0], [7.0]]), torch.tensor([[9.0], [7.0]]))
        0.0
    """
    states, expected = states.float(), expected.float()
    difference = float((states - expected).norm() / (expected - expected.mean(dim=0)).norm())
    return difference if math.isfinite(difference) else math.inf


def is_masked_model(model: Any) -> bool:
    """Whether the class of a model is that of a masked language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return type(model).__name__ in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()


def is_causal_model(model: Any) -> bool:
    """Whether the class of a model is that of a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
