"""Whether vLLM's engine starts here: ``python -m bamctl.backends.vllm.trial MODEL``, and `try_engine`."""

import subprocess
import sys
import time

PATIENCE = 300
"""Seconds after which an engine counts as one that does not start."""

LONGEST = 512
"""Tokens of a prompt that the engine is to have memory for."""


def try_engine(model: str, *, patience: float = PATIENCE) -> tuple[bool, str]:
    """Starts an engine in a process of its own, whose end is not ours.

    Returns:
        Whether it started, and in one line how long that took or why it did not.
    """
    begun = time.perf_counter()
    try:
        ran = subprocess.run(
            [sys.executable, "-m", __name__, model],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"its engine has not started after {patience:.0f} s"
    if ran.returncode == 0:
        return True, f"its engine starts, in {time.perf_counter() - begun:.0f} s"
    lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
    return False, lines[-1] if lines else f"its engine ended with status {ran.returncode}"


def main(model: str) -> int:
    """Starts an engine and ends it; the exit status, with one line on stderr where it is not 0."""
    from bamctl.backends.opening import open_model
    from bamctl.errors import BamctlError

    try:
        opened = open_model(model, backend="vllm")
        opened.start(device="auto", dtype="auto", share_prefixes=True, longest=LONGEST)
    except BamctlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
