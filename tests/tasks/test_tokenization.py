"""Pieces of a prompt get the tokens that they have inside the prompt, for every kind of tokenizer."""

import copy
from typing import Any

import numpy as np
import pytest

from bamctl.errors import BadInput
from bamctl.tasks.tokenization import PromptTokenizer

FIRST, SECOND = "The grass is green.", " The sky is blue, they say."


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        ("byte_bpe", []),
        ("three_digits", ["<s>"]),
        ("llama", ["<s>"]),
        ("metaspace_first", ["<s>"]),
        ("unigram", []),
        ("wordpiece", ["[CLS]"]),
    ],
)
def test_the_prefix_is_what_the_tokenizer_puts_in_front(
    tokenizer_of: Any, kind: str, prefix: list[str]
) -> None:
    tokenizer = tokenizer_of(kind)
    assert tokenizer.convert_ids_to_tokens(list(PromptTokenizer(tokenizer).prefix)) == prefix


def test_an_opening_and_a_continuation_make_the_whole_text(kind: str, tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of(kind)
    pieces = PromptTokenizer(tokenizer)
    [piece] = pieces.continuations([SECOND])
    assert piece.clean
    whole = [*pieces.prefix, *pieces.opening(FIRST), *piece.ids]
    assert whole == tokenizer(FIRST + SECOND)["input_ids"][: len(whole)]


def test_continuations_keep_their_order_and_may_be_none(kind: str, tokenizer_of: Any) -> None:
    pieces = PromptTokenizer(tokenizer_of(kind))
    assert pieces.continuations([]) == []
    texts = [" The sky", " is blue.", " The sky"]
    together = [piece.ids.tolist() for piece in pieces.continuations(texts)]
    assert together == [pieces.continuations([text])[0].ids.tolist() for text in texts]


def test_another_anchor_is_tried_and_no_clean_one_is_flagged(tokenizer_of: Any) -> None:
    pieces = PromptTokenizer(tokenizer_of("multiword"))
    joined, text = "What is the pass key?", " The pass key is"  # one token together
    [second] = pieces.continuations([text], behind=[joined, "x"])
    assert second.clean
    [flagged] = pieces.continuations([text], behind=[joined])
    assert not flagged.clean
    assert len(flagged.ids)


def test_stable_is_told_from_unstable(kind: str, tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of(kind)
    pieces = PromptTokenizer(tokenizer)
    text = pieces.opening("The information is yellow again.")
    assert pieces.are_stable([text, text[:0]], opening=True) == [True, True]
    spelled = {"wordpiece": ["g", "##r", "##a", "##s", "##s"]}.get(
        kind, ["▁" if kind in ("llama", "metaspace_first", "unigram") else "Ġ", *"grass"]
    )
    letters = np.array(tokenizer.convert_tokens_to_ids(spelled), dtype=np.int32)
    [word] = pieces.continuations([" grass"])
    assert len(word.ids) < len(letters)
    windows = [np.concatenate([text, word.ids]), np.concatenate([text, letters])]
    assert pieces.are_stable(windows) == pieces.are_stable(windows, opening=True) == [True, False]


def test_text_that_looks_like_special_tokens_is_text(kind: str, tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of(kind)
    pieces = PromptTokenizer(tokenizer)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    assert special
    for text in ["</s>", "a <s></s> b", "[CLS][SEP]", "<s>x<s>", "<pad>", "</s>" * 250, "<</s>/s>"]:
        [piece] = pieces.continuations([" " + text])
        assert len(piece.ids)
        assert not special & set(piece.ids.tolist())


def test_an_opening_that_can_only_be_a_special_token_is_refused(tokenizer_of: Any) -> None:
    with pytest.raises(BadInput, match="makes a special token of '</s>'"):
        PromptTokenizer(tokenizer_of("unigram")).opening("It ends. </s> Or not.")


def test_truncation_and_padding_saved_with_a_tokenizer_are_not_used(tokenizer_of: Any) -> None:
    from transformers import PreTrainedTokenizerFast

    plain = PromptTokenizer(tokenizer_of("byte_bpe"))
    backend = tokenizer_of("byte_bpe").backend_tokenizer.from_str(
        tokenizer_of("byte_bpe").backend_tokenizer.to_str()
    )
    backend.enable_truncation(3)
    backend.enable_padding(length=9, pad_token="<s>")
    cut = PromptTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>"))
    assert cut.opening(FIRST).tolist() == plain.opening(FIRST).tolist()
    for tokenizer in (backend, cut.tokenizer.backend_tokenizer):
        tokenizer.enable_truncation(3)
        tokenizer.enable_padding(length=9, pad_token="<s>")
    assert cut.digest == plain.digest


def test_the_digest_tells_tokenizers_apart_and_stays(tokenizer_of: Any) -> None:
    kinds = ["byte_bpe", "merged_digits", "three_digits", "llama", "metaspace_first", "unigram", "wordpiece"]
    digests = [PromptTokenizer(tokenizer_of(kind)).digest for kind in kinds]
    assert len(set(digests)) == len(kinds)
    used = PromptTokenizer(tokenizer_of("byte_bpe"))
    used.opening(FIRST)
    assert used.digest == digests[0]
    assert len(used.digest) == 64


def test_a_slow_tokenizer() -> None:
    from transformers.tokenization_python import PreTrainedTokenizer

    class Words(PreTrainedTokenizer):
        """Splits at spaces; keeps them on the words."""

        def __init__(self, **options: Any) -> None:
            self.words = {"[UNK]": 0, "<s>": 1, "The": 2, "▁sky": 3, "▁is": 4, "▁blue.": 5}
            super().__init__(unk_token="[UNK]", bos_token="<s>", **options)

        @property
        def vocab_size(self) -> int:
            return len(self.words)

        def get_vocab(self) -> dict[str, int]:
            return dict(self.words)

        def _tokenize(self, text: str, **_: Any) -> list[str]:
            return text.replace(" ", " ▁").split()

        def _convert_token_to_id(self, token: str) -> int:
            return self.words.get(token, 0)

        def _convert_id_to_token(self, index: int) -> str:
            return list(self.words)[index]

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return "".join(tokens).replace("▁", " ")

        def build_inputs_with_special_tokens(self, ids: list[int], *_: Any) -> list[int]:
            return [1, *ids]

    tokenizer = Words()
    assert not tokenizer.is_fast
    pieces = PromptTokenizer(tokenizer)
    assert pieces.prefix == (1,)
    assert pieces.opening("The sky").tolist() == [2, 3]
    [piece] = pieces.continuations([" is blue."], behind=["The sky"])
    assert (piece.ids.tolist(), piece.clean) == ([4, 5], True)
    assert len(pieces.digest) == 64


def with_chat(tokenizer: Any, template: str) -> PromptTokenizer:
    copied = copy.deepcopy(tokenizer)
    copied.chat_template = template
    return PromptTokenizer(copied, chat=True)


@pytest.mark.parametrize(
    "template",
    ["User: {{ m }}\n\nAssistant:", "<s>[INST] {{ m }} [/INST]", "<s>{{ m }}</s>", "{{ m }}", "{{ m }} "],
)
@pytest.mark.parametrize("kind", ["byte_bpe", "three_digits", "metaspace_first"])
def test_a_chat_template_around_pieces_makes_the_whole_text(
    kind: str, template: str, tokenizer_of: Any
) -> None:
    pieces = with_chat(tokenizer_of(kind), template.replace("{{ m }}", "{{ messages[0]['content'] }}"))
    before, behind = template.split("{{ m }}")
    assert pieces.chat is not None
    assert (pieces.chat.before, pieces.chat.behind) == (before, behind)
    closing = pieces.closing(" What is the pass key?", " The pass key is")
    ids = [*pieces.prefix, *pieces.opening(FIRST), *pieces.continuations([SECOND])[0].ids, *closing]
    text = before + FIRST + SECOND + " What is the pass key?" + behind + " The pass key is"
    assert ids == pieces.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert pieces.are_stable([np.array(ids[len(pieces.prefix) :], dtype=np.int32)], opening=True) == [True]


def test_special_tokens_of_the_template_alone_are_special(tokenizer_of: Any) -> None:
    pieces = with_chat(tokenizer_of("byte_bpe"), "<s>{{ messages[0]['content'] }}</s>")
    special = pieces.tokenizer.convert_tokens_to_ids(["<s>", "</s>"])
    assert list(pieces.prefix) == special[:1]
    closing = pieces.closing(" What is </s> here?", " It is").tolist()
    assert [token for token in closing if token in special] == special[1:]
    assert pieces.decode(np.array(closing)) == " What is </s> here?</s> It is"
    with pytest.raises(BadInput, match="makes a special token of '</s>'"):
        pieces.opening("It ends. </s> Or not.")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template; leave out --apply-chat-template"),
        ("{{ raise_exception('no such role') }}", "fails: no such role"),
        ("{{ messages[0] + 1 }}", "fails: "),
        ("{% if %}", "fails: "),
        ("Nothing of it.", "does not render a user's message once, as it is"),
        (
            "{{ messages[0]['content'] }} {{ messages[0]['content'] }}",
            "does not render a user's message once",
        ),
        ("{{ messages[0]['content'] | lower }}", "does not render a user's message once"),
    ],
)
def test_chat_templates_that_are_none(template: Any, message: str, tokenizer_of: Any) -> None:
    with pytest.raises(BadInput, match=message) as error:
        with_chat(tokenizer_of("byte_bpe"), template)
    assert "\n" not in str(error.value)


def test_the_digest_tells_chat_templates_apart(tokenizer_of: Any) -> None:
    content = "{{ messages[0]['content'] }}"
    templates = [content, f"User: {content}", f"{content}\n\nAssistant:", f"User: {content}\n\nAssistant:"]
    digests = {with_chat(tokenizer_of("byte_bpe"), template).digest for template in templates}
    assert len(digests | {PromptTokenizer(tokenizer_of("byte_bpe")).digest}) == 5
