#!/usr/bin/env bash
# Sets up .venv and runs the tests; arguments go to pytest (`./test.sh -k placement`).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$root/scripts/setup.sh" samples dev deepspeed
cd "$root"
# The tests start several processes each with its own threads: one thread each is fastest.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec .venv/bin/python -m pytest --numprocesses "${AUTOSP_TEST_PROCESSES:-2}" --dist loadfile \
    --no-loadscope-reorder "$@"
