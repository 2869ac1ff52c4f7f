"""How the answers to rows become the answer to a job, and the answers of cues the answer to an item."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from softcue.errors import SoftcueError
from softcue.evaluation import mean, vote, votes
from softcue.serving.engine.requests import Answer, Ensemble, RequestRow, Result
from softcue.serving.engine.streaming import cut
from softcue.serving.errors import RequestError
from softcue.types import Prediction

logger = logging.getLogger("softcue.serving")


def folded(job: RequestRow, answers: Sequence[Prediction]) -> Result:
    """The answers to a job's rows as one."""
    try:
        found = job.model.merge(job.example, answers)
    except Exception:
        logger.exception("answers could not be joined")
        return failed()
    numbers = [found.value or 0.0, *(found.scores or {}).values()]
    if not all(map(math.isfinite, numbers)):
        logger.error("an answer is not a number", extra={"facts": {"cue": job.served.name}})
        return failed()
    if found.label is not None and job.options.stop:
        found = replace(found, label=cut(found.label, job.options.stop))
    return Answer(
        found,
        {job.served.name: job.served.version},
        {},
        job.is_truncated,
        job.started - job.arrived,
        job.compute_seconds,
    )


def joined(jobs: Sequence[RequestRow], ensemble: Ensemble | None) -> Result:
    """The result of an item from those of its cues."""
    results = [job.result.result() for job in jobs]
    if refused := [result for result in results if isinstance(result, RequestError)]:
        return refused[0]
    answers = [result for result in results if isinstance(result, Answer)]
    if ensemble is None:
        return answers[0]
    predictions = [answer.prediction for answer in answers]
    try:
        prediction = (vote if ensemble == "vote" else mean)(predictions)
    except SoftcueError as error:
        return RequestError("invalid", setting="ensemble", expected=error.expected, fix='use "vote"')
    except Exception:
        logger.exception("answers of several cues could not be joined")
        return failed()
    return Answer(
        prediction,
        {name: version for answer in answers for name, version in answer.versions.items()},
        votes(predictions),
        any(answer.is_truncated for answer in answers),
        max(answer.queue_seconds for answer in answers),
        max(answer.compute_seconds for answer in answers),
    )


def failed() -> RequestError:
    """What rows are told whose pass raised an error that is not theirs to mend."""
    return RequestError(
        "failed", setting="server", expected="a pass without an error", fix="try again; the server's log has the reason"
    )
