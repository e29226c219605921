#!/bin/sh
# Judges the GPU of this machine, then measures it: ten minutes at most. It leaves doctor.json and bench.json beside
# itself and ends with a failure at the first thing that is wrong. No speed is measured on a GPU that computes wrong.
set -eu
cd "$(dirname "$0")"
device=${DEVICE:-cuda}
model=${MODEL:-synthetic:2b4t}
sizes=${SIZES:--b 1,8,32,64,128,256 -n 112 -p 512,2048}

echo "kernels, instructions, fixtures, a batch beside its members:"
./bitnet doctor --device "$device" --fixtures fixtures --json >doctor.json
echo "all equal or near; see doctor.json"
# The sizes are several words.
# shellcheck disable=SC2086
./bitnet bench "$model" --device "$device" $sizes --json >bench.json
cat bench.json
