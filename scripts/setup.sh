#!/usr/bin/env bash
# Makes .venv beside the sources and installs this project into it (editable).
#
#     scripts/setup.sh [EXTRA ...]     extras of pyproject.toml: samples, dev, deepspeed
#
# Run again, it does nothing until pyproject.toml or this script changes.
#
# Environment:
#   AUTOSP_PYTHON  the Python to make .venv with (default: the first of python3,
#                  python3.13, python3.12, python3.11 that is at least 3.11)
#   AUTOSP_TORCH   what pip installs when .venv has no torch (default: torch==2.13.0);
#                  for instance a wheel file, or torch==2.13.0+cu130
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
log=$venv/setup.log

say() { printf '%s\n' "$*" >&2; }
fail() {
    say "setup: $*"
    exit 2
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    if [ -n "${AUTOSP_PYTHON:-}" ]; then
        is_new_enough "$AUTOSP_PYTHON" ||
            fail "AUTOSP_PYTHON=$AUTOSP_PYTHON is not a Python of version 3.11 or newer"
        printf '%s' "$AUTOSP_PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11; do
        if is_new_enough "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "no Python of version 3.11 or newer found ($(python3 --version 2>&1 || true))." \
        "Install one, or name it: AUTOSP_PYTHON=/path/to/python3.11 $0"
}

make_venv() {
    local base
    base=$(find_python)
    say "Making a virtual environment in .venv"
    # Debian keeps the part of venv that brings pip in a package of its own (python3-venv).
    # Without it, the environment is made bare and the system's pip fills it.
    if ! "$base" -m venv "$venv" >/dev/null 2>&1; then
        rm -rf "$venv"
        "$base" -m venv --without-pip "$venv" >/dev/null 2>&1 ||
            fail "cannot make a virtual environment in $venv." \
                "On Debian: apt-get install python3-venv"
    fi
}

ensure_pip() {
    if "$python" -c 'import pip' 2>/dev/null || "$python" -m ensurepip >/dev/null 2>&1; then
        return
    fi
    "$(find_python)" -m pip --python "$python" install --quiet pip >/dev/null 2>&1 ||
        fail "there is no pip to fill $venv with. On Debian: apt-get install python3-pip"
}

pip_install() {
    local what=$1
    shift
    if ! "$python" -m pip install --disable-pip-version-check --no-input "$@" >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        fail "could not install $what; all of pip's output is in $log"
    fi
}

has_distribution() {
    "$python" -c "import importlib.metadata as m, sys; m.version(sys.argv[1])" "$1" 2>/dev/null
}

extras=$(printf '%s\n' "$@" | sort -u | paste -sd, -)
torch=${AUTOSP_TORCH:-torch==2.13.0}
stamp=$venv/setup-$(printf '%s' "${extras:-none}" | tr ',' '-').done
fingerprint=$(cat "$root/pyproject.toml" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)

if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$fingerprint" ]; then
    exit 0
fi

if ! "$python" -c '' 2>/dev/null; then
    rm -rf "$venv"
    make_venv
fi
is_new_enough "$python" ||
    fail "the Python in $venv is older than 3.11; remove that folder and run this again"
ensure_pip

# torch comes first and by version: left to the other packages, pip would take the newest
# release, which on Linux is a CUDA build of several GB.
if ! has_distribution torch; then
    say "Installing $torch (about 200 MB for a CPU build; once)"
    pip_install "$torch" "$torch"
fi
say "Installing this project${extras:+ with its extras: $extras}"
pip_install "this project" --editable "$root${extras:+[$extras]}"
printf '%s\n' "$fingerprint" >"$stamp"
