#!/usr/bin/env bash
# On the GPU machine, in the repository's root: bash benchmarks/gpu/on_device.sh KIT SECONDS [SHAPES]
# KIT is the folder that benchmarks.gpu.prepare made. Nothing is fetched. Results go to $OUT (or
# out/gpu): results-*.json, curve-*.json, table.md, run.log. To go on in another slot, put the
# results-*.json of the last one into KIT.
set -uo pipefail
began=$SECONDS
kit=$1 seconds=$2 shapes=${3:-32b,4b}
out=${OUT:-out/gpu}
site=${SITE:-/tmp/cp_ray_site}
mkdir -p "$out"
exec > >(tee -a "$out/run.log") 2>&1
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
if compgen -G "$kit/*.tar.xz" >/dev/null && [ ! -e "$site/.complete" ]; then
  mkdir -p "$site"
  pids=()
  for archive in "$kit"/*.tar.xz; do
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' \
      "$archive" "$site" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || { echo "an archive did not unpack"; exit 1; }; done
  touch "$site/.complete"
  echo "unpacked after $((SECONDS - began)) s"
fi
cp -n "$kit"/results-*.json "$out"/ 2>/dev/null
export PYTHONPATH=$PWD:$site PYTHONUNBUFFERED=1
export VLLM_CACHE_ROOT=$site/cache TRITON_CACHE_DIR=$site/triton CUDA_MODULE_LOADING=LAZY
# The machine has no network: every address is its own.
export VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
python3 -m benchmarks.gpu run --kit "$kit" --out "$out" --shapes "$shapes" \
  --seconds $((seconds - (SECONDS - began)))
