"""`bamctl tasks` lists every task file, the broken ones with what is wrong."""

from pathlib import Path

import pytest

from bamctl.cli.tasks_command import tasks


def test_the_table_has_every_task_and_the_errors_of_broken_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "broken.yaml").write_text("task: [")
    (tmp_path / "tasks" / "odd[red].yaml").write_text("task: pass")
    tasks()
    out, err = capsys.readouterr()
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert list(rows) == ["task", "broken", "odd[red]", "passkey"]
    assert "is not YAML" in rows["broken"]
    assert "did you mean passkey?" in rows["odd[red]"]
    assert "garbage" in rows["passkey"]
    assert " 5 " in rows["passkey"]
    assert err == ""
