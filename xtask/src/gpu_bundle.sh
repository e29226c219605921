#!/bin/sh
# Checks the GPU of this machine, then measures it, in under ten minutes. Tables go to the screen. Results are written
# to doctor.json, bench.json, tuned.json and bf16.jsonl beside this script as they come, so that an interrupted run
# keeps them.
# No speed is measured on a GPU whose kernels compute wrong results. If only single instructions are wrong,
# not-trusted.txt reports it, and speeds are measured anyway.
# Exits with 3 if there is no usable GPU, 124 if a part took too long, and 1 if something is wrong.
set -u
cd "$(dirname "$0")" || exit 1
device=${DEVICE:-cuda}
model=${MODEL:-synthetic:2b4t}
# The most important rows come first.
sizes=${SIZES:--b 1,32,256,8,64,128 -n 64 -p 2048,512,8192}
# Half-way through decoding, a sequence has 128 or 1024 tokens.
depths=${DEPTHS:-96,992}
step=${STEP:-2048}
result=0
# Results of an earlier run must not be mistaken for this one's.
rm -f doctor.json bench.json tuned.json bitnet.tiles bf16.jsonl not-trusted.txt

# limit SECONDS COMMAND: ends it after that time, if the system has `timeout`.
limit() {
    seconds=$1
    shift
    if command -v timeout >/dev/null; then timeout "$seconds" "$@"; else "$@"; fi
}

# ended WHAT STATUS
ended() {
    case $2 in
    0) ;;
    124) echo "$1 took too long; its results so far are kept" >&2 ;;
    *) echo "$1 failed" >&2 ;;
    esac
}

if [ "$device" != cpu ]; then
    echo "instructions, one at a time:"
    limit 60 ./gpu-instructions "$device" >instructions.txt
    status=$?
    cat instructions.txt
    if [ $status = 3 ]; then
        echo "no usable GPU: nothing was checked or measured" >&2
        exit 3
    fi
    if [ $status != 0 ]; then
        ended "the check of single instructions" $status
        result=$status
        echo "instructions differ from the manual (instructions.txt): do not trust any number measured here" >not-trusted.txt
        cat not-trusted.txt >&2
    fi
fi

echo "kernels, fixtures, and a batch compared with its members:"
limit 120 ./bitnet doctor --device "$device" --fixtures fixtures --save doctor.json
status=$?
if [ $status = 1 ] && [ ! -e doctor.json ]; then
    echo "no usable GPU: nothing was checked or measured" >&2
    exit 3
fi
ended "the check" $status
[ $status = 0 ] || exit $status

echo "speeds of $model:"
# The sizes are several arguments.
# shellcheck disable=SC2086
limit 270 ./bitnet bench "$model" --device "$device" $sizes -d "$depths" --step "$step" --kernels --save bench.json
status=$?
ended "the measurement" $status
[ $status = 0 ] || result=$status
[ ! -e not-trusted.txt ] || cat not-trusted.txt >&2

if [ "$device" != cpu ]; then
    # Programs in this folder use it from then on.
    echo "the best launch of each product, for bitnet.tiles:"
    limit 60 ./bitnet bench "$model" --device "$device" -b 1,32,256 -n 16 -p 512 --step "$step" --kernels \
        --tune bitnet.tiles --save tuned.json
    status=$?
    ended "tuning" $status
    [ $status = 0 ] || result=$status
fi

if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "a bf16 model of the same shapes in PyTorch:"
    # shellcheck disable=SC2086
    limit 90 python3 bf16.py $sizes >bf16.jsonl
    status=$?
    cat bf16.jsonl
    ended "PyTorch" $status
    [ $status = 0 ] || result=$status
else
    echo "no PyTorch with this GPU: nothing to compare with" >&2
fi
exit $result
