"""The steps of an adaptation: loss, gradients over all processes, perplexity, checkpoints."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softcue.adaptation.checkpoints import AdaptationCheckpoints, AdaptationState
from softcue.adaptation.chunks import ChunkStream
from softcue.adaptation.config import AdaptationConfig
from softcue.adaptation.rows import IGNORED, AdaptationBatch, AdaptationRow, RowFormat
from softcue.backbones import Backbone
from softcue.files import tensor_shapes
from softcue.training import Processes
from softcue.training.batches import stream_seed
from softcue.training.checkpoints import Checkpoint, other_run_error
from softcue.training.loop import check_finite
from softcue.training.optimizers import Adafactor, load_optimizer_tensors, optimizer_tensors


@dataclass(frozen=True)
class TokenLoss:
    """The loss of the target tokens of a batch."""

    cross_entropy: Tensor  # [] summed over tokens
    z_loss: Tensor  # [] the squared log of the softmax's sum, summed over tokens
    num_tokens: int


class AdaptationLoop:
    """Trains all weights of a model on the rows of an objective.

    Dropout is off, as in T5 1.1's pre-training. All randomness is seeded by the number of the row, so that the result
    depends neither on the number of processes nor on interruptions.
    """

    def __init__(
        self,
        backbone: Backbone,
        config: AdaptationConfig,
        row_format: RowFormat,
        stream: ChunkStream,
        held_out: Sequence[AdaptationRow],
        is_new: bool,
        processes: Processes,
    ) -> None:
        self.backbone, self.config, self.is_new, self.processes = backbone, config, is_new, processes
        self.row_format, self.stream, self.held_out = row_format, stream, held_out
        self.model: Any = backbone.model
        self.state = AdaptationState()
        self.checkpoints: AdaptationCheckpoints | None = None
        self.listener: Callable[[str, dict[str, Any]], None] = lambda kind, values: None
        self.evaluate_every = config.evaluate_every or max(1, config.steps // 20)
        switch_off_dropout(self.model)
        self.model.requires_grad_(True)
        self.model.train()  # transformers checkpoints layers in this mode only
        if config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        groups = [{"params": list(self.model.parameters())}]
        self.optimizer = Adafactor(groups, config.weight_decay, config.parameter_scaling)

    def resume(self, checkpoint: Checkpoint[AdaptationState]) -> None:
        """Continue from a checkpoint, which must be one of this model, these steps and these texts."""
        parameters, saved = dict(self.model.named_parameters()), checkpoint.tensors["model"]
        is_of_model = tensor_shapes(saved) == tensor_shapes(parameters) and all(map(_is_finite, saved.values()))
        is_of_run = checkpoint.state.is_possible(self.config.steps) and self.stream.can_restore(
            checkpoint.tensors["stream"]
        )
        if not is_of_model or not is_of_run:
            raise other_run_error(
                f"a checkpoint of step {checkpoint.state.step}",
                f"weights and chunks of this adaptation, and a step up to {self.config.steps}",
            )
        self.state = checkpoint.state
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(saved[name])
        load_optimizer_tensors(self.model, self.optimizer, checkpoint.tensors["optimizer"])
        self.stream.restore(checkpoint.tensors["stream"])

    def run(self) -> None:
        """Take all steps that are left."""
        self.processes.share_first([parameter.data for parameter in self.model.parameters()])
        if self.state.step == 0 and not self.state.history:
            self._evaluate()
        while self.state.step < self.config.steps:
            self._step()
            step, is_last = self.state.step, self.state.step == self.config.steps
            should_evaluate = is_last or step % self.evaluate_every == 0
            if should_evaluate:
                self._evaluate()
            every = self.config.checkpoint_every
            should_save = is_last or (step % every == 0 if every else should_evaluate)
            if should_save and self.checkpoints is not None and self.processes.is_main:
                self.optimizer.zero_grad(set_to_none=True)  # a checkpoint copies the weights: make room
                self.checkpoints.save(self._checkpoint())
        self.model.eval()

    def perplexity(self) -> float:
        """The perplexity of the held-out targets: e to the mean cross-entropy of a token."""
        self.model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.backbone.device)
        rows = self.held_out[self.processes.rank :: self.processes.world_size]
        with torch.no_grad():
            for micro_batch in self._micro_batches(rows):
                loss = self.loss(self.row_format.batch(micro_batch, self.backbone.device))
                sums += torch.tensor([float(loss.cross_entropy), loss.num_tokens], device=sums.device)
        self.model.train()
        cross_entropy, num_tokens = self.processes.total(sums).tolist()
        return math.exp(min(cross_entropy / num_tokens, 700.0))  # e to 700 is the largest finite power

    def _step(self) -> None:
        """One optimizer step."""
        config, step = self.config, self.state.step
        first_row = self.stream.num_drawn
        chunks = [self.stream.draw() for _ in range(config.batch_size)]
        rows = [
            self.row_format.row(chunk, stream_seed(config.seed, "row", first_row + place))
            for place, chunk in enumerate(chunks)
        ]
        num_tokens = sum(len(row.target) for row in rows)
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum = torch.zeros((), device=self.backbone.device)
        for micro_batch in self._micro_batches(rows[self.processes.rank :: self.processes.world_size]):
            loss = self.loss(self.row_format.batch(micro_batch, self.backbone.device))
            total = (loss.cross_entropy + config.z_loss * loss.z_loss) / num_tokens
            total.backward()
            loss_sum += loss.cross_entropy.detach() / num_tokens
        loss_value = float(self.processes.total(loss_sum))
        check_finite(loss_value, step, fix=f"lower learning_rate (now {config.learning_rate}), or set dtype=float32")
        self.processes.sum_gradients(list(self.model.parameters()))
        rate = config.rate_at(step, self.is_new)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.state.step += 1
        self.listener(
            "step",
            {
                "step": self.state.step,
                "loss": loss_value,
                "learning_rate": rate,
                "rows": len(rows),
                "target_tokens": num_tokens,
                "passes": self.stream.num_passes,
            },
        )

    def loss(self, batch: AdaptationBatch) -> TokenLoss:
        """The loss of a batch; the logits are compared in float32, whatever the number format of the layers."""
        is_short = self.config.dtype == "bfloat16"
        autocast = torch.autocast(batch.ids.device.type, torch.bfloat16) if is_short else contextlib.nullcontext()
        with autocast:
            output = self.model(
                input_ids=batch.ids,
                attention_mask=batch.mask,
                decoder_input_ids=self.model.prepare_decoder_input_ids_from_labels(batch.labels),
                use_cache=False,
            )
        is_target = batch.labels != IGNORED
        logits = output.logits[is_target].float()  # [N V]
        log_sums = logits.logsumexp(dim=-1)  # [N]
        right = logits.gather(1, batch.labels[is_target].unsqueeze(1)).squeeze(1)  # [N]
        return TokenLoss((log_sums - right).sum(), log_sums.square().sum(), len(right))

    def _evaluate(self) -> None:
        perplexity = self.perplexity()
        self.state.history.append({"step": self.state.step, "perplexity": perplexity})
        best = self.state.best_perplexity
        self.listener("evaluation", {"step": self.state.step, "score": perplexity, "best_score": best})

    def _micro_batches(self, rows: Sequence[AdaptationRow]) -> list[Sequence[AdaptationRow]]:
        size = self.config.micro_batch_size or max(1, len(rows))
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def _checkpoint(self) -> Checkpoint[AdaptationState]:
        tensors = {
            "model": {name: parameter.detach() for name, parameter in self.model.named_parameters()},
            "optimizer": optimizer_tensors(self.model, self.optimizer),
            "stream": self.stream.state(),
        }
        return Checkpoint(self.state, tensors)


def switch_off_dropout(model: nn.Module) -> None:
    """Set all dropout of a model to 0, also that which layers keep as a number. Its configuration keeps its values.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2)
        >>> switch_off_dropout(layer)
        >>> layer.dropout1.p, layer.self_attn.dropout
        (0.0, 0.0)
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
