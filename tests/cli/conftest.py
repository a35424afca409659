"""The command line as a user has it: arguments in, exit status and two streams out."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import bamctl
from bamctl.cli.main import main


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: it holds models/tiny and nothing else."""
    shutil.copytree(tiny_checkpoint, tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs `bamctl` with arguments, within this process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bamctl", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Outcome(end.value.code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """For a process of its own that is to find this bamctl in any folder."""
    here = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return here | {"PYTHONPATH": str(Path(bamctl.__file__).parents[1]), "COLUMNS": "80"}
