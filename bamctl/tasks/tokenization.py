"""Any Hugging Face tokenizer, as one that makes prompts out of pieces.

A prompt is assembled from pieces that were tokenised one by one, so a piece must get the tokens that it has
inside the prompt. Tokenizers treat the start of a text specially (metaspace tokenizers put a word boundary
in front of it, some strip its spaces), so a piece that continues a prompt is tokenised behind an anchor
text, whose tokens are then cut off.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bamctl.errors import BadInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = NDArray[np.int32]

ANCHORS = ("The sky is blue.", "The pass key is", "a", ".", "1")
"""Texts to stand before a piece, tried in this order: the ends of sentences and words that prompts have."""

BEHIND_NEWLINE = ("The sky is blue.\n", "1\n", "a\n")
"""Texts to stand before a piece at the start of a line."""

_ASKED = "THE-USERS-MESSAGE"
"""Stands for the user's message while a chat template is rendered."""

_BATCH = 8192
"""Texts per call of the tokenizer: what it keeps for each token (offsets, strings, masks) is far larger than
the ids, so that the batch bounds the memory of tokenising a large corpus."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Continuation:
    """The tokens of a text that continues another."""

    ids: Ids
    clean: bool
    """False where no anchor kept its own tokens when the text followed it: `ids` are then those of the text
    alone, and a prompt with them is not what the tokenizer would make of the prompt's text."""


@dataclass(frozen=True, kw_only=True)
class ChatFrame:
    """What a chat template puts around one message of the user, as text."""

    before: str
    behind: str
    """Up to where the answer begins."""


class PromptTokenizer:
    """Tokens of the pieces of a prompt. Text is text here: what looks like a special token becomes none.

    The tokens of a chat template alone are special.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, chat: bool = False) -> None:
        """Takes a tokenizer, fast or slow.

        Args:
            tokenizer: of transformers.
            chat: whether prompts are a user's message in the tokenizer's chat template.

        Raises:
            BadInput: the tokenizer's own special tokens cannot be told from the text between them, or it has
                no chat template that keeps a message as it is.
        """
        self.tokenizer = tokenizer
        self.chat = _chat_frame(tokenizer) if chat else None
        """The chat template that prompts stand in; None where they are plain text."""
        self._asks, self._gap = words_and_spaces(self.chat.before if self.chat else "")
        self.prefix: tuple[int, ...] = (
            tuple(_encode_special(tokenizer, self._asks)) if self.chat else _leading_special_tokens(tokenizer)
        )
        """What comes before every prompt: what the tokenizer itself puts there (BOS, [CLS]), or the chat
        template up to the user's message, less spaces at its end, which `opening` has; may be empty."""
        named = set(tokenizer.all_special_ids)
        self._special = {
            index: token.content
            for index, token in tokenizer.added_tokens_decoder.items()
            if token.special or index in named
        }
        self._anchor_ids: dict[str, list[int]] = {}
        self._digest: str | None = None

    @property
    def chat_prefix(self) -> str | None:
        """What the chat template puts before the question, as text; None where there is none."""
        return None if self.chat is None else self.chat.before

    def opening(self, text: str) -> Ids:
        """Tokens of a text at the very start of a prompt, behind `prefix`.

        Raises:
            BadInput: the tokenizer makes a special token of the text.
        """
        if self.chat:
            ids = self._behind(self._asks, self._gap + text)
        else:
            ids = np.array(self._encode([text])[0], dtype=np.int32)
        marker = self._special_token_of(text, ids)
        if marker is not None:
            raise _special_token_error(marker)
        return ids

    def closing(self, question: str, answer_prefix: str, *, behind: Sequence[str] = ANCHORS) -> Ids:
        """Tokens of the end of a prompt: the question, what the chat template puts there, and the beginning
        of the answer.

        Raises:
            BadInput: the tokenizer makes a special token of the texts.
        """
        if self.chat is None:
            return self.continuations([question + answer_prefix], behind=behind)[0].ids
        asked = self.continuations([question], behind=behind)[0].ids
        answer = self.chat.behind + answer_prefix
        for anchor in behind:
            # A special token spelt out in the question would be one; taken apart it keeps its own tokens.
            if self._behind(anchor, question).tolist() == asked.tolist():
                return self._behind(anchor, question + answer)
        return np.concatenate([asked, self._behind(question, answer)])

    def _behind(self, before: str, text: str) -> Ids:
        """Tokens of a text behind another one, special tokens among them."""
        head = _encode_special(self.tokenizer, before)
        ids = _encode_special(self.tokenizer, before + text)
        if ids[: len(head)] != head:
            head, ids = [], _encode_special(self.tokenizer, text)
        return np.array(ids[len(head) :], dtype=np.int32)

    def continuations(self, texts: Sequence[str], *, behind: Sequence[str] = ANCHORS) -> list[Continuation]:
        """Tokens of texts that continue a prompt; each text carries its own leading space.

        Args:
            texts: the pieces, ``" The grass is green."``.
            behind: anchors. The first one that a text joins cleanly decides.

        Raises:
            BadInput: the tokenizer makes a special token of a single character in a text.
        """
        found: dict[int, Continuation] = {}
        for anchor in behind:
            left = [index for index in range(len(texts)) if index not in found]
            if not left:
                break
            head = self._anchor(anchor)
            for index, ids in zip(left, self._encode([anchor + texts[i] for i in left]), strict=True):
                if ids[: len(head)] == head:
                    found[index] = Continuation(ids=np.array(ids[len(head) :], dtype=np.int32), clean=True)
        left = [index for index in range(len(texts)) if index not in found]
        for index, ids in zip(left, self._encode([texts[i] for i in left]), strict=True):
            found[index] = Continuation(ids=np.array(ids, dtype=np.int32), clean=False)
        return [self._as_text(text, found[index], behind) for index, text in enumerate(texts)]

    def _as_text(self, text: str, piece: Continuation, behind: Sequence[str]) -> Continuation:
        """Breaks up what looks like a special token, where the tokenizer's own model has it as a word."""
        marker = self._special_token_of(text, piece.ids)
        if marker is None:
            return piece
        if len(marker) < 2:
            raise _special_token_error(marker)
        first, *others = text.split(marker)
        parts = [first, *(marker[1:] + other for other in others)]
        parts = [part + marker[0] for part in parts[:-1]] + parts[-1:]
        pieces = self.continuations(parts, behind=behind)
        return Continuation(ids=np.concatenate([piece.ids for piece in pieces]), clean=False)

    def _special_token_of(self, text: str, ids: Ids) -> str | None:
        """A special token among the tokens of a text that the text spells out.

        Without that it is rightly there: the unknown token, or a byte that counts as special.
        """
        present = self._special.keys() & set(ids.tolist())
        return next((self._special[i] for i in sorted(present) if self._special[i] in text), None)

    def are_stable(self, windows: Sequence[Ids], *, opening: bool = False) -> list[bool]:
        """Whether stretches of a prompt are what their own text is tokenised to.

        A stretch of several pieces is stable only if the seams between them are. One from inside a
        prompt is read as a text of its own and, where that fails, behind an anchor, because the start of a
        text may be treated otherwise than its inside.

        Args:
            windows: the stretches, with no special tokens.
            opening: the stretches stand at the start of a prompt, right behind `prefix`.
        """
        stable = self._survive(windows)
        anchors = () if opening and self.chat is None else (ANCHORS[0], BEHIND_NEWLINE[0])
        for anchor in anchors:
            failed = [index for index, survived in enumerate(stable) if not survived]
            if not failed:
                break
            head = np.array(self._anchor(anchor), dtype=np.int32)
            anchored = [np.concatenate([head, windows[index]]) for index in failed]
            for index, survived in zip(failed, self._survive(anchored), strict=True):
                stable[index] = survived
        return stable

    def decode(self, ids: Ids) -> str:
        """The text of tokens, special ones included, with no clean-up of spaces."""
        text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of everything that decides how text becomes tokens.

        Of a fast tokenizer its serialised pipeline (less padding and truncation, which are never used here),
        of a slow one its class, vocabulary and special tokens; `prefix`; and what a chat template adds.
        """
        if self._digest is None:
            parts = [_definition(self.tokenizer), self.prefix]
            if self.chat:
                parts.append([self.chat.before, self.chat.behind])
            text = json.dumps(parts, sort_keys=True)
            self._digest = hashlib.sha256(text.encode()).hexdigest()
        return self._digest

    def _anchor(self, anchor: str) -> list[int]:
        if anchor not in self._anchor_ids:
            self._anchor_ids[anchor] = self._encode([anchor])[0]
        return self._anchor_ids[anchor]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        rows: list[list[int]] = []
        for start in range(0, len(texts), _BATCH):
            encoded = self.tokenizer(
                list(texts[start : start + _BATCH]),
                add_special_tokens=False,
                split_special_tokens=True,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,  # a length above model_max_length is what this program is for
            )
            rows.extend(encoded["input_ids"])
        return rows

    def _survive(self, windows: Sequence[Ids]) -> list[bool]:
        texts = [self.decode(ids) for ids in windows]
        if self.chat:
            again = [_encode_special(self.tokenizer, text) for text in texts]
        else:
            again = self._encode(texts)
        return [ids.tolist() == encoded for ids, encoded in zip(windows, again, strict=True)]


def words_and_spaces(text: str) -> tuple[str, str]:
    """A text without the spaces at its end, and those spaces: tokenizers take them with the word behind."""
    words = text.rstrip(" ")
    return words, text[len(words) :]


def _leading_special_tokens(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """The tokens that come before a text's own where the tokenizer adds its special tokens."""
    for text in ANCHORS:
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        whole = tokenizer(text, add_special_tokens=True)["input_ids"]
        for start in range(len(whole) - len(own) + 1):
            if own and whole[start : start + len(own)] == own:
                return tuple(whole[:start])
    raise BadInput(
        f"the tokenizer {type(tokenizer).__name__} changes a text's tokens where it adds its special tokens;"
        " prompts need one that puts them before and behind"
    )


def _chat_frame(tokenizer: "PreTrainedTokenizerBase") -> ChatFrame:
    name = type(tokenizer).__name__
    if not getattr(tokenizer, "chat_template", None):
        raise BadInput(
            f"this model's tokenizer ({name}) has no chat template; leave out --apply-chat-template"
        )
    try:
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": _ASKED}], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # whatever a template raises, jinja2's errors among it
        raise BadInput(
            f"the chat template of this model's tokenizer ({name}) fails: {' '.join(str(error).split())}"
        ) from None
    parts = str(rendered).split(_ASKED)
    if len(parts) != 2:
        raise BadInput(
            f"the chat template of this model's tokenizer ({name}) does not render a user's message once, as"
            " it is; leave out --apply-chat-template"
        )
    return ChatFrame(before=parts[0], behind=parts[1])


def _encode_special(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Tokens of a text in which special tokens are spelt out."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _special_token_error(marker: str) -> BadInput:
    return BadInput(f"this tokenizer makes a special token of {marker!r} in a text; take it out of the text")


def _definition(tokenizer: "PreTrainedTokenizerBase") -> object:
    if tokenizer.is_fast:
        pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
        return {key: value for key, value in pipeline.items() if key not in ("padding", "truncation")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab(), "special": special}
