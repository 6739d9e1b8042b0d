#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: check_rooms.sh SOURCE_TREE
# The tree's rooms are in order, and scripts/rooms tells where they are not: an include that runs upward, a file in no room.
set -euo pipefail

source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$source/scripts/rooms"

tells() { # TEXT
    local said
    if said=$("$source/scripts/rooms" --root "$work" broker/house); then
        echo "scripts/rooms finds nothing where it should say: $1"
        exit 1
    fi
    [[ $said == *"$1"* ]] || { echo "scripts/rooms says: $said"; echo "and should say: $1"; exit 1; }
}

house=$work/broker/house
mkdir -p "$house/cellar" "$house/attic"
printf '| `cellar` | low |\n| `attic` | high |\n' >"$house/README.md"
printf '#pragma once\n' >"$house/attic/roof.hpp"
printf '#include "broker/house/attic/roof.hpp"\n' >"$house/cellar/coal.cpp"
tells "broker/house/cellar/coal.cpp:1: cellar includes from attic, a higher room"
: >"$house/cellar/coal.cpp"
"$source/scripts/rooms" --root "$work" broker/house
: >"$house/door.cpp"
tells "broker/house/door.cpp: is in no room"
