"""The fields that the definition of every task has, and what makes two definitions the same."""

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo


class TaskSpec(BaseModel):
    """A task file, read and checked. Each kind of task adds its own fields.

    Seed, lengths and depths belong to a run and not to a task.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prose: ClassVar[frozenset[str]] = frozenset({"summary", "source"})
    """Fields for people: changing them changes no prompt."""
    metric: ClassVar[Literal["exact", "string_match_all", "string_match_part"]] = "exact"
    """What the task's score is: an exact answer, or one of RULER's two measures of recall."""

    task: str
    """The kind of task, which decides what other fields there are."""
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The file's name without its ending."""
    summary: str
    """What is asked, in a few words."""
    source: str
    """Where the prompt comes from."""
    tokens_to_generate: int | None = Field(default=None, ge=1)
    """Tokens that may be generated; null: two more than the answer has, enough to see that it ends."""
    length_includes_generation: bool = False
    """Whether a length counts `tokens_to_generate` too (RULER's convention) or the prompt alone."""
    apply_chat_template: bool = False
    """Whether the prompt is a user's message in the tokenizer's chat template."""
    prompt_version: Literal[1] = 1
    """Raised whenever the same definition would give other prompts than before."""

    _variant: str = PrivateAttr(default="")

    @property
    def variant(self) -> str:
        """What differs from the task's file, for people: ``"haystack=essays.txt digits=7"``, or ``""``."""
        return self._variant

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of all that decides what is asked: the content of files and not their paths."""
        text = json.dumps(self.resolved(), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def resolved(self) -> dict[str, Any]:
        """The definition without prose, every file in it replaced by the SHA-256 of its bytes."""
        definition = self.model_dump(mode="json", exclude=set(self.prose))
        if not self.apply_chat_template:  # younger than digests that are out in the world
            del definition["apply_chat_template"]
        return definition

    def uses(self, field: str) -> bool:
        """Whether a field decides anything of what is asked."""
        return field in type(self).model_fields

    def note_differences(self, original: "TaskSpec") -> None:
        """Sets `variant` to what this definition has otherwise than `original`."""
        self._variant = " ".join(
            f"{field}={self.written(field)}"
            for field in type(self).model_fields
            if getattr(self, field) != getattr(original, field)
        )

    def written(self, field: str) -> str:
        """A field's value as one writes it in a task file."""
        value = getattr(self, field)
        return value if isinstance(value, str) else json.dumps(value)


def path_in_task_file(path: object, info: ValidationInfo) -> object:
    """A path in a task file counts from the file's folder, any other from the current folder."""
    if isinstance(path, Path):
        path = str(path)
    if isinstance(path, str) and path and info.context and path[0] != "~":
        return str(info.context["folder"] / path)
    return path
