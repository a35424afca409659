"""What a user calls a model: names, folders, and patterns of either."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bamctl.errors import BadInput
from bamctl.models.naming import find_model, find_models, find_path, model_folders

PLACES = {
    "own/b": "config.json",
    "own/c-1": "config.json",
    "own/c-2": "args.json",
    "own/c[1]": "config.json",
    "shipped/a": "config.json",
    "shipped/b": "config.json",
    "elsewhere/c-3": "config.json",
    "elsewhere/d": "args.json",
    "elsewhere/no-checkpoint": "README.md",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: two places where checkpoints have names, one where they have none."""
    for place, file in PLACES.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / file).write_text("{}")
    (tmp_path / "own" / "a-file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "bamctl.models.naming.search_path", lambda kind: [tmp_path / "own", tmp_path / "shipped"]
    )
    return tmp_path


def _message(call: Callable[[], object]) -> str:
    with pytest.raises(BadInput) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_names_and_the_users_own_folder_first(here: Path) -> None:
    assert model_folders() == {
        "a": here / "shipped" / "a",
        "b": here / "own" / "b",
        "c-1": here / "own" / "c-1",
        "c-2": here / "own" / "c-2",
        "c[1]": here / "own" / "c[1]",
    }
    assert list(model_folders()) == sorted(model_folders())
    assert find_model("b") == here / "own" / "b"
    assert find_model(str(here / "shipped" / "b")) == here / "shipped" / "b"
    assert find_model("elsewhere/d") == Path("elsewhere/d")
    assert find_path("elsewhere/no-checkpoint") == Path("elsewhere/no-checkpoint")


def test_no_such_name(here: Path) -> None:
    assert _message(lambda: find_model("zzz")) == "there is no model 'zzz' (known: a, b, c-1, c-2, c[1])"
    assert _message(lambda: find_model("c_1")) == "there is no model 'c_1' (did you mean c-1?)"
    assert _message(lambda: find_path("zzz", kind="tokenizer")).startswith("there is no tokenizer 'zzz'")


def test_a_pattern_where_one_is_wanted(here: Path) -> None:
    told = "'c-*' is a pattern, and one model is wanted: c-1 or c-2"
    assert _message(lambda: find_model("c-*")) == told
    assert _message(lambda: find_path("c-*", kind="tokenizer")) == told.replace("model", "tokenizer")


@pytest.mark.parametrize(
    "name", ["nonesuch", "/nonesuch/folder", "x" * 5000, "~nobody-of-this-name/x", "a\0b"], ids=range(5)
)
def test_no_such_folder(name: str, here: Path) -> None:
    assert "there is no model" in _message(lambda: find_model(name))


@pytest.mark.parametrize("name", [".", "", "elsewhere/no-checkpoint", "own/a-file"])
def test_a_folder_that_holds_none(name: str, here: Path) -> None:
    assert "is no checkpoint: it has no config.json, nor the args.json of" in _message(
        lambda: find_model(name)
    )


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("c-*", ["c-1", "c-2"]),
        ("?", ["a", "b"]),
        ("[ab]", ["a", "b"]),
        ("*", ["a", "b", "c-1", "c-2", "c[1]"]),
        ("*/c-?", ["elsewhere/c-3", "own/c-1", "own/c-2"]),
        ("elsewhere/*", ["elsewhere/c-3", "elsewhere/d"]),
        ("c[1]", ["c[1]"]),
        ("own/c[1]", ["own/c[1]"]),
    ],
)
def test_patterns(pattern: str, found: list[str], here: Path) -> None:
    assert find_models(pattern) == found
    for name in found:
        find_model(name)


def test_a_folder_of_the_current_one_comes_after_the_names(here: Path) -> None:
    for name in ("b", "b-here"):
        (here / name).mkdir()
        (here / name / "config.json").write_text("{}")
    assert find_models("b*") == ["b", "b-here"]
    assert find_model("b") == here / "own" / "b"


def test_a_pattern_below_a_home(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here / "elsewhere"))
    assert find_models("~/c*") == [str(here / "elsewhere" / "c-3")]


@pytest.mark.parametrize("name", ["a", "nonesuch", "org/name", "elsewhere/d", "~nobody-of-this-name/x", ""])
def test_what_is_no_pattern_stands_for_itself(name: str, here: Path) -> None:
    assert find_models(name) == [name]


@pytest.mark.parametrize(
    "pattern", ["z*", "elsewhere/no-*", "~nobody-of-this-name/*", "[", "a\0*", "x" * 5000 + "*"]
)
def test_nothing_matches(pattern: str, here: Path) -> None:
    assert _message(lambda: find_models(pattern)).endswith("(known: a, b, c-1, c-2, c[1])")


def test_nothing_has_a_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bamctl.models.naming.search_path", lambda kind: [])
    assert _message(lambda: find_models("z*")) == "no model matches 'z*' (known: none)"
    assert _message(lambda: find_model("z")) == "there is no model 'z'"
