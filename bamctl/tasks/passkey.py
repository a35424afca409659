"""Passkey retrieval: one number hidden in irrelevant text, asked for at the end.

    description, haystack with the information line at the depth, question

The answer follows. The pieces are joined by single spaces. The haystack is one array of tokens that depends
neither on the depth nor on the key: whole sentences in order, then the first tokens of a sentence to make up
the exact length. The information line goes between two sentences, at the start, or behind the last tokens.
"""

import hashlib
import itertools
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator, model_validator

from bamctl.errors import BadInput
from bamctl.lengths import format_length
from bamctl.tasks.base import check_depth
from bamctl.tasks.haystack import Haystack, read_text, split_sentences
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.spec import TaskSpec, path_in_task_file
from bamctl.tasks.tokenization import ANCHORS, Continuation, Ids, PromptTokenizer

GARBAGE = "garbage"

_CUTS_TRIED = 32
"""Sentences whose first tokens are tried as the cut sentence where those of the next one do not survive."""

NonEmpty = Annotated[str, Field(min_length=1)]


class PasskeySpec(TaskSpec):
    """The definition of a passkey task."""

    task: Literal["passkey"]
    haystack: str = Field(min_length=1)
    """`garbage`, or the path of a UTF-8 text file."""
    digits: int = Field(ge=1, le=32)
    """Digits of the key."""
    description: NonEmpty
    garbage: Annotated[tuple[NonEmpty, ...], Field(strict=False, min_length=1)]
    """Sentences, in order."""
    information: str
    """The needle, with {key} once or more."""
    question: NonEmpty

    @field_validator("haystack", mode="before")
    @classmethod
    def _from_the_files_folder(cls, haystack: object, info: ValidationInfo) -> object:
        return haystack if haystack == GARBAGE else path_in_task_file(haystack, info)

    @field_validator("information")
    @classmethod
    def _has_key(cls, information: str) -> str:
        if "{key}" not in information:
            raise ValueError("holds no {key}, where the number goes")
        return information

    @field_validator("description", "information", "question", "garbage")
    @classmethod
    def _is_trimmed(cls, text: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for piece in (text,) if isinstance(text, str) else text:
            if not piece or piece != piece.strip():
                raise ValueError(
                    f"{piece!r} is empty or has outer white space; single spaces join the pieces"
                )
        return text

    @model_validator(mode="after")
    def _is_readable(self) -> "PasskeySpec":
        try:
            _ = self.text
        except BadInput as error:
            raise BadInput(f"haystack: {error}") from None
        return self

    @cached_property
    def text(self) -> str | None:
        """The text of the haystack's file, as it was when the definition was read; None for garbage."""
        return None if self.haystack == GARBAGE else read_text(Path(self.haystack))

    def resolved(self) -> dict[str, Any]:
        """The definition without prose, the haystack's file replaced by the SHA-256 of its bytes."""
        definition = super().resolved()
        if self.text is not None:
            definition["haystack"] = hashlib.sha256(self.text.encode()).hexdigest()
        return definition

    def written(self, field: str) -> str:
        """A field's value for people: of a haystack's path the file's name."""
        return Path(self.haystack).name if field == "haystack" else super().written(field)


class PasskeyTask:
    """Passkey prompts for one tokenizer.

    The key is `digits` uniform digits, the first of them not 0; a key that is part of a number elsewhere in
    the texts of the task is drawn again, so that it stands nowhere but in the needle.
    """

    def __init__(self, spec: PasskeySpec, tokenizer: PromptTokenizer) -> None:
        """Tokenises what all samples have in common.

        Raises:
            BadInput: the haystack leaves no token or no free key, or a piece becomes a special token.
        """
        self.spec = spec
        self.tokenizer = tokenizer
        sentences = list(spec.garbage) if spec.text is None else split_sentences(spec.text)
        self._taken = _numbers_in(
            [*sentences, spec.description, spec.information, spec.question], spec.digits
        )
        if len(self._taken) == 9 * 10 ** (spec.digits - 1):
            raise BadInput(f"{spec.haystack} holds every number of digits={spec.digits}; ask for more digits")
        self._prefix = np.array(tokenizer.prefix, dtype=np.int32)
        self._description = tokenizer.opening(spec.description)
        self._question = tokenizer.closing(" " + spec.question, "")
        self._haystack = Haystack.of([" " + sentence for sentence in sentences], tokenizer)
        first = np.concatenate([self._description, self._haystack.sentence(0)])
        self._opening_stable = tokenizer.are_stable([first], opening=True)[0]
        self._cuts: dict[int, tuple[Ids, bool]] = {}
        self.shortest_length = self._shortest_length()

    def build(self, *, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        """Makes one sample; see `bamctl.tasks.base.Task.build`."""
        check_depth(depth)
        key = self._draw_key(rng)
        needle = self._needles([key])[0].ids
        answer = self._answers([key])[0]
        generated = self._tokens_to_generate(len(answer.ids))
        room = length - generated if self.spec.length_includes_generation else length
        size = room - self._fixed_tokens - len(needle)
        if size < 0 or length < self.shortest_length:
            raise BadInput(
                f"length {format_length(length)} is too short for {self.spec.name}: with this tokenizer"
                f" the shortest that always works is {max(self.shortest_length, length - size)} tokens"
            )
        count = self._haystack.whole_sentences(size)
        cut, tail_stable = self._cut(size, count)
        whole = self._haystack.first(count)
        at, before, after = self._place(size * depth / 100, size, count, cut)
        haystack = [whole[:at], needle, whole[at:], cut] if at <= len(whole) else [whole, cut, needle]
        start = len(self._prefix) + len(self._description) + at
        around = np.concatenate([*before, needle, *after])
        stable = (
            answer.clean
            and tail_stable
            and self._haystack.is_stable(count)
            and (count == 0 or self._opening_stable)
            and self.tokenizer.are_stable([around], opening=before[0] is self._description)[0]
        )
        repeats = 0 if self.spec.text is None else max(0, (size - 1) // len(self._haystack.token_ids))
        return Prompt(
            token_ids=np.concatenate([self._prefix, self._description, *haystack, self._question]),
            references=(key,),
            answer_ids=(tuple(answer.ids.tolist()),),
            needle_spans=((start, start + len(needle)),),
            depths=(float(depth),),
            shared_prefix=start,
            haystack_repeats=repeats,
            roundtrip_stable=stable,
            tokens_to_generate=generated,
            chat_prefix=self.tokenizer.chat_prefix,
        )

    def _place(self, target: float, size: int, count: int, cut: Ids) -> tuple[int, list[Ids], list[Ids]]:
        """Where the needle goes in a haystack of `size` tokens: the end of a sentence nearest to `target`.

        Of two equally near ones the earlier.

        Returns:
            The position in the haystack, and the pieces right before and right behind it.
        """
        haystack = self._haystack
        sentence = min(haystack.whole_sentences(target), count)
        at = haystack.start_of(sentence)
        following = haystack.start_of(sentence + 1) if sentence < count else size
        if following - target < target - at:
            sentence, at = sentence + 1, following
        if sentence > count:
            return at, [*self._before(count), cut], [self._question]
        if sentence == count:
            return at, self._before(count), [cut, self._question]
        return at, self._before(sentence), [haystack.sentence(sentence)]

    def _before(self, sentence: int) -> list[Ids]:
        """The piece before a sentence of the haystack."""
        return [self._haystack.sentence(sentence - 1) if sentence else self._description]

    def _cut(self, size: int, count: int) -> tuple[Ids, bool]:
        """What makes `count` whole sentences a haystack of `size` tokens, and whether it is stable there.

        The first tokens of the next sentence, unless they do not survive decoding and encoding (half a
        character, say) and those of another sentence do.
        """
        if size not in self._cuts:
            tokens = size - self._haystack.start_of(count)
            cuts = [self._haystack.sentence(count)[:tokens]]
            stable = self._tails_stable(cuts, count)
            if not stable[0]:
                others = (self._haystack.sentence(count + i) for i in range(1, self._haystack.sentences))
                long_enough = (ids[:tokens] for ids in others if len(ids) >= tokens)
                cuts += itertools.islice(long_enough, _CUTS_TRIED)
                stable += self._tails_stable(cuts[1:], count)
            best = stable.index(True) if any(stable) else 0
            self._cuts[size] = cuts[best], stable[best]
        return self._cuts[size]

    def _tails_stable(self, cuts: list[Ids], count: int) -> list[bool]:
        windows = [np.concatenate([*self._before(count), cut, self._question]) for cut in cuts]
        return self.tokenizer.are_stable(windows, opening=count == 0)

    def _needles(self, keys: list[str]) -> list[Continuation]:
        return self.tokenizer.continuations(
            [" " + self.spec.information.replace("{key}", key) for key in keys]
        )

    def _answers(self, keys: list[str]) -> list[Continuation]:
        return self.tokenizer.continuations(
            [" " + key for key in keys], behind=(self.spec.question, *ANCHORS)
        )

    def _draw_key(self, rng: np.random.Generator) -> str:
        while True:
            digits = [rng.integers(1, 10), *rng.integers(0, 10, size=self.spec.digits - 1)]
            key = "".join(map(str, digits))
            if key not in self._taken:
                return key

    @property
    def _fixed_tokens(self) -> int:
        return len(self._prefix) + len(self._description) + len(self._question)

    def _tokens_to_generate(self, answer_tokens: int) -> int:
        asked = self.spec.tokens_to_generate
        if asked is None:
            return answer_tokens + 2
        if asked < answer_tokens:
            raise BadInput(
                f"{self.spec.name}: tokens_to_generate={asked} is too few for an answer of"
                f" {answer_tokens} tokens"
            )
        return asked

    def _shortest_length(self) -> int:
        """The length that holds any key, with no haystack.

        No key takes more tokens than the longest of one digit and a token for every further digit. Tokenizers
        with one digit a token need exactly that; others need less for most keys, or for all of them.
        """
        digits = self.spec.digits
        short = [str(digit) for digit in range(1, 10)]
        long = [digit * digits for digit in short]
        further = digits - 1
        needles = max(
            *(
                len(needle.ids) + further * self.spec.information.count("{key}")
                for needle in self._needles(short)
            ),
            *(len(needle.ids) for needle in self._needles(long)),
        )
        answers = max(
            *(len(answer.ids) + further for answer in self._answers(short)),
            *(len(answer.ids) for answer in self._answers(long)),
        )
        shortest = self._fixed_tokens + needles
        if self.spec.length_includes_generation:
            shortest += self.spec.tokens_to_generate or answers + 2
        return shortest


def _numbers_in(texts: Iterable[str], digits: int) -> set[str]:
    """Every number of so many digits that stands in the texts, alone or within a longer one."""
    return {
        run[start : start + digits]
        for text in texts
        for run in re.findall(r"[0-9]+", text)
        for start in range(len(run) - digits + 1)
        if run[start] != "0"
    }
