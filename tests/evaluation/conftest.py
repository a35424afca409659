"""A backend that needs no model, and what a run of it is measured with."""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bamctl.backends.base import Completion, Finished, ModelDescription, in_batches
from bamctl.evaluation.depths import parse_depths
from bamctl.evaluation.run import EvaluationRequest
from bamctl.evaluation.scores import Metric
from bamctl.models.training.tokenizer import train_tokenizer
from bamctl.tasks.base import Task
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.passkey import PasskeySpec
from bamctl.tasks.prompt import Prompt


class ScriptedBackend:
    """Answers right where `right` says so, by default everywhere."""

    name = "native"
    device = "cpu"
    dtype = "float32"

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.model = ModelDescription(
            name="scripted",
            digest="d" * 64,
            position_encoding="uniform",
            ssmax=False,
            train_length=128,
            parameters=0,
            longest_prompt=None,
        )
        self.right: Callable[[Prompt], bool] = lambda prompt: True
        self.before: Callable[[int], None] = lambda number: None
        """Called with the number of each batch, from 0; what it raises comes out of `complete`."""
        self.batches: list[list[Prompt]] = []

    @property
    def answered(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def workload(self, sample: Prompt, *, longest: int) -> None:
        """Nothing is known of it."""

    def complete(self, prompts: Sequence[Prompt]) -> list[Completion]:
        self.before(len(self.batches))
        self.batches.append(list(prompts))
        return [self._answer(prompt) for prompt in prompts]

    def stream(self, prompts: Iterable[Prompt], *, together: int | None) -> Iterator[Finished]:
        return in_batches(self.complete, prompts, together or 1)

    def _answer(self, prompt: Prompt) -> Completion:
        right = self.right(prompt)
        return Completion(
            token_ids=prompt.answer_ids[0] if right else (),
            text=f" {prompt.references[0]}." if right else "",
            finish_reason="length" if right else "stop",
            answer_logprob=-0.5 if right else -20.0,
            reused_tokens=7,
            prefill_seconds=0.25,
            decode_seconds=0.5,
            peak_memory_bytes=2**30,
        )


@pytest.fixture(scope="session")
def tokenizers(tiny_checkpoint: Path) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Two that share no word; the second one has little more than bytes."""
    return AutoTokenizer.from_pretrained(tiny_checkpoint), train_tokenizer("abc", [], vocab_size=259)


@pytest.fixture(scope="session")
def task(tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]) -> Task:
    """Passkey for the first of the tokenizers."""
    return build_task(load_spec("passkey"), tokenizers[0])


class TwoKeysSpec(PasskeySpec):
    """Passkey, scored as RULER scores tasks with several answers."""

    metric: ClassVar[Metric] = "string_match_all"


class TwoKeys:
    """Asks for the key of passkey and a word that nobody has told of; its prompts have a chat's beginning."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.spec = TwoKeysSpec(**task.spec.model_dump())
        self.tokenizer = task.tokenizer
        self.shortest_length = task.shortest_length

    def build(self, *, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        prompt = self._task.build(length=length, depth=depth, rng=rng)
        ((start, end),) = prompt.needle_spans
        return replace(
            prompt,
            references=(*prompt.references, "word"),
            depths=(*prompt.depths, 97.5),
            needle_spans=((start, end), (end, end + 1)),
            chat_prefix="<user>\n",
        )


@pytest.fixture
def two_keys(task: Task) -> TwoKeys:
    return TwoKeys(task)


@pytest.fixture
def backend(tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]) -> ScriptedBackend:
    return ScriptedBackend(tokenizers[0])


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., EvaluationRequest]:
    """Three samples at 128, 256 and 512 tokens into `tmp_path`/out, unless told otherwise."""

    def make(depths: str = "0,50,100", samples: int = 3, **fields: Any) -> EvaluationRequest:
        values: dict[str, Any] = {"lengths": (128, 256, 512), "out": tmp_path / "out"}
        return EvaluationRequest(samples=samples, depths=parse_depths(depths, samples), **(values | fields))

    return make


@pytest.fixture(scope="session")
def ruler_evaluate() -> ModuleType:
    """RULER's own program that scores files, imported as it wants to be, but without its download."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["evaluate", "--data_dir", "unused"])
        patch.setitem(sys.modules, "nltk", SimpleNamespace(data=SimpleNamespace(find=lambda name: name)))
        return importlib.import_module("long_context_eval.eval.evaluate")
