#!/usr/bin/env bash
# CIFAR-100 at the paper's size on a GPU, in under ten minutes: throughput, model FLOP utilisation, cells of Tables IV
# and V. `bench/gpu_paper.sh --images 48 --epochs 2 --architecture small` tries it anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3  # a machine that has the packages already
exec "$python" bench/gpu_paper.py "$@"
