"""Runs the Triton kernels through Triton's interpreter, on CPU tensors.

Triton reads TRITON_INTERPRET when it is imported, so that it has to be set before anything imports it. With
``TRITON_INTERPRET=0 pytest tests/attention/triton`` on a machine with a GPU, the same tests run compiled.

Shapes: B batch, H query heads, G key-value heads, C queries, N keys, D head size.
"""

import copy
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from torch import Tensor

from bamctl.attention import Prior, reference

TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = False
if TRITON:
    imported_before = "triton" in sys.modules
    import triton

    # What was decorated before the variable was set is compiled, whatever it is now.
    INTERPRETED = triton.knobs.runtime.interpret and not isinstance(triton.language.max, triton.JITFunction)

if INTERPRETED:
    from triton.runtime import interpreter

    # Scalars are arrays of one element in Triton 3.6's interpreter, and NumPy ≥ 2.4 refuses int() of them.
    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_for_new_numpy(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_for_new_numpy

    # Three times as fast: what a kernel calls need not patch triton.language at every call, for the kernel
    # did so (and what triton.language itself calls stays patched), and integers are checked for overflow only
    # where a test asks for it (`overflow_checks`).
    call_patched = interpreter.InterpretedFunction.__call__
    patched_modules = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.fn.__module__
        if module.startswith("bamctl.") or module in patched_modules:
            return self.rewrite()(*args, **kwargs)
        patched_modules.add(module)
        return call_patched(self, *args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
    object.__setattr__(interpreter.interpreter_builder.options, "sanitize_overflow", False)


@pytest.fixture
def overflow_checks() -> Iterator[None]:
    """An addition or product of 32-bit integers that overflows is an error."""
    if not INTERPRETED:
        yield
        return
    options = interpreter.interpreter_builder.options
    object.__setattr__(options, "sanitize_overflow", True)
    yield
    object.__setattr__(options, "sanitize_overflow", False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None
    if not TRITON:
        reason = "Triton is not installed"
    elif not INTERPRETED and not torch.cuda.is_available():
        reason = "Triton was imported before TRITON_INTERPRET was set, and there is no GPU"
    for item in items:
        if reason is not None and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What Triton made of a call, and what float64 makes of the same numbers."""

    out: Tensor
    exact_out: Tensor
    gradients: dict[str, Tensor]
    exact_gradients: dict[str, Tensor]
    largest_logits: Tensor
    """``[H]``, of the keys that have weight: a logit x is known to x · 2^-24, and so is what comes of it."""

    def check(self, dtype: torch.dtype) -> None:
        """Errors are within the dtype's rounding, times the size of logits."""
        scale_H = self.largest_logits.clamp(min=8)
        tolerance_H = 5e-7 * scale_H if dtype == torch.float32 else 2e-3 * torch.ones_like(scale_H)
        error_H = (self.out.double() - self.exact_out).abs().amax(dim=(0, 2, 3))
        assert self.out.isfinite().all()
        assert (error_H < tolerance_H).all(), f"output off by {error_H}, {tolerance_H} allowed"
        tolerance = 1e-6 * scale_H.max().item() if dtype == torch.float32 else 5e-3
        for name, exact in self.exact_gradients.items():
            gradient = self.gradients[name]
            assert gradient.isfinite().all(), name
            # What belongs to a head is a sum over all queries and keys, most of which cancels.
            least = 1e-3 if exact.dim() == 4 else 1.0
            error = (gradient.double() - exact).abs().max().item() / max(exact.abs().max().item(), least)
            assert error < tolerance, f"gradient of {name} off by {error:.1e}, {tolerance:.1e} allowed"


@pytest.fixture(scope="session")
def compare(device: torch.device) -> Callable[..., Comparison]:
    from bamctl.attention.kernels.tiles import Tiles
    from bamctl.attention.triton import attention

    def compare(
        prior: Prior,
        *,
        queries: int,
        keys: int,
        query_start: int,
        key_start: int = 0,
        batch: int = 1,
        groups: int | None = None,
        head_size: int = 16,
        dtype: torch.dtype = torch.float32,
        ssmax: list[float] | None = None,
        scaled: bool = True,
        tiles: tuple[int, int] = (16, 16),
        splits: int = 1,
        gradients: bool = False,
        magnitude: float = 1.0,
        longest_key_G: Tensor | None = None,
    ) -> Comparison:
        random = torch.Generator().manual_seed(0)
        prior = copy.deepcopy(prior).to(device)
        shape = (batch, prior.heads, queries, head_size)
        key_shape = (batch, prior.heads if groups is None else groups, keys, head_size)

        def draw(shape: tuple[int, ...], magnitude: float = 1.0) -> Tensor:
            return (torch.randn(shape, generator=random) * magnitude).to(device, dtype)

        leaves = {"q": draw(shape, magnitude), "k": draw(key_shape), "v": draw(key_shape)}
        if ssmax is not None:
            leaves["s"] = torch.tensor(ssmax, device=device)
        exact_leaves = {name: x.double() for name, x in leaves.items()}
        exact_prior = copy.deepcopy(prior).double()
        arguments: dict[str, Any] = {
            "query_start": query_start,
            "key_start": key_start,
            "ssmax_scales_prior": scaled,
        }

        def run(attend: Callable[..., Tensor], leaves: dict[str, Tensor], prior: Prior) -> Any:
            for x in leaves.values():
                x.requires_grad_(gradients)
            q, k, v, *s = leaves.values()
            out = attend(q, k, v, prior=prior, ssmax_scale_H=s[0] if s else None, **arguments)
            if not gradients:
                return out, {}
            leaves = leaves | {name: x for name, x in prior.named_parameters() if x.requires_grad}
            found = torch.autograd.grad(out, list(leaves.values()), d_out.to(out.dtype))
            return out.detach(), dict(zip(leaves, found, strict=True))

        d_out = draw(shape)
        exact_out, exact_gradients = run(reference.attention, exact_leaves, exact_prior)

        def attend(*args: Tensor, **kwargs: Any) -> Tensor:
            cut = Tiles(block_m=tiles[0], block_n=tiles[1])
            return attention(*args, tiles=cut, splits=splits, longest_key_G=longest_key_G, **kwargs)

        out, found = run(attend, leaves, prior)
        assert out.dtype == dtype
        return Comparison(
            out=out,
            exact_out=exact_out,
            gradients=found,
            exact_gradients=exact_gradients,
            largest_logits=_largest_logits(exact_leaves, exact_prior, arguments),
        )

    return compare


@pytest.fixture(scope="session")
def largest_logits() -> Callable[..., Tensor]:
    return _largest_logits


def _largest_logits(leaves: dict[str, Tensor], prior: Prior, arguments: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        q, k, _, *s = leaves.values()
        queries, keys = q.shape[2], k.shape[2]
        position = arguments["query_start"] + torch.arange(queries, device=q.device)
        rel = arguments["key_start"] + torch.arange(keys, device=q.device) - position[:, None]
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        content = q @ k.mT / q.shape[-1] ** 0.5
        t = (s[0][:, None] * torch.log1p(position.double()))[..., None] if s else torch.ones(1).to(q)
        bias = prior.bias(rel).double()
        logits = t * (content + bias) if arguments["ssmax_scales_prior"] else t * content + bias
        weights = logits.masked_fill(rel > 0, -torch.inf).softmax(dim=-1)
        return logits.abs().where(weights > 1e-9, 0).amax(dim=(0, 2, 3))
