"""RULER's own needle module, run as it is, and tokenizers and texts for its tasks."""

import copy
import importlib
import importlib.util
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.ruler.corpora import read_essays
from bamctl.tasks.ruler.niah import NiahTask
from bamctl.tasks.tokenization import PromptTokenizer


@dataclass(kw_only=True)
class Sample:
    """What one call of RULER's `generate_input_output` drew and returned."""

    words: list[str] = field(default_factory=list)
    """Keys and values in the order of their drawing."""
    samples: list[list[int]] = field(default_factory=list)
    """What `random.sample` returned: depths or line numbers, then the numbers of the keys asked for."""
    sentences: list[str] = field(default_factory=list)
    """Of essays."""
    haystack: int = 0
    """Words or lines."""
    text: str = ""
    answers: list[str] = field(default_factory=list)


class RulerNiah:
    """RULER's niah.py, run once, its draws recorded and, where a test says so, forced."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.args = module.args  # type: ignore[attr-defined]
        self.recorded: list[Sample] = []
        self.forced_words: list[str] = []
        self.forced_samples: list[list[int]] = []
        for name in ("generate_input_output", "generate_random", "sent_tokenize"):
            if hasattr(module, name):
                setattr(module, name, getattr(self, name)(getattr(module, name)))
        module.random = self  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        return getattr(random, name)

    def sample(self, population: Any, count: int) -> list[int]:
        """In the place of `random.sample`."""
        drawn = random.sample(population, count)
        if self.forced_samples:
            forced = self.forced_samples.pop(0)
            assert len(forced) == count
            assert set(forced) <= set(population)
            drawn = forced
        self.recorded[-1].samples.append(drawn)
        return drawn

    def generate_input_output(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        def recording(haystack: int) -> Any:
            self.recorded.append(Sample(haystack=haystack))
            text, answers = original(haystack)
            self.recorded[-1].text, self.recorded[-1].answers = text, answers
            return text, answers

        return recording

    def generate_random(self, original: Callable[[str], str]) -> Callable[[str], str]:
        def recording(kind: str) -> str:
            word = self.forced_words.pop(0) if self.forced_words else original(kind)
            self.recorded[-1].words.append(word)
            return word

        return recording

    def sent_tokenize(self, original: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
        def recording(text: str) -> list[str]:
            sentences = original(text)
            self.recorded[-1].sentences = sentences
            return sentences

        return recording

    def run(self, length: int, samples: int) -> list[tuple[dict[str, Any], Sample]]:
        """The lines that RULER's `main` writes, each with its draws."""
        self.args.max_seq_length, self.args.num_samples = length, samples
        self.recorded.clear()
        self.module.main()  # type: ignore[attr-defined]
        file = self.args.save_dir / self.args.save_name / "validation.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return [(line, next(s for s in self.recorded if s.text == line["input"])) for line in lines]

    def one(self, haystack: int) -> Sample:
        """One prompt with so many words or lines of haystack."""
        self.module.generate_input_output(haystack)  # type: ignore[attr-defined]
        return self.recorded[-1]


class CountsFast:
    """In the place of RULER's tokenizer: four characters a token."""

    def text_to_tokens(self, text: str) -> range:
        return range(len(text) // 4)


@contextmanager
def _as_prepared(task: str, folder: Path) -> Iterator[None]:
    """The command line of RULER's prepare.py, and stand-ins for what needs a network."""
    import nltk.tokenize
    import punkt
    import wonderwords.random_word
    import yaml
    from long_context_eval.data import tokenizer
    from long_context_eval.data.synthetic.constants import TASKS

    package = Path(tokenizer.__file__).parents[1]
    config = yaml.safe_load((package / "synthetic.yaml").read_text())[task]
    base = TASKS[config["task"]]
    argv = ["niah.py", "--save_dir", str(folder), "--save_name", task, "--tokenizer_path", "none"]
    argv += ["--max_seq_length", "4096", "--num_samples", "1"]
    argv += ["--tokens_to_generate", str(base["tokens_to_generate"])]
    argv += [part for name, value in config["args"].items() for part in (f"--{name}", str(value))]
    argv += ["--template", base["template"] + base["answer_prefix"]]
    words = wonderwords.random_word._get_words_from_text_file
    with ExitStack() as patches:
        for change in (
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(sys, "path", list(sys.path)),
            mock.patch.object(tokenizer, "select_tokenizer", return_value=CountsFast()),
            mock.patch.object(nltk.tokenize, "sent_tokenize", punkt.sent_tokenize),
            # Six million words take seconds to sort: every 60th of each list will do.
            mock.patch.object(
                wonderwords.random_word, "_get_words_from_text_file", lambda name: words(name)[::60]
            ),
        ):
            patches.enter_context(change)
        yield


@pytest.fixture(scope="session")
def ruler_niah(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RulerNiah]:
    """RULER's niah.py by the name of a task, with that task's arguments."""

    @cache
    def load(task: str) -> RulerNiah:
        import long_context_eval

        path = Path(long_context_eval.__path__[0]) / "data" / "synthetic" / "niah.py"
        found = importlib.util.spec_from_file_location(f"rulers_{task}", path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        with _as_prepared(task, tmp_path_factory.mktemp("ruler")):
            found.loader.exec_module(module)
        return RulerNiah(module)

    return load


@pytest.fixture(scope="session")
def essay(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a text of some 40,000 characters out of RULER's essays, all of them ASCII."""
    path = tmp_path_factory.mktemp("texts") / "essay.txt"
    path.write_bytes(read_essays("ruler")[:40_000].encode("ascii", "ignore"))
    return str(path)


@pytest.fixture(scope="session")
def any_tokenizer(tokenizer_of: Any, cl100k: PreTrainedTokenizerFast) -> Callable[[str], Any]:
    """`tokenizer_of`, and `cl100k`."""
    return lambda kind: cl100k if kind == "cl100k" else tokenizer_of(kind)


@pytest.fixture(scope="session")
def niah_of(any_tokenizer: Any, essay: str) -> Callable[..., NiahTask]:
    """A needle task by its name, a kind of tokenizer and changed fields; in the short `essay` by default."""

    @cache
    def make(kind: str, task: str, **overrides: object) -> NiahTask:
        spec = load_spec(task, **({"essays": essay} | overrides))
        built = build_task(spec, any_tokenizer(kind))
        assert isinstance(built, NiahTask)
        return built

    return make


@pytest.fixture(scope="session")
def chat_of(any_tokenizer: Any, essay: str) -> Callable[..., NiahTask]:
    """A needle task by its name, a kind of tokenizer and the tokenizer's chat template."""

    @cache
    def make(kind: str, task: str, template: str, **overrides: object) -> NiahTask:
        tokenizer = copy.deepcopy(any_tokenizer(kind))
        tokenizer.chat_template = template
        spec = load_spec(task, **({"essays": essay, "apply_chat_template": True} | overrides))
        built = build_task(spec, PromptTokenizer(tokenizer, chat=True))
        assert isinstance(built, NiahTask)
        return built

    return make


@pytest.fixture(scope="session")
def cl100k(essay: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE that takes newlines together with the punctuation before them, as tiktoken's do."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    text = Path(essay).read_text()
    lines = re.sub(r"([.?!]) ", r"\1\n", text), re.sub(r"([.?!]) ", r"\1\n\n", text)
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<|endoftext|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([text, *lines], trainer)
    assert {".Ċ", ".ĊĊ", "?ĊĊ"} <= set(tokenizer.get_vocab())
    tokenizer.add_tokens([AddedToken("<|unasked|>", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


class RulerModule:
    """Any other of RULER's modules that make prompts, loaded once, its prompts and what it drew recorded."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.calls: list[tuple[tuple[Any, ...], Any]] = []
        """Arguments and result of every call of `generate_input_output`."""
        self.samples: list[list[list[int]]] = []
        """Of each of these calls what `random.sample` returned."""
        self.chains: list[tuple[Any, Any]] = []
        """Of each of these calls the variables and the assignments, where there are any."""
        self._args = dict(vars(module.args))
        self._generate = module.generate_input_output
        module.generate_input_output = self._recorded
        module.random = self
        if hasattr(module, "generate_chains"):
            self._generate_chains = module.generate_chains
            module.generate_chains = self._recorded_chains

    def __getattr__(self, name: str) -> Any:
        return getattr(random, name)

    def sample(self, population: Any, count: int) -> Any:
        """In the place of `random.sample`."""
        drawn = random.sample(population, count)
        if self.samples:
            self.samples[-1].append(drawn)
        return drawn

    def _recorded(self, *args: Any, **options: Any) -> Any:
        self.samples.append([])
        result = self._generate(*args, **options)
        self.calls.append((args, result))
        return result

    def _recorded_chains(self, *args: Any, **options: Any) -> Any:
        self.chains.append(self._generate_chains(*args, **options))
        return self.chains[-1]

    def run(
        self, length: int, samples: int, tokenizer: Any = None, seed: int = 42, **args: Any
    ) -> list[dict[str, Any]]:
        """The lines that RULER's `main` writes."""
        import numpy as np

        fields = {"max_seq_length": length, "num_samples": samples, "random_seed": seed, **args}
        vars(self.module.args).update(self._args | fields)
        self.module.TOKENIZER = CountsFast() if tokenizer is None else Counts(tokenizer)
        for recorded in (self.calls, self.samples, self.chains):
            recorded.clear()
        random.seed(seed)
        np.random.seed(seed)
        self.module.main()
        file = self.module.args.save_dir / self.module.args.save_name / "validation.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]


class Counts:
    """In the place of RULER's tokenizer: one of ours."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def text_to_tokens(self, text: str) -> list[str]:
        return list(self.tokenizer.tokenize(text))


@pytest.fixture(scope="session")
def ruler_module(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RulerModule]:
    """RULER's module by the name of a task, with that task's arguments."""

    @cache
    def load(task: str) -> RulerModule:
        import long_context_eval
        import yaml
        from long_context_eval.data import tokenizer
        from long_context_eval.data.synthetic import constants

        package = Path(long_context_eval.__path__[0])
        config = yaml.safe_load((package / "synthetic.yaml").read_text())[task]
        base = constants.TASKS[config["task"]]
        argv = [config["task"], "--save_dir", str(tmp_path_factory.mktemp("ruler")), "--save_name", task]
        argv += ["--tokenizer_path", "none", "--max_seq_length", "4096", "--num_samples", "1"]
        argv += ["--tokens_to_generate", str(base["tokens_to_generate"])]
        argv += ["--template", base["template"] + base["answer_prefix"]]
        argv += [part for name, value in config["args"].items() for part in (f"--{name}", str(value))]
        path = package / "data" / "synthetic" / f"{config['task']}.py"
        found = importlib.util.spec_from_file_location(f"rulers_{task}", path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        with pytest.MonkeyPatch.context() as patched:
            # These are scripts: they change the path, and import one another by bare names.
            patched.setattr(sys, "argv", argv)
            patched.setattr(sys, "path", list(sys.path))
            patched.setitem(sys.modules, "constants", constants)
            patched.setitem(sys.modules, "tokenizer", tokenizer)
            patched.setattr(tokenizer, "select_tokenizer", lambda kind, path: CountsFast())
            found.loader.exec_module(module)
        return RulerModule(module)

    return load


@pytest.fixture(scope="session")
def tiny_bam() -> Any:
    """The tokenizer of the checkpoint that comes along."""
    file = Path(__file__).parents[3] / "models" / "tiny-bam-ssmax" / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), bos_token="<s>", eos_token="</s>")
