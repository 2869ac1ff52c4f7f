"""The self-check of a backbone: short passes that prove that softcue reads and changes this model as it should.

The structure of a model is found, not listed, so a mistake must be noticed before anything is trained. Each check runs
the code that training and prediction use, on two texts of a few tokens. What was checked once on a machine is kept.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch import Tensor, nn

from softcue.backbones.backbone import Backbone
from softcue.backbones.passes.decoding import Decoding
from softcue.backbones.structure import Projection
from softcue.backbones.structure_cache import describe_model
from softcue.backbones.tracing import (
    LARGEST_DIFFERENCE,
    ROUGH_DIFFERENCE,
    find_structure,
    hidden_input,
    ordinary_words,
    relative_difference,
    token_ids_of,
)
from softcue.errors import BackboneError, first_line
from softcue.files import cache_folder, write_atomically
from softcue.inputs.collate import PaddingSide, collate
from softcue.types import Batch, LayerPrompt, Prompt, TokenizedRow

CheckName = Literal[
    "token ids",
    "padding",
    "copied words",
    "gradients",
    "layers",
    "sub-layers",
    "keys and values",
    "joined keys",
    "word head",
    "cached decoding",
    "shared prefix",
    "begin token",
]
LENGTHS = (7, 4)  # tokens of the two texts
PROMPT_LENGTH = 2
NEW_TOKENS = 3
SMALLEST_EFFECT = 1e-6  # of keys and values that differ, relative to the states
BEGIN_TOKEN_GAIN = 0.5  # nats per token that a missing begin token costs before it is worth a warning
PLAIN_TEXT = (
    "The library opens at nine in the morning. Most people who come before noon read the newspapers, and a few of them "
    "stay until the evening because it is warm and quiet there."
)


class Check(BaseModel):
    """The result of one check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: CheckName
    passed: bool
    detail: str = ""  # what was measured, or why it failed
    works: str = ""  # what still works where it failed; empty: nothing does

    @property
    def message(self) -> str:
        """One line for a failed check: what does not work, and what still does."""
        rest = f": {self.works} works" if self.works else ""
        return f"{_FAILURES[self.name]} ({self.detail}){rest}"


_FAILURES: dict[CheckName, str] = {
    "token ids": "states from word embeddings and from token ids differ",
    "padding": "a row alone and the same row in a padded batch differ",
    "copied words": "a prompt of word vectors and these words in the text differ",
    "gradients": "gradients do not reach the prompt",
    "layers": "prompts of deeper layers do not work",
    "sub-layers": "adapters do not work",
    "keys and values": "keys and values cannot be set",
    "joined keys": "keys and values without positions and with positions differ",
    "word head": "the masked-word head does not work",
    "cached decoding": "decoding with a cache and without one differ",
    "shared prefix": "a prompt that runs once for all rows and one in every row differ",
    "begin token": "the tokenizer does not add the begin token that this model needs",
}
_WORKS: dict[CheckName, str] = {
    "layers": "method.name=prompt-tuning",
    "sub-layers": "method.name=prompt-tuning",
    "keys and values": "method.rule=add",
    "joined keys": "method.rule=kv with positions, more slowly,",
    "word head": "readout.name=classifier",
    "cached decoding": "readout.name=classifier",
    "shared prefix": "a prompt in every row, more slowly,",
    "begin token": "a tokenizer.json whose post-processor adds it",
}


def check_backbone(backbone: Backbone) -> list[Check]:
    """Run all checks that fit a backbone's kind.

    Example:
        [check.name for check in check_backbone(load_backbone("minilm")) if not check.passed]     # []
    """
    with torch.inference_mode(False), _without_limits(backbone):
        try:
            checker = _Checker(backbone)
        except Exception as error:
            raise BackboneError(
                setting="backbone.name",
                got=backbone.name,
                expected=f"a model that runs on two texts of {' and '.join(map(str, LENGTHS))} tokens",
                fix=f"take another backbone: {_reason(error)}",
            ) from error
        return list(checker.run())


def ensure_checked(backbone: Backbone) -> None:
    """Check a backbone, unless it was checked before on this machine, and apply what failed.

    A backbone that cannot be used is an error. What else failed is a warning, and an error where it is asked for.
    """
    path = cache_folder() / "checks" / f"{_key_of(backbone)}.json"
    checks = _read(path)
    if checks is None:
        checks = check_backbone(backbone)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _CHECKS.dump_json(checks, indent=1))
    apply_checks(backbone, checks)


def apply_checks(backbone: Backbone, checks: Sequence[Check]) -> None:
    """Raise the error of a backbone that cannot be used, and limit one that can be used in part."""
    for check in checks:
        if check.passed or backbone.limits.get(check.name):
            continue
        if not check.works:
            raise BackboneError(
                setting="backbone.name",
                got=backbone.name,
                expected=f"a model that passes the check '{check.name}'",
                fix=f"take another backbone: {check.message}",
            )
        backbone.limits[check.name] = check.detail
        if not check.detail.startswith(_KNOWN_REASONS):
            warnings.warn(f"{backbone.name}: {check.message}", stacklevel=3)


_CHECKS = TypeAdapter(list[Check])
_KNOWN_REASONS = ("by its structure",)  # no surprise: an error only where it is asked for


def _read(path: Any) -> list[Check] | None:
    try:
        return _CHECKS.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _key_of(backbone: Backbone) -> str:
    """A digest of all that checks depend on: the model, its structure and attention, its tokenizer."""
    tokenizer = backbone.tokenizer
    parts = [
        *describe_model(backbone.model),
        backbone.structure.model_dump_json(),
        backbone.attention,
        f"{type(tokenizer).__name__} {tokenizer.special_tokens_map} {tokenizer('a')['input_ids']}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@contextmanager
def _without_limits(backbone: Backbone) -> Iterator[None]:
    """Let the checks use all of a backbone, also what failed before."""
    limits = dict(backbone.limits)
    backbone.limits.clear()
    try:
        yield
    finally:
        backbone.limits.update(limits)


@dataclass(frozen=True)
class _PromptedText:
    """Two texts of which some words are given as a prompt."""

    batch: Batch  # without these words
    prompt: Prompt  # these words
    places: Tensor  # [B T] the index, in the whole text, of each token of the batch


class _Checker:
    """Runs the checks of one backbone."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.bound = LARGEST_DIFFERENCE.get(backbone.dtype, ROUGH_DIFFERENCE)
        self.rows = self._make_rows()
        self.pad_id = backbone.tokenizer.pad_token_id
        self.batch = self._batch(self.rows)
        with torch.no_grad():
            self.states = self._read(self.batch)  # [B T D] of the two texts without a prompt

    def run(self) -> Iterator[Check]:
        yield self._guard("token ids", self._check_token_ids)
        yield self._guard("padding", self._check_padding)
        yield from self._check_prompt()
        yield self._guard("sub-layers", self._check_sublayers)
        keys_values = self._guard("keys and values", self._check_keys_values)
        yield keys_values
        if keys_values.passed and self.backbone.can_join_keys:
            yield self._guard("joined keys", self._check_joined_keys)
        if self.backbone.word_head is not None:
            yield self._guard("word head", self._check_word_head)
        if self.backbone.kind != "encoder" and not self.backbone.model.can_generate():
            yield self._result("cached decoding", False, "by its structure: it has no output words")
            return
        if self.backbone.kind != "encoder":
            yield self._guard("cached decoding", self._check_cached_decoding)
        if self.backbone.kind == "decoder":
            yield self._guard("shared prefix", self._check_shared_prefix)
            yield self._guard("begin token", self._check_begin_token)

    def _guard(self, name: CheckName, check: Callable[[], tuple[bool, str]]) -> Check:
        """Run a check; an exception is a failure with its message."""
        try:
            with torch.no_grad():
                passed, detail = check()
        except Exception as error:
            passed, detail = False, _reason(error)
        return self._result(name, passed, detail)

    @staticmethod
    def _result(name: CheckName, passed: bool, detail: str) -> Check:
        return Check(name=name, passed=passed, detail=detail, works="" if passed else _WORKS.get(name, ""))

    # Rows and passes

    def _make_rows(self) -> list[TokenizedRow]:
        """Two texts of ordinary tokens."""
        special = set(self.backbone.tokenizer.all_special_ids)
        tokens = iter(ordinary_words(len(self.backbone.word_table), special, sum(LENGTHS)))
        return [TokenizedRow(tuple(next(tokens) for _ in range(length)), None, insert_at=0) for length in LENGTHS]

    def _batch(self, rows: Sequence[TokenizedRow], side: PaddingSide = "right") -> Batch:
        return collate(rows, self.pad_id, side).to(self.backbone.device)

    def _read(self, batch: Batch, prompt: Prompt | None = None, backbone: Backbone | None = None) -> Tensor:
        backbone = backbone or self.backbone
        return backbone.read(batch, prompt, backbone.embed(batch.ids)).text()

    def _split(self, gives_gradient: bool = False) -> _PromptedText:
        """The two texts with their second and third words as a prompt."""
        cut = slice(1, 1 + PROMPT_LENGTH)
        words = torch.tensor([row.ids[cut] for row in self.rows], device=self.backbone.device)
        tokens = self.backbone.embed(words).detach().requires_grad_(gives_gradient)  # [B P D]
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        rest = [replace(row, ids=(*row.ids[: cut.start], *row.ids[cut.stop :]), insert_at=1) for row in self.rows]
        batch = self._batch(rest)
        places = torch.tensor([0, *range(cut.stop, max(LENGTHS))], device=tokens.device)
        return _PromptedText(batch, Prompt(tokens, mask, tokens.new_zeros(())), places.expand(len(rest), -1))

    def _expected(self, text: _PromptedText) -> Tensor:
        """The states of the tokens that are not in the prompt, from the pass over the whole texts."""
        index = text.places[:, : text.batch.ids.shape[1]].unsqueeze(2).expand(-1, -1, self.states.shape[2])
        return self.states.gather(1, index)

    # Checks

    def _check_token_ids(self) -> tuple[bool, str]:
        is_encoder_decoder = self.backbone.kind == "encoder-decoder"
        module = self.backbone.model.get_encoder() if is_encoder_decoder else self.backbone.base
        expected = module(input_ids=self.batch.ids[:1]).last_hidden_state[0]  # [T D]
        difference = relative_difference(self.states[0], expected)
        return difference <= self.bound, f"relative difference {difference:.1e}"

    def _check_padding(self) -> tuple[bool, str]:
        differences = []
        alone = self._batch(self.rows[1:])
        states = self._read(alone)
        layout_sides: tuple[PaddingSide, ...] = ("left", "right") if self.backbone.kind == "decoder" else ("right",)
        for layout_side in layout_sides:
            backbone = copy.copy(self.backbone)
            backbone.layout_side = layout_side
            for side in ("left", "right"):
                batch = self._batch(self.rows, side)
                together = self._read(batch, backbone=backbone)[1][batch.mask[1]]
                differences.append(relative_difference(together, states[alone.mask]))
        return max(differences) <= self.bound, f"relative difference {max(differences):.1e}"

    def _check_prompt(self) -> Iterator[Check]:
        """One pass with a prompt of words, forward and backward: states, gradients, and which hooks ran."""
        text = self._split(gives_gradient=True)
        layers: list[int] = []

        def note_layer(layer: int, hidden: Tensor, mask: Tensor) -> None:
            layers.append(layer)

        try:
            prompt = replace(text.prompt, layer_prompts=note_layer)
            with torch.enable_grad(), _recorded_layers(self.backbone) as recorded:
                states = self._read(text.batch, prompt)
                weights = torch.arange(1, states.shape[2] + 1, device=states.device).cos()
                (gradient,) = torch.autograd.grad((states * weights)[text.batch.mask].sum(), prompt.tokens)
        except Exception as error:
            for name in ("copied words", "gradients", "layers"):
                yield self._result(name, False, _reason(error))
            return
        mask = text.batch.mask
        difference = relative_difference(states.detach()[mask], self._expected(text)[mask])
        yield self._result("copied words", difference <= self.bound, f"relative difference {difference:.1e}")
        sizes = gradient.abs().amax(dim=2)  # [B P]
        reaches = bool((sizes > 0).all() & sizes.isfinite().all())
        yield self._result("gradients", reaches, f"largest {float(sizes.max()):.1e}, smallest {float(sizes.min()):.1e}")
        num_layers = self.backbone.num_layers
        detail = f"{len(layers)} runs of {num_layers} layers"
        # XLM has lists of attentions and of feed-forwards: what enters those is not the residual stream.
        is_stack = num_layers == 1 or any(after is before for (_, before), (after, _) in itertools.pairwise(recorded))
        if not is_stack:
            detail += ", none of which runs on the output of the one before"
        yield self._result("layers", layers == list(range(num_layers)) and is_stack, detail)

    def _check_sublayers(self) -> tuple[bool, str]:
        """Let every sub-layer return zeros: each runs once, in order, and no token depends on another one any more."""
        if reason := self.backbone.structure.why_no_sublayers:
            return False, f"by its structure: {reason}"
        runs: list[int] = []
        num_all = len(self.backbone.sublayers)
        num_source = sum(len(layer.sublayers) for layer in self.backbone.structure.source.layers)
        view = self.backbone.with_sublayers([_Zeros(number, runs) for number in range(num_all)])
        row, other = self.rows
        changed = replace(row, ids=(other.ids[0], *row.ids[1:]))
        batch = self._batch([row, changed])
        forward_pass = view.read(batch, None, view.embed(batch.ids))
        states = forward_pass.text()
        spread = (states[0] - states[0].mean(dim=0)).norm()
        influence = float((states[0, -1] - states[1, -1]).norm() / spread)
        expected = list(range(num_source))
        if self.backbone.kind == "encoder-decoder":
            forward_pass.target_logits(batch.ids[:, :2])
            expected = list(range(num_all))
        detail = (
            f"{len(runs)} runs of {len(expected)} sub-layers; without them tokens depend on others by {influence:.1e}"
        )
        return runs == expected and influence <= self.bound, detail

    def _check_keys_values(self) -> tuple[bool, str]:
        if reason := self.backbone.structure.why_no_keys:
            return False, f"by its structure: {reason}"
        text = self._split()
        keys, values = self._keys_values_of(text)
        empty = replace(text.prompt, tokens=torch.zeros_like(text.prompt.tokens))

        def read_with(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
            def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt:
                changed = change(keys[layer], values[layer])
                return LayerPrompt(keys=changed[0], values=changed[1])

            return self._read(text.batch, replace(empty, layer_prompts=layer_prompts))

        def change_one_each(layer_keys: Tensor, layer_values: Tensor) -> tuple[Tensor, Tensor]:
            """Other keys in the first row, other values in the second."""
            changed_keys, changed_values = layer_keys.clone(), layer_values.clone()
            changed_keys[0], changed_values[1] = -2 * layer_keys[0], -2 * layer_values[1]
            return changed_keys, changed_values

        expected, mask = self._expected(text), text.batch.mask
        copied = read_with(lambda layer_keys, layer_values: (layer_keys, layer_values))
        same = relative_difference(copied[mask], expected[mask])
        other = read_with(change_one_each)
        effects = [relative_difference(other[row][mask[row]], expected[row][mask[row]]) for row in (0, 1)]
        detail = f"relative difference {same:.1e} with the same keys and values, {effects[0]:.1e} with other keys, "
        detail += f"{effects[1]:.1e} with other values"
        return same <= self.bound and min(effects) > max(SMALLEST_EFFECT, same), detail

    def _keys_values_of(self, text: _PromptedText) -> tuple[list[Tensor], list[Tensor]]:
        """The frozen keys and values of the words in the prompt, by layer. Each [B P K]"""
        forward_pass = self.backbone.read(text.batch, text.prompt, self.backbone.embed(text.batch.ids))
        with _recorded_projections(self.backbone) as recorded:
            forward_pass.text()
        slots = forward_pass.layout.is_prompt  # [B S]
        shape = (len(slots), PROMPT_LENGTH, self.backbone.structure.key_width)
        keys, values = ([layer[slots].view(shape).clone() for layer in recorded[which]] for which in ("keys", "values"))
        return keys, values

    def _check_joined_keys(self) -> tuple[bool, str]:
        """Compare a prompt whose keys and values are joined to those of each layer with one at positions."""
        text = self._split()
        keys, values = self._keys_values_of(text)

        def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt:
            return LayerPrompt(keys=keys[layer], values=-2 * values[layer])

        prompt = replace(text.prompt, layer_prompts=layer_prompts, needs_positions=False)
        joined = self.backbone.read(text.batch, prompt, self.backbone.embed(text.batch.ids))
        mask = text.batch.mask
        difference = relative_difference(joined.text()[mask], joined.with_positions.text()[mask])
        return difference <= self.bound, f"relative difference {difference:.1e}"

    def _check_word_head(self) -> tuple[bool, str]:
        head = self.backbone.word_head
        assert head is not None
        forward_pass = self.backbone.read(self.batch, None, self.backbone.embed(self.batch.ids))
        expected = self.backbone.model(**forward_pass._inputs()).logits[0]
        difference = relative_difference(head.logits(forward_pass.hidden()[0]), expected)
        return difference <= self.bound, f"relative difference {difference:.1e}"

    def _check_cached_decoding(self) -> tuple[bool, str]:
        return self._compare_decoding(shares_prompt=False)

    def _check_shared_prefix(self) -> tuple[bool, str]:
        return self._compare_decoding(shares_prompt=True)

    def _compare_decoding(self, shares_prompt: bool) -> tuple[bool, str]:
        """Compare generated tokens, whose keys and values are cached, with an uncached pass: they are the likeliest."""
        words = self._split().prompt
        tokens = words.tokens[:1].expand(len(self.rows), -1, -1)
        prompt = replace(words, tokens=tokens, shared_by=nn.Identity() if shares_prompt else None)
        batch = self._batch(self.rows)
        forward_pass = self.backbone.read(batch, prompt, self.backbone.embed(batch.ids))
        generated = forward_pass.generate(Decoding(max_new_tokens=NEW_TOKENS))
        end_id = self.backbone.tokenizer.eos_token_id
        largest = 0.0
        for row, new_tokens in zip(self.rows, generated, strict=True):
            end = next((place + 1 for place, token in enumerate(new_tokens) if token == end_id), len(new_tokens))
            forced = self._batch([replace(row, target_ids=tuple(new_tokens[:end]))])
            row_prompt = Prompt(tokens[:1], words.mask[:1], words.aux_loss)
            forward_pass = self.backbone.read(forced, row_prompt, self.backbone.embed(forced.ids), with_target=True)
            logits = forward_pass.target_logits(forced.target_ids)[0]  # [U V]
            chosen = logits.gather(1, forced.target_ids[0, :, None])[:, 0]
            gaps = (logits.amax(dim=1) - chosen) / (logits.amax(dim=1) - logits.mean(dim=1)).clamp(min=1e-6)
            largest = max(largest, float(gaps.max()))
        return largest <= self.bound, f"largest gap to the likeliest token {largest:.1e}"

    def _check_begin_token(self) -> tuple[bool, str]:
        """Compare the likelihood of plain text with and without the begin token, if the tokenizer adds none."""
        tokenizer = self.backbone.tokenizer
        config, num_words = self.backbone.model.config.get_text_config(), len(self.backbone.word_table)
        begin_ids = [number for number in token_ids_of(config, "bos_token_id") if 0 <= number < num_words]
        ids = tuple(tokenizer(PLAIN_TEXT)["input_ids"][: self.backbone.max_length - 1])
        if not begin_ids or ids[:1] == tuple(begin_ids[:1]):
            return True, "added by the tokenizer" if begin_ids else "the model has none"

        def mean_loss(tokens: tuple[int, ...]) -> float:
            inputs = torch.tensor([tokens], device=self.backbone.device)
            logits = self.backbone.model(input_ids=inputs, use_cache=False).logits[0, :-1].float()
            losses = nn.functional.cross_entropy(logits, inputs[0, 1:], reduction="none")
            return float(losses[-(len(ids) - 1) :].mean())  # of the same tokens with and without it

        gain = mean_loss(ids) - mean_loss((begin_ids[0], *ids))
        detail = f"with it plain text is likelier by {gain:.2f} nats per token"
        return gain < BEGIN_TOKEN_GAIN, detail


class _Zeros(nn.Module):
    """Notes its number and returns zeros."""

    def __init__(self, number: int, runs: list[int]) -> None:
        super().__init__()
        self.number, self.runs = number, runs

    def forward(self, states: Tensor) -> Tensor:
        """Return zeros."""
        self.runs.append(self.number)
        return torch.zeros_like(states)


@contextmanager
def _recorded_layers(backbone: Backbone) -> Iterator[list[tuple[Tensor | None, Tensor]]]:
    """Record the input and the output of each layer's run. Each [B S D]"""
    recorded: list[tuple[Tensor | None, Tensor]] = []

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        recorded.append((hidden_input(args, kwargs), output if isinstance(output, Tensor) else output[0]))

    with ExitStack() as stack:
        for layer in dict.fromkeys(backbone.layers):
            stack.callback(layer.register_forward_hook(hook, with_kwargs=True).remove)
        yield recorded


@contextmanager
def _recorded_projections(backbone: Backbone) -> Iterator[dict[str, list[Tensor]]]:
    """Record the keys and the values of each layer's run. Each [B S K]"""
    recorded: dict[str, list[Tensor]] = {"keys": [], "values": []}

    def record(which: str, projection: Projection) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            recorded[which].append(projection.take(output))

        return hook

    with ExitStack() as stack:
        parts = dict(zip(backbone.layers, backbone.structure.source.layers, strict=True))  # a shared layer once
        for layer, structure in parts.items():
            for which in recorded:
                projection = getattr(structure, which)
                module = layer.get_submodule(projection.module)
                stack.callback(module.register_forward_hook(record(which, projection)).remove)
        yield recorded


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"[:200]


def time_find(backbone: Backbone) -> float:
    """Return the seconds that it takes to find a model's structure again.

    Example:
        seconds = time_find(load_backbone("minilm"))
    """
    started = time.perf_counter()
    find_structure(backbone.model)
    return time.perf_counter() - started


def time_check(backbone: Backbone) -> tuple[list[Check], float]:
    """Run all checks and return them with the seconds they took.

    Example:
        checks, seconds = time_check(load_backbone("minilm"))
    """
    started = time.perf_counter()
    checks = check_backbone(backbone)
    return checks, time.perf_counter() - started
