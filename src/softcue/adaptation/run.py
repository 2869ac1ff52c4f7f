"""An adaptation from settings to model folder: `adapt`."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from softcue.adaptation.checkpoints import AdaptationCheckpoints
from softcue.adaptation.chunks import ChunkStream, HeldOutRule, split_tokens
from softcue.adaptation.config import AdaptationConfig
from softcue.adaptation.loop import AdaptationLoop
from softcue.adaptation.memory import MemoryNeed, estimate_memory
from softcue.adaptation.objectives import make_objective
from softcue.adaptation.passages import TextSources
from softcue.adaptation.rows import AdaptationRow, RowFormat
from softcue.adaptation.samples import WrittenSample, write_samples
from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.backbones.loading.load import quiet_transformers
from softcue.backbones.loading.new_t5 import SIZES, make_new_t5
from softcue.errors import BackboneError, ConfigurationError, DataError, RunError, as_configuration_error, near_matches
from softcue.files import (
    convert_disk_errors,
    convert_write_errors,
    lock_folder,
    remove,
    sync_folder,
    write_atomically,
    write_json,
)
from softcue.training import Processes
from softcue.training.batches import stream_seed
from softcue.training.checkpoints import newest_of_all
from softcue.training.loop import peak_megabytes
from softcue.training.progress import ProgressRecorder
from softcue.training.step_memory import free_memory
from softcue.training.trackers import Reports, TrackedRun, check_installed, flatten, name_run

REPORT_FILE = "adaptation.json"  # written last: a folder that has it is finished
FEWEST_TOKENS = 250  # that a passage of 2,000 characters may have, to hold out enough of them
Names = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class AdaptedModel:
    """A finished adaptation. `path` is an ordinary model folder: `softcue.train(backbone=path)` takes it."""

    path: Path
    objective: str
    steps: int
    history: list[dict[str, Any]]  # {"step": ..., "perplexity": ...}; the first entry is before step 1
    samples: list[WrittenSample]
    seconds: float

    @property
    def perplexity(self) -> float:
        """The perplexity of the held-out rows at the end."""
        return float(self.history[-1]["perplexity"])


def adapt(
    output_dir: str | Path,
    *,
    text: Names,
    backbone: str | Path | None = None,
    new: str | None = None,
    held_out: Names | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    **settings: Any,
) -> AdaptedModel:
    """Train all weights of an encoder-decoder model on plain text, and write it as an ordinary model folder.

    `text` and `held_out` are files, folders or hub data sets (hub:NAME@SPLIT). The model is `backbone`, or with
    `new="tiny"` a fresh one whose tokenizer is trained on the text. `settings` are the fields of `AdaptationConfig`.

    Example:
        adapted = softcue.adaptation.adapt("models/t5-lm", text="books", backbone="models/t5", steps=1000)
        cue = softcue.train("cues/tickets", task="tickets", backbone=adapted.path)
    """
    try:
        config = AdaptationConfig(**settings)
    except ValidationError as error:
        raise as_configuration_error("adapt", error) from error
    return AdaptationRun(Path(output_dir), config, text, backbone, new, held_out).execute(resume, overwrite, progress)


class AdaptationRun:
    """The order of an adaptation. Nothing is written before settings, texts and output folder are checked."""

    def __init__(
        self,
        folder: Path,
        config: AdaptationConfig,
        text: Names,
        backbone: str | Path | None,
        new: str | None,
        held_out: Names | None,
    ) -> None:
        self.folder, self.config = folder, config
        check_installed(config.report_to)
        if (backbone is None) == (new is None):
            raise ConfigurationError(
                setting="backbone",
                got=backbone if new is None else f"{backbone} and new={new}",
                expected="either a model to continue, or the size of a new one",
                fix="pass `backbone=FOLDER` or `new=tiny`",
            )
        if new is not None and new not in SIZES:
            raise ConfigurationError(
                setting="new", got=new, expected="the name of a size", fix=near_matches(new, SIZES)
            )
        self.name, self.new = str(backbone), new
        self.text = TextSources(text, config.text_column)
        self.held_out = None if held_out is None else TextSources(held_out, config.text_column)
        self.processes = Processes()
        self.start_folder = folder / "start"  # a new model before its first step

    def execute(self, resume: bool, overwrite: bool, progress: bool) -> AdaptedModel:
        """Adapt, write the folder, and return what it holds. If a finished run is resumed, it is only read."""
        started = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(convert_disk_errors(self.folder))
            if self.processes.is_main:
                stack.enter_context(lock_folder(self.folder))
                self._check_output(resume, overwrite)
                if not resume:
                    self._clear()
            self.processes.wait()
            if resume and (self.folder / REPORT_FILE).is_file():
                return self._read_finished()
            loop = self._prepare()
            recorder = self._begin(loop, stack, resume, progress)
            self.processes.wait()
            loop.run()
            samples = write_samples(
                loop.backbone, loop.held_out[: self.config.num_samples], self.config.sample_tokens, self.config.seed
            )
            adapted = AdaptedModel(
                self.folder,
                self.config.objective,
                loop.state.step,
                loop.state.history,
                samples,
                time.monotonic() - started,
            )
            if recorder is not None:
                self._write(loop, adapted)
                recorder.final_scores = {"perplexity": adapted.perplexity}
            self.processes.wait()
        return adapted

    def _prepare(self) -> AdaptationLoop:
        """Load or make the model, and open the stream of text."""
        config = self.config
        if self.new is not None and self.processes.is_main and not self.start_folder.is_dir():
            new_model = make_new_t5(self.new, self.text, stream_seed(config.seed, "weights"))
            with convert_write_errors("output_dir", self.folder), quiet_transformers():
                new_model.save(self.start_folder)
        self.processes.wait()
        name = self.name if self.new is None else str(self.start_folder)
        backbone = load_backbone(BackboneConfig(name=name, dtype="float32", attention="sdpa", device=config.device))
        self._check_model(backbone)
        self.origin = f"new {self.new}" if self.new is not None else json.dumps(asdict(backbone.fingerprint))
        self.run = self._digest(self.origin)
        row_format = RowFormat(
            backbone.tokenizer, make_objective(config, backbone.tokenizer.get_vocab(), backbone.name)
        )
        chunk_length = row_format.make_row.chunk_length
        num_passages = -(-config.held_out_rows * chunk_length // FEWEST_TOKENS)
        rule = HeldOutRule(config.held_out_every, num_passages)
        held_out = self._held_out_rows(row_format, chunk_length, rule)
        stream = ChunkStream(
            self.text,
            row_format.tokenize,
            chunk_length,
            config.shuffle_chunks,
            config.seed,
            rule if self.held_out is None else lambda number: False,
        )
        is_new = self.new is not None
        return AdaptationLoop(backbone, config, row_format, stream, held_out, is_new, self.processes)

    def _held_out_rows(self, row_format: RowFormat, chunk_length: int, rule: HeldOutRule) -> list[AdaptationRow]:
        """The rows that give the perplexity. They are the same for every seed, so that runs can be compared."""
        passages: Iterable[str] = self.held_out or _numbered(self.text, rule)
        rows: list[AdaptationRow] = []
        for chunk in split_tokens(map(row_format.tokenize, passages), chunk_length):
            rows.append(row_format.row(chunk, stream_seed("held out", len(rows))))
            if len(rows) == self.config.held_out_rows:
                break
        if not rows:
            raise DataError(
                setting="held_out" if self.held_out else "text",
                got=f"less than {chunk_length} held-out tokens",
                expected="enough held-out text for one row",
                fix="give more text, lower `length` or `held_out_every`, or pass `held_out=FILE`",
            )
        return rows

    def _begin(self, loop: AdaptationLoop, stack: ExitStack, resume: bool, progress: bool) -> ProgressRecorder | None:
        """Load the newest checkpoint and say what will happen; only the main process gets a recorder."""
        checkpoints = AdaptationCheckpoints(self.folder / "checkpoints", self.run)
        loop.checkpoints = checkpoints
        checkpoint, damaged = newest_of_all(checkpoints, self.processes) if resume else (None, [])
        if checkpoint is not None:
            loop.resume(checkpoint)
        if not self.processes.is_main:
            return None
        with convert_write_errors("output_dir", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        recorder = ProgressRecorder(
            self.folder,
            self.config.steps,
            progress,
            score_name="held-out perplexity",
            num_validation_rows=len(loop.held_out),
            reports=self._reports(),
        )
        need, num_rows = self._memory(loop)
        free = free_memory(loop.backbone.device)
        for line in (*self._describe(loop), need.describe(num_rows, free)):
            recorder.note(line)
        stack.enter_context(recorder)
        recorder.start(loop.state.step)
        recorder.warn([f"passed over the damaged checkpoint {path}" for path in damaged])
        if free is not None and need.total > free:
            recorder.warn(
                [
                    "this may be more memory than is free: lower micro_batch_size or length, "
                    "or set gradient_checkpointing or dtype=bfloat16"
                ]
            )
        loop.listener = recorder
        return recorder

    def _reports(self) -> Reports:
        """The trackers that the settings name, with what they are told about the run."""
        model = Path(self.name).name if self.new is None else f"new {self.new}"
        settings = flatten({"adapt": self.config.model_dump(mode="json")})
        tags = {"objective": self.config.objective, "backbone": model}
        return Reports(TrackedRun(self.folder, name_run(self.folder, ""), "", settings, tags), self.config.report_to)

    def _describe(self, loop: AdaptationLoop) -> list[str]:
        """Lines for the user: what is trained on what."""
        config, backbone = self.config, loop.backbone
        num_weights = sum(parameter.numel() for parameter in backbone.model.parameters())
        name = backbone.name if self.new is None else f"a new {self.new} T5 (tokenizer of {len(backbone.tokenizer):,})"
        sizes = f"{config.batch_size} rows of {loop.row_format.make_row.chunk_length} tokens per step"
        return [
            f"{config.objective} on {name}: {num_weights:,} weights, {backbone.device.type}, {config.dtype}",
            f"{config.steps:,} steps, {sizes}, Adafactor at {config.rate_at(loop.state.step, loop.is_new):.2g}"
            f"{' times the size of each parameter' if config.parameter_scaling else ''}, {config.schedule}",
        ]

    def _memory(self, loop: AdaptationLoop) -> tuple[MemoryNeed, int]:
        """The memory that the run will need, and the rows of a micro-batch."""
        config, backbone = self.config, loop.backbone
        row = max(loop.held_out, key=lambda row: len(row.source) + len(row.target))
        if config.objective == "prefix-lm":  # rows of a micro-batch are padded to the longest source and target
            row = AdaptationRow(_repeated(row.source, config.length), _repeated(row.target, config.length))
        batch = loop.row_format.batch([row], backbone.device)

        def row_loss() -> Tensor:
            loss = loop.loss(batch)
            return loss.cross_entropy + config.z_loss * loss.z_loss

        share = -(-config.batch_size // self.processes.world_size)
        num_rows = min(config.micro_batch_size or share, share)
        num_layers = 2 * backbone.num_layers if config.gradient_checkpointing else 0
        return estimate_memory(backbone.model, row_loss, num_rows, num_layers), num_rows

    def _check_model(self, backbone: Backbone) -> None:
        if backbone.quantization != "none":
            raise BackboneError(
                setting="backbone",
                got=f"{backbone.name}, {backbone.quantization}",
                expected="weights that are not quantized",
                fix="all weights are trained, and integers take no gradient: take the unquantized model",
            )
        if backbone.kind != "encoder-decoder":
            raise BackboneError(
                setting="backbone",
                got=f"{backbone.name}, {backbone.kind}",
                expected="an encoder-decoder: T5, mT5 or BART",
                fix="decoders continue texts already, and encoders write none: neither needs an adaptation",
            )
        num_positions = getattr(backbone.model.config, "max_position_embeddings", None)  # T5 has no such limit
        if num_positions is not None and self.config.length > num_positions:
            raise ConfigurationError(
                setting="length",
                got=self.config.length,
                expected=f"at most the {num_positions} positions of {backbone.name}",
                fix=f"pass `length={num_positions}`",
            )

    def _digest(self, origin: str) -> str:
        """Digest of everything that makes two adaptations the same."""
        held_out = "" if self.held_out is None else self.held_out.digest()
        settings = self.config.model_dump(mode="json", exclude={"report_to"})
        facts = [{**settings, "tensorboard": False}, self.text.digest(), held_out, origin]  # as before report_to
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _check_output(self, resume: bool, overwrite: bool) -> None:
        """Check that neither a finished model nor an unfinished run is overwritten without `overwrite`."""
        if resume or overwrite:
            return
        if (self.folder / "config.json").exists() or (self.folder / REPORT_FILE).exists():
            raise RunError(
                setting="output_dir",
                got=self.folder,
                expected="a folder without a model",
                fix="choose another, or pass `overwrite=True`",
            )
        if (self.folder / "checkpoints").is_dir() or self.start_folder.is_dir():
            raise RunError(
                setting="output_dir",
                got=self.folder,
                expected="a folder without an unfinished run",
                fix="pass `resume=True` to continue it, or `overwrite=True` to start again",
            )

    def _clear(self) -> None:
        """Remove what an earlier run left in the folder."""
        if self.new is None and self.folder.resolve() == Path(self.name).expanduser().resolve():
            raise RunError(
                setting="output_dir",
                got=self.folder,
                expected="another folder than that of the model to adapt",
                fix="choose another",
            )
        with convert_write_errors("output_dir", self.folder):
            for name in (
                REPORT_FILE,
                "config.json",
                "checkpoints",
                "start",
                "start.partial",
                "finished",
                "finished.partial",
            ):
                remove(self.folder / name)

    def _read_finished(self) -> AdaptedModel:
        """What a finished run wrote, after checking that it is the same run."""
        facts = json.loads((self.folder / REPORT_FILE).read_text("utf-8"))
        if facts["run"] != self._digest(facts["origin"]):
            raise RunError(
                setting="resume",
                got=self.folder,
                expected="an adaptation with the same texts and settings",
                fix="it is finished, with others: choose another folder, or pass `overwrite=True`",
            )
        samples = [WrittenSample(**sample) for sample in facts["samples"]]
        return AdaptedModel(
            self.folder, facts["objective"], facts["steps"], facts["history"], samples, facts["seconds"]
        )

    def _write(self, loop: AdaptationLoop, adapted: AdaptedModel) -> None:
        """Write the model folder: weights before config.json, the report last, then remove what resuming needed."""
        backbone = loop.backbone
        finished = self.folder / "finished"
        if self.config.gradient_checkpointing:
            backbone.model.gradient_checkpointing_disable()
        with convert_write_errors("output_dir", self.folder):
            remove(finished)
            with quiet_transformers():
                backbone.save(finished)
            for file in sorted(finished.iterdir(), key=lambda file: file.name == "config.json"):
                os.replace(file, self.folder / file.name)
            remove(finished)
            lines = [json.dumps(asdict(sample), ensure_ascii=False) for sample in adapted.samples]
            write_atomically(self.folder / "samples.jsonl", "".join(line + "\n" for line in lines).encode())
            sync_folder(self.folder)
            write_json(
                self.folder / REPORT_FILE,
                {
                    "run": self.run,
                    "origin": self.origin,
                    "model": self.name if self.new is None else f"new {self.new}",
                    "text": [str(address) for address in self.text.addresses],
                    "objective": adapted.objective,
                    "steps": adapted.steps,
                    "history": adapted.history,
                    "samples": [asdict(sample) for sample in adapted.samples],
                    "settings": self.config.model_dump(mode="json"),
                    "seconds": round(adapted.seconds, 1),
                    "peak_megabytes": round(peak_megabytes(backbone.device), 1),
                },
            )
            remove(self.folder / "checkpoints")
            remove(self.start_folder)


def _numbered(passages: Iterable[str], rule: HeldOutRule) -> Iterable[str]:
    """The passages that the rule holds out; reading ends with the last of them."""
    for number, passage in enumerate(passages):
        if number >= rule.every * rule.limit:
            return
        if rule(number):
            yield passage


def _repeated(ids: Tensor, length: int) -> Tensor:
    """Ids of that length."""
    return ids.repeat(-(-length // len(ids)))[:length]
