"""What takes long is made once, and a cache that is no good costs nothing but time."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bamctl.tasks.cache import cache_folder, cached, digest_of
from bamctl.tasks.haystack import Haystack
from bamctl.tasks.tokenization import BEHIND_NEWLINE, PromptTokenizer

SENTENCES = [" One is here.", " Two is there.", " The third one ends it."]


class Made:
    """Counts how often it makes its arrays."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> dict[str, Any]:
        self.times += 1
        return {"ids": np.arange(5, dtype=np.int32), "words": np.array(["a", "größer"]), "none": np.array(-1)}


def assert_same(arrays: Any) -> None:
    expected = Made()()
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        assert (arrays[name] == array).all()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "not" / "yet" / "there"
    monkeypatch.setenv("BAMCTL_CACHE", str(path))
    return path


def test_an_entry_is_made_once_and_read_as_it_was(folder: Path) -> None:
    make = Made()
    for _ in range(3):
        assert_same(cached("key", make))
    assert make.times == 1
    assert [file.name for file in folder.iterdir()] == ["key.npz"]
    cached("other", make)
    assert make.times == 2


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def _changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[150] ^= 0xFF  # within the first array
    path.write_bytes(content)


def _other_kind(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.arange(3))


def _pickle(path: Path) -> None:
    np.savez(path, ids=np.array([{"an": "object"}], dtype=object))


@pytest.mark.parametrize("damage", [_empty, _cut, _changed, _other_kind, _pickle])
def test_a_damaged_entry_is_made_again(folder: Path, damage: Callable[[Path], None]) -> None:
    make = Made()
    cached("key", make)
    damage(folder / "key.npz")
    assert_same(cached("key", make))
    assert make.times == 2
    assert_same(cached("key", make))
    assert make.times == 2


def test_a_folder_in_the_place_of_an_entry(folder: Path) -> None:
    (folder / "key.npz" / "full").mkdir(parents=True)
    make = Made()
    for times in (1, 2):
        assert_same(cached("key", make))
        assert make.times == times
    assert [file.name for file in folder.iterdir()] == ["key.npz"]  # nothing is left behind


def test_a_file_in_the_place_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        monkeypatch.setenv("BAMCTL_CACHE", str(tmp_path / place))
        make = Made()
        for times in (1, 2):
            assert_same(cached("key", make))
            assert make.times == times


def test_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    make = Made()
    for times in (1, 2):
        assert_same(cached("key", make))
        assert make.times == times


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", refuse)
    assert_same(cached("key", Made()))
    assert list(folder.iterdir()) == []


def test_what_making_raises_is_raised_and_nothing_is_kept(folder: Path) -> None:
    def fail() -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cached("key", fail)
    assert not folder.exists()


def test_an_empty_name_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAMCTL_CACHE", "")
    assert cache_folder() is None
    make = Made()
    for times in (1, 2):
        assert_same(cached("key", make))
        assert make.times == times
    assert list(tmp_path.iterdir()) == []


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BAMCTL_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("BAMCTL_CACHE", "~nobody-at-all/mine")
    assert cache_folder() is None
    monkeypatch.delenv("BAMCTL_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "bamctl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "bamctl"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "bamctl"


TWO_AT_ONCE = """
import sys, time
from pathlib import Path
import numpy as np
from bamctl.tasks.cache import cached

mine, other = Path(sys.argv[1]), Path(sys.argv[2])

def make():
    mine.touch()
    while not other.exists():  # both are making it now
        time.sleep(0.01)
    return {"numbers": np.arange(200_000)}

for _ in range(20):
    assert (cached("key", make)["numbers"] == np.arange(200_000)).all()
print("read")
"""


def test_two_processes_make_the_same_entry_at_once(folder: Path, tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("first", "second")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_AT_ONCE, *order],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in (names, names[::-1])
    ]
    for process in processes:
        out, error = process.communicate(timeout=60)
        assert (out, error, process.returncode) == ("read\n", "", 0)
    assert [file.name for file in folder.iterdir()] == ["key.npz"]


def test_names_depend_on_every_part_and_on_where_parts_end() -> None:
    digests = [
        digest_of(*parts)
        for parts in (
            (),
            ("",),
            ("", ""),
            ("a",),
            ("a", "b"),
            ("ab",),
            ("b", "a"),
            ("a", "b", ""),
            ("\ud800",),
        )
    ]
    assert len(set(digests)) == len(digests)
    assert digest_of("a", "b") == digest_of("a", "b")


def same(one: Haystack, two: Haystack) -> bool:
    return (
        one.token_ids.tolist() == two.token_ids.tolist()
        and one.ends.tolist() == two.ends.tolist()
        and one.first_unstable == two.first_unstable
    )


@pytest.mark.parametrize("kind", ["byte_bpe", "multiword", "wordpiece"])
def test_a_haystack_out_of_the_cache_is_a_fresh_one(kind: str, folder: Path, tokenizer_of: Any) -> None:
    tokenizer = PromptTokenizer(tokenizer_of(kind))
    sentences = [*SENTENCES, " 日本語."]
    fresh = Haystack.of(sentences, tokenizer)
    first = Haystack.kept(lambda: sentences, ["mine"], tokenizer)
    again = Haystack.kept(lambda: pytest.fail("made again"), ["mine"], tokenizer)
    for kept in (first, again):
        assert same(kept, fresh)
        assert kept.token_ids.dtype == fresh.token_ids.dtype == np.int32
        assert kept.ends.dtype == fresh.ends.dtype == np.int64
    assert len(list(folder.iterdir())) == 1


def test_another_text_tokenizer_anchor_or_version_is_another_entry(
    folder: Path, tokenizer_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def keep(*parts: str, kind: str = "byte_bpe", **options: Any) -> None:
        tokenizer = PromptTokenizer(tokenizer_of(kind))
        Haystack.kept(lambda: made.append(parts) or SENTENCES, parts, tokenizer, **options)

    keep("text")
    keep("text")
    assert len(made) == 1
    keep("another text")
    keep("text", "2")
    keep("text", kind="llama")
    keep("text", behind=BEHIND_NEWLINE)
    assert len(made) == 5
    monkeypatch.setattr("bamctl.tasks.haystack._VERSION", 999)
    keep("text")
    assert len(made) == len(list(folder.iterdir())) == 6
