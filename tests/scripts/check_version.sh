#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: check_version.sh VERSION CHANGELOG PROGRAM...
# Each program says this version, and the newest section of the changelog is about it.
set -euo pipefail

version=$1 changelog=$2
shift 2
for program in "$@"; do
    said=$("$program" --version)
    [[ $said == "$version" ]] || { echo "$program --version says '$said', the project is version $version" >&2; exit 1; }
done
newest=$(sed -n 's/^## \[\([^]]*\)\].*/\1/p' "$changelog" | head -n 1)
[[ $newest == "$version" ]] || { echo "the newest section of $changelog is '$newest', the project is version $version" >&2; exit 1; }
