#!/usr/bin/env bash
# CIFAR-100 at the paper's size on a GPU, in under ten minutes: throughput, model FLOP utilisation, cells of Tables IV
# and V. `bench/gpu_paper.sh --images 48 --epochs 7 --architecture small` tries it anywhere. It is stopped after 590
# seconds whatever it is asked for; for longer runs call bench/gpu_paper.py itself.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3  # a machine that has the packages already
exec timeout --kill-after=5 590 "$python" bench/gpu_paper.py "$@"
