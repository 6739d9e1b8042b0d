#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a client with the C library of an older system, through the built libmpsshim.so and a broker of this system on the CPU driver.
# usage: MPSSHIM_OLD_ROOT=FOLDER check_old_glibc.sh BUILD_FOLDER
# FOLDER is the root of an x86-64 system with glibc 2.28 or older, as debootstrap or an unpacked container image makes it; nothing in it is changed.
# Without the variable the test is skipped: CTest counts it as such.
set -euo pipefail

build=${1:?the build folder}
root=${MPSSHIM_OLD_ROOT:-}
if [[ -z $root ]]; then
    echo "mpsshim-skip: MPSSHIM_OLD_ROOT names no system with an older C library"
    exit 0
fi
fail() { printf 'check_old_glibc: %s\n' "$*" >&2; exit 1; }

for folder in "$root"/{usr/,}{lib/x86_64-linux-gnu,lib64,lib}; do
    # The C library beside its own loader, which must not be one of ours by an absolute link.
    if [[ -e $folder/libc.so.6 ]]; then
        libraries=$(readlink -f "$folder")
        break
    fi
done
[[ -n ${libraries:-} ]] || fail "found no libc.so.6 in $root"
loader=$(find "$libraries" -maxdepth 1 -type f \( -name 'ld-2.*.so' -o -name 'ld-linux-x86-64.so.2' \) | head -n 1)
[[ -n $loader ]] || fail "found no loader beside $libraries/libc.so.6"

pipe=$(mktemp -d "${TMPDIR:-/tmp}/mpsshim-old.XXXXXX")
trap 'kill "$broker" 2>/dev/null || true; wait "$broker" 2>/dev/null || true; rm -rf "$pipe"' EXIT
env -u LD_PRELOAD "$build/bin/mpsbroker" -f --driver cpu --pipe-dir "$pipe" >"$pipe/output" 2>&1 &
broker=$!
for ((tries = 0; tries < 500; ++tries)); do
    "$build/bin/mpsctl" --pipe-dir "$pipe" get_server_list >/dev/null 2>&1 && break
    sleep 0.02
done

status=0
output=$(LD_PRELOAD="$build/lib/libmpsshim.so" MPSSHIM_REQUIRE=1 CUDA_MPS_PIPE_DIRECTORY="$pipe" \
    "$loader" --inhibit-cache --library-path "$libraries" "$build/bin/old_client" 2>&1) || status=$?
printf '%s\n' "$output"
((status == 0)) || fail "the client ended with $status; the broker said: $(cat "$pipe/output")"
version=$(sed -n 's/^glibc \([0-9.]*\): .* sums right$/\1/p' <<<"$output")
[[ -n $version && $(printf '%s\n' "$version" 2.28 | sort -V | tail -n 1) == 2.28 ]] || fail "$root has glibc ${version:-of no version}, newer than 2.28"
