"""The checkpoint that is shipped does what its card says, at lengths that a test can afford."""

from pathlib import Path

import pytest

from bamctl.backends.native import NativeBackend
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.run import EvaluationRequest, evaluate, run_identity
from bamctl.models.loading import open_checkpoint
from bamctl.results.store import load_samples
from bamctl.tasks.catalog import build_task, load_spec

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "models/tiny-bam-ssmax"


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


def test_the_reference_runs_are_of_this_checkpoint(backend):
    """Published figures belong to the published weights, task and prompts: the default command finds them."""
    published = load_samples([ROOT / "results/reference"])
    task = build_task(load_spec(str(ROOT / "tasks/passkey.yaml")), backend.tokenizer)
    request = EvaluationRequest(lengths=(512,), samples=20, depths=parse_depths("equidistant", 20))
    assert run_identity(backend, task, request).run_id in set(published["run_id"])
    assert set(published["model_digest"]) == {backend.model.digest}
    assert published.groupby(["run_id", "length"]).size().eq(20).all()


def test_it_is_small(backend):
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3_000_000
    assert backend.model.train_length == 512
    assert open_checkpoint(str(FOLDER)).config.num_hidden_layers == 2
