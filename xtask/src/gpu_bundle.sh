#!/bin/sh
# Judges the GPU of this machine, then measures it, in under ten minutes. Tables go to the screen; what is found is
# written to doctor.json, bench.json and bf16.jsonl beside this script as soon as it is found, so that a run that is
# ended keeps it. No speed is measured on a GPU whose kernels compute wrong. Where single instructions alone do,
# not-trusted.txt says so, and speeds are measured all the same.
# Ends with 3 where there is no GPU that can be used, 124 where a part took too long, 1 where something is wrong.
set -u
cd "$(dirname "$0")" || exit 1
device=${DEVICE:-cuda}
model=${MODEL:-synthetic:2b4t}
# The first rows are those that are asked for most.
sizes=${SIZES:--b 1,32,256,8,64,128 -n 64 -p 2048,512,8192}
# In the middle of what is decoded a sequence has 128 tokens, or 1024.
depths=${DEPTHS:-96,992}
step=${STEP:-2048}
result=0
# What an earlier run found is not taken for this one's.
rm -f doctor.json bench.json bf16.jsonl not-trusted.txt

# limit SECONDS COMMAND: ends it after so long, where the system has the means.
limit() {
    seconds=$1
    shift
    if command -v timeout >/dev/null; then timeout "$seconds" "$@"; else "$@"; fi
}

# ended WHAT STATUS
ended() {
    case $2 in
    0) ;;
    124) echo "$1 took too long; what it had found is kept" >&2 ;;
    *) echo "$1 failed" >&2 ;;
    esac
}

if [ "$device" != cpu ]; then
    echo "instructions, one at a time:"
    limit 60 ./gpu-instructions "$device" >instructions.txt
    status=$?
    cat instructions.txt
    if [ $status = 3 ]; then
        echo "no GPU that can be used: nothing was judged or measured" >&2
        exit 3
    fi
    if [ $status != 0 ]; then
        ended "the judgement of single instructions" $status
        result=$status
        echo "instructions differ from the manual (instructions.txt): trust no number measured here" >not-trusted.txt
        cat not-trusted.txt >&2
    fi
fi

echo "kernels, fixtures, a batch beside its members:"
limit 150 ./bitnet doctor --device "$device" --fixtures fixtures --save doctor.json
status=$?
if [ $status = 1 ] && [ ! -e doctor.json ]; then
    echo "no GPU that can be used: nothing was judged or measured" >&2
    exit 3
fi
ended "the judgement" $status
[ $status = 0 ] || exit $status

echo "speeds of $model:"
# The sizes are several words.
# shellcheck disable=SC2086
limit 300 ./bitnet bench "$model" --device "$device" $sizes -d "$depths" --step "$step" --kernels --save bench.json
status=$?
ended "the measurement" $status
[ $status = 0 ] || result=$status
[ ! -e not-trusted.txt ] || cat not-trusted.txt >&2

if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "a bf16 model of the same shapes in PyTorch:"
    # shellcheck disable=SC2086
    limit 130 python3 bf16.py $sizes >bf16.jsonl
    status=$?
    cat bf16.jsonl
    ended "PyTorch" $status
    [ $status = 0 ] || result=$status
else
    echo "no PyTorch that sees the GPU: nothing to compare with" >&2
fi
exit $result
