"""What `attention` refuses, and which implementation it takes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bamctl.attention import IMPLEMENTATIONS, Laplace, attention, cpu, reference


def _call(
    q: tuple[int, ...] = (2, 4, 3, 8),
    k: tuple[int, ...] = (2, 2, 6, 8),
    v: tuple[int, ...] | None = None,
    *,
    heads: int = 4,
    query_start: int = 3,
    key_start: int = 0,
    **arguments: Any,
) -> torch.Tensor:
    return attention(
        torch.zeros(q),
        torch.zeros(k),
        torch.zeros(k if v is None else v),
        prior=Laplace(heads),
        query_start=query_start,
        key_start=key_start,
        **arguments,
    )


@pytest.mark.parametrize("implementation", ["reference", "cpu", "auto"])
def test_what_fits_is_computed(implementation: str) -> None:
    assert _call(implementation=implementation).shape == (2, 4, 3, 8)
    assert _call(query_start=2, key_start=2, implementation=implementation).shape == (2, 4, 3, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": (1, 2, 6, 8)}, r"\[B, H, C, D\], \[B, G, N, D\], \[B, G, N, D\] expected"),
        ({"k": (2, 2, 6, 7)}, "do not fit"),
        ({"v": (2, 2, 5, 8)}, r"values \(2, 2, 5, 8\) do not fit"),
        ({"v": (2, 2, 6, 9)}, "do not fit"),
        ({"v": (2, 4, 6, 8)}, "do not fit"),
        ({"k": (2, 3, 6, 8)}, "4 query heads, 3 key-value heads"),
        ({"k": (2, 8, 6, 8)}, "4 query heads, 8 key-value heads"),
        ({"heads": 2}, "a prior of 2 heads"),
        ({"query_start": 2, "key_start": 3}, "queries from 2 would see no key of those from 3"),
        ({"key_start": -1}, "from -1"),
        ({"query_start": -1}, "queries from -1"),
        ({"q": (2, 4, 0, 8)}, "0 queries over 6 keys"),
        ({"k": (2, 2, 0, 8)}, "3 queries over 0 keys"),
        ({"implementation": "flash"}, "no implementation 'flash'; there are reference, cpu"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _call(**arguments)


def test_auto_is_the_cpu_implementation(
    make_inputs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(queries=3, keys=3)
    asked = []
    for name, function in {"reference": reference.attention, "cpu": cpu.attention}.items():

        def spy(*args: Any, name: str = name, function: Any = function, **kwargs: Any) -> torch.Tensor:
            asked.append(name)
            result: torch.Tensor = function(*args, **kwargs)
            return result

        monkeypatch.setitem(IMPLEMENTATIONS, name, spy)
    for implementation in ("auto", "cpu", "reference"):
        attention(*inputs, prior=Laplace(4), query_start=0, implementation=implementation)
    assert asked == ["cpu", "cpu", "reference"]
