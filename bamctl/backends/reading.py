"""Reading a prompt into whatever cache a model of transformers has, and going on from there.

What a cache can do is not asked of its name but tried: a few tokens are read at once and in parts, and
where the parts say something else, the model is read another way (`Carrying`).

Shapes: B prompts of one length, C tokens of a call, K positions whose logits are wanted, V vocabulary.
"""

import contextlib
import copy
import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from bamctl.backends.memory import memory_of
from bamctl.backends.positions import FrequencySwitch
from bamctl.errors import BadInput

CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")
"""What `forward` and its outputs call the cache: the first since transformers 5.24, state in RWKV."""

LOGITS_NAMES = ("logits_to_keep", "num_logits_to_keep")

PARTS = (29, 8, 3)
"""Tokens of the trial, as they are read one part after the other."""

PROBED = sum(PARTS)

TOLERANCE = 1e-3
"""How much logits may differ between ways of reading, root mean square, as a share of their own spread.
Rounding makes about 1e-5 of it in fp32; a Mamba of random weights whose state is lost is off by 1e-2."""

TOLERANCE_OF_HALVES = 0.25
"""The same where bfloat16 or float16 computes, in which a mixture of experts may choose another one."""

HALVES = (torch.bfloat16, torch.float16)

_FITS = 0.5
"""Of the memory that is free, what fp32 may take for the trial of a model in halves."""


class Carrying(Enum):
    """What a model's cache carries from one call to the next."""

    CHUNKS = "chunks"
    """Everything: calls of any length may follow each other."""
    STEPS = "steps"
    """A whole prompt to single tokens behind it, but not to several at once."""
    NOTHING = "nothing"
    """There is none, or it says something else: everything is read again for every token."""


class Reader:
    """A model, and how it is to be called.

    Args:
        model: any causal language model of transformers, in evaluation mode.
        vocabulary: number of its tokens.
        switch: where its rotary frequencies become others, if they do.

    Raises:
        BadInput: its logits are not finite.
    """

    def __init__(self, model: Any, vocabulary: int, switch: FrequencySwitch | None = None) -> None:
        self._model = model
        self._switch = switch
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in parameters), None)
        self._logits_name = next((name for name in LOGITS_NAMES if name in parameters), None)
        self._takes = {name for name in ("use_cache", "position_ids") if name in parameters}
        # Numbers of no pattern, so that every position matters.
        ids_1C = torch.tensor([[(7919 * (i + 1) ** 2) % vocabulary for i in range(PROBED)]])
        self.carrying = self._try_all(ids_1C.to(self.device))
        """What the cache carries; see `carrying_of` for long texts."""

    @property
    def device(self) -> torch.device:
        """Where token ids have to be."""
        device: torch.device = self._model.get_input_embeddings().weight.device
        return device

    @property
    def switches(self) -> bool:
        """Whether frequencies depend on how long a text is."""
        return self._switch is not None

    @property
    def selects_logits(self) -> bool:
        """Whether the model can leave out the logits that nobody wants."""
        return self._logits_name is not None

    def carrying_of(self, length: int, room: int) -> Carrying:
        """What the cache carries of a prompt of `length` tokens, with `room` tokens to follow it.

        Keys that were turned by other frequencies than those of the text they end up in are of no use.
        """
        if self._switch is None or length + room <= self._switch.at:
            return self.carrying
        if self._switch.once and length > self._switch.at and self.carrying is not Carrying.NOTHING:
            return Carrying.STEPS
        return Carrying.NOTHING

    def forward(
        self,
        ids_BC: Tensor,
        cache: Any = None,
        *,
        start: int = 0,
        keep: int | Tensor = 1,
        use_cache: bool = True,
    ) -> tuple[Tensor, Any]:
        """One call; logits ``[B, K, V]`` of the positions that are wanted, and the cache, None without one.

        Args:
            ids_BC: tokens behind those in the cache.
            cache: as an earlier call returned it; it may be changed in place.
            start: tokens before these.
            keep: positions ``[K]`` whose logits are wanted, or how many of the last.
            use_cache: whether the model is to fill a cache.
        """
        if self._switch is not None and not self._switch.once and not start and ids_BC.shape[1] > 1:
            self.forward(ids_BC[:, :1], use_cache=False)  # brings back the frequencies of short texts
        arguments: dict[str, Any] = {}
        if "use_cache" in self._takes:
            arguments["use_cache"] = use_cache
        if "position_ids" in self._takes:
            positions_C = torch.arange(start, start + ids_BC.shape[1], device=ids_BC.device)
            arguments["position_ids"] = positions_C.expand_as(ids_BC)
        if self._logits_name is not None:
            arguments[self._logits_name] = keep
        if cache is not None and self._cache_name is not None:
            arguments[self._cache_name] = cache
        outputs = self._model(ids_BC, **arguments)
        filled = next((outputs[name] for name in CACHE_NAMES if name in outputs.keys()), None)  # noqa: SIM118
        logits_BKV: Tensor = outputs["logits"]
        if self._logits_name is None:
            logits_BKV = logits_BKV[:, -keep:] if isinstance(keep, int) else logits_BKV[:, keep]
        return logits_BKV, filled

    def _try_all(self, ids_1C: Tensor) -> Carrying:
        """Tries the model as it is and, of one in halves, its values in fp32, which hides no lost state."""
        halves = [
            tensor for tensor in (*self._model.parameters(), *self._model.buffers()) if tensor.dtype in HALVES
        ]
        carrying = self._try(ids_1C, tolerance=TOLERANCE_OF_HALVES if halves else TOLERANCE)
        growth = sum(tensor.numel() * (4 - tensor.itemsize) for tensor in halves)
        spread = len(set(getattr(self._model, "hf_device_map", {}).values())) > 1
        packed = getattr(self._model, "is_quantized", False)  # computes in halves whatever the rest is in
        if not halves or spread or packed or growth > _FITS * memory_of(self.device).available:
            return carrying
        # An operation that is there for halves alone leaves it at what they said.
        with contextlib.suppress(RuntimeError), _in_float32(halves):
            carrying = max(carrying, self._try(ids_1C, tolerance=TOLERANCE), key=list(Carrying).index)
        return carrying

    @torch.inference_mode()
    def _try(self, ids_1C: Tensor, *, tolerance: float) -> Carrying:
        """Reads a few tokens at once and in parts.

        The last parts are short, so that they say something else unless they know what stands before them.
        """
        later = PARTS[1:]
        # cuDNN rounds to 10 bits of mantissa otherwise where a whole prompt goes through a convolution.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            whole_KV = self.forward(ids_1C, keep=sum(later))[0][0]
            if not torch.isfinite(whole_KV).all():
                raise BadInput(
                    f"its logits are not finite in {str(self._model.dtype).removeprefix('torch.')}"
                )
            steps = (PROBED - later[-1], *[1] * later[-1])
            for carrying, parts in ((Carrying.CHUNKS, PARTS), (Carrying.STEPS, steps)):
                told, cache, start = [], None, 0
                for part_1C in ids_1C.split(parts, dim=1):
                    logits_1KV, cache = self.forward(part_1C, cache, start=start, keep=part_1C.shape[1])
                    if cache is None:
                        return Carrying.NOTHING
                    told.append(logits_1KV[0])
                    start += part_1C.shape[1]
                told_KV = torch.cat(told[1:])
                if _are_alike(whole_KV[-len(told_KV) :], told_KV, tolerance):
                    return carrying
        return Carrying.NOTHING


def _are_alike(left_KV: Tensor, right_KV: Tensor, tolerance: float) -> bool:
    left, right = left_KV.double(), right_KV.double()
    return bool((left - right).square().mean().sqrt() <= tolerance * left.std())


@contextlib.contextmanager
def _in_float32(tensors: list[Tensor]) -> Iterator[None]:
    """Weights in fp32 for a while: they come back as they were, as fp32 has every value of halves."""
    dtypes = [tensor.dtype for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in zip(tensors, dtypes, strict=True):
            tensor.data = tensor.data.to(dtype)


class Reading:
    """Prompts that were read, with what comes next; more tokens may follow.

    Args:
        reader: the model.
        ids_BC: the prompts.
        room: the most tokens that will follow.
        chunk_size: how many tokens go through the model at once where its cache allows it.
    """

    def __init__(self, reader: Reader, ids_BC: Tensor, *, room: int, chunk_size: int) -> None:
        self._reader = reader
        self._carrying = reader.carrying_of(ids_BC.shape[1], room)
        self._ids = ids_BC[:, :0]
        self._cache: Any = None
        whole = self._carrying is not Carrying.CHUNKS
        for part_BC in ids_BC.split(ids_BC.shape[1] if whole else chunk_size, dim=1):
            last_B1V = self._read(part_BC, keep=1)
        self.next_BV = last_B1V[:, -1]
        """Logits ``[B, V]`` of the token behind what was read."""

    def append(self, ids_BC: Tensor) -> Tensor:
        """Reads C tokens more; logits ``[B, C, V]`` of what comes behind each of them."""
        apart = self._carrying is Carrying.STEPS or (
            self._carrying is Carrying.NOTHING and self._reader.switches  # each has its own frequencies
        )
        size = 1 if apart else ids_BC.shape[1]
        parts = [self._read(part_BC, keep=part_BC.shape[1]) for part_BC in ids_BC.split(size, dim=1)]
        self.next_BV = parts[-1][:, -1]
        return torch.cat(parts, dim=1)

    def look_ahead(self, ids_BC: Tensor) -> Tensor:
        """Logits ``[B, C + 1, V]`` of the next token and of what comes behind each of C tokens.

        Nothing is read: what comes next stays what it was.
        """
        before = self.next_BV, self._ids, self._cache
        count = ids_BC.shape[1]
        if not count:
            return self.next_BV[:, None]
        cuts = _can_cut(self._cache)
        if not cuts:
            self._cache = copy.deepcopy(self._cache)
        logits_BCV = self.append(ids_BC)
        if cuts:
            self._cache.crop(-count)
        self.next_BV, self._ids, self._cache = before
        return torch.cat((self.next_BV[:, None], logits_BCV), dim=1)

    def _read(self, ids_BC: Tensor, *, keep: int) -> Tensor:
        start = self._ids.shape[1]
        self._ids = torch.cat((self._ids, ids_BC), dim=1)
        if self._carrying is Carrying.NOTHING:
            return self._reader.forward(self._ids, keep=keep, use_cache=False)[0]
        logits_BKV, self._cache = self._reader.forward(ids_BC, self._cache, start=start, keep=keep)
        return logits_BKV


def _can_cut(cache: Any) -> bool:
    """Whether the last tokens can be taken out again: not of a window, nor of a state."""
    layers = getattr(cache, "layers", [])
    return bool(getattr(cache, "is_croppable", False)) and not any(
        hasattr(layer, "record_past") for layer in layers
    )


def logits_of_all(
    reader: Reader, ids_1N: Tensor, *, first: int, chunk_size: int, block: int
) -> Iterator[tuple[int, Tensor]]:
    """Logits behind each token from `first` on, a stretch at a time: its first token, and ``[K, V]``.

    Where the cache does not carry chunks, the whole text is read anew for every stretch; frequencies that
    depend on its length are then those of the whole.

    Args:
        reader: the model.
        ids_1N: one text.
        first: the first token whose logits are wanted.
        chunk_size: how many tokens go through the model at once where their logits are not wanted.
        block: how many do where they are.
    """
    length = ids_1N.shape[1]
    if reader.carrying_of(length, 0) is not Carrying.CHUNKS:
        if not reader.selects_logits:  # all of them are there at once in any case
            block = length
        for start in range(first, length, block):
            end = min(start + block, length)
            positions_K = torch.arange(start, end, device=ids_1N.device)
            yield start, reader.forward(ids_1N, keep=positions_K, use_cache=False)[0][0]
        return
    cache: Any = None
    for start in range(0, first, chunk_size):
        part_1C = ids_1N[:, start : min(start + chunk_size, first)]
        _, cache = reader.forward(part_1C, cache, start=start)
    for start in range(first, length, block):
        part_1K = ids_1N[:, start : start + block]
        logits_1KV, cache = reader.forward(part_1K, cache, start=start, keep=part_1K.shape[1])
        yield start, logits_1KV[0]
