#!/usr/bin/env bash
# Sets up .venv, compiles a sample for four sequence-parallel ranks (a dry run: no GPU,
# nothing allocated), prints the summary, draws the module graph, and, in a terminal,
# opens the inspector on the recorded trace.
#
#     ./try.sh [--no-tui] [TARGET OPTION ...]
#
# TARGET and its options are those of `autosp-inspect record`; the default is
#     samples/gpt.py --sp 4 --seq 8192 --gpu a100-80gb
# The trace is runs/try.autosp, the picture runs/try.svg.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

open_tui=yes
case "${1:-}" in
-h | --help)
    usage
    exit 0
    ;;
esac
if [ "${1:-}" = --no-tui ]; then
    open_tui=no
    shift
fi

"$root/scripts/setup.sh" samples

inspect=$root/.venv/bin/autosp-inspect
trace=$root/runs/try.autosp
mkdir -p "$root/runs"
if [ $# -eq 0 ]; then
    cd "$root"
    trace=runs/try.autosp
    set -- samples/gpt.py --sp 4 --seq 8192 --gpu a100-80gb
fi
"$inspect" record "$@" -o "$trace"
"$inspect" summary "$trace"
"$inspect" export "$trace" --svg "${trace%.autosp}.svg"
printf 'autosp-inspect is in %s\n' "$root/.venv/bin" >&2
if [ "$open_tui" = yes ] && [ -t 0 ] && [ -t 1 ]; then
    exec "$inspect" show "$trace"
fi
