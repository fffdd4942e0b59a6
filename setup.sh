#!/usr/bin/env bash
# Installs the package and its development tools with plain pip, editable, into a virtual environment of this folder.
#
#   bash setup.sh          .venv        everything that training, evaluation and the tests need (about 6.5 GB)
#   bash setup.sh --gpu    .venv-vllm   the same, with vLLM and flash-attn
#
# Two environments, because vLLM pins an older torch and transformers than the rest runs on. The recipes in
# run_scripts/ take .venv-vllm where it exists. A call that finds nothing changed in pyproject.toml does nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

fail() {
    echo "setup.sh: $*" >&2
    exit 2
}

venv=.venv extras=dev gpu=no
for flag in "$@"; do
    case $flag in
        --gpu) venv=.venv-vllm extras=dev,vllm gpu=yes ;;
        *) fail "unknown flag '$flag'; the only flag is --gpu" ;;
    esac
done

stamp=$venv/setup-stamp
wanted=$(sha256sum pyproject.toml | cut -d' ' -f1)
if [ -x $venv/bin/python ] && [ "$(cat $stamp 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

if [ ! -x $venv/bin/python ]; then
    python=
    for candidate in python3.14 python3.13 python3.12 python3.11 python3 python; do # newest first
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            python=$candidate
            break
        fi
    done
    [ -n "$python" ] || fail "no Python of version 3.11 or newer found on the PATH (python3 is $(python3 --version 2>&1 | head -n 1)); install one, then call setup.sh again"
    echo "setup.sh: making $venv with $("$python" --version)"
    "$python" -m venv $venv || fail "'$python -m venv $venv' failed; on Debian and Ubuntu install python3-venv"
fi

echo "setup.sh: installing into $venv (the first time this downloads several GB)"
pip="$venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install --editable ".[$extras]"
if [ $gpu = yes ]; then
    # flash-attn's build imports the installed torch, hence no build isolation and the build tools beforehand.
    $pip install packaging psutil ninja setuptools wheel
    $pip install --no-build-isolation --editable ".[$extras,flash-attn]" ||
        fail "flash-attn could not be installed (its build needs nvcc of the CUDA version that torch was built for); all else is in $venv and runs without it"
fi
echo "$wanted" >$stamp
echo "setup.sh: done"
