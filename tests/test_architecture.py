"""The house stands as it is drawn: rooms import downwards only, and files stay readable."""

from pathlib import Path

from importlinter import api  # noqa: F401  (importing it registers the contract types)
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[1]


def test_rooms_import_downwards_only(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=str(tmp_path)) == 0


def test_an_import_upwards_is_found(monkeypatch, tmp_path):
    """The check above can fail: with the order of two rooms turned round it does."""
    monkeypatch.chdir(ROOT)
    contract = (ROOT / "pyproject.toml").read_text()
    turned = contract.replace(
        '    "bamctl.backends",\n    "bamctl.models",\n', '    "bamctl.models",\n    "bamctl.backends",\n'
    )
    assert turned != contract
    config = tmp_path / "pyproject.toml"
    config.write_text(turned)
    assert lint_imports(config_filename=str(config), cache_dir=str(tmp_path / "cache")) == 1


def test_files_stay_readable():
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / "bamctl").rglob("*.py")}
    assert {str(path): lines for path, lines in lengths.items() if lines > 400} == {}
