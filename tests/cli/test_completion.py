"""Shell completion: it installs, and completes commands, options and names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bamctl.cli.completion import model_names, ruler_task_names, task_names
from bamctl.models.naming import model_folders
from bamctl.tasks.catalog import RULER_TASKS, task_files

HEAVY = ("torch", "transformers", "pandas", "pyarrow", "numpy", "yaml", "rich")


@pytest.fixture
def completed(call, monkeypatch):
    """What bash is told to offer behind a line."""

    def complete(line):
        words = line.split(" ")
        monkeypatch.setenv("_BAMCTL_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        outcome = call()
        assert (outcome.status, outcome.err) == (0, "")
        return outcome.out.split()

    return complete


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bamctl pass", ["passkey"]),
        ("bamctl passkey --leng", ["--lengths"]),
        ("bamctl passkey --qu", ["--quiet", "--quantization"]),
        ("bamctl perplexity --js", ["--json"]),
        ("bamctl passkey --model ti", ["tiny", "tiny-bam-ssmax"]),
        ("bamctl passkey -m no-such", []),
        ("bamctl perplexity tiny-", ["tiny-bam-ssmax"]),
        ("bamctl run niah_multi", [name for name in sorted(RULER_TASKS) if name.startswith("niah_multi")]),
        ("bamctl run pass", ["passkey"]),
        ("bamctl ruler --tasks q", ["qa_1", "qa_2"]),
        ("bamctl ruler --tasks vt,qa_1,q", ["vt,qa_1,qa_2"]),
        ("bamctl ruler --tasks pass", []),
    ],
)
def test_commands_options_and_names_are_completed(folder, completed, line, offered):
    assert sorted(completed(line)) == sorted(offered)


def test_the_names_are_those_that_are_known(folder):
    (folder / "models" / "theirs").mkdir()
    (folder / "models" / "theirs" / "args.json").touch()
    (folder / "models" / "empty").mkdir()
    (folder / "tasks").mkdir()
    (folder / "tasks" / "mine.yaml").touch()
    assert model_names("") == list(model_folders())
    assert {"tiny", "theirs"} < set(model_names(""))
    assert task_names("") == list(task_files())
    assert "mine" in task_names("")
    assert ruler_task_names("") == sorted(["all", *RULER_TASKS])


@pytest.mark.parametrize("line", ["bamctl passkey --model ti", "bamctl ruler --tasks q", "bamctl run pass"])
def test_nothing_heavy_is_imported(environment, tmp_path, line):
    program = (
        "import sys; sys.argv = ['bamctl']\n"
        "from bamctl.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('heavy:', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    asked = {"_BAMCTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | asked,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("heavy:\n"), done


@pytest.fixture
def installed(environment, tmp_path):
    """Installs completion for a shell in a home of its own: the environment in which it is used."""
    program = tmp_path / "bin" / "bamctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m bamctl.cli.main "$@"\n')
    program.chmod(0o755)

    def install(shell):
        home = tmp_path / "home"
        home.mkdir()
        variables = {
            "HOME": str(home),
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        }
        done = subprocess.run(
            ["bamctl", "--install-completion", shell],
            env=environment | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{shell} completion installed in {home}" in done.stdout
        return home, environment | variables

    return install


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_once_it_is_installed(installed, tmp_path):
    home, variables = installed("bash")
    ask = (
        f". {home}/.bashrc; complete -p bamctl;"
        " COMP_WORDS=(bamctl passkey --leng); COMP_CWORD=2; _bamctl_completion bamctl; echo ${COMPREPLY[@]}"
    )
    command = ["bash", "--norc", "-c", ask]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["complete -o default -F _bamctl_completion bamctl", "--lengths"]


def test_zsh_finds_what_is_installed_and_is_told_what_to_offer(installed, tmp_path):
    home, variables = installed("zsh")
    assert "fpath+=~/.zfunc; autoload -Uz compinit; compinit" in (home / ".zshrc").read_text()
    script = Path(home, ".zfunc", "_bamctl").read_text()
    assert script.startswith("#compdef bamctl\n")
    assert "_BAMCTL_COMPLETE=complete_zsh" in script
    asked = {"_BAMCTL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "bamctl passkey --model tiny-b"}
    done = subprocess.run(["bamctl"], env=variables | asked, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("_arguments '*: :((\"tiny-bam-ssmax\"))'\n", "")
