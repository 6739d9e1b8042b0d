#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_stage_times.sh SCRIPTS: scripts/stage-times on timelines whose stages are known.
set -euo pipefail

scripts=$1
folder=$(mktemp -d "${TMPDIR:-/tmp}/mpsshim-stage-times.XXXXXX")
trap 'rm -rf "$folder"' EXIT
fail() {
    printf 'check_stage_times: %s\n' "$*" >&2
    exit 1
}
expect() {  # expect TEXT: stands in the last output, blanks apart
    local flat
    flat=$(tr -s ' ' <<<"$output")
    [[ $flat == *"$1"* ]] || fail "no '$1' in:"$'\n'"$output"
}

# Ten rounds of client 7, 1 ms apart, each 40 us: seen after 5, driver call from 7 to 10, the end noticed at 30, the client awake at 36. The
# eleventh has no synchronisation, the executor's last line is cut off, and another session works at the same time.
python3 - "$folder" <<'PYTHON'
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
def event(name, category, begin, took, **arguments):
    shown = ",".join(f'"{key}":{value}' for key, value in arguments.items())
    kind = f'"ph":"X","ts":{begin},"dur":{took}' if took is not None else f'"ph":"i","ts":{begin},"s":"t"'
    return f'{{"name":"{name}","cat":"{category}",{kind},"pid":1,"tid":1,"args":{{{shown}}}}},'
def write(file, process, lines, end=""):
    name = f'{{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{{"name":"{process}"}}}},'
    (folder / file).write_text("\n".join(["[", name, *lines]) + "\n" + end)
client = [event("attached", "session", 5, None, session=7), event("cuInit", "call", 8, 2, error=0)]
executor = []
for i in range(10):
    t = 1000 + 1040 * i
    client.append(event("cuLaunchKernel", "call", t, 3, error=0))
    client.append(event("a stream's work", "wait", t + 4, 32, slept=1))
    client.append(event("cuStreamSynchronize", "call", t + 4, 36, error=0))
    executor.append(event("records", "ring", t + 1, 1, session=8, bytes=88))
    executor.append(event("records", "ring", t + 5, 1, session=7, bytes=88))
    executor.append(event("cuGraphLaunch", "driver", t + 6, 1, session=8, launches=1))
    executor.append(event("cuGraphLaunch", "driver", t + 7, 3, session=7, launches=1))
    executor.append(event("waking a client", "fence", t + 30, 1, session=7))
client.append(event("cuLaunchKernel", "call", 20000, 3, error=0))
client.append(event("cuLaunchKernel", "call", 20010, 3, error=0))
write("client", "program", client)
write("executor", "mpsbroker executor", executor, '{"name":"records","cat":"ri')
PYTHON

output=$("$scripts/stage-times" "$folder/client" "$folder/executor") || fail "stage-times ended with $?"
expect 'after a pause of about 1 ms'
expect 'rounds 10'
expect 'went to sleep 100%'
expect "the launch's call 3.0 / 3.0"
expect 'post → a worker sees it 5.0 / 5.0'
expect 'seen → driver call begins 2.0 / 2.0'
expect 'driver call 3.0 / 3.0'
expect "driver call begins → work's end noticed 23.0 / 23.0"
expect 'noticed → client awake 6.0 / 6.0'
expect 'driver call begins → client sees 29.0 / 29.0'
expect 'client sees → call returns 4.0 / 4.0'
expect 'all of it 40.0 / 40.0'

output=$("$scripts/stage-times" "$folder/client") || fail "stage-times ended with $? on a client alone"
expect 'all of it 40.0 / 40.0'
expect "Of 10 rounds the executors' timelines say nothing"

status=0
output=$("$scripts/stage-times" "$folder/executor" 2>&1) || status=$?
[[ $status == 1 ]] || fail "stage-times ended with $status without a client"
expect 'too few for a table'
