"""The checkpoints that are shipped do what their cards say, at lengths that a test can afford."""

import re
from pathlib import Path

import pytest

from bamctl.backends.native import NativeBackend
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.plan import plan_samples
from bamctl.evaluation.run import EvaluationRequest, evaluate, run_identity
from bamctl.models.loading import open_checkpoint
from bamctl.models.training.recipe import load_recipe
from bamctl.results.store import load_samples
from bamctl.tasks.catalog import build_task, load_spec, ruler_tasks

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "models/tiny-bam-ssmax"
SMALL = ROOT / "models/small-bam-ssmax"
SEEDS = sorted((ROOT / "models/seeds").iterdir())


@pytest.fixture(scope="module")
def backend():
    return NativeBackend(open_checkpoint(str(FOLDER)))


@pytest.mark.parametrize("haystack", ["garbage", str(ROOT / "LICENSE")])
def test_it_finds_the_key_far_beyond_its_training_length(backend, haystack, tmp_path):
    task = build_task(load_spec(str(ROOT / "tasks/passkey.yaml"), haystack=haystack), backend.tokenizer)
    request = EvaluationRequest(
        lengths=(512, 4096), samples=5, depths=parse_depths("equidistant", 5), out=tmp_path
    )
    evaluate(backend, task, request)
    samples = load_samples([tmp_path])
    assert len(samples) == 10
    assert samples["exact"].all(), samples[["length", "depth", "references", "prediction"]].to_string()
    assert (samples["prompt_tokens"] == samples["length"]).all()
    assert (samples["finish_reason"] == "stop").all()


@pytest.mark.parametrize(
    ("model", "tasks", "depths"),
    [
        ("tiny-bam-ssmax", ["passkey"], "equidistant"),
        ("small-bam-ssmax", ["passkey"], "equidistant"),
        ("small-bam-ssmax", ruler_tasks("niah_*"), "ruler"),
        ("small-bam", ["passkey"], "equidistant"),
        ("small-bam", ruler_tasks("niah_*"), "ruler"),
        ("small-alibi", ["passkey"], "equidistant"),
        ("small-alibi", ruler_tasks("niah_*"), "ruler"),
        ("small-alibi-ssmax", ["passkey"], "equidistant"),
        ("small-alibi-ssmax", ruler_tasks("niah_*"), "ruler"),
        ("small-nope", ["passkey"], "equidistant"),
        ("small-nope", ruler_tasks("niah_*"), "ruler"),
        ("small-nope-ssmax", ["passkey"], "equidistant"),
        ("small-nope-ssmax", ruler_tasks("niah_*"), "ruler"),
        ("small-rope", ["passkey"], "equidistant"),
        ("small-rope", ruler_tasks("niah_*"), "ruler"),
        ("small-rope-ssmax", ["passkey"], "equidistant"),
        ("small-rope-ssmax", ruler_tasks("niah_*"), "ruler"),
        ("small-sinusoidal", ["passkey"], "equidistant"),
        ("small-sinusoidal", ruler_tasks("niah_*"), "ruler"),
        ("small-sinusoidal-ssmax", ["passkey"], "equidistant"),
        ("small-sinusoidal-ssmax", ruler_tasks("niah_*"), "ruler"),
        *((f"seeds/{folder.name}", ["passkey"], "equidistant") for folder in SEEDS),
    ],
)
def test_the_reference_runs_are_of_the_shipped_checkpoints(model, tasks, depths):
    """Published figures belong to the published weights, tasks and prompts: the same commands find them."""
    published = load_samples([ROOT / "results/reference"])
    published = published[(published["model"] == Path(model).name) & published["task"].isin(tasks)]
    shipped = NativeBackend(open_checkpoint(str(ROOT / "models" / model)))
    request = EvaluationRequest(lengths=(512,), samples=20, depths=parse_depths(depths, 20))
    for name in tasks:
        task = build_task(load_spec(str(ROOT / f"tasks/{name}.yaml")), shipped.tokenizer)
        of_task = published[published["task"] == name]
        identity = run_identity(shipped, task, request)
        assert identity.run_id in set(of_task["run_id"])
        done = of_task[(of_task["run_id"] == identity.run_id) & of_task["prompt_digest"].notna()]
        length = int(done["length"][done["length"] <= 4096].max())
        # With --patience, lengths behind one at which nothing was found are not run.
        assert length == 4096 or done["recall"][done["length"] == length].eq(0).all()
        plan = plan_samples(task.spec, lengths=[length], samples=20, depths=request.depths, seed=0)
        sample = plan[length][7]
        [row] = done[done["row_id"] == sample.row_id].to_dict("records")
        prompt = task.build(length=length, depth=sample.depth, rng=sample.rng())
        assert prompt.digest == row["prompt_digest"]
    assert set(published["model_digest"]) == {shipped.model.digest}
    assert published.groupby(["run_id", "length"]).size().eq(20).all()


def test_the_small_checkpoint_finds_needles_far_beyond_its_training_length(tmp_path):
    """Essays are a text of this repository."""
    shipped = NativeBackend(open_checkpoint(str(SMALL)))
    request = EvaluationRequest(
        lengths=(512, 4096), samples=5, depths=parse_depths("equidistant", 5), out=tmp_path
    )
    for name, changes, least in (
        ("niah_single_1", {}, 1.0),
        ("niah_multikey_1", {"essays": str(ROOT / "LICENSE")}, 0.9),
        ("niah_multiquery", {"essays": str(ROOT / "LICENSE")}, 0.7),
    ):
        task = build_task(load_spec(str(ROOT / f"tasks/{name}.yaml"), **changes), shipped.tokenizer)
        evaluate(shipped, task, request)
        samples = load_samples([tmp_path / name])
        assert samples["recall"].mean() >= least, samples[["length", "references", "prediction"]].to_string()
        assert (samples["prompt_tokens"] == samples["length"] - 128).all()


FAMILY = sorted([*(ROOT / "models").glob("small-*"), *SEEDS])


def test_four_encodings_have_three_trainings_each():
    """They differ in nothing but the seed."""
    for name in ("small-alibi", "small-bam-ssmax", "small-nope", "small-rope"):
        recipes = [
            load_recipe(folder / "recipe.yaml")
            for folder in FAMILY
            if re.fullmatch(rf"{name}(-\d)?", folder.name)
        ]
        assert sorted(recipe.seed for recipe in recipes) == [1, 2, 3]
        told_apart = {"name", "summary", "seed", "search", "limits"}
        [_] = {recipe.model_dump_json(exclude=told_apart) for recipe in recipes}


@pytest.mark.parametrize("folder", FAMILY, ids=lambda folder: folder.name)
def test_the_small_checkpoints_are_small(folder):
    assert sum(file.stat().st_size for file in folder.iterdir()) < 6_000_000


@pytest.mark.parametrize("folder", FAMILY, ids=lambda folder: folder.name)
def test_the_small_checkpoints_differ_in_their_position_encoding_alone(folder):
    """And in what a search finds for each: learning rates and steps."""

    def common(recipe):
        content = recipe.model_dump(mode="json", exclude={"name", "summary", "seed", "search", "limits"})
        encoding = ("position_encoding", "prior_alpha", "prior_beta")
        for field in (*encoding, "ssmax", "ssmax_initial", "ssmax_scales_prior"):
            content["model"].pop(field, None)
        for field in ("learning_rate", "prior_learning_rate", "muon_learning_rate", "steps"):
            content["optimiser"].pop(field)
        return content

    recipe = load_recipe(folder / "recipe.yaml")
    assert common(recipe) == common(load_recipe(SMALL / "recipe.yaml"))
    assert recipe.name == folder.name
    assert recipe.optimiser.steps <= 4350
    config = open_checkpoint(str(folder)).config
    assert recipe.model["position_encoding"] == config.position_encoding
    assert recipe.model["ssmax"] == config.ssmax
    assert config.ssmax == ("-ssmax" in folder.name)
    told = (folder / "README.md").read_text()
    assert "It has learned its training length: " in told or "**It has not learned" in told
    assert len((folder / "training_log.jsonl").read_text().splitlines()) == recipe.optimiser.steps


def test_it_is_small(backend):
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3_000_000
    assert backend.model.train_length == 512
    assert open_checkpoint(str(FOLDER)).config.num_hidden_layers == 2
