#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A timeline that `mpsctl trace` has put together, read by a strict parser.

usage: check_trace.py FILE [--whole | --moved]
It is one document of JSON without constants that JSON does not have, and without a key twice. No number of an arrow occurs twice. Every session of an
executor is told with its client's pid. With --whole, of a run in which everybody ended by itself: each arrow has both ends, leads from a client's API
call to a later driver call of an executor, and each launch that succeeded has one. With --moved, where executors were replaced
meanwhile: each arrow has both ends, and at least one was carried over by its client. What is wrong is printed; then the exit status is 1.
"""
import bisect
import collections
import json
import sys

EXECUTOR = "mpsbroker executor"
LAUNCH_CALLS = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch")
DRIVER_CALLS = ("cuGraphLaunch", "cuLaunchKernel", "cuMemcpyAsync", "cuMemcpy3DAsync", "cuMemsetAsync")

faults = []


def expect(condition, what):
    if not condition:
        faults.append(what)


def no_constant(name):
    raise ValueError(f"{name} is no JSON")


def unique(pairs):
    keys = [key for key, _ in pairs]
    expect(len(set(keys)) == len(keys), f"a key is there twice: {keys}")
    return dict(pairs)


class Spans:
    """What is going on in a thread, by category."""

    def __init__(self, events, category):
        self.of = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X" and event["cat"] == category:
                self.of[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"], event["args"]))
        for spans in self.of.values():
            spans.sort(key=lambda span: span[:2])

    def around(self, event):
        """The innermost that has this moment; None: there is none. Times have three decimal places."""
        spans = self.of.get((event["pid"], event["tid"]), [])
        at = bisect.bisect_right(spans, event["ts"] + 0.0005, key=lambda span: span[0])
        for begin, end, name, arguments in reversed(spans[max(0, at - 8):at]):
            if end >= event["ts"] - 0.0015:
                return begin, name, arguments
        return None


def check_sessions(events, executors):
    clients = {}  # session: pid
    for event in events:
        if event["ph"] == "M" and event["name"] == "session" and event["pid"] in executors:
            clients[event["args"]["session"]] = event["args"]["client_pid"]
    served = {event["args"]["session"] for event in events if event.get("cat") == "ring" and event["pid"] in executors}
    expect(served <= set(clients), f"sessions {served - set(clients)} were served, and no pid is told of them")
    told = {(event["args"]["session"], event["args"]["client_pid"]) for event in events
            if event["ph"] == "M" and event["name"] == "session" and event["pid"] not in executors}
    expect(told, "no client tells its session")
    for session, pid in told:
        expect(clients.get(session) == pid, f"session {session} is of pid {pid}, its executor says {clients.get(session)}")
        expect(any(event["name"] == "process_labels" and event["pid"] == pid and f"session {session}" in event["args"]["labels"]
                   for event in events if event["ph"] == "M"), f"the process {pid} has no label with session {session}")


def check_arrows(events, executors, options):
    tails, heads = {}, {}
    for event in events:
        if event["ph"] not in ("s", "f"):
            continue
        ends = tails if event["ph"] == "s" else heads
        expect(event["id"] not in ends, f"{event['id']} is there twice as {event['ph']}")
        ends[event["id"]] = event
        expect((event["cat"], event["name"]) == ("flow", "post") and (event["ph"] == "s" or event["bp"] == "e"), f"{event} is no end of an arrow")
    expect(tails and heads, "there is no arrow")
    if not options:
        return
    expect(tails.keys() == heads.keys(), f"{len(tails.keys() - heads.keys())} arrows have no head, {len(heads.keys() - tails.keys())} no tail")
    if "--moved" in options:
        expect(any(head["pid"] not in executors for head in heads.values()), "none was carried over")
        return
    calls, driver_calls = Spans(events, "call"), Spans(events, "driver")
    posted, drawn = collections.Counter(), collections.Counter()
    for number in tails.keys() & heads.keys():
        tail, head = tails[number], heads[number]
        expect(tail["ts"] <= head["ts"], f"{number} leads back in time")
        expect(head["pid"] in executors and tail["pid"] not in executors, f"{number} leads from {tail['pid']} to {head['pid']}")
        call, driver_call = calls.around(tail), driver_calls.around(head)
        expect(call is not None, f"{number} begins outside of all API calls")
        expect(driver_call is not None and driver_call[1] in DRIVER_CALLS, f"{number} ends in {driver_call}")
        if call and driver_call:
            posted[call[1]] += 1
            drawn[head["pid"], head["tid"], driver_call[0]] += 1
    for name in LAUNCH_CALLS:
        made = sum(event["name"] == name and event["args"]["error"] == 0 for event in events if event.get("cat") == "call")
        expect(posted[name] == made, f"{made} calls of {name}, {posted[name]} arrows")
    for (pid, tid), spans in driver_calls.of.items():
        for begin, _, name, arguments in spans:
            if name == "cuGraphLaunch" and "launches" in arguments:
                expect(drawn[pid, tid, begin] == arguments["launches"], f"a chain of {arguments['launches']} has {drawn[pid, tid, begin]} arrows")


def main():
    with open(sys.argv[1], encoding="ascii") as file:
        document = json.load(file, parse_constant=no_constant, object_pairs_hook=unique)
    events = document["traceEvents"]
    executors = {event["pid"] for event in events if event["ph"] == "M" and event["name"] == "process_name" and event["args"]["name"] == EXECUTOR}
    expect(executors, "no executor's name")
    check_sessions(events, executors)
    check_arrows(events, executors, sys.argv[2:])
    print("\n".join(faults[:20]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
