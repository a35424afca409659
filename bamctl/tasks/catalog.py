"""Which tasks there are, and how a task's file becomes a task."""

import fnmatch
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from bamctl.errors import BadInput, did_you_mean
from bamctl.locations import search_path
from bamctl.tasks.base import Task
from bamctl.tasks.passkey import PasskeySpec, PasskeyTask
from bamctl.tasks.ruler.common_words import CommonWordsTask
from bamctl.tasks.ruler.common_words_spec import CommonWordsSpec
from bamctl.tasks.ruler.frequent_words import FrequentWordsTask
from bamctl.tasks.ruler.frequent_words_spec import FrequentWordsSpec
from bamctl.tasks.ruler.niah import NiahTask
from bamctl.tasks.ruler.niah_spec import NiahSpec
from bamctl.tasks.ruler.question_answering import QuestionAnsweringTask
from bamctl.tasks.ruler.question_answering_spec import QuestionAnsweringSpec
from bamctl.tasks.ruler.variable_tracking import VariableTrackingTask
from bamctl.tasks.ruler.variable_tracking_spec import VariableTrackingSpec
from bamctl.tasks.spec import TaskSpec
from bamctl.tasks.tokenization import PromptTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RULER_TASKS = (
    *("niah_single_1", "niah_single_2", "niah_single_3"),
    *("niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery"),
    *("vt", "cwe", "fwe", "qa_1", "qa_2"),
)
"""RULER's thirteen, in its own order."""

KINDS: dict[str, type[TaskSpec]] = {
    "passkey": PasskeySpec,
    "niah": NiahSpec,
    "variable_tracking": VariableTrackingSpec,
    "common_words_extraction": CommonWordsSpec,
    "freq_words_extraction": FrequentWordsSpec,
    "qa": QuestionAnsweringSpec,
}
"""What a file's field `task` may say, and the fields that follow from it."""


def task_files() -> dict[str, Path]:
    """The task files by name, sorted; where folders share a name, the user's own file."""
    found: dict[str, Path] = {}
    for folder in search_path("tasks"):
        for file in folder.glob("*.yaml"):
            found.setdefault(file.stem, file)
    return dict(sorted(found.items()))


def ruler_tasks(patterns: str) -> list[str]:
    """The names of RULER's tasks that patterns with commas between them pick, in RULER's order, each once.

    Raises:
        BadInput: a pattern picks none.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    if not wanted:
        raise BadInput(f"--tasks {patterns!r} name no task; write all, or names such as niah_single_1,vt")
    picked: set[str] = set()
    for pattern in wanted:
        found = RULER_TASKS if pattern == "all" else fnmatch.filter(RULER_TASKS, pattern)
        if not found:
            raise BadInput(f"RULER has no task {pattern!r}{did_you_mean(pattern, RULER_TASKS)}")
        picked.update(found)
    return [name for name in RULER_TASKS if name in picked]


def load_spec(name_or_file: str, **overrides: object) -> TaskSpec:
    """Reads and checks a task's definition.

    Args:
        name_or_file: a name of `task_files`, or the path of a YAML file.
        overrides: fields to have otherwise than the file says; `TaskSpec.variant` tells which.

    Raises:
        BadInput: no such task; the file is no task file or one of its fields, or an override, is wrong (one
            line with the file and the field).
    """
    path = _find(name_or_file)
    definition = _read_yaml(path)
    kind = definition.get("task")
    if kind is None:
        raise BadInput(f"{path}: task: is missing; it says what kind of task this is ({', '.join(KINDS)})")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadInput(f"{path}: task: there is no kind {kind!r}{did_you_mean(str(kind), KINDS)}")
    if definition.setdefault("name", path.stem) != path.stem:
        raise BadInput(
            f"{path}: name: says {definition['name']!r}, but the file is called {path.stem!r};"
            " leave it out or make them one"
        )
    spec = _validated(KINDS[kind], definition, where=str(path), context={"folder": path.parent})
    if not overrides:
        return spec
    where = f"{spec.name} ({', '.join(f'{field}={value}' for field, value in overrides.items())})"
    changed = _validated(KINDS[kind], {**spec.model_dump(), **overrides}, where=where, context=None)
    changed.note_differences(spec)
    return changed


def build_task(spec: TaskSpec, tokenizer: "PreTrainedTokenizerBase | PromptTokenizer") -> Task:
    """Binds a definition to a tokenizer; what all samples share is tokenised here, once.

    Raises:
        BadInput: the definition and the tokenizer do not go together.
    """
    pieces = (
        tokenizer
        if isinstance(tokenizer, PromptTokenizer)
        else PromptTokenizer(tokenizer, chat=spec.apply_chat_template)
    )
    match spec:
        case PasskeySpec():
            return PasskeyTask(spec, pieces)
        case NiahSpec():
            return NiahTask(spec, pieces)
        case VariableTrackingSpec():
            return VariableTrackingTask(spec, pieces)
        case CommonWordsSpec():
            return CommonWordsTask(spec, pieces)
        case FrequentWordsSpec():
            return FrequentWordsTask(spec, pieces)
        case QuestionAnsweringSpec():
            return QuestionAnsweringTask(spec, pieces)
        case _:
            raise TypeError(f"no task is made of a {type(spec).__name__}")


class _Loader(yaml.SafeLoader):
    """YAML in which no field stands twice: one of them would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the field {key.value!r} stands there twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _find(name_or_file: str) -> Path:
    files = task_files()
    if name_or_file in files:
        return files[name_or_file]
    if name_or_file.endswith((".yaml", ".yml")) or "/" in name_or_file or "\\" in name_or_file:
        return Path(name_or_file)
    raise BadInput(f"there is no task {name_or_file!r}{did_you_mean(name_or_file, files)}")


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        definition = yaml.load(path.expanduser().read_bytes(), Loader=_Loader)
    except FileNotFoundError:
        raise BadInput(f"there is no task file {path}") from None
    except (OSError, RuntimeError) as error:  # unreadable, or no home folder for ~
        raise BadInput(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1}: {error.problem})" if error.problem_mark else ""
        raise BadInput(f"{path} is not YAML{line}") from None
    except (yaml.YAMLError, ValueError) as error:  # bytes that are no text, a date that is none
        raise BadInput(f"{path} is not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(definition, dict) or not all(isinstance(field, str) for field in definition):
        raise BadInput(
            f"{path} is no task file: fields and their values are expected, such as `task: passkey`"
        )
    return definition


def _validated(
    kind: type[TaskSpec], definition: dict[str, Any], *, where: str, context: dict[str, Any] | None
) -> TaskSpec:
    try:
        return kind.model_validate(definition, context=context)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    except ValidationError as error:
        # A misspelt field is unknown and, under its right name, missing: the former says more.
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        field = str(first["loc"][0])
        match first["type"]:
            case "missing":
                problem = "is missing"
            case "extra_forbidden":
                problem = (
                    f"is no field of a {definition['task']} task{did_you_mean(field, kind.model_fields)}"
                )
            case "value_error":
                problem = str(first["ctx"]["error"])
            case _:
                problem = f"{first['msg'][0].lower()}{first['msg'][1:]}, but is {_shortened(first['input'])}"
        raise BadInput(f"{where}: {field}: {problem}") from None


def _shortened(value: object) -> str:
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
