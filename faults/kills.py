"""Runs that are killed with SIGKILL and resumed: they end bit for bit as the undisturbed run does."""

from __future__ import annotations

import importlib
import json
import random
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import psutil

from faults.forked_commands import draw_kill, run_forked
from faults.record import Budget, FaultError, Record, run_trials

METHODS = {
    "prompt-tuning": ["method.prompt_length=4"],
    "m-idpg-phm": ["method.prompt_length=2", "method.bottleneck=8", "method.phm_n=4"],
    "vip": ["method.prompt_length=4", "method.width=8"],
}
KINDS = ("bert", "t5", "gpt2")
SETTINGS = ["training.epochs=12", "training.batch_size=4", "training.checkpoint_every=1", "training.patience=0"]
ADAPT = ["--new", "tiny", "--steps", "20", "--batch-size", "4", "--length", "24", "--evaluate-every", "4"]
ADAPT += ["checkpoint_every=1", "shuffle_chunks=10", "held_out_rows=6", "held_out_every=5", "num_samples=2"]
TORCHRUN_EVERY, STUDY_EVERY = 20, 40  # trials; these start whole processes: many seconds instead of a few
PATIENCE = 240.0
PRELOADED = ("softcue.cli.train", "softcue.cli.adapt", "softcue.api", "softcue.adaptation.run", "sklearn.linear_model")
TEXTS = ["my invoice is wrong", "please refund me", "charged twice again", "two invoices for one month"]
TEXTS += ["the parcel is late", "where is the box", "wrong address on it", "tracking says lost"]


def run(record: Record, budget: Budget) -> None:
    """Kill runs until the count is reached; a run is killed one to three times before it may end."""
    with tempfile.TemporaryDirectory() as folder:
        killed_runs = KilledRuns(Path(folder))
        run_trials(record, budget, lambda number: (killed_runs.trial(number, record), killed_runs.num_kills))


class KilledRuns:
    """The rows, models and undisturbed runs that killed runs are compared with."""

    def __init__(self, folder: Path) -> None:
        from tiny import tiny_model, tiny_tokenizer

        for module in PRELOADED:  # so that forks need not import them
            importlib.import_module(module)
        self.folder, self.num_kills = folder, 0
        self.rows = folder / "rows.jsonl"
        rows = [{"text": text, "label": "ab"[number // 4]} for number, text in enumerate(TEXTS)]
        self.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.text = folder / "text.txt"
        self.text.write_text("\n".join(f"{text} {number}. " * 3 for number in range(40) for text in TEXTS))
        for kind in KINDS:
            tiny_model(kind).save_pretrained(folder / kind)
            tiny_tokenizer(kind).save_pretrained(folder / kind)

    def trial(self, number: int, record: Record) -> str:
        """One run, killed and resumed until it ends; sets `num_kills`."""
        draw = random.Random(number)
        if number % STUDY_EVERY == STUDY_EVERY // 2:
            return self._study(number)
        if number % TORCHRUN_EVERY == TORCHRUN_EVERY // 2:
            return self._torchrun(number)
        case = draw.choice([*(f"{method} {kind}" for method in METHODS for kind in KINDS), "adapt"])
        wanted = self.undisturbed(case)
        output = self.folder / f"run-{number}"
        self.num_kills = 0
        for _ in range(draw.randint(1, 3)):
            ended = run_forked(self.words(case, output, "--resume"), self.log, draw_kill(draw))
            if ended.code == 0:  # it ended before the moment came
                break
            self._check_killed(case, output, ended.code, ended.log)
            self.num_kills += 1
            phases = record.figures.setdefault("killed in", {})
            phases[ended.phase] = phases.get(ended.phase, 0) + 1
        ended = run_forked(self.words(case, output, "--resume"), self.log)
        if ended.code != 0:
            raise FaultError(f"{case}: resumed with exit code {ended.code}: {ended.log[-1500:]}")
        self._compare(case, output, wanted)
        return case

    @property
    def log(self) -> Path:
        """What the last command has printed."""
        return self.folder / "log.txt"

    @property
    def data(self) -> list[str]:
        """The options that name the rows."""
        return ["--train", str(self.rows), "--validation", str(self.rows), "--text", "text", "--label", "label"]

    def words(self, case: str, output: Path, *more: str) -> list[str]:
        """The words of the command that trains a case: a method and a kind of backbone, or "adapt"."""
        if case == "adapt":
            return ["adapt", str(self.text), "--output-dir", str(output), *ADAPT, *more]
        method, kind = case.split()
        words = ["train", "--method", method, "--backbone", str(self.folder / kind), *self.data]
        return [*words, "--output-dir", str(output), "--json", *more, *SETTINGS, *METHODS[method]]

    @cache  # noqa: B019 - lives as long as the process
    def undisturbed_folder(self, case: str) -> Path:
        """The folder of a run that nobody kills."""
        output = self.folder / f"whole {case}"
        ended = run_forked(self.words(case, output), self.log)
        if ended.code != 0:
            raise FaultError(f"{case}: undisturbed, exit code {ended.code}: {ended.log[-1500:]}")
        return output

    def undisturbed(self, case: str) -> dict[str, bytes]:
        """The files of a run that nobody kills."""
        return result_files(self.undisturbed_folder(case))

    def _check_killed(self, case: str, output: Path, code: int, log: str) -> None:
        """A killed run has no cue, or a whole one, and said nothing of a bug."""
        if code != -signal.SIGKILL or "Traceback" in log:
            raise FaultError(f"{case}: exit code {code} before the kill: {log[-1500:]}")
        if (output / "cue.json").exists() and result_files(output) != self.undisturbed(case):
            raise FaultError(f"{case}: a killed run left a cue that differs")

    def _compare(self, case: str, output: Path, wanted: dict[str, bytes]) -> None:
        files = result_files(output)
        if not files or files != wanted:
            names = [name for name in {*files, *wanted} if files.get(name) != wanted.get(name)]
            raise FaultError(f"{case}: {', '.join(sorted(names)) or 'everything'} differs after {self.num_kills} kills")
        if leftover := [path.name for path in output.rglob("*.partial")] or (output / "checkpoints").exists():
            raise FaultError(f"{case}: left behind: {leftover}")
        shutil.rmtree(output)
        self.log.unlink()

    def _torchrun(self, number: int) -> str:
        """Two processes under torchrun, one of which is killed; the launcher ends, and a second launch resumes."""
        from command import TORCHRUN

        draw = random.Random(number)
        method = draw.choice(list(METHODS))
        case = f"{method} bert"

        def start(output: Path, *more: str) -> subprocess.Popen[bytes]:
            with self.log.open("wb") as log:
                words = [*TORCHRUN, "-m", "softcue", *self.words(case, output, *more)]
                return subprocess.Popen(words, stdout=log, stderr=log)

        whole = self.folder / f"two processes {method}"
        if not whole.exists() and start(whole).wait(PATIENCE) != 0:
            raise FaultError(f"torchrun {method}: undisturbed: {self.log.read_text('utf-8', 'replace')[-1500:]}")
        output = self.folder / f"run-{number}"
        launcher = start(output)
        self._wait_for_steps(launcher, output, draw.randint(1, 20))
        ranks = [child for child in psutil.Process(launcher.pid).children() if "softcue" in child.cmdline()]
        if ranks:
            draw.choice(ranks).kill()
        code = launcher.wait(PATIENCE)
        if not ranks or code == 0:
            raise FaultError(f"torchrun {method}: exit code {code} after one of {len(ranks)} processes was killed")
        if start(output, "--resume").wait(PATIENCE) != 0:
            raise FaultError(f"torchrun {method}: resumed: {self.log.read_text('utf-8', 'replace')[-1500:]}")
        self.num_kills = 1
        self._compare(f"torchrun {method}", output, result_files(whole))
        return "torchrun, one process"

    def _wait_for_steps(self, process: subprocess.Popen[bytes], output: Path, num_steps: int) -> None:
        from killed_commands import steps_done

        end = time.monotonic() + PATIENCE
        while steps_done(output) < num_steps and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)

    def _study(self, number: int) -> str:
        """A study of eight runs with two workers, whose process is killed while runs are executed."""
        from killed_studies import begin, finish, table, wait_for_a_run, write_study

        draw = random.Random(number)
        study = self.folder / "study" / "study.yaml"
        if not study.exists():
            study.parent.mkdir(exist_ok=True)
            write_study(study.parent, seeds=1)
            finish(study, study.parent / "undisturbed")
        output = study.parent / f"killed-{number}"
        self.num_kills = 0
        for _ in range(2):
            process = begin(study, output)
            wait_for_a_run(output, process)
            time.sleep(draw.uniform(0.0, 1.0))
            workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.send_signal(signal.SIGKILL)
            self.num_kills += process.wait() == -signal.SIGKILL
            if psutil.wait_procs(workers, timeout=20)[1]:
                raise FaultError("study: a worker outlived its parent")
        finish(study, output)
        if table(output) != table(study.parent / "undisturbed"):
            raise FaultError("study: another table than undisturbed")
        return "study"


def result_files(folder: Path) -> dict[str, bytes]:
    """The files that a finished run is for: the cue, or the weights of an adapted model."""
    names = ("cue.json", "cue.safetensors", "model.safetensors", "tokenizer.json")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
