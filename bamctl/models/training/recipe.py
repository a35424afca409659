"""A recipe: everything that decides how a checkpoint comes about, in one YAML file."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bamctl.errors import BadInput


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TokenizerRecipe(_Section):
    """A byte-level BPE with single digits, trained on the recipe's text and on its prompts."""

    vocab_size: int = Field(ge=300, le=1_000_000)


class Stage(_Section):
    """One stretch of the length curriculum: batches of one length each, drawn evenly from a range."""

    until: float = Field(gt=0, le=1)
    """Where it ends, as a fraction of all steps."""
    lengths: tuple[int, int]
    """Shortest and longest context, in tokens."""

    @model_validator(mode="after")
    def _ordered(self) -> "Stage":
        if not 16 <= self.lengths[0] <= self.lengths[1]:
            raise ValueError("lengths must be [shortest, longest] with 16 <= shortest <= longest")
        return self


def _counts(counts: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= counts[0] <= counts[1]:
        raise ValueError("must be [fewest, most] with 1 <= fewest <= most")
    return counts


Counts = Annotated[tuple[int, int], AfterValidator(_counts)]


class PasskeyExamples(_Section):
    """Passkey prompts, in the words of a task file."""

    kind: Literal["passkey"]
    weight: float = Field(gt=0)
    task: str = "passkey"
    digits: tuple[int, int] = (5, 5)

    def describe(self) -> str:
        """In a few words, for the card."""
        return f"the prompt of the task {self.task}, keys of {self.digits[0]} to {self.digits[1]} digits"


class LookupExamples(_Section):
    """Several keys with a value each, of which one is asked for."""

    kind: Literal["lookup"]
    weight: float = Field(gt=0)
    needle: str
    """A sentence with {key} and {value}."""
    question: str
    """Ends where the value follows; holds {key}."""
    keys: tuple[int, int] = (1, 1)
    digits: tuple[int, int] = (5, 7)
    source: str | None = None
    """Where the wording comes from."""

    def describe(self) -> str:
        """In a few words, for the card."""
        origin = f" ({self.source})" if self.source else ""
        return f"`{self.needle}`, {self.keys[0]} to {self.keys[1]} keys, one of them asked for{origin}"


class TextExamples(_Section):
    """Stretches of the recipe's text."""

    kind: Literal["text"]
    weight: float = Field(gt=0)

    def describe(self) -> str:
        """In a few words, for the card."""
        return "stretches of text"


class CopyExamples(_Section):
    """A stretch of text, and the same once more."""

    kind: Literal["copy"]
    weight: float = Field(gt=0)

    def describe(self) -> str:
        """In a few words, for the card."""
        return "a stretch of text, and the same once more"


class NiahExamples(_Section):
    """Prompts of a needle task of RULER, in the words of its file, with their answers.

    Where an example does not fit into a batch's length, a stream of the same task takes its place.
    """

    kind: Literal["niah"]
    weight: float = Field(gt=0)
    task: str
    keys: Counts | None = None
    """How many keys; None for as many as the task has."""
    values: Counts | None = None
    """How many values of each key; None for as many as the task has."""
    queries: Counts | None = None
    """How many keys are asked for; None for as many as the task has."""

    def describe(self) -> str:
        """In a few words, for the card."""
        given = {"keys": self.keys, "values a key": self.values, "keys asked for": self.queries}
        counts = [f"{counts[0]} to {counts[1]} {name}" for name, counts in given.items() if counts]
        return f"the prompt of the task {self.task}" + "".join(f", {count}" for count in counts)


class StreamExamples(_Section):
    """Facts and questions by turns, cut from a needle task's words: many answers in few tokens.

    A fact is a needle from the word before its key on, a question the task's answer prefix likewise.
    """

    kind: Literal["niah_stream"]
    weight: float = Field(gt=0)
    task: str
    values: int = Field(default=1, ge=1)
    """The most values that a key gets."""
    queries: int = Field(default=1, ge=1)
    """The most keys in one question."""

    def describe(self) -> str:
        """In a few words, for the card."""
        return (
            f"short facts and questions by turns, in words of the task {self.task}; up to {self.values}"
            f" values a key and {self.queries} keys a question"
        )


Examples = PasskeyExamples | LookupExamples | TextExamples | CopyExamples | NiahExamples | StreamExamples


class DataRecipe(_Section):
    """What the model is trained on."""

    text: tuple[str, ...] = Field(min_length=1)
    """Files, folders of text files, or ``python-docs``: the documentation inside the running Python."""
    examples: tuple[Examples, ...] = Field(min_length=1)
    garbage: float = Field(default=0.5, ge=0, le=1)
    """Share of haystacks made of the passkey task's garbage; the others are text."""
    distractors: tuple[str, ...] = ()
    """Sentences with {word} and {number} that are strewn into haystacks and never asked for."""
    distractor_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the haystacks that hold any."""
    few_digits_share: float = Field(default=0.25, ge=0, le=1)
    """Share of the numbers that use two digits only: repeated digits are the hardest to copy."""
    held_out_nouns: float = Field(default=0.0, ge=0, lt=1)
    """Share of the nouns that no key of a needle is made of, so that unseen keys can be asked for."""


class OptimiserRecipe(_Section):
    """AdamW, and Muon where it has a learning rate; warm-up, constant, then linear to zero."""

    steps: int = Field(ge=1)
    tokens_per_step: int = Field(ge=64)
    learning_rate: float = Field(gt=0)
    prior_learning_rate: float = Field(gt=0)
    """Of α, β, μ and SSMax's factor."""
    muon_learning_rate: float | None = Field(default=None, gt=0)
    """Of the matrices inside the layers, which Muon then takes over from AdamW."""
    tokens_per_pass: int | None = Field(default=None, ge=64)
    """A batch goes through the model in parts of at most so many tokens, for memory's and the cache's sake;
    None for all at once. The gradient is that of the whole."""
    language_weight: float = Field(default=1.0, ge=0)
    """Of the mean loss over all tokens, beside the mean loss over those that were asked for."""
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(default=0.05, ge=0)
    """Of matrices alone: never of norms, priors or SSMax's factor."""
    clip: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=60, ge=0)
    decay_from: float = Field(default=0.5, ge=0, le=1)
    """Where the learning rate begins to fall, as a fraction of all steps."""


class LogLengthJitter(_Section):
    """SSMax's ln n times a factor, log-uniform, one a batch: it imitates longer contexts."""

    share: float = Field(default=0.75, ge=0, le=1)
    lowest: float = Field(default=0.6, gt=0)
    highest: float = Field(default=2.0, gt=0)


_YOUNGER = (
    ("data", "held_out_nouns", 0.0),
    ("optimiser", "muon_learning_rate", None),
    ("optimiser", "tokens_per_pass", None),
    ("optimiser", "language_weight", 1.0),
)
"""Fields younger than digests that are out in the world, left out of them where they change nothing."""


class Recipe(_Section):
    """The whole recipe."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    summary: str
    seed: int = 0
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    weights_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """What the finished weights are stored in; priors and SSMax always in fp32."""
    tokenizer: TokenizerRecipe
    model: dict[str, Any]
    """Fields of `bamctl.models.BamConfig`, less those that follow from the rest of the recipe."""
    data: DataRecipe
    stages: tuple[Stage, ...] = Field(min_length=1)
    optimiser: OptimiserRecipe
    log_length_jitter: LogLengthJitter | None = None
    search: tuple[str, ...] = ()
    """What else was tried before this recipe, and what came of it: sentences for the card."""
    limits: tuple[str, ...] = ()
    """What the checkpoint cannot do, as far as it is known: sentences for its card."""

    @model_validator(mode="after")
    def _stages_cover_all(self) -> "Recipe":
        ends = [stage.until for stage in self.stages]
        if ends != sorted(set(ends)) or ends[-1] != 1:
            raise ValueError("stages must end at rising fractions, the last at 1")
        derived = {"vocab_size", "train_length", "bos_token_id", "eos_token_id"} & set(self.model)
        if derived:
            raise ValueError(f"model: {', '.join(sorted(derived))} follow from the rest of the recipe")
        return self

    @property
    def train_length(self) -> int:
        """The longest context, in tokens."""
        return max(stage.lengths[1] for stage in self.stages)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of all but the prose: what a half-finished training must agree with."""
        content = self.model_dump(mode="json", exclude={"summary", "search", "limits"})
        for section, name, default in _YOUNGER:
            if content[section][name] == default:
                del content[section][name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_recipe(path: Path) -> Recipe:
    """Reads a recipe.

    Raises:
        BadInput: no such file, no YAML, an unknown or missing field, a value out of its range.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"recipe {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"recipe {path} is no YAML: {' '.join(str(error).split())}") from None
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        # A misspelt field is unknown and, under its right name, missing: the former says more.
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BadInput(f"recipe {path}: {where}: {first['msg']}") from None
