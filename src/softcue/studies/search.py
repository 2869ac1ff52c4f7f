"""The settings that a search tries: a whole grid, or rounds that optuna proposes from the scores so far."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from softcue.errors import MissingExtraError
from softcue.studies.study import Range, Search

ROUND_SIZE = 4  # settings that optuna proposes at once; they can be trained at the same time
Trial = tuple[dict[str, Any], float]  # settings and validation score


def propose(search: Search, rounds: Sequence[Sequence[Trial]]) -> list[dict[str, Any]] | None:
    """The settings of the next round, or None after the last one.

    The same finished rounds give the same proposals, so a search that was stopped goes on as if it had not been.

    Example:
        >>> search = Search(space={"training.learning_rate": [0.1, 0.3], "method.prompt_length": [5, 20]})
        >>> len(propose(search, [])), propose(search, [[({}, 80.0)] * 4])
        (4, None)
    """
    num_tried = sum(map(len, rounds))
    if not search.trials:
        if rounds:
            return None
        keys = list(search.space)
        grid = itertools.product(*(values for values in search.space.values() if isinstance(values, list)))
        return [dict(zip(keys, values, strict=True)) for values in grid]
    if num_tried >= search.trials:
        return None
    return _propose_with_optuna(search, rounds, min(ROUND_SIZE, search.trials - num_tried))


def _propose_with_optuna(search: Search, rounds: Sequence[Sequence[Trial]], size: int) -> list[dict[str, Any]]:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("optuna", "optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {key: _distribution(optuna, values) for key, values in search.space.items()}
    # A new sampler for each round, seeded by its number: what it proposes depends on the finished rounds alone.
    sampler = optuna.samplers.TPESampler(seed=len(rounds), n_startup_trials=min(2 * ROUND_SIZE, search.trials // 2))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for settings, score in itertools.chain.from_iterable(rounds):
        parameters = {key: _parameter(search.space[key], value) for key, value in settings.items()}
        study.add_trial(optuna.trial.create_trial(params=parameters, distributions=distributions, value=score))
    proposals: list[dict[str, Any]] = []
    for _ in range(size):
        parameters = study.ask(distributions).params
        proposals.append({key: _value(search.space[key], parameter) for key, parameter in parameters.items()})
    return proposals


# optuna knows a value of a list by its number: values may then be lists too, such as layers.
def _parameter(values: list[Any] | Range, value: Any) -> Any:
    return value if isinstance(values, Range) else values.index(value)


def _value(values: list[Any] | Range, parameter: Any) -> Any:
    return parameter if isinstance(values, Range) else values[parameter]


def _distribution(optuna: Any, values: list[Any] | Range) -> Any:
    distributions = optuna.distributions
    if not isinstance(values, Range):
        return distributions.CategoricalDistribution(range(len(values)))
    if values.whole:
        return distributions.IntDistribution(int(values.low), int(values.high), log=values.log)
    return distributions.FloatDistribution(values.low, values.high, log=values.log)
