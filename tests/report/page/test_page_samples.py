import random
import shlex

import pandas as pd

from bamctl.report.depths import depth_rows
from bamctl.report.page import samples as packing
from bamctl.report.page.samples import pack_samples


def test_each_sample_is_there_as_its_row_says(some_samples, some_page, read_page):
    content, samples, blocks = read_page(some_page)
    index = samples["index"]
    assert len(index["run"]) == len(some_samples)
    rows = some_samples.set_index(["run_id", "length", "sample"])
    for place, run in enumerate(index["run"]):
        row = rows.loc[(content["run_ids"][run], index["length"][place], index["sample"][place])]
        prompt = index["prompt"][place]
        packed = {name: values[place] for name, values in blocks["rows"].items()}
        asked = {name: values[prompt] for name, values in blocks["prompts"].items()}
        assert packed["row_id"] == row["row_id"]
        if row["status"] == "done":
            score = float(row["exact"]) if row["metric"] == "exact" else row["recall"]
            assert (index["status"][place], index["score"][place]) == (2, score)
            assert packed["prediction"] == row["prediction"]
            assert asked["excerpts"] == list(row["excerpts"])
            assert asked["references"] == list(row["references"])
            assert (asked["question"], asked["prompt_digest"]) == (row["question"], row["prompt_digest"])
            assert packed["started_at"] == f"{row['started_at']:%Y-%m-%d %H:%M:%S}"
        else:
            assert (index["status"][place], index["score"][place]) == (0, None)
            assert packed["error"] == row["error"]
            assert (packed["prediction"], packed["recall"], packed["exact"]) == (None, None, None)
        command = shlex.split(samples["commands"][packed["command"]])
        assert command == list(row["command"])


def test_a_prompt_of_several_models_is_there_once(make_answers, write, read_page):
    one = make_answers({512: [1.0, 0.0]})
    two = pd.concat([one, make_answers({512: [0.0, 0.0]}, model="small-rope")], ignore_index=True)
    _, _, blocks = read_page(write(two))
    assert (len(blocks["prompts"]["question"]), len(blocks["rows"]["row_id"])) == (2, 4)


def test_rows_of_earlier_versions(make_answers, write, read_page):
    """They have neither the prompt's text nor a command."""
    samples = make_answers({512: [1.0]}).assign(excerpts=None, needles=None, question=None, command=None)
    _, packed, blocks = read_page(write(samples))
    assert blocks["prompts"]["excerpts"] == [[]]
    assert blocks["prompts"]["question"] == [None]
    assert blocks["rows"]["command"] == [None]
    assert packed["commands"] == []


def test_losses_are_samples_too(full_and_sliding, write, read_page):
    _, samples, blocks = read_page(write(full_and_sliding))
    assert sorted(samples["index"]["score"]) == sorted(full_and_sliding["loss"])
    assert set(blocks["rows"]["prediction"]) == {None}


def packed_one(samples, **options):
    return pack_samples(samples, depth_rows(samples).rows, sorted(samples["run_id"].unique()), **options)


def test_texts_are_shortened_only_where_the_page_would_be_too_large(make_answers):
    """Of random letters, which no packing makes small."""
    letters = random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=3_000_000)
    prediction = "".join(letters[:4000])
    whole = packed_one(make_answers({512: [1.0]}, prediction=prediction))
    assert whole.limit is None
    cut = packed_one(make_answers({512: [1.0]}, prediction=prediction + "x"))
    assert cut.limit == 4000
    small = packed_one(make_answers({512: [1.0]}, prediction="".join(letters)), most_bytes=2000)
    assert small.limit == 1200
    nothing = packed_one(make_answers({512: [1.0]}, prediction="".join(letters)), most_bytes=1)
    assert nothing.limit == 0


def test_what_is_kept_of_a_long_text(make_answers, write, read_page):
    excerpt = "a" * 5000 + " 10512 " + "b" * 4000
    samples = make_answers(
        {512: [1.0]}, prediction="p" * 100_000, excerpts=(excerpt,), question="q" * 4000 + "the end"
    )
    _, _, blocks = read_page(write(samples))
    assert blocks["rows"]["prediction"] == [["p" * 4000, 96_000]]
    ((kept, left_out),) = blocks["prompts"]["excerpts"][0]
    assert "10512" in kept
    assert (len(kept), left_out) == (4000, len(excerpt) - 4000)
    question, left_out = blocks["prompts"]["question"][0]
    assert question.endswith("qthe end")
    assert (len(question), left_out) == (4000, 7)


def test_of_too_many_samples_the_first_of_each_length_are_kept(make_answers, monkeypatch):
    samples = pd.concat(
        [
            make_answers({512: [1.0] * 6, 1024: [1.0] * 2}),
            make_answers({512: [1.0] * 6}, model="small-rope"),
        ],
        ignore_index=True,
    )
    for most, kept in ((14, 14), (8, 8), (7, 7), (3, 3)):
        monkeypatch.setattr(packing, "MOST_SAMPLES", most)
        packed = packed_one(samples)
        assert (len(packed.index["run"]), packed.left_out) == (kept, 14 - kept)
    monkeypatch.setattr(packing, "MOST_SAMPLES", 8)
    index = packed_one(samples).index
    places = list(zip(index["run"], index["length"], index["sample"], strict=True))
    assert places == [
        (0, 512, 0),
        (0, 512, 1),
        (0, 512, 2),
        (0, 1024, 0),
        (0, 1024, 1),
        (1, 512, 0),
        (1, 512, 1),
        (1, 512, 2),
    ]


def test_numbers_say_what_they_are(some_page, read_page):
    _, samples, blocks = read_page(some_page)
    fields = {field["name"]: field for field in samples["fields"]}
    assert fields["prefill_seconds"]["unit"] == "seconds"
    assert all(field["description"] for field in fields.values())
    known = {*blocks["rows"], *blocks["prompts"]}
    assert set(fields) <= known


def test_a_hostile_text_is_packed_whole(make_answers, write, read_page):
    texts = ["</script>", "<!--", "\x00", "\u202e", "{{rows}}"]
    samples = make_answers({512: [1.0] * len(texts)}).assign(prediction=texts)
    _, _, blocks = read_page(write(samples))
    assert blocks["rows"]["prediction"] == ["</script>", "<!--", "␀", "⟨U+202E⟩", "{{rows}}"]
