"""What the definitions of all of RULER's tasks have in common."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from bamctl.errors import BadInput
from bamctl.tasks.spec import TaskSpec

NonEmpty = Annotated[str, Field(min_length=1)]
CONTEXT = "{context}"

UNFORMATTABLE = (KeyError, IndexError, ValueError, AttributeError, TypeError)
"""What `str.format` raises where a text has other fields or braces than it should."""


class RulerSpec(TaskSpec):
    """A task of RULER. `template` and `answer_prefix` are formatted as RULER does, one behind the other."""

    metric: ClassVar[Literal["string_match_all", "string_match_part"]] = "string_match_all"
    """RULER's score of this kind of task."""

    template: str
    """The question, with {context} once, where the haystack goes, and what the kind of task fills in."""
    answer_prefix: str
    """The beginning of the answer, behind the template; a model goes on from its end."""
    tokens_to_generate: Annotated[int, Field(ge=1)]
    """Tokens that may be generated."""
    length_includes_generation: bool = True
    """RULER's convention: a length counts the prompt and `tokens_to_generate`."""

    @field_validator("template")
    @classmethod
    def _has_one_context(cls, template: str) -> str:
        if template.count(CONTEXT) != 1:
            raise ValueError("must hold {context} once, where the haystack goes")
        return template


def format_around(template: str, answer_prefix: str, **fields: object) -> tuple[str, str, str]:
    """The texts before and behind the haystack, and the beginning of the answer, with these fields."""
    before, behind = template.split(CONTEXT)
    return before.format(**fields), behind.format(**fields), answer_prefix.format(**fields)


def check_formats(around: Callable[[], object], fields: str) -> None:
    """Checks that the texts around a haystack can be made.

    Args:
        around: makes them.
        fields: what they may have, as it is told.

    Raises:
        BadInput: they have other fields or braces.
    """
    try:
        around()
    except UNFORMATTABLE as error:
        raise BadInput(f"template: {error} is no field of it; it has {fields}") from None
