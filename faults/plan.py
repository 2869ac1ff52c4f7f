"""The checks: what each one does, what must come out, and how long its long version is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One check. Its code is `run(record, budget)` of the module with its name."""

    name: str
    what: str  # is done
    expected: str  # to come out, every time
    aim: int | None  # of the long version, in `unit`; None if its minutes are the aim
    unit: str
    minutes: float  # of the long version at most; it is continued by the next one

    @property
    def module(self) -> str:
        """The module that has its code."""
        return f"faults.{self.name}"


CHECKS = {
    check.name: check
    for check in (
        Check(
            "kills",
            "`kill -9` in steps, evaluation, checkpoints and while the cue is written: three methods on three kinds of "
            "backbone, `adapt`, `torchrun` with one process killed, a study",
            "the resumed run ends bit for bit as the undisturbed one; no folder is corrupt",
            200,
            "kills",
            90,
        ),
        Check(
            "mutations",
            "damaged data files, task files, settings, studies, cue folders, signatures, checkpoints and token caches, "
            "also with digests that fit again",
            "success or a one-line error; no traceback, nothing over 5 s of the processor, 60 s of the clock or 1 GB",
            9_000_000,
            "files",
            60,
        ),
        Check(
            "guided",
            "the same files, chosen by atheris: what reached new lines of code is kept and changed again",
            "as for mutations",
            2_000_000,
            "files",
            60,
        ),
        Check(
            "texts",
            "empty, endless, right-to-left, control and special characters in every method on every kind of backbone: "
            "alone, in a batch, permuted, mixed with another cue, from the store of sentence vectors",
            "probabilities equal within 1e-4 in float32, never NaN",
            2100,
            "texts",
            30,
        ),
        Check(
            "seeds",
            "every method trained twice with the same seed, on three kinds of backbone, in one process and in two",
            "the same cue, bit for bit",
            114,
            "pairs of runs",
            30,
        ),
        Check(
            "disk",
            "disk full, quota, read-only, folder removed, clock moved back, two runs in one folder, changed rows or "
            "settings on resume, another number of processes",
            "one line and exit code 2, then a resumed run with the undisturbed result; no traceback",
            27,
            "scenarios",
            30,
        ),
        Check(
            "hostile",
            "requests that no client should send: no HTTP, wrong keys, paths as names, damaged JSON, wrong fields and "
            "sizes, in all protocols",
            "the status that belongs to each, a small error that quotes nothing, within 15 s",
            3000,
            "requests",
            20,
        ),
        Check(
            "openapi",
            "requests that schemathesis makes from the OpenAPI document, valid and invalid, for every route and method",
            "documented statuses, media types and bodies; no status 500",
            2500,
            "requests",
            30,
        ),
        Check(
            "valid",
            "valid requests to one server, 16 at a time",
            "a prediction for each; memory flat within 5 % after the first quarter",
            1_000_000,
            "requests",
            60,
        ),
        Check(
            "load",
            "requests at twice the capacity of a server, with clients that leave, cues replaced and unloaded",
            "none wrong, crossed or lost; memory flat within 5 % after the first quarter; 70 % of "
            "the speed before it within 10 s (the machine is noisy)",
            None,
            "requests",
            30,
        ),
        Check(
            "stopping",
            "SIGTERM while eight clients send requests",
            "every request is answered or refused; the process ends within its grace period of 31 s",
            20,
            "servers",
            20,
        ),
        Check(
            "replicas",
            "one of two replicas on Ray killed every 60 s under constant load",
            "nothing lost for a client that tries again",
            30,
            "kills",
            30,
        ),
    )
}
