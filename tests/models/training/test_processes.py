"""One training on two processes: the same recipe on several devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bamctl.models.loading import open_checkpoint


@pytest.mark.skipif(sys.platform == "win32", reason="gloo on loopback is tested on Linux and macOS")
def test_two_processes_make_one_checkpoint_and_one_of_them_reports(recipe_file, tmp_path):
    command = [sys.executable, "-m", "bamctl.cli.main", "train", str(recipe_file), "--no-card"]
    command += ["--accelerator", "cpu", "--devices", "2", "--to", str(tmp_path / "two")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "two")]
    assert done.stderr.count("step 8/8") == 1
    assert open_checkpoint(str(tmp_path / "two")).config.train_length == 140
