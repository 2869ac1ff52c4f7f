"""One cue on its encoder as a module of tensors alone: token ids in, scores out. Other formats are made from it.

It calls the same code as `Cue.predict`. What a batch decides there on the host, the width of the layout and the place
of the prompt, follows from the shapes of the inputs here, so that one graph serves all batches. M(x) of a method that
reads it is computed by a second pass inside the graph.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from softcue.backbones.runtimes import quiet
from softcue.cue import Cue
from softcue.errors import ConfigurationError, first_line
from softcue.inputs.special_tokens import count_special_tokens
from softcue.prompts import VIP
from softcue.readouts.heads import PooledHead
from softcue.sentence_vectors import sentence_vectors_of_batch
from softcue.types import Batch

TRACED_ROWS, TRACED_LENGTH = 3, 12  # of the batch that is traced; a size of 1 would become a constant of the graph
INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids", "text_parts")


class EncoderGraph(nn.Module):
    """Token ids of rows, padded on the right, to their scores.

    `token_type_ids` are the segments of backbones that have them. `text_parts` says for rows of two texts which tokens
    belong to the first (0), to the second (1) and to neither (-1). A graph takes those of the two that it needs.

    Example:
        graph = EncoderGraph(softcue.load("cues/tickets"))
        graph(torch.tensor([[101, 2054, 102]]), torch.tensor([[1, 1, 1]])).shape     # [1 C]
    """

    special_ids: Tensor

    def __init__(self, cue: Cue) -> None:
        super().__init__()
        check_exportable(cue)
        self.cue = cue
        self.view = cue.model.method.view_of(cue.backbone)
        # Registered, so that their weights are parameters of this module: `Backbone` is none. They come first, so that
        # weights of the backbone that the cue holds have the backbone's name too: INT8 is for these names alone.
        self.backbone = nn.ModuleList([self.view.model, self.view.whole.model, cue.backbone.model])
        self.model = cue.model.eval()
        formatter = cue.model.formatter
        special = torch.tensor(sorted(formatter.special_ids), device=cue.backbone.device)
        self.register_buffer("special_ids", special, persistent=False)
        self.insert_at = formatter.insert_at
        num_texts = cue.model.readout.task.num_sentences
        has_segments = self.view.whole.structure.takes_segments and "token_type_ids" in formatter.tokenizer("a")
        needs_parts = num_texts == 2 and (
            self.insert_at in ("first-end", "second-start") or cue.model.readout.summary == "compared"
        )
        optional = {"token_type_ids": has_segments, "text_parts": needs_parts}
        self.input_names = tuple(name for name in INPUT_NAMES if optional.get(name, True))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        text_parts: Tensor | None = None,
    ) -> Tensor:
        """Return the scores of each row: probabilities of labels, or one number. [B T] each -> [B C]"""
        mask = attention_mask.bool()
        no_target = input_ids[:, :0]
        insert_at = self._prompt_places(input_ids, mask, text_parts)
        batch = Batch(input_ids, mask, token_type_ids, insert_at, no_target, no_target.bool(), parts=text_parts)
        model, readout = self.model, self.model.readout
        assert isinstance(readout, PooledHead)
        if model.representation is not None and model.reads_stored_vectors:
            vectors = sentence_vectors_of_batch(model.representation, self.cue.backbone, batch)  # [B R] M(x)
            batch = replace(batch, representation=vectors)
        elif model.representation is not None:  # M(x) of weights that the cue holds: the model computes it from here
            batch = replace(batch, plain=batch)
        forward_pass, _ = model.read(self.view, batch)
        return readout.scores(forward_pass.features(readout.summary))

    def _prompt_places(self, ids: Tensor, mask: Tensor, parts: Tensor | None) -> Tensor:
        """The index before which the prompt goes, as the formatter finds it. [B]"""
        if self.insert_at == "front":
            return torch.zeros_like(ids[:, 0])
        is_special = (ids.unsqueeze(2) == self.special_ids).any(dim=2)  # [B T]; ONNX has no isin
        if self.insert_at == "start":
            return is_special[:, 0].long()
        columns = torch.arange(ids.shape[1], device=ids.device)  # [T]
        if self.insert_at == "second-start":
            assert parts is not None
            is_second = (parts == 1) & mask
            return torch.where(is_second.any(dim=1), is_second.long().argmax(dim=1), mask.sum(dim=1) - 1)
        if self.insert_at == "first-end" and parts is not None:
            ends = ((columns + 1) * ((parts == 0) & mask)).amax(dim=1)  # 0: no token of the first text
            return torch.where(ends > 0, ends, torch.ones_like(ends))
        return ((columns + 1) * (~is_special & mask)).amax(dim=1)  # behind the last token that is not special


def trace(graph: EncoderGraph) -> ExportedProgram:
    """Trace a graph for batches of any number of rows and any length.

    Example:
        trace(EncoderGraph(softcue.load("cues/tickets"))).module()(ids, mask)
    """
    cue, device = graph.cue, graph.cue.backbone.device
    length = TRACED_LENGTH if cue.model.formatter.limit >= TRACED_LENGTH else cue.model.formatter.limit
    ids = torch.randint(len(cue.backbone.tokenizer), (TRACED_ROWS, length), device=device)
    ids[:, 0] = graph.special_ids[0]
    mask = torch.ones_like(ids)
    mask[0, length // 2 :] = 0
    made_up = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids, "text_parts": ids % 2}
    inputs = tuple(made_up[name] for name in graph.input_names)
    rows, tokens = torch.export.Dim("rows"), torch.export.Dim("tokens")
    try:
        with torch.no_grad(), quiet():
            return torch.export.export(
                graph, inputs, dynamic_shapes={name: {0: rows, 1: tokens} for name in graph.input_names}, strict=False
            )
    except Exception as error:  # any: a method or a model of another package may do what cannot be traced
        raise refused(
            f"{cue.model.method.config.name} on {cue.backbone.model.config.model_type}", first_line(error)
        ) from error


def check_exportable(cue: Cue) -> None:
    """Raise an error with the reason if a cue has no such graph.

    Example:
        check_exportable(softcue.load("cues/tickets"))
    """
    model, backbone = cue.model, cue.backbone
    readout, method, task = model.readout, model.method, model.readout.task
    representation, encoder = model.representation, method.prompt_encoder()
    place = f"method {method.config.name}"
    sentences = task.for_encoder(("",) * len(task.text))
    reasons = {
        f"backbone {backbone.name}": (
            backbone.kind != "encoder" and f"it is of kind {backbone.kind}, and writes text token by token",
            backbone.dtype != torch.float32 and f"its weights are {backbone.dtype}; load it in float32",
        ),
        f"readout {readout.config.name}": (
            not isinstance(readout, PooledHead) and "it is not a head on one vector per text",
            readout.summary == "mask"
            and "its mask token stands in the text, which a plain tokenizer does not put there",
        ),
        place: (
            model.reformulation is not None and "it asks the task as several other rows",
            model.formatter.insert_at in ("around", "appended")
            and f"insert_at={model.formatter.insert_at} adds tokens that a plain tokenizer does not",
            _why_no_vector(representation),
            isinstance(encoder, VIP)
            and encoder.quantizer is not None
            and encoder.quantizer.shape.evaluation == "sample"
            and "its codes are drawn (method.evaluation=sample)",
            method.reserved_length != method.prompt_length and "long texts get shorter prompts",
        ),
        f"task {task.name}": (
            count_special_tokens(backbone.tokenizer, *sentences) > 0 and "its template has special tokens",
        ),
    }
    for setting, answers in reasons.items():
        for reason in answers:
            if isinstance(reason, str):
                raise refused(setting, reason)


def refused(setting: str, reason: str) -> ConfigurationError:
    """The error that a cue has no graph.

    Example:
        >>> str(refused("readout generation", "it writes text"))[:40]
        "readout generation: got 'it writes text'"
    """
    return ConfigurationError(
        setting=setting,
        got=reason,
        expected="a head on an encoder that reads tokens alone",
        fix="this cue has no such graph; `softcue serve` and `softcue export --to mlflow` run the cue itself",
    )


def _why_no_vector(representation: object) -> str | bool:
    """The reason why M(x) cannot be computed from the tokens of the text."""
    source, prompt = getattr(representation, "source", ""), getattr(representation, "prompt", "")
    if source == "glove":
        return "its M(x) is a mean of GloVe vectors of words, which are no tokens"
    return f"its M(x) is of the text behind the words {prompt!r}" if prompt else False
