"""What a cache carries is tried, and libraries that have something to say are not heard."""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from bamctl.backends.opening import open_model
from bamctl.backends.reading import CACHE_NAMES, PARTS, PROBED, TOLERANCE, Carrying, Reader
from bamctl.errors import BadInput


@pytest.fixture
def small_mamba():
    """Random weights as transformers draws them, of whose state little comes through to the logits."""
    config = transformers.MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=400)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def llama():
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=400,
        initializer_range=0.4,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@torch.inference_mode()
def test_a_state_that_matters_little_is_not_lost_either(small_mamba):
    """Read in chunks its logits are off by a hundredth of their spread, however long the prompt is."""
    reader = Reader(small_mamba, 400)
    assert reader.carrying is Carrying.STEPS
    ids = torch.arange(300)[None] ** 2 % 400
    whole = reader.forward(ids, keep=100)[0].double()
    _, cache = reader.forward(ids[:, :200])
    parts = reader.forward(ids[:, 200:], cache, start=200, keep=100)[0].double()
    off = float((whole - parts).square().mean().sqrt() / whole.std())
    assert TOLERANCE < off < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_hide_no_lost_state_and_condemn_no_rounding(small_mamba, llama, dtype):
    for model, carrying in ((small_mamba, Carrying.STEPS), (llama, Carrying.CHUNKS)):
        stored = {name: value.clone() for name, value in model.to(dtype).state_dict().items()}
        assert Reader(model, 400).carrying is carrying
        after = model.state_dict()
        assert {name: value.dtype for name, value in after.items()} == dict.fromkeys(stored, dtype)
        assert all(torch.equal(after[name], value) for name, value in stored.items())


@pytest.mark.parametrize(("share", "carrying"), [(0.5, Carrying.CHUNKS), (2.0, Carrying.NOTHING)])
def test_how_far_parts_may_be_from_the_whole(llama, share, carrying):
    """The same amount off at every logit of what is read behind a cache, either side of the tolerance."""
    with torch.inference_mode():
        ids = torch.tensor([[(7919 * (i + 1) ** 2) % 400 for i in range(sum(PARTS))]])
        spread = float(llama(ids).logits[0, -sum(PARTS[1:]) :].std())

    def shift(module, arguments, options, outputs):
        if any(options.get(name) is not None for name in CACHE_NAMES):
            outputs.logits += share * TOLERANCE * spread
        return outputs

    hook = llama.register_forward_hook(shift, with_kwargs=True)
    try:
        assert Reader(llama, 400).carrying is carrying
    finally:
        hook.remove()


def test_libraries_tell_nothing_beside(save_foreign, make_prompt, capfd):
    """Of Mamba's kernels that are not installed, nor of a start token that its vocabulary lacks."""
    config = transformers.MambaConfig(
        hidden_size=32, num_hidden_layers=2, state_size=8, initializer_range=0.4, bos_token_id=10**6
    )
    folder = save_foreign("loud", config)
    for told_once in (transformers.utils.logging.warning_once, transformers.utils.logging.info_once):
        told_once.cache_clear()
    capfd.readouterr()
    before = transformers.utils.logging.get_verbosity()
    backend = open_model(str(folder)).start(device="cpu", dtype="auto", share_prefixes=True, longest=512)
    backend.complete([make_prompt()])
    assert capfd.readouterr().err == (
        "loud: its cache does not carry over between chunks, so prompts are read whole\n"
    )
    assert transformers.utils.logging.get_verbosity() == before


def test_as_many_positions_as_the_trial_takes(save_foreign):
    for positions in (PROBED, PROBED - 1):
        config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=positions)
        opened = open_model(str(save_foreign(f"short-{positions}", config)))
        if positions == PROBED:
            opened.start(device="cpu", dtype="auto", share_prefixes=True, longest=512)
            continue
        with pytest.raises(BadInput, match=r"^short-39: it has 39 positions, and trying its cache takes 40$"):
            opened.start(device="cpu", dtype="auto", share_prefixes=True, longest=512)
