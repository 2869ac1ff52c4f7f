"""Backbone and prompt tuned together (Wu et al. 2022, appendix A.4), the export, and the second stage on it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from serving_cues import TEXTS, save_cue
from tiny import ONE_OF_EACH_KIND, tiny
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES
from torch import Tensor, nn
from toy import CASES, EXAMPLES, make_model
from typer.testing import CliRunner

import softcue
from softcue import Cue, Engine
from softcue.backbones import Backbone, load_backbone
from softcue.cli.app import app
from softcue.errors import ConfigurationError, CueError
from softcue.inference import TaskModel, predict
from softcue.inference.predict import PreparedRequests
from softcue.inputs.collate import collate
from softcue.recipes import TaskForm, paper_recipe
from softcue.sentence_vectors import sentence_vector, sentence_vectors_of
from softcue.serving.http.explain import explain_prompt
from softcue.training import Checkpoints, TaskData, Trainer, TrainingConfig
from softcue.training.optimizers import make_optimizer
from softcue.types import Batch, Instance, Prediction

TUNED = [case for case in CASES if case.endswith(" tuned")]
NLI = [
    {"premise": f"{text} {number}", "hypothesis": other, "label": label}
    for number in range(3)
    for text, other, label in [
        ("my invoice is wrong", "it is about a bill", "entailment"),
        ("the parcel is late", "nothing came", "neutral"),
        ("i cannot sign in", "all is well", "contradiction"),
    ]
]
PAIRS = [("my invoice", "a bill"), ("where is the parcel", "nothing came yet"), ("ok", "i cannot sign in")]
SIZES: dict[str, Any] = {"method.prompt_length": 3, "method.phm_n": 4, "method.bottleneck": 8}
STILL = {
    "training.learning_rate": 0.0,
    "training.network_learning_rate": 0.0,
    "training.backbone_learning_rate": 0.0,
    "training.epochs": 1,
}


def train(folder: Path, backbone: Any, method: str = "s-idpg-phm", tune: bool = True, **settings: Any) -> Cue:
    sizes = SIZES if method == "s-idpg-phm" else {"method.prompt_length": 3}
    rates = {"training.backbone_learning_rate": 0.003, "training.steps": 3, "training.batch_size": 4}
    # A head that is solved may be best before the first step, and then nothing is tuned.
    head = {"readout.head_start": "random", "readout.centre": False, "readout.refit": False}
    overrides = {**sizes, **rates, **head, "method.tune_backbone": tune, **settings.pop("overrides", {})}
    if "training.epochs" in overrides:
        del overrides["training.steps"]
    rows = settings.pop("rows", NLI)
    return softcue.train(
        folder,
        backbone=str(backbone) if isinstance(backbone, Path) else backbone,
        method=method,
        train=rows,
        validation=rows,
        text=["premise", "hypothesis"],
        label="label",
        overrides=overrides,
        progress=False,
        **settings,
    )


def run_command(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def make_batch(model: TaskModel, backbone: Backbone) -> Batch:
    return collate(model.rows(backbone, EXAMPLES, with_target=True), backbone.tokenizer.pad_token_id)


def weights_of(model: TaskModel) -> dict[str, nn.Parameter]:
    assert model.method.weights is not None
    return {name.replace("/", "."): value for name, value in model.method.weights.items()}


def predicted(model: TaskModel, backbone: Backbone) -> list[Prediction]:
    return predict(backbone, [(model, example) for example in EXAMPLES]).predictions


# --- what is trained -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TUNED)
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_gradients_reach_backbone_and_prompt_and_never_the_shared_backbone(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case).train()
    output = model(backbone, make_batch(model, backbone))
    (output.losses.sum() + output.aux_loss).backward()
    for name, parameter in model.method.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), name
    assert not any(weight.requires_grad or weight.grad is not None for weight in backbone.model.parameters())
    assert backbone.is_frozen and not model.method.view_of(backbone).is_frozen


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_the_gradient_flows_through_both_passes_of_the_same_model(family: str) -> None:
    """Equations 1 and 3 by hand: M is the tuned model in both, and its weights get the gradient of both."""
    backbone = tiny(family)
    model = make_model(backbone, "s-idpg-phm tuned")
    batch = make_batch(model, backbone)
    weights = weights_of(model)
    twin = model.method.tuned_backbone(backbone)
    assert twin is not None and model.representation is not None and batch.plain is not None

    def gradients(stop_at_representation: bool | None) -> list[Tensor]:
        if stop_at_representation is None:
            loss = model(backbone, batch).losses.sum()
        else:
            assert batch.plain is not None
            inputs = {"input_ids": batch.plain.ids, "attention_mask": batch.plain.mask.long()}
            reads = twin.model.get_encoder() if family == "t5" else twin.base
            states = reads(**inputs).last_hidden_state
            counts = batch.plain.mask.sum(dim=1)
            if family == "bert":
                vectors = states[:, 0]
            elif family == "gpt2":
                vectors = states[torch.arange(len(states)), counts - 1]
            else:
                vectors = (states * batch.plain.mask.unsqueeze(2)).sum(dim=1) / counts.unsqueeze(1)
            vectors = vectors.detach() if stop_at_representation else vectors
            embeds = twin.embed(batch.ids)
            prompt = model.method.prompt(Instance(embeds, batch.mask, vectors))
            loss = model.readout.losses(twin.read(batch, prompt, embeds, model.readout.needs_target), batch).sum()
        return [torch.zeros(()) if g is None else g for g in torch.autograd.grad(loss, list(weights.values()))]

    actual, by_hand, without = gradients(None), gradients(False), gradients(True)
    for name, value, expected in zip(weights, actual, by_hand, strict=True):
        REORDERED_FLOAT32.assert_close(value, expected, name)
    assert max(float((value - other).abs().max()) for value, other in zip(actual, without, strict=True)) > 1e-2


def test_each_part_has_its_learning_rate() -> None:
    model = make_model(tiny("bert"), "s-idpg-phm tuned")
    config = TrainingConfig(learning_rate=0.1, network_learning_rate=0.2, backbone_learning_rate=0.3)
    groups = make_optimizer(model, config).param_groups
    rates = {id(parameter): group["base_rate"] for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        expected = 0.3 if name.startswith("method.weights.") else 0.1 if "biases" in name else 0.2
        assert rates.pop(id(parameter)) == expected, name
    assert not rates
    fine_tuned = make_model(tiny("bert"), "fine-tuning")  # its weights take learning_rate, as before
    groups = make_optimizer(fine_tuned, config).param_groups
    assert [group["base_rate"] for group in groups] == [0.1, 0.2]


def test_a_rate_that_no_weight_uses_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def warnings(method: str, **overrides: Any) -> str:
        folder = tmp_path / f"{method}{len(overrides)}"
        rate = {"training.backbone_learning_rate": 0.1, "training.steps": 1}
        softcue.train(
            folder,
            backbone=tiny("bert"),
            method=method,
            train=NLI,
            validation=NLI,
            text=["premise", "hypothesis"],
            label="label",
            overrides={**rate, **overrides},
            progress=False,
        )
        return capsys.readouterr().err

    said = "training.backbone_learning_rate has no effect on"
    assert f"{said} prompt-tuning: set method.tune_backbone=true" in warnings("prompt-tuning")
    assert f"{said} fine-tuning: training.learning_rate is its rate" in warnings("fine-tuning")
    assert said not in warnings("prompt-tuning", **{"method.tune_backbone": True})


# --- nothing is kept from weights that have changed ------------------------------------------------------------------


@pytest.mark.parametrize("case", [*TUNED, "fine-tuning"])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_prepared_rows_follow_every_change_of_the_weights(family: str, case: str) -> None:
    """Only the backbone's weights change. M(x), states of lower layers and shared prompts must change with them."""
    backbone = tiny(family)
    model = make_model(backbone, case)
    prepared = PreparedRequests.of(backbone, [(model, example) for example in EXAMPLES])
    before = predict(backbone, prepared).predictions
    optimizer = torch.optim.SGD(weights_of(model).values(), lr=0.05)
    for weight in weights_of(model).values():
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    optimizer.step()
    after = predict(backbone, prepared).predictions
    fresh = make_model(backbone, case)  # has computed nothing yet
    fresh.load_state_dict(model.state_dict())
    assert after == predicted(fresh, backbone)
    assert [prediction.scores for prediction in after] != [prediction.scores for prediction in before]


@pytest.mark.parametrize("case", TUNED)
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_scores_while_training_are_those_of_the_weights_at_that_step(family: str, case: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    config = TrainingConfig(steps=3, batch_size=3, evaluate_every=1, backbone_learning_rate=0.01, learning_rate=0.0)
    trainer = Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config)
    for _ in range(3):
        trainer._step()
        trainer._evaluate()
        fresh = make_model(backbone, case)
        fresh.load_state_dict(model.state_dict())
        assert predict(backbone, trainer._validation[0]).predictions == predicted(fresh, backbone)


@pytest.mark.parametrize("case", ["s-idpg-phm tuned", "m-idpg-phm words tuned"])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_the_sentence_vector_is_that_of_the_tuned_weights(family: str, case: str) -> None:
    """As a second stage computes it on the exported, frozen backbone."""
    backbone = tiny(family)
    model = make_model(backbone, case)
    view = model.method.view_of(backbone)
    batch = make_batch(model, backbone)
    vectors = model.instance(view, batch, view.input_states(batch)).representation
    assert vectors is not None and model.representation is not None
    exported = Backbone(copy.deepcopy(view.model), backbone.tokenizer, "exported")
    assert exported.is_frozen
    expected, of_the_first = (
        sentence_vectors_of(model.representation, other, model.task, EXAMPLES) for other in (exported, backbone)
    )
    REORDERED_FLOAT32.assert_close(vectors, expected)
    assert float((vectors - of_the_first).abs().max()) > 1e-2


@pytest.mark.parametrize("case", ["s-idpg-phm tuned", "m-idpg-phm words tuned"])
def test_the_store_of_sentence_vectors_is_not_used(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(use_disk_cache: bool = True) -> None:
        raise AssertionError("vectors of changing weights must not be stored")

    backbone = tiny("bert")
    model = make_model(backbone, case)
    monkeypatch.setattr(sentence_vector, "open_store", refuse)
    Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], TrainingConfig(steps=2, batch_size=3)).run()
    twin = model.method.tuned_backbone(backbone)
    assert twin is not None and model.representation is not None
    vectors = sentence_vectors_of(model.representation, twin, model.task, EXAMPLES)  # asked for directly: not stored
    assert not torch.equal(vectors, torch.zeros_like(vectors))


def test_word_vectors_that_no_weight_makes_are_still_computed_in_advance() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "m-idpg-phm-glove", tune_backbone=True)
    row = model.rows(backbone, EXAMPLES)[0]
    assert row.representation is not None and row.plain is None


def test_dropout_of_the_sentence_vector_is_that_of_the_tuned_backbone() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "s-idpg-phm", tune_backbone=True, representation_dropout=True, dropout=0.0)
    batch, view = make_batch(model, backbone), model.method.view_of(backbone)

    def representation(seed: int) -> Tensor:
        torch.manual_seed(seed)
        vectors = model.instance(view, batch, view.input_states(batch)).representation
        assert vectors is not None
        return vectors

    quiet = representation(0)
    assert torch.equal(representation(1), quiet)
    model.train()
    noisy = representation(0)
    assert torch.equal(representation(0), noisy) and not torch.equal(representation(1), noisy)
    word_table = weights_of(model)["bert.embeddings.word_embeddings.weight"]
    [gradient] = torch.autograd.grad(noisy.sum(), [word_table])
    assert bool(gradient.any())
    with torch.no_grad():
        word_table.mul_(1.5)
    assert not torch.equal(representation(0), noisy)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_checkpointed_layers_give_the_same_gradients(family: str) -> None:
    gradients = []
    for is_checkpointed in (False, True):
        backbone = Backbone(copy.deepcopy(tiny(family).model), tiny(family).tokenizer, "copy")
        if is_checkpointed:
            backbone.checkpoint_layers()
        model = make_model(backbone, "s-idpg-phm tuned").train()
        torch.manual_seed(0)
        loss = model(backbone, make_batch(model, backbone)).losses.sum()
        gradients.append(torch.autograd.grad(loss, list(weights_of(model).values())))
    REORDERED_FLOAT32.assert_close(gradients[0], gradients[1])


# --- the cue ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["s-idpg-phm", "prompt-tuning"])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_a_saved_cue_predicts_as_the_one_that_was_trained(family: str, method: str, tmp_path: Path) -> None:
    backbone = tiny(family)
    cue = train(tmp_path / "cue", backbone, method)
    assert softcue.load(tmp_path / "cue", backbone).predict(PAIRS) == cue.predict(PAIRS)
    num_weights = sum(weight.numel() for weight in backbone.weights().values())
    frozen = train(tmp_path / "frozen", backbone, method, tune=False)
    assert cue.counts.gradient == cue.counts.stored == frozen.counts.stored + num_weights
    assert "holds a trained copy of the backbone's weights" in (tmp_path / "cue" / "README.md").read_text()
    assert "were not changed" in (tmp_path / "frozen" / "README.md").read_text()


def test_params_counts_the_weights_too() -> None:
    words = ["params", "--like", "roberta-large", "--method", "s-idpg-phm", "--recipe", "paper", "--json"]
    [frozen], [tuned], [whole] = (
        json.loads(run_command(*given))["methods"]
        for given in (
            words,
            [*words, "method.tune_backbone=true"],
            ["params", "--like", "roberta-large", "--method", "fine-tuning", "--json"],
        )
    )
    assert frozen["gradient"] == 107_776
    assert tuned["gradient"] == tuned["stored"] == 107_776 + whole["gradient"]


def test_a_run_that_stops_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    backbone = tiny("bert")
    config = TrainingConfig(steps=4, batch_size=3, evaluate_every=2, backbone_learning_rate=0.001)

    def new_trainer(seed: int = 0) -> Trainer:
        model = make_model(backbone, "s-idpg-phm tuned", seed=seed)
        return Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config)

    whole = new_trainer()
    whole.run()
    first = new_trainer()
    first.checkpoints = Checkpoints(tmp_path, "run")
    for _ in range(2):
        first._step()
        first._after_step()
    again = new_trainer(seed=5)
    checkpoint, _ = Checkpoints(tmp_path, "run").newest()
    assert checkpoint is not None
    again.resume(checkpoint)
    again.run()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_tasks_that_share_a_prompt_share_the_tuned_backbone(tmp_path: Path) -> None:
    backbone = tiny("bert")
    cues = softcue.train(
        tmp_path,
        tasks=["tickets", "urgency"],
        backbone=backbone,
        method="vip-idp",
        overrides={
            "method.tune_backbone": True,
            "method.prompt_length": 3,
            "training.steps": 2,
            "training.backbone_learning_rate": 0.01,
            "mixture.cap": 20,
        },
        progress=False,
    )
    assert isinstance(cues, dict)
    first, second = cues.values()
    assert first.model.method.weights is second.model.method.weights is not None
    texts = ["my invoice is wrong", "where is my parcel"]
    requests = [(cue.model, example) for cue in cues.values() for example in cue.examples(texts)]
    together = predict(backbone, requests).predictions
    alone = [
        prediction
        for name in ("tickets", "urgency")
        for prediction in softcue.load(tmp_path / name, backbone).predict(texts)
    ]
    for prediction, expected in zip(together, alone, strict=True):
        assert prediction.scores == REORDERED_PROBABILITIES.approx(expected.scores)


def test_each_task_of_vip_has_the_same_copy_of_the_weights() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "vip tuned")
    method = model.method.make_for_task(model.method.config, backbone, model.task)
    assert method is not model.method
    assert method.weights is model.method.weights
    assert method.view_of(backbone) is model.method.view_of(backbone)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_a_server_predicts_as_the_cues_do(family: str, tmp_path: Path) -> None:
    cases = ["s-idpg-phm tuned", "prompt-tuning tuned", "fine-tuning", "prompt-tuning"]
    names = {case: case.replace(" ", "-") for case in cases}
    cues = {name: save_cue(tmp_path / name, case=case, model_type=family) for case, name in names.items()}
    requests = [(name, text) for text in TEXTS for name in cues]
    with Engine(tiny(family), tmp_path) as engine:
        results = engine.predict(requests)
        explained = explain_prompt(engine.registry["s-idpg-phm-tuned"], TEXTS[0])
    for (name, text), result in zip(requests, results, strict=True):
        assert not isinstance(result, Exception)
        assert result.prediction.scores == REORDERED_PROBABILITIES.approx(cues[name].predict(text)[0].scores)
    assert len(explained["vectors"]) == 4


# --- export and second stage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["s-idpg-phm", "prompt-tuning"])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_the_export_is_the_tuned_backbone_and_a_second_stage_goes_on_from_it(
    family: str, method: str, model_folders: dict[str, Path], tmp_path: Path
) -> None:
    first = train(tmp_path / "nli", model_folders[family], method)
    run_command("backbones", "export", tmp_path / "nli", tmp_path / "model")
    exported = load_backbone(str(tmp_path / "model"))
    twin = first.model.method.tuned_backbone(first.backbone)
    assert twin is not None
    for name, weight in weights_of(first.model).items():
        assert torch.equal(exported.weights()[name], weight), name
        assert not torch.equal(first.backbone.weights()[name], weight) or not weight.any(), name
    rows = first.model.rows(first.backbone, first.examples(PAIRS))
    batch = collate(rows, first.backbone.tokenizer.pad_token_id)
    with torch.no_grad():
        states = [model.read(batch, None, model.embed(batch.ids)).hidden() for model in (twin, exported)]
    assert torch.equal(*states)
    # On the export the generator makes the prompts of the first stage, so the second stage starts where that ended.
    second = train(
        tmp_path / "second",
        tmp_path / "model",
        method,
        tune=False,
        init_from=tmp_path / "nli",
        seed=5,
        overrides=STILL,
    )
    assert second.model.method.weights is None
    assert second.backbone.is_frozen and second.backbone.fingerprint == exported.fingerprint
    for prediction, expected in zip(second.predict(PAIRS), first.predict(PAIRS), strict=True):
        assert prediction.label == expected.label
        assert prediction.scores == REORDERED_PROBABILITIES.approx(expected.scores)
    before = {name: value.clone() for name, value in exported.model.state_dict().items()}
    trained = train(tmp_path / "trained", exported, method, tune=False, init_from=tmp_path / "nli")
    assert trained.predict(PAIRS) == softcue.load(tmp_path / "trained").predict(PAIRS)
    assert all(torch.equal(value, before[name]) for name, value in exported.model.state_dict().items())
    anew = train(tmp_path / "anew", exported, method, tune=False, seed=5, overrides=STILL)  # without --init-from
    assert anew.predict(PAIRS) != first.predict(PAIRS)


def test_late_prompts_can_be_tuned_with_their_backbone_and_go_on(
    model_folders: dict[str, Path], tmp_path: Path
) -> None:
    late = {"method.insert_layer": 1}
    first = train(tmp_path / "nli", model_folders["bert"], overrides=late)
    run_command("backbones", "export", tmp_path / "nli", tmp_path / "model")
    exported = load_backbone(str(tmp_path / "model"))
    assert exported.num_layers == first.backbone.num_layers  # the whole model, not only the layers above
    settings = {**late, **STILL}
    second = train(tmp_path / "second", exported, tune=False, init_from=tmp_path / "nli", overrides=settings)
    for prediction, expected in zip(second.predict(PAIRS), first.predict(PAIRS), strict=True):
        assert prediction.scores == REORDERED_PROBABILITIES.approx(expected.scores)


def test_a_cue_with_late_prompts_alone_has_no_backbone_to_export(
    model_folders: dict[str, Path], tmp_path: Path
) -> None:
    train(tmp_path / "late", model_folders["bert"], tune=False, overrides={"method.insert_layer": 1})
    with pytest.raises(ConfigurationError, match="does not change the backbone"):
        run_command("backbones", "export", tmp_path / "late", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_second_stage_may_tune_both_again_or_begin_with_a_frozen_one(tmp_path: Path) -> None:
    backbone = tiny("bert")
    first = train(tmp_path / "first", backbone)
    again = train(tmp_path / "again", backbone, init_from=tmp_path / "first", overrides=STILL)
    assert again.predict(PAIRS) == first.predict(PAIRS)
    frozen = train(tmp_path / "frozen", backbone, tune=False)
    tuned = train(tmp_path / "tuned", backbone, init_from=tmp_path / "frozen", overrides=STILL)
    for prediction, expected in zip(tuned.predict(PAIRS), frozen.predict(PAIRS), strict=True):
        assert prediction.scores == REORDERED_PROBABILITIES.approx(expected.scores)


def test_a_second_stage_on_another_backbone_is_refused(model_folders: dict[str, Path], tmp_path: Path) -> None:
    train(tmp_path / "nli", model_folders["bert"])
    message = r"which has tuned its backbone'; expected its backbone in this run; export it: softcue backbones export"
    with pytest.raises(ConfigurationError, match=message):
        train(tmp_path / "x", model_folders["bert"], tune=False, init_from=tmp_path / "nli")
    train(tmp_path / "other", model_folders["bert"], seed=3)
    run_command("backbones", "export", tmp_path / "other", tmp_path / "model")
    for tune in (False, True):
        with pytest.raises(CueError, match="weights differ"):
            train(tmp_path / "x", tmp_path / "model", tune=tune, init_from=tmp_path / "nli")
    assert not (tmp_path / "x").exists()


def test_settings_that_differ_between_stages_are_named(tmp_path: Path) -> None:
    backbone = tiny("bert")
    train(tmp_path / "first", backbone, tune=False)
    with pytest.raises(ConfigurationError, match=r"method\.bottleneck is 8 there and 4 here"):
        train(tmp_path / "x", backbone, init_from=tmp_path / "first", overrides={"method.bottleneck": 4})


def test_words_that_stay_frozen_do_not_fit_a_tuned_backbone() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.hard_prompt: got 'task'; expected none with"):
        make_model(tiny("bert"), "vip", hard_prompt="task", tune_backbone=True)


# --- recipe and example ----------------------------------------------------------------------------------------------


def test_the_paper_s_recipe_has_the_column_of_supplementary_training() -> None:
    form = TaskForm(num_texts=2, num_rows=500, is_few_shot=True, tunes_backbone=True)
    settings = paper_recipe("s-idpg-phm", "encoder", form).as_settings()
    assert settings["method"]["insert_at"] == "start"
    expected = {
        "learning_rate": 1e-5,
        "network_learning_rate": 1e-5,
        "backbone_learning_rate": 1e-5,
        "schedule": "linear",
        "batch_size": 32,
        "epochs": 10,
        "weight_decay": 0.1,
        "beta2": 0.98,
    }
    assert {name: settings["training"][name] for name in expected} == expected
    assert paper_recipe("prompt-tuning", "encoder", form).as_settings()["method"]["insert_at"] == "appended"
    frozen = paper_recipe("s-idpg-phm", "encoder", TaskForm(num_texts=2)).as_settings()
    assert (frozen["method"]["insert_at"], frozen["training"]["schedule"]) == ("first-end", "constant")


def test_the_example_runs_in_two_stages(model_folders: dict[str, Path], tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "supplementary-nli.yaml"
    rows = tmp_path / "nli.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in NLI))
    columns = ["--train", rows, "--validation", rows, "--text", "premise,hypothesis", "--label", "label"]
    small = ["method.phm_n=4", "method.bottleneck=8", "training.steps=2"]
    first = [*columns, "--backbone", model_folders["bert"], "--output-dir", tmp_path / "nli"]
    said = run_command("train", example, *first, *small)
    num_weights = sum(weight.numel() for weight in tiny("bert").weights().values())
    assert f"({num_weights:,} of them the backbone's)" in said
    run_command("backbones", "export", tmp_path / "nli", tmp_path / "model")
    second = ["--recipe", "paper", "--method", "s-idpg-phm", "--backbone", tmp_path / "model"]
    run_command("train", *second, *columns, "--init-from", tmp_path / "nli", "--output-dir", tmp_path / "task", *small)
    nli, task = (softcue.load(tmp_path / name).cue_file for name in ("nli", "task"))
    assert nli.training["train_rows"] == 2 * len(NLI)
    assert nli.training["backbone_learning_rate"] == nli.training["learning_rate"] == 1e-5
    assert nli.recipe is not None and "paper recipe: as in Wu et al. 2022" not in nli.recipe.summary  # 2 steps here
    assert (nli.method["insert_at"], task.method["insert_at"]) == ("start", "first-end")
    assert (nli.method["tune_backbone"], task.method["tune_backbone"]) == (True, False)
    assert task.backbone.name == str(tmp_path / "model")
