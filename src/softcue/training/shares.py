"""Work on rows that several processes divide: tokens, sentence vectors, predictions. All of them get all results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from softcue.backbones import Backbone
from softcue.evaluation import Evaluation, score
from softcue.inference import PreparedRequests, TaskModel
from softcue.inference.predict import Requests, predict_rows, tokenize_split
from softcue.inputs.packed_rows import join_rows
from softcue.training.processes import Processes, interleave
from softcue.types import Example, Prediction, TokenizedRow


def training_rows(
    model: TaskModel, backbone: Backbone, examples: Sequence[Example], processes: Processes
) -> Sequence[TokenizedRow]:
    """The tokenized training rows of a task with targets, and with M(x) where the method reads it.

    Example:
        training_rows(model, backbone, splits.train, Processes())
    """
    first, end = 0, len(examples)
    if processes.has_shares:
        first, end = (end * rank // processes.world_size for rank in (processes.rank, processes.rank + 1))
    share = model.training_examples(examples[first:end])
    rows = model.rows(backbone, share, with_target=True) if share else []
    return join_rows(processes.gather_shares(rows))


def prepare_requests(backbone: Backbone, requests: Requests, processes: Processes) -> PreparedRequests:
    """Tokenized requests, to be predicted while a model trains.

    Example:
        prepare_requests(backbone, [(model, example)], Processes())
    """
    rows = processes.in_shares(requests, lambda share: tokenize_split(backbone, share))
    return PreparedRequests.from_rows(requests, rows)


def evaluate_requests(
    backbone: Backbone, model: TaskModel, requests: PreparedRequests, batch_size: int, processes: Processes
) -> Evaluation:
    """Predict rows of one task and score them.

    Example:
        evaluate_requests(backbone, model, requests, 64, Processes()).main
    """
    predictions = processes.in_shares(requests.rows, lambda share: predict_rows(backbone, share, batch_size))
    result = requests.merge(predictions)
    examples = [example for _, example in requests.requests]
    return same_scores(score(model.task, result.predictions, examples, result.num_truncated), processes)


def evaluate_examples(
    backbone: Backbone, model: TaskModel, examples: Sequence[Example], batch_size: int, processes: Processes
) -> Evaluation:
    """Score a task's model on examples with targets.

    Example:
        evaluate_examples(backbone, model, splits.test, 64, Processes()).scores
    """
    requests = prepare_requests(backbone, [(model, example) for example in examples], processes)
    return evaluate_requests(backbone, model, requests, batch_size, processes)


def baseline_predictions(
    examples: Sequence[Example],
    predict: Callable[[Sequence[Example]], dict[str, list[Prediction]]],
    processes: Processes,
) -> dict[str, list[Prediction]]:
    """The predictions of baselines by name, if they work in all processes; `predict` makes those of some examples.

    Example:
        baseline_predictions(splits.test, lambda share: predict_baselines(backbone, task, "a", share), Processes())
    """
    share = processes.share_of(examples)
    shares = processes.gather_shares(predict(share) if share else None)
    parts = [part for part in shares if part is not None]
    names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
    empty: list[list[Prediction]] = [[]] * (len(shares) - len(parts))  # fewer examples than processes
    return {name: interleave([*(part[name] for part in parts), *empty]) for name in names}


def same_scores(evaluation: Evaluation, processes: Processes) -> Evaluation:
    """The evaluation with the first process' scores: processors may round them differently.

    Example:
        same_scores(evaluation, Processes()).main
    """
    scores, main = processes.decide((evaluation.scores, evaluation.main))
    return replace(evaluation, scores=scores, main=main)
