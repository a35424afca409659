"""Task files: found, read, checked, and told apart."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamctl.errors import BadInput
from bamctl.tasks.catalog import build_task, load_spec, task_files
from bamctl.tasks.spec import TaskSpec

SHIPPED = Path(__file__).parents[2] / "tasks" / "passkey.yaml"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, **changes: Any) -> Path:
    """A passkey file with some fields changed, or left out (...)."""
    definition = yaml.safe_load(SHIPPED.read_text()) | changes
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({k: v for k, v in definition.items() if v is not ...}, allow_unicode=True))
    return path


def test_passkey_is_the_authors_prompt() -> None:
    spec: Any = load_spec("passkey")
    assert (spec.name, spec.task, spec.haystack, spec.digits, spec.variant) == (
        "passkey",
        "passkey",
        "garbage",
        5,
        "",
    )
    assert spec.description == (
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them."
        " I will quiz you about the important information there."
    )
    assert " ".join(spec.garbage) == (
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    )
    assert spec.information == "The pass key is {key}. Remember it. {key} is the pass key."
    assert spec.question == "What is the pass key? The pass key is"
    assert (spec.tokens_to_generate, spec.length_includes_generation) == (None, False)
    assert "2505.22842" in spec.source
    assert "2305.16300" in spec.source


def test_the_users_own_folder_comes_first(here: Path) -> None:
    assert task_files()["passkey"] == SHIPPED
    write(here / "tasks" / "passkey.yaml", digits=9)
    write(here / "tasks" / "mine.yaml", digits=8)
    shipped = {file.stem for file in SHIPPED.parent.glob("*.yaml")}
    assert list(task_files()) == sorted({"mine", *shipped})
    assert load_spec("passkey").digits == 9  # type: ignore[attr-defined]
    assert load_spec("mine").name == "mine"
    assert load_spec(str(SHIPPED)).digits == 5  # type: ignore[attr-defined]


def test_a_variant_says_what_differs(here: Path) -> None:
    (here / "essays.txt").write_text("An essay.")
    same = load_spec("passkey", digits=5, haystack="garbage")
    assert (same.variant, same) == ("", load_spec("passkey"))
    changed = load_spec("passkey", haystack=Path("essays.txt"), digits=7, length_includes_generation=True)
    assert changed.variant == "length_includes_generation=true haystack=essays.txt digits=7"
    mine = write(here / "mine.yaml", tokens_to_generate=9)
    assert load_spec(str(mine), tokens_to_generate=None).variant == "tokens_to_generate=null"


def test_the_digest_follows_what_is_asked_and_nothing_else(here: Path) -> None:
    def digest(**overrides: object) -> str:
        return load_spec("passkey", **overrides).digest

    plain = digest()
    assert len(plain) == 64
    assert digest(summary="other words", source="elsewhere") == plain
    (here / "a.txt").write_text("One text.")
    (here / "b.txt").write_text("One text.")
    (here / "c.txt").write_text("Another text.")
    assert digest(haystack="a.txt") == digest(haystack="b.txt") == digest(haystack=str(here / "a.txt"))
    others = [
        digest(haystack="a.txt"),
        digest(haystack="c.txt"),
        digest(digits=6),
        digest(question="What?"),
        digest(garbage=["One."]),
        digest(tokens_to_generate=7),
        digest(length_includes_generation=True),
    ]
    assert len({plain, *others}) == len(others) + 1


def test_the_digest_has_the_hash_of_the_files_bytes(here: Path) -> None:
    content = "\ufeffA text.\r\nMore.\n".encode()
    (here / "a.txt").write_bytes(content)
    assert (
        load_spec("passkey", haystack="a.txt").resolved()["haystack"] == hashlib.sha256(content).hexdigest()
    )


def test_a_haystack_in_a_file_is_beside_the_file_and_an_overriding_one_is_here(here: Path) -> None:
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "text.txt").write_text("Beside.")
    (here / "text.txt").write_text("Here.")
    file = write(here / "elsewhere" / "mine.yaml", haystack="text.txt")
    spec: Any = load_spec(str(file))
    assert spec.text == "Beside."
    assert spec.written("haystack") == "text.txt"
    other: Any = load_spec(str(file), haystack="text.txt")
    assert other.text == "Here."
    assert load_spec(str(file), digits=6).text == "Beside."  # type: ignore[attr-defined]


def test_a_spec_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_spec("passkey").name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": ...}, "task: is missing"),
        ({"task": "paskey"}, r"task: there is no kind 'paskey' \(did you mean passkey\?\)"),
        ({"task": 3}, "task: there is no kind 3"),
        ({"name": "theirs"}, "name: says 'theirs', but the file is called 'mine'"),
        ({"digits": 0}, "digits: input should be greater than or equal to 1, but is 0"),
        ({"digits": 33}, "digits: input should be less than or equal to 32, but is 33"),
        ({"digits": "5"}, "digits: .*integer, but is '5'"),
        ({"digits": True}, "digits: .*integer, but is true"),
        ({"digits": ...}, "digits: is missing"),
        ({"digit": 5}, r"digit: is no field of a passkey task \(did you mean digits\?\)"),
        ({"information": "The key is hidden."}, r"information: holds no \{key\}"),
        ({"question": " What?"}, "question: ' What\\?' is empty or has outer white space"),
        ({"garbage": []}, "garbage: "),
        ({"garbage": ["One.", ""]}, "garbage: "),
        ({"garbage": "One."}, "garbage: .*tuple, but is 'One.'"),
        ({"tokens_to_generate": 0}, "tokens_to_generate: .*greater than or equal to 1"),
        ({"prompt_version": 2}, "prompt_version: "),
        ({"haystack": "nowhere.txt"}, r"haystack: there is no file .*nowhere\.txt"),
        ({"haystack": "."}, "haystack: .* is a folder"),
        ({"haystack": ""}, "haystack: "),
        ({"haystack": None}, "haystack: .*but is null"),
        ({"haystack": "mine\0.txt"}, "haystack: .*cannot be read"),
    ],
)
def test_wrong_fields(here: Path, changes: dict[str, Any], message: str) -> None:
    file = write(here / "mine.yaml", **changes)
    with pytest.raises(BadInput, match=rf"mine\.yaml: {message}") as error:
        load_spec(str(file))
    assert "\n" not in str(error.value)


def test_a_misspelt_field_is_named_rather_than_the_one_that_is_missing(here: Path) -> None:
    file = write(here / "mine.yaml")
    file.write_text(file.read_text().replace("digits:", "digit:"))
    with pytest.raises(BadInput, match=r"digit: is no field of a passkey task \(did you mean digits\?\)"):
        load_spec(str(file))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no task file"),
        (b"- a\n- b\n", "is no task file"),
        (b"1: one\n", "is no task file"),
        (b"task: [passkey\n", r"is not YAML \(line 2: "),
        (b"task: passkey\n\tdigits: 5", r"is not YAML \(line 2: "),
        (b"task: \xff\n", "is not YAML"),
        (b"task: 2020-99-99\n", "is not YAML|there is no kind"),
        (b"task: !!python/object:os.system {}\n", "is not YAML"),
    ],
)
def test_files_that_are_no_task_files(here: Path, content: bytes, message: str) -> None:
    (here / "mine.yaml").write_bytes(content)
    with pytest.raises(BadInput, match=rf"mine\.yaml:? .*{message}|mine\.yaml:? {message}") as error:
        load_spec("./mine.yaml")
    assert "\n" not in str(error.value)


def test_wrong_overrides_are_named(here: Path) -> None:
    assert here
    with pytest.raises(BadInput, match=r"^passkey \(digits=64\): digits: .*32, but is 64$"):
        load_spec("passkey", digits=64)
    with pytest.raises(BadInput, match=r"haystack: there is no file nowhere\.txt"):
        load_spec("passkey", haystack="nowhere.txt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("paskey", r"there is no task 'paskey' \(did you mean passkey\?\)"),
        ("", r"there is no task ''"),
        ("nowhere.yaml", r"there is no task file nowhere\.yaml"),
        ("./nowhere", "there is no task file nowhere"),
        ("./", "cannot be read"),
    ],
)
def test_unknown_tasks(here: Path, name: str, message: str) -> None:
    assert here
    with pytest.raises(BadInput, match=message):
        load_spec(name)


def test_build_task_takes_a_tokenizer_or_a_prompt_tokenizer(tokenizer_of: Any) -> None:
    from bamctl.tasks.tokenization import PromptTokenizer

    pieces = PromptTokenizer(tokenizer_of("llama"))
    assert build_task(load_spec("passkey"), pieces).tokenizer is pieces
    assert build_task(load_spec("passkey"), tokenizer_of("llama")).tokenizer.digest == pieces.digest
    with pytest.raises(TypeError):
        build_task(TaskSpec(task="other", name="other", summary="", source=""), pieces)


def test_a_field_that_stands_twice_is_refused(here: Path) -> None:
    file = here / "twice.yaml"
    file.write_text(SHIPPED.read_text(encoding="utf-8") + "digits: 7\n", encoding="utf-8")
    with pytest.raises(
        BadInput, match=r"twice\.yaml is not YAML \(line \d+: the field 'digits' stands there twice\)"
    ):
        load_spec(str(file))


@pytest.mark.parametrize("task", ["vt", "cwe", "fwe", "qa_1"])
@pytest.mark.parametrize("field", ["{key}", "{query.x}", "{query[x]}", "{0}", "{"])
def test_a_template_with_another_field_is_one_line(task: str, field: str) -> None:
    with pytest.raises(BadInput, match=r"template: .* is no field of it; it has \{context\}"):
        load_spec(task, template=f"{{context}} {field}")
