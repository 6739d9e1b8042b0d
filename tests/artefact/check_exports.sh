#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the built libmpsshim.so, or libmpsshim-nvml.so, promises to every program that it is loaded into, checked on the file:
#   its soname; its exported names (those of its version script: of the one all of the toolkit's stub, and the loader's dlopen and dlmopen); what it needs
#   (the C library alone, and of that what glibc 2.28 has, wherever it was built); no segment that is writable and executable.
# usage: check_exports.sh LIBRARY SONAME EXPORTS_MAP MOVED [STUB]
# MOVED: lines "LIBRARY SYMBOL VERSION", what the old C library had outside libc.so.6 (glibc_2_28_moved.txt).
set -euo pipefail
export LC_ALL=C

library=${1:?the library} own_soname=${2:?its soname} map=${3:?the version script} moved=${4:?the list of symbols that moved} stub=${5:-}
newest_glibc=2.28
failures=0
fail() { printf 'FAILED: %s\n' "$*" >&2; failures=$((failures + 1)); }

exported=$(nm -D --defined-only "$library" | awk '$2 ~ /[TWVBDRi]/ { print $3 }' | sort)
wanted=$(grep -oE '^ +(cu[A-Za-z0-9_]+|dlm?open|nvml[A-Za-z0-9_]+|mpsshim_nvml_shadow);' "$map" | tr -d ' ;' | sort)
difference=$(diff <(printf '%s\n' "$wanted") <(printf '%s\n' "$exported") || true)
[[ -z $difference ]] || fail "exported names differ from $map:"$'\n'"$difference"
if [[ -n $stub ]]; then
    missing=$(comm -23 <(nm -D --defined-only "$stub" | awk '$2 == "T" && $3 ~ /^cu[A-Z]/ { print $3 }' | sort) <(printf '%s\n' "$exported"))
    [[ -z $missing ]] || fail "names of the toolkit's stub that are not exported: $missing"
fi

dynamic=$(readelf -dW "$library")
soname=$(sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p' <<<"$dynamic")
[[ $soname == "$own_soname" ]] || fail "soname is '$soname', not $own_soname"
[[ $(wc -l <<<"$wanted") -gt 400 ]] || fail "$map has only $(wc -l <<<"$wanted") names"
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
needed=$(objdump -T "$library" | awk '$0 ~ /\*UND\*/ && $(NF - 1) ~ /GLIBC/ { gsub(/[()]/, "", $(NF - 1)); print $NF, $(NF - 1) }' | sort -u)
[[ -n $needed ]] || fail "objdump -T shows nothing that it needs of the C library"
for version in $too_new; do
    fail "it needs glibc ${version#GLIBC_} for $(awk -v version="$version" '$2 == version { printf "%s ", $1 }' <<<"$needed")(see interposer/glibc/baseline.cpp)"
done
# A version says when a symbol came, not where it was then: threads and dlsym moved into libc.so.6 by 2.34, and until 2.30 the loader accepted a symbol
# of the library alone that was written down for it. readelf gives each version of each library a number, and each symbol that number.
while read -r symbol version file; do
    where=$(awk -v symbol="$symbol" -v version="$version" '$2 == symbol && $3 == version { print $1 }' "$moved")
    [[ $file == "${where:-libc.so.6}" || (-z $where && $file == ld-linux-*) ]] ||
        fail "it needs $symbol@$version of $file, which glibc $newest_glibc has in ${where:-libc.so.6} (see interposer/glibc)"
done < <(readelf -W -V --dyn-syms "$library" | awk '
    / File: / { for (i = 1; i < NF; ++i) if ($i == "File:") file = $(i + 1) }
    / Name: GLIBC/ { files[$NF] = file }
    $7 == "UND" && $8 ~ /@/ { number = $9; gsub(/[()]/, "", number); split($8, parts, "@+"); symbols[parts[1] " " parts[2]] = number }
    END { for (symbol in symbols) print symbol, files[symbols[symbol]] }')
! readelf -lW "$library" | grep -qE 'LOAD.* RWE ' || fail "a segment is writable and executable"

((failures == 0)) || exit 1
printf '%s exports %s names and needs only the C library, from glibc %s on.\n' "${library##*/}" "$(wc -l <<<"$exported")" "$newest_glibc"
