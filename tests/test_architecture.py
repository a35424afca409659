"""The house stands as it is drawn: rooms import downwards only, and files stay readable."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lint_imports(config: Path, cache: Path) -> int:
    """The linter's exit status. It disables every logger that there is, so it has a process of its own."""
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", linter, "--config", str(config), "--cache-dir", str(cache)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode


def test_rooms_import_downwards_only(tmp_path):
    assert lint_imports(ROOT / "pyproject.toml", tmp_path) == 0


def test_an_import_upwards_is_found(tmp_path):
    """The check above can fail: with the order of two rooms turned round it does."""
    contract = (ROOT / "pyproject.toml").read_text()
    turned = contract.replace(
        '    "bamctl.backends",\n    "bamctl.models",\n', '    "bamctl.models",\n    "bamctl.backends",\n'
    )
    assert turned != contract
    config = tmp_path / "pyproject.toml"
    config.write_text(turned)
    assert lint_imports(config, tmp_path / "cache") == 1


def test_files_stay_readable():
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / "bamctl").rglob("*.py")}
    assert {str(path): lines for path, lines in lengths.items() if lines > 400} == {}
