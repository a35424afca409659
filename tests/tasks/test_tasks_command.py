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
    shipped = {file.stem for file in (Path(__file__).parents[2] / "tasks").glob("*.yaml")}
    assert list(rows) == ["task", *sorted({"broken", "odd[red]", *shipped})]
    assert "is not YAML" in rows["broken"]
    assert "did you mean passkey?" in rows["odd[red]"]
    assert rows["passkey"].split()[1] == "passkey"
    assert "the number that the information line gives" in rows["passkey"]
    assert "tasks/passkey.yaml" in rows["passkey"].replace("\\", "/")
    assert rows["niah_single_1"].split()[1] == "niah"
    assert err == ""
