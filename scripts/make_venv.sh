#!/usr/bin/env bash
# Make a virtual environment: make_venv.sh <python> <folder>. Says what to do when the machine lacks a part of it.
set -euo pipefail
python=$1 venv=$2

if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
  echo "setup: Quire needs Python 3.11 or 3.12 (found: ${python:-none}). Name one: make setup PYTHON=/path/to/python3.11" >&2
  exit 1
fi
[ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 && exit 0

# Debian's Python comes without ensurepip until its venv package is installed.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing $package, which this Python lacks"
    apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy "$package" >/dev/null
  else
    echo "setup: this Python has no ensurepip. Install the package $package and run make again." >&2
    exit 1
  fi
fi
echo "setup: making $venv with $("$python" --version)"
"$python" -m venv "$venv"
