"""Requests that schemathesis makes from the OpenAPI document, valid and invalid ones, for every route and method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from faults.record import Budget, FaultError, Record, run_trials
from faults.tiny_server import ADMIN_KEY, KEY, serve_tiny_cues
from softcue.errors import MissingExtraError

EXAMPLES = 20  # of an operation in one trial


def run(record: Record, budget: Budget) -> None:
    """Test every operation of the document, in turn, until the count is reached; the count is of requests."""
    with documented_server() as schema:
        operations = [result.ok() for result in schema.get_all_operations()]
        record.figures["operations"] = len(operations)

        def trial(number: int) -> tuple[str, int]:
            operation = operations[number % len(operations)]
            return operation.label, check_operation(operation, EXAMPLES, number)

        run_trials(record, budget, trial)


@contextmanager
def documented_server() -> Iterator[Any]:
    """A server and its OpenAPI document, as schemathesis reads it."""
    try:
        import schemathesis
    except ModuleNotFoundError as error:
        raise MissingExtraError("schemathesis", "faults") from error

    with serve_tiny_cues(api_keys=(KEY,), admin_keys=(ADMIN_KEY,)) as server:
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")


def check_operation(operation: Any, num_examples: int, seed: int) -> int:
    """Send requests for one route and method, and check statuses, media types, headers and bodies with the document."""
    import hypothesis
    from schemathesis import GenerationMode
    from schemathesis.core.failures import Failure, FailureGroup
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    # A body may fit the schema and still name no cue that is loaded. One bad input among others gets an error of its
    # own in a response with status 200, and too many inputs have status 413.
    not_promised = [positive_data_acceptance, negative_data_rejection]

    settings: Any = hypothesis.settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate,),
    )
    num_sent = 0
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        def send(case: Any) -> None:
            nonlocal num_sent
            num_sent += 1
            case.call_and_validate(headers=headers, timeout=30, excluded_checks=not_promised)

        strategy = operation.as_strategy(generation_mode=mode)
        try:
            settings(hypothesis.seed(seed)(hypothesis.given(case=strategy)(send)))()
        except hypothesis.errors.Unsatisfiable:
            continue
        except (Failure, FailureGroup, AssertionError) as failure:
            raise FaultError(f"{operation.label}: {str(failure)[:1500]}") from failure
    return num_sent
