#!/usr/bin/env bash
# On the GPU machine, in the repository's root:
#   bash benchmarks/gpu/on_device.sh KIT SECONDS [SHAPES] [DEVICE]
# KIT is the folder that benchmarks.gpu.prepare made. Nothing is fetched. Results go to $OUT (or
# out/gpu): results-*.json, curve-*.json, table.md, run.log. A second command on the same machine
# goes on where the first ended; in another slot, put the results-*.json of the last one into KIT.
set -uo pipefail
began=$SECONDS
kit=$1 seconds=$2 shapes=${3:-32b,4b} device=${4:-cuda}
out=${OUT:-out/gpu}
site=${SITE:-/tmp/cp_ray_site}
python=${PYTHON:-python3}
mkdir -p "$out" "$site/results"

measure() {
  [ "$device" = cpu ] || nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
  if compgen -G "$kit/*.tar.xz" >/dev/null && [ ! -e "$site/.complete" ]; then
    "$python" -c 'import torch, transformers' >/dev/null 2>&1 &  # reads them from a cold disk meanwhile
    pids=()
    for archive in "$kit"/*.tar.xz; do
      "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' \
        "$archive" "$site" &
      pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || { echo "an archive did not unpack"; return 1; }; done
    touch "$site/.complete"
    echo "unpacked after $((SECONDS - began)) s"
  fi
  cp -n "$site"/results/results-*.json "$out"/ 2>/dev/null
  cp -n "$kit"/results-*.json "$out"/ 2>/dev/null
  export PYTHONPATH=$PWD:$site PYTHONUNBUFFERED=1
  export VLLM_CACHE_ROOT=$site/cache TRITON_CACHE_DIR=$site/triton CUDA_MODULE_LOADING=LAZY
  # The machine has no network: every address is its own.
  export VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
  "$python" -m benchmarks.gpu run --kit "$kit" --out "$out" --shapes "$shapes" --device "$device" \
    --seconds $((seconds - (SECONDS - began)))
  local status=$?
  cp "$out"/results-*.json "$site/results/" 2>/dev/null
  return $status
}

measure 2>&1 | tee -a "$out/run.log"
exit "${PIPESTATUS[0]}"
