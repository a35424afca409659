import pytest

from bamctl.errors import BadInput
from bamctl.results.journal import read_journal


def ids(journal):
    return journal.rows.column("row_id").to_pylist()


@pytest.fixture
def lines(make_row):
    return [(make_row(sample, prediction="é😀").to_json() + "\n").encode() for sample in range(3)]


def test_no_journal_is_an_empty_one(tmp_path):
    journal = read_journal(tmp_path / "journal.jsonl")
    assert (len(journal.rows), journal.whole_bytes, journal.rejected) == (0, 0, ())


def test_a_journal_cut_anywhere_keeps_its_whole_lines(tmp_path, lines):
    path, whole = tmp_path / "journal.jsonl", lines[0] + lines[1]
    for cut in (*range(0, len(lines[2]), 11), len(lines[2]) - 1):
        path.write_bytes(whole + lines[2][:cut])
        journal = read_journal(path)
        assert (ids(journal), journal.whole_bytes) == (["512-0", "512-1"], len(whole))
        assert journal.complaints == ()
    path.write_bytes(whole + lines[2])
    assert ids(read_journal(path)) == ["512-0", "512-1", "512-2"]


@pytest.mark.parametrize(
    "foreign",
    [
        b'{"row_id": "51\n',
        b"\n",
        b"\x00\x00\x00\n",
        b"\xff\xfe\n",
        b"[1]\n",
        b'{"row_id": "x", "a_later_column": 1}\n',
    ],
)
def test_a_line_that_is_no_row_is_named_and_the_others_are_kept(tmp_path, lines, foreign):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines[0] + foreign + lines[1])
    journal = read_journal(path)
    assert ids(journal) == ["512-0", "512-1"]
    assert journal.rejected == (foreign[:-1],)
    (complaint,) = journal.complaints
    assert complaint.startswith(f"{path}, line 2: left out, ")
    assert "\n" not in complaint


@pytest.mark.parametrize(
    ("was", "becomes"), [(b'"length": 512', b'"length": "x"'), (b'"seed": 0', b'"seed": null')]
)
def test_a_value_of_a_wrong_type_costs_its_own_line_alone(tmp_path, lines, was, becomes):
    path = tmp_path / "journal.jsonl"
    broken = lines[1].replace(was, becomes)
    assert broken != lines[1]
    path.write_bytes(lines[0] + broken + lines[2])
    journal = read_journal(path)
    assert ids(journal) == ["512-0", "512-2"]
    assert journal.rejected == (broken[:-1],)


def test_a_journal_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(BadInput, match=r"^.*journal.jsonl: cannot be read \(Is a directory\)$"):
        read_journal(tmp_path / "journal.jsonl")
