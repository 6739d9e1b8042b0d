#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_bench.sh BUILD_FOLDER: the measuring instrument itself, on the CPU driver. Every row that is asked for must be measured and stand in the
# table; a row whose service is not there must fail, with a reason and soon.
set -euo pipefail

build=$1
source_root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d "${TMPDIR:-/tmp}/mpsshim-check-bench.XXXXXX")
trap 'rm -rf "$out"' EXIT
fail() {
    printf 'check_bench: %s\n' "$*" >&2
    cat "$out"/*.err "$out"/report.txt >&2 2>/dev/null || true
    exit 1
}

"$source_root/scripts/bench" --cpu --tree "$build" --out "$out" || fail "scripts/bench --cpu ended with $?"
python3 - "$out" <<'PYTHON' || fail "the output is not what it should be"
import json, pathlib, sys, xml.etree.ElementTree
out = pathlib.Path(sys.argv[1])
sides = json.loads((out / "bench.json").read_text())
for side in ("native", "ours"):
    for key in ("launch-call", "sync1", "sync8", "storm2", "neighbours.b_p99", "second", "endless.b_p99", "flood"):
        values = sides[side][key]["values"]
        assert values and all(value > 0 for value in values), f"{side} {key}: {values}"
assert sides["ours"]["crowd512"]["values"] == [16], sides["ours"]["crowd512"]
assert sides["ours"]["storm1.chained"]["values"][0] > 0, "no launch was chained, or the counters were not found"
assert sides["mps"] == {}
assert "| `cuLaunchKernel` call |" in (out / "table.md").read_text()
xml.etree.ElementTree.parse(out / "launches.svg")
PYTHON

mkdir "$out/driver" "$out/nobody"
ln -s "$build/lib/libcuda_cpu.so" "$out/driver/libcuda.so.1"
status=0
LD_LIBRARY_PATH=$out/driver timeout 60 "$build/bin/mpsbench" --side ours --shim "$build/lib/libmpsshim.so" --pipe-dir "$out/nobody" \
    --tiny --only sync1,second --json "$out/nobody.json" >"$out/nobody.txt" 2>/dev/null || status=$?
[[ $status == 1 ]] || fail "without a broker mpsbench ended with $status, not 1"
[[ $(grep -c 'failed: worker 0: cuInit' "$out/nobody.txt") == 2 ]] || fail "without a broker mpsbench said: $(cat "$out/nobody.txt")"
