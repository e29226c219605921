#!/bin/sh
# Writes the files of the image: files.sh PROGRAM FOLDER
set -eu
program=$1 image=$2
mkdir -p "$image/models" "$image/tmp"
chmod 1777 "$image/tmp"
chown 65532:65532 "$image/models"
cp "$program" "$image/bitnet"
# The libraries at the places where the loader looks for them.
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$image$(dirname "$library")"
    cp -L "$library" "$image$library"
done
