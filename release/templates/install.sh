#!/bin/sh
# Installs bitnet @VERSION@ for this user, without root: sh install.sh [FOLDER]
#
# Downloads the archive for this machine, verifies its SHA-256 checksum, which this script contains, and copies the
# program to FOLDER, ~/.local/bin by default. BITNET_URL names another place with the same archives.
set -eu

version=@VERSION@
url=${BITNET_URL:-@URL@}
folder=${1:-$HOME/.local/bin}

fail() {
    echo "error: $1" >&2
    exit 1
}

case $(uname -s) in
Linux) if ldd --version 2>&1 | grep -qi musl; then system=linux-musl; else system=linux; fi ;;
Darwin) system=macos ;;
*) fail "there is no archive for $(uname -s); on Windows, run install.ps1" ;;
esac
case $(uname -m) in
x86_64 | amd64) machine=x86_64 ;;
aarch64 | arm64) machine=aarch64 ;;
*) fail "there is no archive for $(uname -m); build bitnet with cargo" ;;
esac
case $machine-$system in
x86_64-linux) sum=@SHA256 x86_64-linux.tar.gz@ ;;
aarch64-linux) sum=@SHA256 aarch64-linux.tar.gz@ ;;
x86_64-linux-musl) sum=@SHA256 x86_64-linux-musl.tar.gz@ ;;
aarch64-linux-musl) sum=@SHA256 aarch64-linux-musl.tar.gz@ ;;
x86_64-macos) sum=@SHA256 x86_64-macos.tar.gz@ ;;
aarch64-macos) sum=@SHA256 aarch64-macos.tar.gz@ ;;
esac

name=bitnet-$version-$machine-$system
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
if command -v curl >/dev/null; then
    curl -fsSL -o "$place/archive" "$url/$name.tar.gz" || fail "cannot download $url/$name.tar.gz"
elif command -v wget >/dev/null; then
    wget -qO "$place/archive" "$url/$name.tar.gz" || fail "cannot download $url/$name.tar.gz"
else
    fail "install curl or wget first"
fi
if command -v sha256sum >/dev/null; then
    actual=$(sha256sum "$place/archive")
else
    actual=$(shasum -a 256 "$place/archive")
fi
[ "${actual%% *}" = "$sum" ] || fail "the archive has checksum ${actual%% *} instead of $sum; nothing is installed"
tar -xzf "$place/archive" -C "$place"
mkdir -p "$folder"
# A program that runs cannot be written to, but it can be replaced.
for file in bitnet bitnet.cubins; do
    if [ -f "$place/$name/$file" ]; then
        cp "$place/$name/$file" "$folder/$file.new"
        mv -f "$folder/$file.new" "$folder/$file"
    fi
done
echo "bitnet $version is in $folder"
case :$PATH: in
*":$folder:"*) ;;
*) echo "add $folder to PATH, or run $folder/bitnet" ;;
esac
