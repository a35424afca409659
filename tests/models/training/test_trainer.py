import json
from dataclasses import asdict

import pandas as pd
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from bamctl.errors import BadInput, RunFailed
from bamctl.evaluation.card import _has_learned, write_card
from bamctl.models.config import BamConfig
from bamctl.models.loading import open_checkpoint
from bamctl.models.modeling import BamForCausalLM
from bamctl.models.training import trainer
from bamctl.models.training.recipe import OptimiserRecipe, Recipe
from bamctl.models.training.trainer import learning_rate_factor, make_optimisers, parameter_groups, train


def run(recipe_file, folder, on_step=lambda report: None):
    return train(recipe_file, folder, accelerator="cpu", devices=1, on_step=on_step)


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def without_seconds(log):
    return [{**asdict(report), "seconds": 0} for report in log]


class Killed(Exception):
    """Stands for a kill."""


def test_a_checkpoint_comes_out(recipe_file, tmp_path):
    folder = tmp_path / "models/smallest"
    log = run(recipe_file, folder)
    assert [report.step for report in log] == list(range(1, 9))
    assert log[-1].loss < log[0].loss
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.config.train_length == 140
    assert checkpoint.config.vocab_size == len(AutoTokenizer.from_pretrained(folder)) == 400
    assert (folder / "recipe.yaml").read_text() == recipe_file.read_text()
    stored = [json.loads(line) for line in (folder / "training_log.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in stored] == [report.loss for report in log]
    assert not (folder / ".training").exists()
    again = []
    assert run(recipe_file, folder, on_step=again.append) == log
    assert again == []


@pytest.mark.parametrize("optimiser", [{}, {"muon_learning_rate": 0.02, "tokens_per_pass": 200}])
def test_a_killed_training_goes_on_as_if_nothing_had_happened(
    recipe_file, recipe_content, tmp_path, monkeypatch, optimiser
):
    recipe_content["optimiser"] |= optimiser
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    whole = run(recipe_file, tmp_path / "whole")
    monkeypatch.setattr(trainer, "SAVE_EVERY_SECONDS", 0.0)

    def kill(report):
        if report.step == 5:
            raise Killed

    with pytest.raises(Killed):
        run(recipe_file, tmp_path / "killed", on_step=kill)
    steps = []
    resumed = run(recipe_file, tmp_path / "killed", on_step=lambda report: steps.append(report.step))
    assert steps == [5, 6, 7, 8]  # the fifth was not saved
    assert without_seconds(resumed) == without_seconds(whole)
    expected = weights(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "killed").items():
        assert torch.equal(tensor, expected[name]), name


def test_a_paused_training_goes_on_as_if_nothing_had_happened(recipe_file, tmp_path):
    whole = run(recipe_file, tmp_path / "whole")
    folder = tmp_path / "paused"
    paused = train(recipe_file, folder, accelerator="cpu", devices=1, until_step=3)
    assert [report.step for report in paused] == [1, 2, 3]
    assert {path.name for path in folder.iterdir()} == {".training"}
    assert len(train(recipe_file, folder, accelerator="cpu", devices=1, until_step=3)) == 3  # nothing to do
    steps = []
    resumed = run(recipe_file, folder, on_step=lambda report: steps.append(report.step))
    assert steps == [4, 5, 6, 7, 8]
    assert without_seconds(resumed) == without_seconds(whole)
    expected = weights(tmp_path / "whole")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(folder).items())


@pytest.mark.parametrize("until_step", [8, 9])
def test_a_pause_at_the_end_or_behind_it_is_the_end(recipe_file, tmp_path, until_step):
    folder = tmp_path / "whole"
    assert len(train(recipe_file, folder, accelerator="cpu", devices=1, until_step=until_step)) == 8
    assert open_checkpoint(str(folder)).config.train_length == 140


def test_a_folder_may_hold_the_recipe_but_no_other(recipe_file, recipe_content, tmp_path):
    folder = tmp_path / "smallest"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe_content | {"seed": 99}))
    with pytest.raises(BadInput, match="another recipe"):
        run(recipe_file, folder)
    recipe_file.rename(folder / "recipe.yaml")
    (folder / "text.txt").write_text((tmp_path / "text.txt").read_text())
    with pytest.raises(BadInput, match="there already"):
        run(folder / "recipe.yaml", folder)


def test_half_of_another_recipe_is_not_gone_on_with(recipe_file, recipe_content, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "SAVE_EVERY_SECONDS", 0.0)

    def kill(report):
        raise Killed

    with pytest.raises(Killed):
        run(recipe_file, tmp_path / "m", on_step=kill)
    recipe_content["seed"] = 9
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    with pytest.raises(BadInput, match="another recipe"):
        run(recipe_file, tmp_path / "m")


def test_a_model_that_cannot_be_is_bad_input(recipe_file, recipe_content, tmp_path):
    recipe_content["model"]["num_attention_heads"] = 3
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    with pytest.raises(BadInput, match="num_attention_heads"):
        run(recipe_file, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_loss_that_is_not_finite_ends_the_training(recipe_file, recipe_content, tmp_path):
    recipe_content["optimiser"] |= {"learning_rate": 1e30, "prior_learning_rate": 1e30, "warmup_steps": 0}
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    with pytest.raises(RunFailed, match="learning_rate"):
        run(recipe_file, tmp_path / "m")


def test_learning_rate_warms_up_stays_and_falls():
    recipe = OptimiserRecipe(
        steps=100, tokens_per_step=64, learning_rate=1, prior_learning_rate=1, warmup_steps=10, decay_from=0.5
    )
    factors = [learning_rate_factor(step, recipe) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:51] == [1.0] * 42
    assert factors[75] == pytest.approx(0.5)
    assert factors[99] == pytest.approx(0.02)


def test_priors_and_norms_do_not_decay_and_priors_have_their_own_rate():
    config = BamConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model = BamForCausalLM(config)
    recipe = OptimiserRecipe(steps=1, tokens_per_step=64, learning_rate=0.1, prior_learning_rate=0.7)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, recipe)
    members = [{names[id(p)] for p in group["params"]} for group in groups]
    assert set.union(*members) == set(names.values())
    assert sum(map(len, members)) == len(names)
    for group, inside in zip(groups, members, strict=True):
        for name in inside:
            is_prior = ".prior." in name or ".ssmax." in name
            assert group["lr"] == (0.7 if is_prior else 0.1)
            assert (group["weight_decay"] == 0) == (is_prior or "norm" in name)


def test_muon_has_the_matrices_inside_the_layers_and_adamw_all_else():
    config = BamConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ssmax=True,
    )
    model = BamForCausalLM(config)
    recipe = OptimiserRecipe(
        steps=1, tokens_per_step=64, learning_rate=0.1, prior_learning_rate=0.7, muon_learning_rate=0.3
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    adamw, muon = make_optimisers(model, recipe)
    by_adamw, by_muon = (
        [names[id(p)] for group in optimiser.param_groups for p in group["params"]]
        for optimiser in (adamw, muon)
    )
    assert sorted(by_adamw + by_muon) == sorted(names.values())
    assert {name.split(".", 3)[3] for name in by_muon} == {
        *(f"self_attn.{matrix}_proj.weight" for matrix in "qkvo"),
        *(f"mlp.{matrix}_proj.weight" for matrix in ("gate", "up", "down")),
    }
    assert [group["lr"] for group in muon.param_groups] == [0.3]
    assert [group["base_lr"] for group in muon.param_groups] == [0.3]


def test_a_batch_in_parts_has_the_gradient_of_the_whole(recipe_file, recipe_content, tmp_path):
    recipe_content["optimiser"]["steps"] = 3
    logs = []
    for part in (None, 64, 300):
        recipe_content["optimiser"]["tokens_per_pass"] = part
        recipe_file.write_text(yaml.safe_dump(recipe_content))
        logs.append(run(recipe_file, tmp_path / f"in-{part}"))
    for log in logs[1:]:
        assert [report.loss for report in log] == pytest.approx([report.loss for report in logs[0]], rel=1e-4)
        for report, whole in zip(log, logs[0], strict=True):
            assert report.answer_loss == pytest.approx(whole.answer_loss, rel=1e-4)
            assert report.answer_accuracy == pytest.approx(whole.answer_accuracy)
            assert report.tokens == whole.tokens


def test_the_weight_of_the_language_loss_counts(recipe_file, recipe_content, tmp_path):
    recipe_content["optimiser"] |= {"steps": 3, "language_weight": 0.0}
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    without = run(recipe_file, tmp_path / "without")
    recipe_content["optimiser"]["language_weight"] = 1.0
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    plain = run(recipe_file, tmp_path / "with")
    assert without[0].loss == plain[0].loss
    assert without[-1].loss > plain[-1].loss


def test_the_card_tells_what_was_measured_and_what_cannot_be_done(recipe_file, tmp_path, monkeypatch):
    run(recipe_file, tmp_path / "smallest")
    monkeypatch.setattr("bamctl.evaluation.card.LONGEST", 280)
    monkeypatch.setattr("bamctl.evaluation.card.SAMPLES", 3)
    measured = []
    path = write_card(
        tmp_path / "smallest",
        out=tmp_path / "results",
        haystacks=["garbage", str(recipe_file.parent / "text.txt")],
        on_progress=measured.append,
    )
    assert len(list((tmp_path / "results").rglob("accuracy.parquet"))) == 2
    card = path.read_text()
    assert {progress.length for progress in measured} == {140, 280}
    assert "| haystack | 140 | 280 |" in card
    assert "| garbage | 0% | – |" in card  # what lies behind a zero is not measured
    assert "| text.txt | 0% | – |" in card
    assert "**It has not learned its training length**: 0% at 140 tokens in garbage, where 95%" in card
    assert "- Half the rate was worse." in card
    log = pd.read_json(tmp_path / "smallest/training_log.jsonl", lines=True)
    last = (
        f"| 8 | {log['length'].iloc[-1]} | {log['loss'].iloc[-1]:.2f} | {log['answer_loss'].iloc[-1]:.3f} |"
    )
    assert last in card
    assert "- It has learned nothing." in card
    assert "trained at contexts of 70 to 140 tokens" in card
    assert "| 1 | 1 |" in card


def test_the_card_has_the_needle_tasks_of_the_recipe(recipe_file, recipe_content, tmp_path, monkeypatch):
    recipe_content["data"]["examples"].append({"kind": "niah", "weight": 1, "task": "niah_single_1"})
    recipe_file.write_text(yaml.safe_dump(recipe_content))
    run(recipe_file, tmp_path / "smallest")
    monkeypatch.setattr("bamctl.evaluation.card.LONGEST", 1120)
    monkeypatch.setattr("bamctl.evaluation.card.SAMPLES", 1)
    card = write_card(tmp_path / "smallest", out=tmp_path / "results").read_text()
    assert "| haystack | 140 | 280 | 560 | 1120 |" in card
    assert "RULER's needle tasks, its score (recall of the answers); 1 samples a length" in card
    assert "| task | 280 | 560 | 1120 |" in card  # 140 has no room for needle and answer
    assert "| niah_single_1 | 0% | – | – |" in card


@pytest.mark.parametrize(("right", "learned"), [(19, True), (18, False)])
def test_what_counts_as_having_learned_the_training_length(right, learned):
    accuracy = pd.DataFrame({"length": [512, 1024], "accuracy": [right / 20, 0.0]}).assign(
        run_id="run", metric="exact", variant="", train_length=512
    )
    told = _has_learned(accuracy, 512)
    assert told.startswith(f"It has learned its training length: {5 * right}% at 512") == learned
    assert ("not learned" in told) == (not learned)


def test_prose_is_no_part_of_a_recipe_that_was_begun(recipe_content):
    plain = Recipe.model_validate(recipe_content)
    told = Recipe.model_validate(recipe_content | {"search": ["Half the rate was worse"], "limits": []})
    assert told.digest == plain.digest
