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
    for key in ("launch-call", "sync1", "sync8", "storm2", "neighbours.b_p99", "second", "endless.b_p99", "flood", "pace-1ms",
                "pace-1ms.p99", "pace-1ms.processor", "kernel-1ms.p99", "pace-1ms-busy.p99", "pace-1ms-2cores", "pace8-1ms", "dtoh-4k-1ms", "dtoh-4k-pinned-1ms.p99",
                "upload-steps", "blocks12-wait", "sync8-first", "standing14"):
        values = sides[side][key]["values"]
        assert values and all(value > 0 for value in values), f"{side} {key}: {values}"
    for key, most in (("pace-1ms.samples", 20), ("pace8-1ms.samples", 160)):  # a busy machine may make them fewer
        assert most / 4 <= sides[side][key]["values"][0] <= most, f"{side} {key}: {sides[side][key]}"
    assert sides[side]["pace-1ms-busy.load"]["values"][0] > 10, "no core was kept busy"
assert sides["ours"]["crowd512"]["values"] == [16], sides["ours"]["crowd512"]
assert sides["ours"]["storm1.chained"]["values"][0] > 0, "no launch was chained, or the counters were not found"
assert all("no clusters" in sides[side]["clusters1"]["reason"] for side in ("native", "ours")), "what the device cannot do is not told"
assert sides["mps"] == {}
table = (out / "table.md").read_text()
assert "| `cuLaunchKernel` call |" in table
assert f"| — p99 of {sides['ours']['pace-1ms.samples']['values'][0]:.0f} |" in table, "the table does not say how many samples a percentile is of"
xml.etree.ElementTree.parse(out / "launches.svg")
PYTHON

# What the row's timelines say of its stages.
mkdir "$out/traced"
MPSSHIM_TRACE=$out/traced/run "$source_root/scripts/bench" --cpu --tree "$build" --side ours --only pace-1ms --out "$out/traced" >"$out/traced.txt" ||
    fail "scripts/bench --cpu with a timeline: $(cat "$out/traced.txt")"
"$source_root/scripts/stage-times" "$out"/traced/run.* >"$out/stages.txt" 2>&1 || fail "scripts/stage-times: $(cat "$out/stages.txt")"
for stage in 'post → a worker sees it' 'driver call ' 'driver call begins → client sees' 'all of it'; do
    grep -qE "^$stage .*[0-9] / [0-9]" "$out/stages.txt" || fail "no stage '$stage' in: $(cat "$out/stages.txt")"
done
! grep -q 'say nothing' "$out/stages.txt" || fail "timelines do not belong together: $(cat "$out/stages.txt")"

mkdir "$out/driver" "$out/nobody"
ln -s "$build/lib/libcuda_cpu.so" "$out/driver/libcuda.so.1"
status=0
LD_LIBRARY_PATH=$out/driver timeout 60 "$build/bin/mpsbench" --side ours --shim "$build/lib/libmpsshim.so" --pipe-dir "$out/nobody" \
    --tiny --only sync1,second --json "$out/nobody.json" >"$out/nobody.txt" 2>/dev/null || status=$?
[[ $status == 1 ]] || fail "without a broker mpsbench ended with $status, not 1"
[[ $(grep -c 'failed: worker 0: cuInit' "$out/nobody.txt") == 2 ]] || fail "without a broker mpsbench said: $(cat "$out/nobody.txt")"

# The rows of two cores must not be measured on more; nobody can tell where there are no more.
if (($(nproc) > 2)); then
    status=0
    LD_LIBRARY_PATH=$out/driver timeout 60 "$build/bin/mpsbench" --side native --pipe-dir "$out/nobody" --tiny --two-cores \
        --only pace-1ms-2cores >"$out/wide.txt" 2>/dev/null || status=$?
    [[ $status == 1 && $(cat "$out/wide.txt") == *'failed: mpsbench may use'* ]] ||
        fail "on $(nproc) cores the rows of two said: $(cat "$out/wide.txt")"
else
    echo "check_bench: $(nproc) cores here: that rows of two cores refuse more was not looked at"
fi
