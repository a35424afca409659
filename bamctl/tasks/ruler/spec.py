"""What the definitions of all of RULER's tasks have in common."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from bamctl.tasks.spec import TaskSpec

NonEmpty = Annotated[str, Field(min_length=1)]
CONTEXT = "{context}"


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
