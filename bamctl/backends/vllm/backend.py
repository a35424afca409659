"""The vLLM backend: any model that vLLM knows, and ours through the plugin; prompts as token ids.

Shapes: N tokens to score.
"""

import contextlib
import itertools
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bamctl.backends.base import Completion, Finished, ModelDescription
from bamctl.backends.devices import describe_device, end_tokens
from bamctl.backends.hub import HubModel
from bamctl.backends.memory import watch_peak_memory
from bamctl.backends.vllm.engine import check_device, in_process, start_engine, stop_engine
from bamctl.backends.vllm.installed import hushed
from bamctl.backends.vllm.options import EngineOptions
from bamctl.backends.vllm.scoring import Flight
from bamctl.errors import BadInput, RunFailed
from bamctl.models.config import BamConfig
from bamctl.models.loading import DTYPES
from bamctl.models.reading import one_line
from bamctl.tasks.prompt import Prompt


class VllmBackend:
    """Runs a model in one engine for all lengths.

    Args:
        opened: what to load.
        name: what results call it.
        digest: what they know it by.
        device: ``auto``, or what vLLM was built for.
        dtype: a key of `bamctl.models.loading.DTYPES`, or ``auto``: float32 for `model_type: bam`, else as
            the weights are stored.
        share_prefixes: whether prompts take over the keys and values of what they have in common.
        longest: tokens of the longest prompt with its answer.
        options: what a user asked of the engine.

    Raises:
        BadInput: no such device or dtype here, weights that cannot be fetched, or something that vLLM does
            not know.
        RunFailed: the engine did not start, or has no memory for a prompt of that length.
    """

    name = "vllm"

    def __init__(
        self,
        opened: HubModel,
        *,
        name: str,
        digest: str,
        device: str = "auto",
        dtype: str = "auto",
        share_prefixes: bool = True,
        longest: int,
        options: EngineOptions,
    ) -> None:
        if dtype != "auto" and dtype not in DTYPES:
            raise BadInput(f"dtype {dtype!r} is none of auto, {', '.join(DTYPES)}")
        self._kind = check_device(device)
        self.tokenizer = opened.tokenizer
        self.model = ModelDescription(
            name=name,
            digest=digest,
            position_encoding=opened.positions.encoding,
            ssmax=isinstance(opened.config, BamConfig) and opened.config.ssmax,
            train_length=opened.train_length,
            parameters=opened.parameters,
            longest_prompt=opened.longest_prompt,
        )
        self._vocabulary = opened.vocabulary
        self._ends = end_tokens(_generation_end(opened), getattr(self.tokenizer, "eos_token_id", None))
        self._ranks = options.ranks
        self._here = in_process(options)
        limit = opened.longest_prompt
        self._longest = longest if limit is None else min(longest, limit)
        llm = start_engine(
            opened,
            options,
            dtype=_stored_dtype(opened) if dtype == "auto" else dtype,
            share_prefixes=share_prefixes,
            longest=self._longest,
        )
        self._engine = llm.llm_engine
        self.close = weakref.finalize(self, stop_engine, llm)
        """Ends the engine; so does the end of this object, or of the program."""
        self.dtype = str(self._engine.model_config.dtype).removeprefix("torch.")
        self._request_ids = map(str, itertools.count())
        with hushed():  # the first request pays for what is set up once, and is nobody's prompt
            self._run([0])

    @property
    def device(self) -> str:
        """``cpu``, or the GPU with its name; of several ranks, how many."""
        if self._kind != "cuda":
            return self._kind if self._ranks == 1 else f"{self._ranks} × {self._kind}"
        if self._ranks == 1:
            return describe_device(torch.device("cuda:0"))
        return f"{self._ranks} × {torch.cuda.get_device_name(0)}"

    def complete(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """See `bamctl.backends.base.Backend.complete`.

        Raises:
            RunFailed: the engine died; or a prompt that the model has no positions or no tokens for.
        """
        made: dict[int, Completion] = {}
        for finished in self.stream(prompts, together=len(prompts)):
            made |= finished.completions
        return [made[number] for number in range(len(prompts))]

    def stream(self, prompts: Iterable[Prompt], *, together: int | None) -> Iterator[Finished]:
        """See `bamctl.backends.base.Backend.stream`; unless told otherwise, as many as there is memory for.

        Where this ends early, by an error or as nobody asks on, what is still in the engine is taken out.
        """
        waiting = enumerate(prompts)
        requests: dict[str, tuple[Flight, int | None]] = {}
        flights = 0
        peak = self._watch()
        since = time.perf_counter()
        try:
            while True:
                while flights < (together or self._room(requests)):
                    taken = next(waiting, None)
                    if taken is None:
                        break
                    flight = Flight(
                        number=taken[0], prompt=taken[1], token_ids=[int(t) for t in taken[1].token_ids]
                    )
                    self._ask_for_answer(flight, requests)
                    flights += 1
                if not requests:
                    return
                done = self._advance(requests)
                if not done:
                    continue
                flights -= len(done)
                peak_bytes = peak()
                now = time.perf_counter()
                yield Finished(
                    completions={
                        flight.number: flight.completion(self.tokenizer, peak_bytes) for flight in done
                    },
                    seconds=now - since,
                )
                since = time.perf_counter()
                peak = self._watch()
        finally:
            if requests:
                with contextlib.suppress(Exception):  # of an engine that is dead
                    self._engine.abort_request(list(requests))

    def token_logprobs(self, token_ids: NDArray[np.int32], *, first: int = 1) -> NDArray[np.float64]:
        """See `bamctl.backends.base.Backend.token_logprobs`.

        vLLM computes the logits of all tokens, those before `first` too, a scheduled chunk at a time, and
        reads everything anew.

        Raises:
            RunFailed: the engine died; or a text that the model has no positions or no tokens for.
        """
        if first < 1:
            raise ValueError(f"first is {first}: there is nothing before token 0")
        if first >= len(token_ids):
            return np.empty(0)
        ids = [int(token) for token in token_ids]
        self._check(len(ids), max(ids))
        # The last token is what is generated, as nothing else is allowed: so a text may take every position.
        output = self._run(ids[:-1], allowed_token_ids=ids[-1:], prompt_logprobs=0)
        told = [*output.prompt_logprobs[1:], output.outputs[0].logprobs[0]]
        logprobs = [told[place - 1][ids[place]].logprob for place in range(first, len(ids))]
        return np.array(logprobs, dtype=np.float64)

    def workload(self, sample: Prompt, *, longest: int) -> None:
        """None: when vLLM computes what is its scheduler's affair."""

    def _ask_for_answer(self, flight: Flight, requests: dict[str, tuple[Flight, int | None]]) -> None:
        limit, length = flight.prompt.tokens_to_generate, len(flight.token_ids)
        room = max(limit, len(flight.reference))
        self._check(length + room, max(*flight.token_ids, *flight.reference))
        request = self._add(flight.token_ids, max_tokens=limit, stop_token_ids=sorted(self._ends))
        requests[request] = (flight, None)

    def _advance(self, requests: dict[str, tuple[Flight, int | None]]) -> list[Flight]:
        """Lets the engine go on by a step; the prompts of which everything is known now."""
        done = []
        for output in self._step():
            if not output.finished or output.request_id not in requests:
                continue
            flight, place = requests.pop(output.request_id)
            if place is not None:
                flight.take_score(place, output)
            else:
                for missing in flight.take_answer(output, self._ends):
                    request = self._add(
                        [*flight.token_ids, *flight.reference[:missing]],
                        max_tokens=1,
                        allowed_token_ids=[flight.reference[missing]],
                    )
                    requests[request] = (flight, missing)
            if not flight.finite:
                raise RunFailed(f"{self.model.name}: its logits are not finite in {self.dtype}")
            if flight.complete:
                done.append(flight)
        return done

    def _run(self, token_ids: list[int], **sampling: Any) -> Any:
        """One request of one token, to its end."""
        request = self._add(token_ids, max_tokens=1, **sampling)
        try:
            while True:
                for output in self._step():
                    if output.request_id == request and output.finished:
                        return output
        except BaseException:
            with contextlib.suppress(Exception):
                self._engine.abort_request([request])
            raise

    def _add(self, token_ids: list[int], **sampling: Any) -> str:
        from vllm import SamplingParams, TokensPrompt

        request = next(self._request_ids)
        params = SamplingParams(temperature=0, logprobs=0, ignore_eos=True, detokenize=False, **sampling)
        with self._telling():
            self._engine.add_request(request, TokensPrompt(prompt_token_ids=token_ids), params)
        return request

    def _step(self) -> list[Any]:
        with self._telling():
            outputs: list[Any] = self._engine.step()
        return outputs

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Makes one line of whatever ends an engine."""
        try:
            yield
        except Exception as error:
            raise RunFailed(
                f"{self.model.name}: vLLM's engine died ({type(error).__name__}: {one_line(error)})"
            ) from None

    def _check(self, length: int, highest: int) -> None:
        """Refuses what vLLM would cut off, or look up beyond a table's end."""
        limit = self.model.longest_prompt
        if limit is not None and length > limit:
            raise RunFailed(f"{self.model.name}: {length} tokens are beyond its {limit} positions")
        if length > self._longest:
            raise RunFailed(
                f"{self.model.name}: {length} tokens are beyond the {self._longest} that its engine has"
            )
        if highest >= self._vocabulary:
            raise RunFailed(
                f"{self.model.name}: the tokenizer made token {highest}, the model knows {self._vocabulary}"
            )

    def _room(self, requests: dict[str, tuple[Flight, int | None]]) -> int:
        """How many prompts like those there are can be in the engine without one displacing another."""
        config = self._engine.vllm_config
        positions = (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size
        longest = max(
            (
                len(flight.token_ids) + max(flight.prompt.tokens_to_generate, len(flight.reference))
                for flight, _ in requests.values()
            ),
            default=0,
        )
        fit = positions // longest if longest else 1
        return max(1, min(fit, int(config.scheduler_config.max_num_seqs)))

    def _watch(self) -> Any:
        """See `watch_peak_memory`; of other processes nothing is known."""
        if not self._here:
            return lambda: None
        return watch_peak_memory(torch.device("cuda" if self._kind == "cuda" else "cpu"))


def _generation_end(opened: HubModel) -> Any:
    """The tokens that end a text, as transformers takes them for the model."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(opened.folder, local_files_only=True).eos_token_id
    except OSError:  # it has no such file
        return GenerationConfig.from_model_config(opened.config).eos_token_id


def _stored_dtype(opened: HubModel) -> str:
    """As other backends have it: vLLM's own ``auto`` makes less of float32."""
    if isinstance(opened.config, BamConfig):
        return "float32"
    if getattr(opened.config, "quantization_config", None) is not None:
        return "auto"
    for config in (opened.config, opened.config.get_text_config(decoder=True)):
        if getattr(config, "dtype", None) is not None:
            return str(config.dtype).removeprefix("torch.")
    return "auto"
