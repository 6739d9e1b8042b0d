#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the built libmpsshim.so promises to every program that it is loaded into, checked on the file:
#   its soname; its exported names (all of the toolkit's stub, nothing but cu*); what it needs (the C library alone);
#   no symbol of a C library newer than 2.36; no segment that is writable and executable.
# usage: check_exports.sh LIBRARY EXPORTS_MAP [STUB]
set -euo pipefail
export LC_ALL=C

library=${1:?the library} map=${2:?the version script} stub=${3:-}
newest_glibc=2.36
# Release builds are made where the C library is that old; a build elsewhere is for the machine it was made on.
build_glibc=$(getconf GNU_LIBC_VERSION | awk '{ print $2 }')
failures=0
fail() { printf 'FAILED: %s\n' "$*" >&2; failures=$((failures + 1)); }

exported=$(nm -D --defined-only "$library" | awk '$2 ~ /[TWVBDRi]/ { print $3 }' | sort)
wanted=$(grep -oE '^ +cu[A-Za-z0-9_]+;' "$map" | tr -d ' ;' | sort)
difference=$(diff <(printf '%s\n' "$wanted") <(printf '%s\n' "$exported") || true)
[[ -z $difference ]] || fail "exported names differ from $map:"$'\n'"$difference"
if [[ -n $stub ]]; then
    missing=$(comm -23 <(nm -D --defined-only "$stub" | awk '$2 == "T" && $3 ~ /^cu[A-Z]/ { print $3 }' | sort) <(printf '%s\n' "$exported"))
    [[ -z $missing ]] || fail "names of the toolkit's stub that are not exported: $missing"
fi

dynamic=$(readelf -dW "$library")
soname=$(sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p' <<<"$dynamic")
[[ $soname == libcuda.so.1 ]] || fail "soname is '$soname', not libcuda.so.1"
while read -r needed; do
    case $needed in
        libc.so.6 | ld-linux-x86-64.so.2 | libdl.so.2 | libpthread.so.0 | libm.so.6) ;;
        *) fail "it needs $needed: every program would have to have it" ;;
    esac
done < <(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
grep -q 'FLAGS_1.*NODELETE' <<<"$dynamic" || fail "not linked with -z nodelete"
grep -qE 'BIND_NOW|FLAGS_1.*NOW' <<<"$dynamic" || fail "not linked with -z now"
grep -q 'SYMBOLIC' <<<"$dynamic" || fail "not linked with -Bsymbolic"
! grep -qE 'RPATH|RUNPATH' <<<"$dynamic" || fail "it has a run path"

too_new=$(readelf -VW "$library" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | awk -v newest="GLIBC_$newest_glibc" '
    function number(version, parts) { sub(/GLIBC_/, "", version); split(version, parts, "."); return parts[1] * 1000 + parts[2] }
    number($1) > number(newest)')
[[ -z $too_new || $(printf '%s\n' "$newest_glibc" "$build_glibc" | sort -V | tail -n 1) != "$newest_glibc" ]] || fail "symbols newer than glibc $newest_glibc: $too_new (release builds are made on Debian 12)"
! readelf -lW "$library" | grep -qE 'LOAD.* RWE ' || fail "a segment is writable and executable"

((failures == 0)) || exit 1
printf '%s exports %s names and needs only the C library.\n' "${library##*/}" "$(wc -l <<<"$exported")"
