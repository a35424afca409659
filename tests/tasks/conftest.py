"""Tokenizers of every common kind, trained here on a few sentences, and tasks bound to them."""

import json
import random
import string
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from bamctl.tasks.catalog import build_task, load_spec
from bamctl.tasks.passkey import PasskeyTask

SANE = ("byte_bpe", "merged_digits", "three_digits", "llama", "metaspace_first", "unigram", "wordpiece")
"""Kinds whose tokens end where words do. `multiword` has tokens across the ends of sentences."""


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees or fills the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAMCTL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def _corpus() -> list[str]:
    rng = random.Random(0)
    spec: Any = load_spec("passkey")
    lines = [
        spec.description,
        *spec.garbage,
        spec.question,
        "The pass key is the pass key. Remember it.",
    ] * 20
    lines += [f"Number {rng.randrange(10**5)} and {rng.randrange(10**3)} and 10 or 2024." for _ in range(600)]
    lines += [
        "A quick brown fox, they say, jumps over the lazy dog!",
        'Who said "never"? Nobody did (so far).',
    ] * 9
    return [*lines, " ".join(string.ascii_letters + string.punctuation), string.ascii_lowercase + "a"]


def _byte_bpe(split: pre_tokenizers.PreTokenizer, *, bos: bool, size: int = 500) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _corpus(),
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=["<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


_GPT2 = r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _metaspace_bpe(*, multiword: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=not multiword)
    tokenizer.train_from_iterator(
        _corpus(),
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
            show_progress=False,
        ),
    )
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = definition["added_tokens"][:3]  # bytes are common tokens, not special ones
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def _llama() -> Tokenizer:
    tokenizer = _metaspace_bpe()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def _metaspace_first(*, multiword: bool = False) -> Tokenizer:
    tokenizer = _metaspace_bpe(multiword=multiword)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        _corpus(),
        trainers.UnigramTrainer(vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"),
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        _corpus(), trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


_KINDS: dict[str, tuple[Callable[[], Tokenizer], dict[str, str]]] = {
    "byte_bpe": (
        lambda: _byte_bpe(
            pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _split(_GPT2)]), bos=False
        ),
        {"eos_token": "</s>"},
    ),
    "merged_digits": (lambda: _byte_bpe(_split(_GPT2), bos=False, size=700), {"eos_token": "</s>"}),
    "three_digits": (
        lambda: _byte_bpe(
            _split(r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), bos=True, size=1500
        ),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "llama": (_llama, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "metaspace_first": (_metaspace_first, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "unigram": (_unigram, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}),
    "wordpiece": (_wordpiece, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}),
    "multiword": (
        lambda: _metaspace_first(multiword=True),
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
}


@cache
def _tokenizer(kind: str) -> PreTrainedTokenizerFast:
    train, special = _KINDS[kind]
    return PreTrainedTokenizerFast(tokenizer_object=train(), model_max_length=64, **special)


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], PreTrainedTokenizerFast]:
    """A Hugging Face tokenizer by kind."""
    return _tokenizer


@pytest.fixture(params=SANE)
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of tokenizer but `multiword`."""
    return str(request.param)


@pytest.fixture(scope="session")
def task_of() -> Callable[..., PasskeyTask]:
    """A passkey task by kind of tokenizer and changed fields."""

    @cache
    def make(kind: str, **overrides: object) -> PasskeyTask:
        task = build_task(load_spec("passkey", **overrides), _tokenizer(kind))
        assert isinstance(task, PasskeyTask)
        return task

    return make


@pytest.fixture(scope="session")
def reencoded() -> Callable[..., list[int]]:
    """The tokens of the whole text of some tokens, by the tokenizer itself."""

    def reencode(kind: str, ids: Any) -> list[int]:
        tokenizer = _tokenizer(kind)
        text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        return list(encoded["input_ids"])

    return reencode


@pytest.fixture(scope="session")
def wild_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a text with everything that makes trouble: CRLF, a byte order mark, many scripts, numbers,
    words that look like special tokens, a paragraph without an end."""
    text = (
        "\ufeffThe first line\r\nruns on here. It cost 12,345 or 98765 (see <s> and </s>, or [CLS]).\r\n\r\n"
        "Crème brûlée — “naïve”… Größe? Ja!\tΣίσυφος. Дым.\n \nПривет, мир!"
        " 日本語の文。次の文！？終わり。\n\n"
        "👩‍👩‍👧‍👦🇧🇷 emoji\u00a0and e\u0301 combine. He said 'do not', didn't he?   Two  spaces.\n\n"
        + "word " * 500
        + "\n\n<|endoftext|> ends nothing. fi ligature ﬁ and ½ and Ⅷ.\n"
    )
    path = tmp_path_factory.mktemp("texts") / "wild.txt"
    path.write_bytes(text.encode())
    return str(path)


@pytest.fixture(scope="session")
def plain_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a text of 400 plain sentences of many lengths, some with numbers."""
    rng = random.Random(1)
    words = [
        "the",
        "grass",
        "sky",
        "pass",
        "key",
        "remember",
        "about",
        "quick",
        "brown",
        "lazy",
        "never",
        "so",
    ]
    sentences = [
        " ".join(rng.choices(words, k=rng.randint(2, 25))).capitalize()
        + rng.choice([".", ".", "!", "?", " 77."])
        for _ in range(400)
    ]
    path = tmp_path_factory.mktemp("texts") / "plain.txt"
    path.write_text("\n".join(sentences))
    return str(path)
