"""Cues as a model of lm-evaluation-harness: what its numbers mean, what is refused, and a task run for real."""

from __future__ import annotations

import builtins
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from serving_cues import TITLES, TOPICS, save_cue
from tolerance import REORDERED_FLOAT32

from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError, DataError, MissingExtraError
from softcue.interop.lm_eval import CueScorer, register

CONTEXT = "my invoice is wrong and the order"
# Questions that were written for this test, with the choice that is right.
QUESTIONS = [
    ("A parcel that left on Monday and takes two days comes on", ["Wednesday", "Sunday"], 0),
    ("Water that is frozen is called", ["smoke", "ice"], 1),
    ("The opposite of late is", ["early", "heavy"], 0),
]


@pytest.fixture(scope="module", params=["gpt2", "t5"])
def cue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cue:
    return save_cue(tmp_path_factory.mktemp(request.param) / "titles", TITLES, model_type=request.param)


@pytest.fixture(scope="module")
def decoder_cue(tmp_path_factory: pytest.TempPathFactory) -> Cue:
    return save_cue(tmp_path_factory.mktemp("decoder") / "titles", TITLES, model_type="gpt2")


def words(cue: Cue) -> list[str]:
    """Texts of one token each, as they stand behind a word."""
    tokenizer = cue.backbone.tokenizer
    special = set(tokenizer.all_special_ids)
    ids = [number for number in range(len(tokenizer)) if number not in special]
    return [tokenizer.decode([number]) for number in ids]


def test_the_likeliest_continuation_is_greedy_and_what_is_generated(cue: Cue) -> None:
    scorer = CueScorer(cue)
    [text] = scorer.generate([CONTEXT], until=[], max_new_tokens=1)
    ids = cue.backbone.tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        pytest.skip("the first token of this random model is none that text can name")
    others = [" wrong", " order", " invoice"]
    scored = scorer.log_likelihoods([(CONTEXT, continuation) for continuation in (text, *others)])
    assert scored[0][1]
    assert scored[0][0] >= max(value for value, _ in scored) - 1e-5


def test_likelihoods_of_single_tokens_sum_to_at_most_one(decoder_cue: Cue) -> None:
    scorer = CueScorer(decoder_cue, batch_size=256)
    tokenizer = decoder_cue.backbone.tokenizer
    single = [
        text
        for text in dict.fromkeys(words(decoder_cue))
        if len(tokenizer(CONTEXT + text, add_special_tokens=False)["input_ids"])
        == len(tokenizer(CONTEXT, add_special_tokens=False)["input_ids"]) + 1
    ]
    total = math.fsum(math.exp(value) for value, _ in scorer.log_likelihoods([(CONTEXT, text) for text in single]))
    assert 0.3 < total <= 1 + 1e-4


def test_a_longer_continuation_is_the_product_of_its_parts(decoder_cue: Cue) -> None:
    scorer = CueScorer(decoder_cue)
    whole, first, second = scorer.log_likelihoods(
        [(CONTEXT, " is wrong"), (CONTEXT, " is"), (f"{CONTEXT} is", " wrong")]
    )
    assert whole[0] == REORDERED_FLOAT32.approx(first[0] + second[0])


def test_results_do_not_depend_on_the_batch_and_stay_in_order(cue: Cue) -> None:
    pairs = [(CONTEXT, " wrong"), ("ok", " is the order"), (f"{CONTEXT} {CONTEXT}", " my"), ("ok ", "is the order")]
    together = CueScorer(cue).log_likelihoods(pairs)
    alone = [CueScorer(cue, batch_size=1).log_likelihoods([pair])[0] for pair in pairs]
    assert [value for value, _ in together] == REORDERED_FLOAT32.approx([value for value, _ in alone])
    assert together[1] == REORDERED_FLOAT32.approx(together[3])  # the space belongs to the continuation


def test_the_prompt_of_the_cue_takes_part(tmp_path: Path, decoder_cue: Cue) -> None:
    other = save_cue(tmp_path / "other", TITLES, model_type="gpt2", seed=1)
    pairs = [(CONTEXT, " wrong")]
    assert CueScorer(other).log_likelihoods(pairs) != CueScorer(decoder_cue).log_likelihoods(pairs)


def test_generated_text_ends_before_the_first_stop(cue: Cue) -> None:
    scorer = CueScorer(cue)
    [text] = scorer.generate([CONTEXT], until=[], max_new_tokens=6)
    if len(text.strip()) < 3:
        pytest.skip("this random model writes too little")
    stop = text.strip()[1]
    [shorter] = scorer.generate([CONTEXT], until=["never in it", stop], max_new_tokens=6)
    assert shorter == text.partition(stop)[0].rstrip()


def test_nothing_asked_is_nothing_answered(cue: Cue) -> None:
    assert CueScorer(cue).log_likelihoods([]) == [] == CueScorer(cue).generate([], [], 3)


@pytest.mark.parametrize(("context", "message"), [("", "a text: a cue writes a target"), (" \n", "a text: a cue")])
def test_a_context_without_words_is_an_error(cue: Cue, context: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        CueScorer(cue).log_likelihoods([(context, " wrong")])


def test_a_context_that_is_too_long_is_an_error_instead_of_being_cut(decoder_cue: Cue) -> None:
    with pytest.raises(DataError, match="take fewer few-shot examples"):
        CueScorer(decoder_cue).log_likelihoods([(f"{CONTEXT} " * 200, "wrong")])


def test_an_empty_continuation_is_an_error(cue: Cue) -> None:
    with pytest.raises(DataError, match="a text with tokens"):
        CueScorer(cue).log_likelihoods([(CONTEXT, "")])


def test_a_cue_with_a_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a cue that writes its target as text"):
        CueScorer(save_cue(tmp_path / "topics", TOPICS))


def test_without_the_harness_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def without(name: str, *more: Any, **options: Any) -> Any:
        if name.startswith("lm_eval"):
            raise ImportError(name)
        return plain(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match="lm-eval"):
        register.__wrapped__()


# --- the harness itself ---


def harness_model(cue: Cue, **options: Any) -> Any:
    pytest.importorskip("lm_eval")
    return register()(cue, **options)


@pytest.mark.slow
def test_the_model_is_in_the_registry_of_the_harness() -> None:
    registry = pytest.importorskip("lm_eval.api.registry")
    model = register()
    assert registry.get_model("softcue") is model
    assert registry.get_model("hf").__name__ == "HFLM"


@pytest.mark.slow
def test_what_a_cue_cannot_do_is_refused(decoder_cue: Cue) -> None:
    model = harness_model(decoder_cue, batch_size="auto", device="cuda:0")  # as the harness asks
    with pytest.raises(ConfigurationError, match="it has no perplexity of plain text"):
        model.loglikelihood_rolling([SimpleNamespace(args=("a text",))])
    for settings in ({"do_sample": True}, {"temperature": 0.7}, {"num_beams": 4}):
        with pytest.raises(ConfigurationError, match="expected greedy decoding"):
            model.generate_until([SimpleNamespace(args=(CONTEXT, {"until": "\n", **settings}))])
    with pytest.raises(ConfigurationError, match="cpu, where the backbone is"):
        harness_model(decoder_cue, device="meta")


def write_task(folder: Path, name: str, **settings: Any) -> None:
    rows = [{"question": q, "choices": choices, "answer": right} for q, choices, right in QUESTIONS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
        **settings,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the harness and of its other packages
def test_the_harness_runs_tasks_of_its_own_with_a_cue(
    tmp_path: Path, cue: Cue, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm_eval = pytest.importorskip("lm_eval")
    tasks = pytest.importorskip("lm_eval.tasks")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write_task(
        tmp_path,
        "softcue_choices",
        output_type="multiple_choice",
        doc_to_choice="{{choices}}",
        doc_to_target="{{answer}}",
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )
    write_task(
        tmp_path,
        "softcue_answers",
        output_type="generate_until",
        doc_to_target="{{choices[answer]}}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 4},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )
    results = lm_eval.simple_evaluate(
        model=harness_model(cue),
        tasks=["softcue_choices", "softcue_answers"],
        task_manager=tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    scorer = CueScorer(cue)
    num_right = 0
    for question, choices, right in QUESTIONS:
        values = [value for value, _ in scorer.log_likelihoods([(question, f" {choice}") for choice in choices])]
        num_right += values.index(max(values)) == right
    assert results["results"]["softcue_choices"]["acc,none"] == pytest.approx(num_right / len(QUESTIONS))
    answers = [sample["resps"][0][0] for sample in results["samples"]["softcue_answers"]]
    assert answers == scorer.generate([question for question, _, _ in QUESTIONS], ["\n"], 4)
