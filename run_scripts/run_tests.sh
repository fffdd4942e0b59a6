#!/usr/bin/env bash
# Sets up the environment if needed, then runs the tests. Arguments go to pytest:
#   bash run_scripts/run_tests.sh                      all tests
#   bash run_scripts/run_tests.sh tests/rewards -x     one group
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash setup.sh

export HF_HUB_OFFLINE=1                       # no test needs the network
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # tiny matrices: a second thread costs more than it gives
export TOKENIZERS_PARALLELISM=false           # the tests start processes
exec .venv/bin/python -m pytest "$@"
