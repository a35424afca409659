"""Question answering, in RULER's words: a question, and documents of which one or a few answer it.

A question's own documents come first: its evidence, then what the data gives along with it. Others follow as
far as a length reaches, and all of them again where it reaches further. They are shuffled, but for the last
one, which is cut to the exact length and is no evidence.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bamctl.tasks.cache import cached, digest_of
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.ruler.limits import (
    chat_tokens,
    check,
    leading_equal,
    prompt_tokens,
    target_length,
    too_short,
)
from bamctl.tasks.ruler.pieces import Numbered, Pieces, Shuffle, first_stable, seeded_shuffle
from bamctl.tasks.ruler.qa_data import Question
from bamctl.tasks.ruler.question_answering_spec import QuestionAnsweringSpec
from bamctl.tasks.tokenization import ANCHORS, BEHIND_NEWLINE, Ids, PromptTokenizer

ENDS_TRIED = 32
"""Documents whose beginning is tried as the last one."""

CHUNK = 256
"""Documents that are tokenised together."""

_VERSION = 1
"""Of what is kept on the disk: rises whenever the same data would give other numbers."""

_TITLE = "Document {i}:\n"
_BETWEEN = "\n\n"
_TITLES = (_TITLE.format(i=1), _TITLE.format(i=2))
_BEHIND_TITLE = (_TITLES[0], *ANCHORS)

_TOGETHER = 128
"""Questions that are tokenised together."""

_SEAMS = 4
"""Tokens that the texts of a prompt may have more together than one by one."""


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringDraw:
    """What chance decides of a sample."""

    question: Question
    companions: tuple[int, ...]
    """The question's own documents that are no evidence, in the order in which they are taken."""
    start: int
    """Where in the order of all documents the others start."""
    shuffled: Shuffle
    """So many documents in the order of the prompt."""


class QuestionAnsweringTask:
    """RULER's question answering for one tokenizer."""

    def __init__(self, spec: QuestionAnsweringSpec, tokenizer: PromptTokenizer) -> None:
        """Reads the questions, and finds the longest one.

        Raises:
            BadInput: the data set is not installed or has another format, or a piece becomes a special token.
        """
        self.spec = spec
        self.tokenizer = tokenizer
        self._questions = spec.questions.questions
        self._documents = _Documents(spec, tokenizer)
        self._titles = Numbered(_TITLE, tokenizer, between=("a.\n\n", "A"), behind=BEHIND_NEWLINE)
        self._before = tokenizer.opening(spec.around("")[0] + _TITLE.format(i=1))
        self.shortest_length = self._shortest_length()

    def build(self, *, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        """Makes one sample; see `bamctl.tasks.base.Task.build`.

        The first document of the evidence is the one at `depth`.
        """
        check(self.spec, length, depth, self.shortest_length)
        return self.assemble(self.draw(rng), length=length, depth=depth)

    def draw(self, rng: np.random.Generator) -> QuestionAnsweringDraw:
        """The question and the documents of a sample."""
        question = self._questions[rng.integers(len(self._questions))]
        return QuestionAnsweringDraw(
            question=question,
            companions=tuple(rng.permutation(np.array(question.companions, dtype=np.int64)).tolist()),
            start=int(rng.integers(len(self._documents))),
            shuffled=seeded_shuffle(rng),
        )

    def assemble(self, drawn: QuestionAnsweringDraw, *, length: int, depth: float) -> Prompt:
        """The sample of a draw.

        Raises:
            BadInput: the length is too short.
        """
        spec, evidence = self.spec, len(drawn.question.evidence)
        before, _, answer_prefix = spec.around(drawn.question.text)
        prefix = np.array(self.tokenizer.prefix, dtype=np.int32)
        opening = self.tokenizer.opening(before + _TITLE.format(i=1))
        room = prompt_tokens(spec, length) - len(prefix) - len(opening)
        found = self._fitting(drawn, room)
        if found is None:
            raise too_short(spec, length, max(self.shortest_length, length + 1))
        (documents, ending), stable_end = found
        count = len(documents) + ending.has_cut
        first = min(int(count * (depth / 100)), len(documents) - 1)
        order = np.insert(1 + drawn.shuffled(len(documents) - 1), first, 0)
        titles = self._titles.below(count + 1)
        ids: list[Ids] = []
        for number, index in enumerate(order, start=1):
            ids += [titles.piece(number) if number > 1 else opening, documents[index].ids]
        ends = len(prefix) + np.cumsum([len(piece) for piece in ids])
        places = [int(np.flatnonzero(order == index)[0]) for index in range(evidence)]
        answers = self.tokenizer.continuations(
            [" " + answer for answer in drawn.question.answers], behind=(answer_prefix, *ANCHORS)
        )
        stable = (
            stable_end
            and all(document.stable for document in documents)
            and bool(titles.stable[2 : count + 1].all())
            and self.tokenizer.are_stable([np.concatenate(ids[:3])], opening=True)[0]
            and self.tokenizer.are_stable([np.concatenate([documents[order[-1]].ids, *ending.parts])])[0]
        )
        return Prompt(
            token_ids=np.concatenate([prefix, *ids, *ending.parts]),
            references=drawn.question.answers,
            answer_ids=tuple(tuple(answer.ids.tolist()) for answer in answers),
            needle_spans=tuple((int(ends[2 * place]), int(ends[2 * place + 1])) for place in places),
            depths=(float(depth), *(100 * place / count for place in places[1:])),
            shared_prefix=len(prefix) + leading_equal(opening, self._before),
            haystack_repeats=max(0, (count - evidence - 1) // (len(self._documents) - evidence)),
            roundtrip_stable=stable and answers[0].clean,
            tokens_to_generate=spec.tokens_to_generate,
            chat_prefix=self.tokenizer.chat_prefix,
        )

    def _fitting(
        self, drawn: QuestionAnsweringDraw, room: int
    ) -> tuple[tuple[list["_Document"], "_Ending"], bool] | None:
        """The whole documents of a prompt, the evidence first, what follows them, and whether that is stable.

        None where the evidence does not fit.
        """
        taken = self._documents.of(drawn)
        documents: list[_Document] = []
        sizes = [0]
        while sizes[-1] <= room:
            documents.append(next(taken))
            title = len(self._titles.below(len(documents) + 1).piece(len(documents)))
            sizes.append(sizes[-1] + len(documents[-1].ids) + title * (len(documents) > 1))
        endings = self._endings(drawn.question, documents, sizes, room, taken)
        first = next(endings, None)
        return None if first is None else first_stable(itertools.chain([first], endings), self.tokenizer)

    def _endings(
        self,
        question: Question,
        documents: Sequence["_Document"],
        sizes: Sequence[int],
        room: int,
        more: Iterator["_Document"],
    ) -> Iterator[tuple[tuple[list["_Document"], "_Ending"], Ids]]:
        """Ways to fill a room exactly, each with the tokens to look at; the best one first.

        Args:
            question: what is asked.
            documents: as many as fit, and one more.
            sizes: tokens of the first 0, 1, … of them, with their titles.
            room: tokens.
            more: documents behind those.
        """
        _, behind, answer_prefix = self.spec.around(question.text)
        closing = self.tokenizer.closing(behind, answer_prefix)
        # What is between documents may also stand between the last one and the closing.
        ends_document = behind.startswith(_BETWEEN) and not behind[len(_BETWEEN) :][:1].isspace()
        question_alone = behind[len(_BETWEEN) :] if ends_document else behind
        closing_alone = self.tokenizer.closing(question_alone, answer_prefix, behind=BEHIND_NEWLINE)
        rooms = []
        for count in range(len(documents) - 1, max(len(question.evidence), len(documents) - 3) - 1, -1):
            if ends_document and sizes[count] + len(closing_alone) == room:
                whole = list(documents[:count])
                yield (whole, _Ending((closing_alone,), False)), _window(whole, [closing_alone])
            if sizes[count] + len(closing) < room:
                rooms.append((count, room - sizes[count] - len(closing)))
        # Rather a shorter part of a longer document than nothing but a part of a title.
        for in_title, (count, left) in itertools.product((False, True), rooms):
            whole = list(documents[:count])
            title = self._titles.below(count + 2).piece(count + 1)
            following = itertools.chain(documents[count:], more)
            for document in itertools.islice(following, ENDS_TRIED):
                if (left <= len(title)) == in_title and left < len(title) + len(document.ids):
                    parts = (np.concatenate([title, document.ids])[:left], closing)
                    yield (whole, _Ending(parts, True)), _window(whole, parts)
        for count, left in rooms:
            whole = list(documents[:count])
            title = self._titles.below(count + 2).piece(count + 1)
            run_on = [np.concatenate([title, document.ids]) for document in documents[count:]]
            parts = (np.resize(np.concatenate(run_on), left), closing)
            yield (whole, _Ending(parts, True)), _window(whole, parts)

    def _shortest_length(self) -> int:
        """The length that holds any question with its evidence."""
        texts = digest_of(self.spec.data_digest, *self.spec.around("\0"))
        key = digest_of("longest question", str(_VERSION), self.tokenizer.digest, texts)
        tokens = int(cached(key, lambda: {"tokens": np.array(self._longest_question())})["tokens"])
        return target_length(self.spec, len(self.tokenizer.prefix) + chat_tokens(self.tokenizer) + tokens)

    def _longest_question(self) -> int:
        """The most tokens of a question, its evidence and the texts around it, and some for their seams.

        No text has more tokens than bytes, so that short ones need not be tokenised.
        """
        around = {question: self.spec.around(question.text) for question in self._questions}
        titles = self._titles.below(1 + max(len(question.evidence) for question in around)).lengths
        sizes = {
            question: len("".join(texts).encode())
            + sum(self._documents.size(index) for index in question.evidence)
            + int(titles.max()) * len(question.evidence)
            for question, texts in around.items()
        }
        longest = 0
        questions = sorted(sizes, key=lambda question: -sizes[question])
        for start in range(0, len(questions), _TOGETHER):
            some = [one for one in questions[start : start + _TOGETHER] if sizes[one] > longest]
            before = self.tokenizer.continuations([around[one][0] + _TITLE.format(i=1) for one in some])
            behind = self.tokenizer.continuations(["".join(around[one][1:]) for one in some])
            lengths = self._documents.lengths({index for one in some for index in one.evidence})
            for one, opening, closing in zip(some, before, behind, strict=True):
                evidence = sum(lengths[index] for index in one.evidence)
                evidence += int(titles[2 : len(one.evidence) + 1].sum())
                longest = max(longest, len(opening.ids) + len(closing.ids) + evidence)
        return longest + _SEAMS


class _Document(NamedTuple):
    """The tokens of a document, and whether they survive decoding and encoding."""

    ids: Ids
    stable: bool


class _Ending(NamedTuple):
    """What follows the whole documents."""

    parts: tuple[Ids, ...]
    has_cut: bool
    """Whether a part of a document is the first of them."""


class _Documents:
    """The documents of a data set as tokens.

    In an order of their own, which is drawn once, so that the others of a sample are neighbours and few of
    them need to be tokenised for a short prompt.
    """

    def __init__(self, spec: QuestionAnsweringSpec, tokenizer: PromptTokenizer) -> None:
        self._texts = spec.questions.documents
        self._digest = spec.data_digest
        self._tokenizer = tokenizer
        self._order = np.random.default_rng(int(self._digest[:16], 16)).permutation(len(self._texts))
        self._chunks: dict[int, Pieces] = {}
        self._own: dict[int, _Document] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._texts)

    def of(self, drawn: QuestionAnsweringDraw) -> Iterator[_Document]:
        """The documents of a draw, without an end: its evidence, its companions, and all others.

        Then all but its evidence again, over and over.
        """
        evidence, companions = set(drawn.question.evidence), set(drawn.companions)
        own = [*drawn.question.evidence, *drawn.companions]
        missing = [index for index in own if index not in self._own]
        pieces = self._tokenised([self._texts[index] for index in missing])
        for number, index in enumerate(missing):
            self._own[index] = _Document(pieces.piece(number), bool(pieces.stable[number]))
        yield from (self._own[index] for index in own)
        for taken in itertools.count():
            place = (drawn.start + taken) % len(self)
            index = int(self._order[place])
            if index not in evidence and (index not in companions or taken >= len(self)):
                yield self._at(place)

    def size(self, index: int) -> int:
        """The bytes of a document."""
        return len((self._texts[index] + _BETWEEN).encode())

    def lengths(self, indices: set[int]) -> dict[int, int]:
        """The tokens of some documents."""
        texts = [self._texts[index] + _BETWEEN for index in indices]
        pieces = self._tokenizer.continuations(texts, behind=_BEHIND_TITLE)
        return {index: len(piece.ids) for index, piece in zip(indices, pieces, strict=True)}

    def _at(self, place: int) -> _Document:
        """The document at a place of the order."""
        chunk, number = divmod(place, CHUNK)
        if chunk not in self._chunks:
            order = self._order[chunk * CHUNK : (chunk + 1) * CHUNK]
            self._chunks[chunk] = Pieces.kept(
                lambda: [self._texts[index] + _BETWEEN for index in order],
                ("documents", self._digest, str(chunk), str(CHUNK)),
                self._tokenizer,
                between=_TITLES,
                behind=_BEHIND_TITLE,
            )
        pieces = self._chunks[chunk]
        return _Document(pieces.piece(number), bool(pieces.stable[number]))

    def _tokenised(self, texts: Sequence[str]) -> Pieces:
        texts = [text + _BETWEEN for text in texts]
        return Pieces.of(texts, self._tokenizer, between=_TITLES, behind=_BEHIND_TITLE)


def _window(documents: Sequence[_Document], ending: Sequence[Ids]) -> Ids:
    """What to look at of the end of a prompt: a document such as the last whole one, and all behind it."""
    return np.concatenate([documents[-1].ids, *ending])
