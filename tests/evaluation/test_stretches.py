import json

import numpy as np
import pytest
from transformers import AutoTokenizer

import bamctl.evaluation.stretches as stretches_module
from bamctl.errors import BadInput
from bamctl.evaluation.stretches import Text, cut_stretches, read_texts
from bamctl.tasks.tokenization import PromptTokenizer

SENTENCE = "The grass is green. Some sentences, to learn from. "


@pytest.fixture(scope="session")
def tokenizer(tiny_checkpoint):
    return PromptTokenizer(AutoTokenizer.from_pretrained(tiny_checkpoint))


@pytest.fixture(scope="session")
def text(tokenizer):
    """A text, and how many tokens it has."""
    content = " ".join(f"{SENTENCE}Number {number}." for number in range(40))
    return Text(name="numbers.txt", content=content), len(tokenizer.continuations([content])[0].ids)


def test_a_text_is_a_file_a_folder_or_several(tmp_path):
    folder = tmp_path / "docs"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "1.md").write_text("third\r\n", encoding="utf-8", newline="")
    (folder / "a.txt").write_text("\ufefffirst", encoding="utf-8")
    (folder / "b" / "0.txt").write_text("second", encoding="utf-8")
    (folder / "b" / "2.py").write_text("no text")
    file = tmp_path / "own.text"
    file.write_text("own\n\n  text", encoding="utf-8")
    essays = tmp_path / "essays.json"
    essays.write_text(json.dumps({"text": "as\n\nRULER  reads"}))

    one = read_texts([str(file)])
    assert (one.name, one.content) == ("own.text", "own\n\n  text")
    several = read_texts([str(folder), str(file), str(essays)])
    assert several.name == "docs+own.text+essays.json"
    assert several.content == "first\n\nsecond\n\nthird\r\n\n\nown\n\n  text\n\nas RULER reads"
    assert read_texts([str(file)] * 5).name == "own.text+own.text+own.text+2 more"
    assert len({one.digest, several.digest, read_texts([str(folder)]).digest}) == 3


def test_ruler_is_the_name_of_its_essays(monkeypatch, tmp_path):
    (tmp_path / "ruler").write_text("a file of that name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stretches_module, "read_essays", lambda source: f"essays of {source}")
    assert (read_texts(["ruler"]).name, read_texts(["ruler"]).content) == ("ruler", "essays of ruler")
    assert read_texts(["./ruler"]).content == "a file of that name"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.txt", None, "there is no file"),
        ("blank.txt", b" \n", "is empty"),
        ("latin.txt", "für".encode("latin-1"), "is not UTF-8"),
        ("bad.json", b"[]", "field text"),
        ("folder", {}, "holds no *.txt or *.md file"),
        ("folder", {"a.txt": b"good", "b.txt": b""}, "is empty"),
    ],
)
def test_a_text_that_cannot_be_read_is_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, dict):
        path.mkdir()
        for file, written in content.items():
            (path / file).write_bytes(written)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_texts([str(path)])
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("samples", [1, 2, 3, 7])
def test_stretches_are_the_middles_of_equal_parts(text, tokenizer, samples):
    content, tokens = text
    ids = tokenizer.continuations([content.content])[0].ids
    length = 51
    cut = cut_stretches(content, tokenizer, length=length, samples=samples)
    assert cut.token_ids.shape == (samples, length) == (cut.samples, cut.length)
    assert cut.token_ids.dtype == np.int32
    assert (cut.prefix, cut.first_scored) == (len(tokenizer.prefix), 1) == (1, 1)
    for number, stretch in enumerate(cut.token_ids):
        assert stretch[0] == tokenizer.prefix[0]
        middle = (2 * number + 1) * tokens / (2 * samples)
        start = round(middle - 25)
        assert any((stretch[1:] == ids[at : at + 50]).all() for at in range(start - 2, start + 3))


def test_a_text_is_used_up_to_its_last_token(text, tokenizer):
    content, tokens = text
    whole = cut_stretches(content, tokenizer, length=tokens + 1, samples=1)
    assert (whole.token_ids[0, 1:] == tokenizer.continuations([content.content])[0].ids).all()
    half = tokens // 2
    first, second = cut_stretches(content, tokenizer, length=half + 1, samples=2).token_ids
    assert (np.concatenate([first[1:], second[1:]]) == whole.token_ids[0, 1 : 2 * half + 1]).all()


def test_too_short_a_text_says_what_fits(text, tokenizer):
    content, tokens = text
    with pytest.raises(BadInput) as caught:
        cut_stretches(content, tokenizer, length=tokens + 2, samples=None)
    assert str(caught.value) == (
        f"numbers.txt has {tokens} tokens, too few for --max-len {tokens + 2}; name more text, or a --max-len"
        f" of at most {tokens + 1}"
    )
    cut_stretches(content, tokenizer, length=tokens + 1, samples=None)


def test_fewer_stretches_than_asked_for_are_refused_and_the_way_out_works(text, tokenizer):
    content, tokens = text
    with pytest.raises(BadInput) as caught:
        cut_stretches(content, tokenizer, length=tokens // 3, samples=4)
    message = str(caught.value)
    assert message.startswith(
        f"numbers.txt has {tokens} tokens, enough for 3 stretches of {tokens // 3} that"
    )
    shorter = int(message.rpartition(" ")[2])
    assert "lower --samples to 3" in message
    assert cut_stretches(content, tokenizer, length=tokens // 3, samples=3).samples == 3
    assert cut_stretches(content, tokenizer, length=shorter, samples=4).samples == 4
    with pytest.raises(BadInput):
        cut_stretches(content, tokenizer, length=shorter + 1, samples=4)


def test_where_nobody_says_how_many_there_are_as_many_as_fit_up_to_ten(text, tokenizer):
    content, tokens = text
    assert cut_stretches(content, tokenizer, length=tokens // 3, samples=None).samples == 3
    assert cut_stretches(content, tokenizer, length=8, samples=None).samples == 10


@pytest.mark.parametrize("length", [1, 0])
def test_a_stretch_has_something_to_predict(text, tokenizer, length):
    with pytest.raises(BadInput, match="nothing to predict; the shortest has 2"):
        cut_stretches(text[0], tokenizer, length=length, samples=1)
    assert cut_stretches(text[0], tokenizer, length=2, samples=1).token_ids.shape == (1, 2)


def test_the_digest_is_of_the_text_and_how_it_is_cut(text, tokenizer):
    content, _ = text
    digest = cut_stretches(content, tokenizer, length=50, samples=3).digest
    renamed = Text(name="other", content=content.content)
    assert cut_stretches(renamed, tokenizer, length=50, samples=3).digest == digest
    others = [
        cut_stretches(content, tokenizer, length=51, samples=3),
        cut_stretches(content, tokenizer, length=50, samples=2),
        cut_stretches(
            Text(name="numbers.txt", content=content.content + "!"), tokenizer, length=50, samples=3
        ),
    ]
    assert len({digest, *(other.digest for other in others)}) == 4


def test_a_long_text_is_tokenised_in_pieces_as_it_would_be_at_once(text, tokenizer, monkeypatch):
    content, _ = text
    whole = cut_stretches(content, tokenizer, length=300, samples=1)
    monkeypatch.setattr(stretches_module, "_PIECE", 10)
    assert (cut_stretches(content, tokenizer, length=300, samples=1).token_ids == whole.token_ids).all()
    unspaced = Text(name="unspaced", content="x" * 500)
    assert cut_stretches(unspaced, tokenizer, length=20, samples=1).samples == 1
    with pytest.raises(BadInput, match="has 0 tokens"):
        cut_stretches(Text(name="none", content=""), tokenizer, length=20, samples=1)


def test_what_looks_like_a_special_token_is_text(tokenizer):
    marker = tokenizer.decode(np.array(tokenizer.prefix, dtype=np.int32))
    cut = cut_stretches(
        Text(name="t", content=f"{SENTENCE}{marker}{SENTENCE}" * 5), tokenizer, length=60, samples=1
    )
    assert not np.isin(cut.token_ids[:, 1:], tokenizer.prefix).any()
