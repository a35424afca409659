#!/usr/bin/env bash
# Correctness, throughput and one passkey run on a GPU, within five minutes. Nothing is installed: torch and
# triton are enough for the kernels; the passkey run wants bamctl's other dependencies and says so if they lack.
# Rows go to benchmarks/results/attention-gpu.jsonl. Where there is no GPU the table says "not measured".
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
unset TRITON_INTERPRET

python=${PYTHON:-python3}
if ! missing=$("$python" -c 'import torch' 2>&1); then
    echo "gpu.sh: $python: $(tail -n 1 <<<"$missing"); PYTHON=... names another" >&2
    exit 2
fi
"$python" benchmarks/gpu.py --seconds 150 --rounds 3 "$@"

if ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'; then
    echo "passkey at 512k: not measured (no GPU)"
elif ! missing=$("$python" -c 'import bamctl.cli.main, bamctl.cli.measure, bamctl.backends.native, bamctl.evaluation.run' 2>&1); then
    echo "passkey at 512k: not measured ($(tail -n 1 <<<"$missing"))"
else
    results=$(mktemp -d)
    trap 'rm -rf "$results"' EXIT
    timeout 90 "$python" -c 'from bamctl.cli.main import main; main()' passkey --lengths 128k,512k --samples 3 \
        --device cuda --out "$results" || echo "passkey at 512k: failed"
fi
