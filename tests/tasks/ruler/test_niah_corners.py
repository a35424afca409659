"""Corners of needle prompts: every one ends, in a right prompt or in a line that says what would be right."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from bamctl.errors import BadInput
from bamctl.tasks.catalog import build_task, load_spec, ruler_tasks
from bamctl.tasks.prompt import Prompt
from bamctl.tasks.ruler.niah import NiahTask

NIAH = ruler_tasks("niah_*")
SANE = (
    "byte_bpe",
    "merged_digits",
    "three_digits",
    "llama",
    "metaspace_first",
    "unigram",
    "wordpiece",
    "cl100k",
)
ANY = (*SANE, "multiword")
ESSAY, LINES, NEEDLES = "niah_single_2", "niah_single_1", "niah_multikey_2"
NiahOf = Callable[..., NiahTask]


def build(task: NiahTask, length: int, depth: float = 50, seed: int = 0) -> Prompt:
    prompt = task.build(length=length, depth=depth, rng=np.random.default_rng(seed))
    assert len(prompt.token_ids) == length - 128
    return prompt


def text_of(task: NiahTask, prompt: Prompt) -> str:
    return task.tokenizer.decode(prompt.token_ids[len(task.tokenizer.prefix) :])


def letters(text: str) -> str:
    return "".join(text.replace("<unk>", " ").split()).lower()


def assert_whole(task: NiahTask, prompt: Prompt) -> None:
    """Needles, question and the beginning of the answer are there, whole."""
    drawn = [letters(task.tokenizer.decode(prompt.token_ids[s:e])) for s, e in prompt.needle_spans]
    kind = task.spec.type_needle_v
    parts = [re.fullmatch(rf"oneofthespecialmagic{kind}for(.+)is:(.+)\.", needle) for needle in drawn]
    assert all(parts)
    asked = len(prompt.references)
    assert [part[2] for part in parts[:asked] if part] == [letters(word) for word in prompt.references]
    queries = list(dict.fromkeys(part[1] for part in parts[:asked] if part))
    before, question, prefix = (letters(part) for part in task.spec.around(queries))
    text = letters(text_of(task, prompt))
    assert text.startswith(before)
    assert text.endswith(question + prefix)


@pytest.mark.parametrize("task", NIAH)
@pytest.mark.parametrize("kind", ["byte_bpe", "unigram"])
def test_a_length_has_a_prompt_or_is_refused_with_the_shortest_that_works(
    kind: str, task: str, niah_of: NiahOf
) -> None:
    made = niah_of(kind, task)
    shortest = made.shortest_length
    message = rf"is too short for {task}: .* shortest that always works is {shortest} tokens$"
    for length in (1, 64, 128, 129, shortest // 2):
        with pytest.raises(BadInput, match=message):
            build(made, length)
    refusals = []
    for length in range(shortest // 2 + 1, shortest, 7):  # what the draw needs decides
        try:
            prompt = build(made, length)
        except BadInput as error:
            refusals.append(str(error))
        else:
            assert len(prompt.token_ids) == length - 128
            assert_whole(made, prompt)
    assert refusals
    assert all(re.search(message, refusal) for refusal in refusals)
    for length in (shortest, shortest + 1):
        assert_whole(made, build(made, length))


@pytest.mark.parametrize("kind", ANY)
@settings(max_examples=8, deadline=None)
@given(
    task=st.sampled_from(NIAH),
    above=st.integers(0, 3),
    depth=st.one_of(st.sampled_from([0, 100]), st.floats(0, 100)),
    seed=st.integers(0, 2**32),
)
def test_every_draw_has_a_prompt_at_the_shortest_length(
    kind: str, task: str, niah_of: NiahOf, above: int, depth: float, seed: int
) -> None:
    made = niah_of(kind, task)
    prompt = build(made, made.shortest_length + above, depth, seed)
    if above == 0:
        assert_whole(made, prompt)


@pytest.mark.parametrize("kind", ANY)
def test_the_longest_words_have_a_prompt_at_the_shortest_length(
    kind: str, niah_of: NiahOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bamctl.tasks.ruler import niah
    from bamctl.tasks.ruler.words import word_list

    made = niah_of(kind, "niah_multiquery")

    def most(words: Any) -> list[str]:
        pieces = made.tokenizer.continuations(words)
        return [words[i] for i in np.argsort([-len(piece.ids) for piece in pieces], kind="stable")]

    adjectives, nouns = most(word_list("adjective")), most(["-" + noun for noun in word_list("noun")])
    longest = [adjective + noun for adjective, noun in zip(adjectives, nouns, strict=False)]
    monkeypatch.setattr(
        niah,
        "draw_distinct",
        lambda kind, count, rng: (
            longest[:count] if kind == "words" else [f"90919{i:02}" for i in range(count)]
        ),
    )
    for length in range(made.shortest_length, made.shortest_length + 5):
        assert_whole(made, build(made, length))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_needle_k": 41},
        {"num_needle_v": 41},
        {"num_needle_k": 40},
        {"num_needle_q": 45},
        {"num_needle_k": 2, "num_needle_q": 5},
        {"num_needle_k": 7, "num_needle_v": 6, "num_needle_q": 3, "type_needle_k": "numbers"},
        {"num_needle_k": 3, "num_needle_v": 2, "type_needle_v": "words"},
    ],
    ids=str,
)
@pytest.mark.parametrize("task", [ESSAY, LINES, NEEDLES])
def test_many_needles(task: str, changes: dict[str, Any], niah_of: NiahOf) -> None:
    made = niah_of("byte_bpe", task, **changes)
    keys = max(made.spec.num_needle_k, made.spec.num_needle_q)
    for length in (made.shortest_length, made.shortest_length + 1, made.shortest_length + 1500):
        prompt = build(made, length, 33)
        assert_whole(made, prompt)
        assert len(set(prompt.needle_spans)) == len(set(prompt.depths)) == keys * made.spec.num_needle_v
        assert len(prompt.references) == made.spec.num_needle_q * made.spec.num_needle_v
        values = [text_of(made, prompt).count(value) for value in prompt.references]
        assert values == [1] * len(values)
    with pytest.raises(BadInput, match=f"is {made.shortest_length} tokens"):
        build(made, 64)


def test_a_thousand_needles(niah_of: NiahOf) -> None:
    made = niah_of("byte_bpe", ESSAY, num_needle_k=1000)
    assert_whole(made, build(made, made.shortest_length + 999))


@pytest.mark.parametrize("changes", [{"num_needle_v": 101}, {"num_needle_q": 2, "num_needle_v": 5001}])
def test_more_needles_than_can_be_told_apart_are_refused(changes: dict[str, int]) -> None:
    changes = {"num_needle_k": 100} | changes
    with pytest.raises(BadInput, match=r"\d+ needles are too many; the most are 10000$"):
        load_spec(ESSAY, **changes)


@pytest.mark.parametrize("task", [ESSAY, LINES, NEEDLES])
def test_a_needle_longer_than_the_haystack(task: str, niah_of: NiahOf, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("It is short. Very short.")
    needle = "One of the special magic {type_needle_v} for {key} is: {value}, " + "and so on, " * 60 + "amen."
    made = niah_of("byte_bpe", task, needle=needle, essays=str(text))
    for extra in (0, 1, 2, 30, 200):
        for depth in (0, 50, 100):
            prompt = build(made, made.shortest_length + extra, depth)
            assert text_of(made, prompt).count(f"is: {prompt.references[0]}, and so on, and") == 1
            assert prompt.roundtrip_stable


def essays(niah_of: NiahOf, kind: str, path: Path, task: str = ESSAY) -> NiahTask:
    return niah_of(kind, task, essays=str(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n\t \r\n", "is empty"),
        ("a.txt", "\ufeff \n".encode(), "is empty"),
        ("a.txt", b"\xff\xfe", "is not UTF-8"),
        ("a.json", b'{"texts": "One."}', "is no JSON object with the field text"),
        ("a.json", b'["text"]', "is no JSON object with the field text"),
        ("a.json", b'{"text": 3}', "is no JSON object with the field text"),
        ("a.json", b'{"text": "\\ud83d half"}', "is no JSON object with the field text"),
        ("a.json", b'{"text": "cut', "is no JSON object with the field text"),
        ("a.json", b"[" * 100_000, "is no JSON object with the field text"),
        ("a.json", b'{"text": " \\n"}', "is empty"),
        ("folder/a.csv", b"One.", r"holds no \*\.txt or \*\.md file"),
        ("folder/a.txt", b"\n", "is empty"),
        ("folder/a.txt/b.csv", b"One.", r"holds no \*\.txt or \*\.md file"),
    ],
)
def test_essays_that_are_none(
    name: str, content: bytes, message: str, niah_of: NiahOf, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    asked = tmp_path / Path(name).parts[0]
    with pytest.raises(BadInput, match=message) as error:
        essays(niah_of, "byte_bpe", asked)
    assert str(error.value).startswith(f"{ESSAY}: essays: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "path", ["nowhere.txt", "nowhere/", "~nobody-at-all/a.txt", "a\0b.txt", "nowhere.json"]
)
def test_essays_that_are_nowhere(path: str, niah_of: NiahOf) -> None:
    with pytest.raises(BadInput, match=r"essays: .*(there is no file|cannot be read)"):
        niah_of("byte_bpe", ESSAY, essays=path)


@pytest.mark.parametrize("kind", ["byte_bpe", "llama", "wordpiece", "cl100k"])
def test_one_sentence_without_an_end(kind: str, niah_of: NiahOf, tmp_path: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_text("no end in sight")
    made = essays(niah_of, kind, text)
    for extra in range(30):
        assert_whole(made, build(made, made.shortest_length + extra, (0, 50, 100)[extra % 3]))


@pytest.mark.parametrize(
    "content", ["a", "\u200b One is here. Two is there.", "\x00 \x01. Go on. Stop.", "日本語"]
)
@pytest.mark.parametrize("kind", ["byte_bpe", "llama", "unigram", "wordpiece", "cl100k"])
def test_strange_essays(kind: str, content: str, niah_of: NiahOf, tmp_path: Path) -> None:
    text = tmp_path / "strange.txt"
    text.write_text(content)
    made = essays(niah_of, kind, text)
    for extra in (0, 1, 2, 3, 60, 61):
        for depth in (0, 100):
            assert_whole(made, build(made, made.shortest_length + extra, depth))
    if kind == "byte_bpe":
        assert letters(content)[:3] in letters(text_of(made, build(made, made.shortest_length + 60, 100)))


def test_essays_that_leave_no_token(niah_of: NiahOf, tmp_path: Path) -> None:
    text = tmp_path / "nothing.txt"
    text.write_text("\x01\x02\x03")
    with pytest.raises(BadInput, match="leaves no token with this tokenizer"):
        essays(niah_of, "wordpiece", text)


@pytest.mark.parametrize("kind", ["byte_bpe", "three_digits", "llama", "unigram", "wordpiece", "multiword"])
def test_special_tokens_that_essays_spell_out_are_text(kind: str, any_tokenizer: Any, tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=any_tokenizer(kind).backend_tokenizer.from_str(
            any_tokenizer(kind).backend_tokenizer.to_str()
        ),
        **{key: str(value) for key, value in any_tokenizer(kind).special_tokens_map.items()},
    )
    tokenizer.add_tokens([AddedToken("<|endoftext|>", special=True), AddedToken("<|plain|>", special=False)])
    markers = ["<s>", "</s>", "<|endoftext|>", "[SEP]", "[CLS]", "<|plain|>", "<|user|>"]
    text = tmp_path / "spelt.txt"
    text.write_text(
        " ".join(f"Here is {m} in it. {m} starts and so ends {m}. {m}{m} It is {m}." for m in markers)
    )
    made = build_task(load_spec(ESSAY, essays=str(text)), tokenizer)
    assert isinstance(made, NiahTask)
    special = set(tokenizer.all_special_ids) | {tokenizer.convert_tokens_to_ids("<|endoftext|>")}
    special -= {tokenizer.unk_token_id}
    assert special
    for extra in range(0, 700, 37):
        prompt = build(made, made.shortest_length + extra, extra % 101)
        assert not special & set(prompt.token_ids[len(made.tokenizer.prefix) :].tolist())
        assert_whole(made, prompt)
    if kind == "byte_bpe":
        assert "Here is <s> in it." in text_of(made, prompt)
        assert "so ends <|endoftext|>." in text_of(made, prompt)


TEMPLATES = {
    "no newline before the question": "Find it.\n{context} What is {query}?",
    "nothing before the question": "Find it.\n{context}{query}?",
    "two newlines": "Find it.\n\n{context}\n\nWhat is {query}?",
    "three newlines": "Find it.\n\n\n{context}\n\n\nWhat is {query}?",
    "query first": "Find {query} here: {context}\nWhat is it?",
    "query last before": "Find {query}\n{context}\nWhat is it?",
    "spaces before": "Text:   {context}\nWhat is {query}?",
    "newline and spaces": "Text:\n  {context}\nWhat is {query}?",
    "no space before": "Text:{context}\nWhat is {query}?",
    "nothing before": "{context}\nWhat is {query}?",
    "a space alone before": " {context}\nWhat is {query}?",
    "braces": "A set {{1, 2}} of {type_needle_v}.\n{context}\nWhat, {{please}}, is {query}?",
    "nothing behind": "What is {query}?\n{context}",
    "a newline behind": "What is {query}?\n{context}\n",
    "nothing at all": "{context}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("task", [ESSAY, LINES, NEEDLES])
def test_templates_of_ones_own(template: str, task: str, niah_of: NiahOf) -> None:
    for kind, more in (("byte_bpe", {}), ("llama", {}), ("cl100k", {"num_needle_k": 2})):
        made = niah_of(kind, task, template=template, **more)
        stable = []
        for extra in (0, 1, 2, 3, *range(40, 46), 400):
            depth = (0, 50, 100)[extra % 3]
            length = made.shortest_length + extra
            drawn = made.draw(depth, np.random.default_rng(extra))
            prompt = build(made, length, depth, extra)
            text = text_of(made, prompt)
            before, question, prefix = made.spec.around(drawn.queries)
            assert text.startswith(before.removeprefix(" ") if kind == "llama" else before)
            assert text.endswith(question + prefix)
            body = text[len(before) : len(text) - len(question + prefix)]
            for key, value, _ in drawn.needles:
                assert body.count(made.spec.needle_text(key, value)) == 1
            if task == LINES:
                assert_lines(body, made, [made.spec.needle_text(*needle[:2]) for needle in drawn.needles])
            elif task != NEEDLES:
                assert "\n" not in body
            stable.append(prompt.roundtrip_stable)
        if (
            template != TEMPLATES["nothing before the question"]
        ):  # the cut word and the first one make another
            assert sum(stable) >= 0.9 * len(stable)


def assert_lines(body: str, made: NiahTask, needles: list[str]) -> None:
    """The context is what RULER joins by newlines, its last line cut or not."""
    *lines, last = body.split("\n")
    assert set(lines) <= {made.spec.noise, *needles}
    assert last in needles or last in f"{made.spec.noise} {made.spec.noise}"


def test_a_template_must_hold_the_context_once_and_known_fields() -> None:
    for template in ("No context {query}?", "{context} {context}", "{{context}} {query}"):
        with pytest.raises(BadInput, match=r"template"):
            load_spec(LINES, template=template)
    for changes in (
        {"template": "{context} {key}"},
        {"template": "{context} {0}"},
        {"template": "{context} {"},
        {"template": "{context} {query.name}"},
        {"template": "{context} {query[name]}"},
        {"template": "{context} {query:d}"},
        {"answer_prefix": " {}"},
        {"needle": "{key} {value} {query}"},
    ):
        with pytest.raises(BadInput, match=r"template, answer_prefix or needle: ") as error:
            load_spec(LINES, **changes)
        assert "\n" not in str(error.value)
    for needle in ("{key} alone", "{value} alone"):
        with pytest.raises(BadInput, match=r"needle: holds no \{(key|value)\}"):
            load_spec(LINES, needle=needle)


CHATS = {
    "plain": "User: {{ messages[0]['content'] }}\n\nAssistant:",
    "space before the answer": "[INST] {{ messages[0]['content'] }} [/INST] ",
    "special": "<s>{{ messages[0]['content'] }}</s>",
    "special around": "<s>user\n{{ messages[0]['content'] }}</s>\n<s>assistant{{ '\n' }}",
    "bare": "{{ messages[0]['content'] }}",
}


@pytest.mark.parametrize(
    ("kind", "template"),
    [
        *(
            pytest.param(kind, CHATS[name], id=f"{kind}-{name}")
            for kind in ("byte_bpe", "cl100k")
            for name in CHATS
        ),
        *(
            pytest.param(kind, CHATS["special around"], id=kind)
            for kind in ("three_digits", "metaspace_first")
        ),
        *(pytest.param("llama", CHATS[name], id=f"llama-{name}") for name in ("plain", "special")),
    ],
)
def test_chat_templates(kind: str, template: str, chat_of: NiahOf) -> None:
    if kind == "cl100k":
        template = template.replace("<s>", "<|user|>").replace("</s>", "<|endoftext|>")
    for task in (ESSAY, LINES) if kind == "cl100k" else (LINES,):
        made = chat_of(kind, task, template)
        assert made.tokenizer.chat is not None
        before, behind = made.tokenizer.chat.before, made.tokenizer.chat.behind
        tokenizer: Any = made.tokenizer.tokenizer
        with pytest.raises(BadInput, match=f"is {made.shortest_length} tokens"):
            build(made, 140)
        stable = []
        for extra in (0, 1, 2, *range(60, 67)):
            depth = (0, 100, 50)[extra % 3]
            drawn = made.draw(depth, np.random.default_rng(extra))
            prompt = build(made, made.shortest_length + extra, depth, extra)
            assert prompt.chat_prefix == before
            text = tokenizer.decode(prompt.token_ids.tolist(), clean_up_tokenization_spaces=False)
            start, question, prefix = made.spec.around(drawn.queries)
            assert letters(text).startswith(letters(before + start))
            assert letters(text).endswith(letters(question + behind + prefix))
            for key, value, _ in drawn.needles:
                assert text.count(made.spec.needle_text(key, value)) == 1
            if kind in ("byte_bpe", "three_digits", "cl100k"):
                asked = text.removeprefix(before).removesuffix(behind + prefix)
                message = [{"role": "user", "content": asked}]
                assert text == prefix_of(tokenizer, message) + prefix
            stable.append(prompt.roundtrip_stable)
            if prompt.roundtrip_stable:
                again = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
                assert again == prompt.token_ids.tolist()
        if (
            kind != "llama" or "<s>" not in template
        ):  # it puts a space behind special tokens, at each encoding
            assert sum(stable) >= 0.9 * len(stable)


def prefix_of(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """What the tokenizer itself renders before the answer."""
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def test_special_tokens_that_essays_spell_out_are_text_in_a_chat_too(chat_of: NiahOf, tmp_path: Path) -> None:
    text = tmp_path / "spelt.txt"
    text.write_text("Here is </s> in it. <s> starts. It is <s></s>.")
    made = chat_of("byte_bpe", ESSAY, "<s>{{ messages[0]['content'] }}</s>", essays=str(text))
    tokenizer: Any = made.tokenizer.tokenizer
    special = tokenizer.convert_tokens_to_ids(["<s>", "</s>"])
    for extra in range(0, 90, 7):
        ids = build(made, made.shortest_length + extra, extra).token_ids.tolist()
        assert [token for token in ids if token in special] == special


def test_a_json_file_of_essays_and_a_folder(niah_of: NiahOf, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps({"text": "One is here.\n\nTwo  is there."}))
    (tmp_path / "texts" / "inner").mkdir(parents=True)
    (tmp_path / "texts" / "b.txt").write_text("\ufeffOne is here.")
    (tmp_path / "texts" / "inner" / "c.md").write_text("Two is there.\n")
    digests = {
        build(essays(niah_of, "byte_bpe", tmp_path / name), 700).digest for name in ("a.json", "texts")
    }
    assert len(digests) == 1
