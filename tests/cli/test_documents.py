"""What README and docs print is what `bamctl` prints."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TABLES = {
    f"{document.relative_to(ROOT)}-{number}": (match["command"], match["table"])
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, match in enumerate(
        re.finditer(r"<!-- bamctl (?P<command>.+) -->\n(?P<table>(?:\|.*\n)+)", document.read_text())
    )
}
"""Where a comment before a table says which command it is from."""


def test_the_tables_are_found():
    assert {name.rpartition("-")[0] for name in TABLES} == {"README.md", "docs/baselines.md"}


@pytest.mark.parametrize(("command", "table"), TABLES.values(), ids=TABLES)
def test_a_table_is_what_its_command_prints(command, table, call, monkeypatch):
    """Whole; of the sentences below it a document may leave out what it says otherwise."""
    monkeypatch.chdir(ROOT)
    outcome = call(*shlex.split(command))
    assert (outcome.status, outcome.err) == (0, "")
    printed = [line for line in outcome.out.splitlines() if line.startswith("|")]
    assert table.splitlines() == printed


def test_the_sample_that_the_readme_shows_is_there(call, monkeypatch):
    monkeypatch.chdir(ROOT)
    [row_id] = re.findall(r"^bamctl show (\w+) ", (ROOT / "README.md").read_text(), re.MULTILINE)
    outcome = call("show", row_id, "results/reference", "--model", "tiny-bam-ssmax")
    assert outcome.status == 0, outcome
    assert row_id in outcome.out
