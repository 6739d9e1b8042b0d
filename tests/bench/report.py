#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the figures of the three sides together: report.py FOLDER reads {native,mps,ours}{,-2cores}.json, which mpsbench wrote, prints the table of
targets with verdicts, and writes bench.json, table.md, launches.svg and memory.svg beside them. The targets stand here and nowhere else."""
import json
import pathlib
import statistics
import sys
from dataclasses import dataclass

import plot

SIDES = ("native", "mps", "ours")


class Figures:
    """The three sides' figures by key; what was not measured has a reason or nothing."""

    def __init__(self, folder: pathlib.Path):
        self.sides = {}
        self.baselines = set()
        for side in SIDES:
            self.sides[side] = {}
            for path in (folder / f"{side}.json", folder / f"{side}-2cores.json"):
                run = json.loads(path.read_text()) if path.exists() else {"figures": {}}
                self.sides[side].update(run["figures"])
                if "memory_baseline_mib" in run:
                    self.baselines.add(run["memory_baseline_mib"])

    def value(self, side, key):
        values = self.sides[side].get(key, {}).get("values")
        return statistics.median(values) if values else None

    def worst(self, side, key):
        values = self.sides[side].get(key, {}).get("values")
        return max(values) if values else None

    def reason(self, side, key):
        row = key.split(".")[0]  # a row that failed as a whole has its reason under its name
        return self.sides[side].get(key, self.sides[side].get(row, {})).get("reason", "")


@dataclass
class Target:
    """One line of the table. `limit` of the figure or of its ratio to `base`; `least`: the figure must not be less, else not more."""

    work: str
    key: str
    text: str
    limit: float
    base: str = ""  # a side, or a key of our own side
    least: bool = False
    worst: bool = False  # the largest value counts, not the median

    def verdict(self, figures):
        """(ratio or None, "met" | "missed" | "no figure")"""
        own = figures.worst("ours", self.key) if self.worst else figures.value("ours", self.key)
        if own is None:
            return None, "**failed**" if figures.reason("ours", self.key).startswith("failed") else "no figure"
        ratio = None
        if self.base:
            base = figures.value(self.base, self.key) if self.base in SIDES else figures.value("ours", self.base)
            if not base:
                return None, "no figure"
            ratio = own / base
        measured = own if ratio is None else ratio
        met = measured >= self.limit if self.least else measured <= self.limit
        return ratio, "met" if met else "**missed**"


def pair(work, key, median, p99, base):
    """Median and 99th percentile of a row of pauses; how many samples the latter is of stands beside it."""
    name = {"native": "native", "mps": "MPS"}[base]
    return (
        Target(f"{work}: median", key, f"≤ {median}× {name}", median, base),
        Target("— p99", f"{key}.p99", f"≤ {p99}× {name}", p99, base),
    )


def paces():
    """Work after a pause that the client sleeps through."""
    pauses = {"50us": "50 µs", "200us": "200 µs", "1ms": "1 ms", "10ms": "10 ms", "100ms": "100 ms"}
    for pause, text in pauses.items():
        limits = (1.15, 1.5) if pause.endswith("us") or pause == "1ms" else (1.5, 2)
        yield from pair(f"launch + sync after {text}", f"pace-{pause}", *limits, "native")
    yield Target("— processor of client and broker, pauses of 1 ms", "pace-1ms.processor", "≤ 15 % of a core", 15)
    for kind, where in (("busy", "all cores busy"), ("2cores", "on two cores")):
        for pause in list(pauses)[:4]:
            yield from pair(f"launch + sync after {pauses[pause]}, {where}", f"pace-{pause}-{kind}", 1.0, 1.0, "mps")
    yield from pair("8 clients, launch + sync after 1 ms", "pace8-1ms", 1.15, 1.5, "mps")
    for length, text in (("100us", "100 µs"), ("1ms", "1 ms"), ("10ms", "10 ms")):
        yield from pair(f"launch + sync of a kernel of {text}, beyond it", f"kernel-{length}", 1.15, 1.5, "native")
    for clients in (4, 8):
        yield from pair(f"{clients} clients, launch + sync of a kernel of 1 ms, beyond it", f"kernels{clients}-1ms", 1.15, 1.5, "mps")
    for key, kind in (("dtoh-4k", "pageable"), ("dtoh-4k-pinned", "pinned")):
        for pause in ("200us", "1ms", "10ms"):
            yield from pair(f"4 KiB {kind} to host after {pauses[pause]}", f"{key}-{pause}", 1.2, 1.5, "native")
    yield Target("steps/s: 64 KiB pinned to device, 3 kernels of 20 µs", "upload-steps", "≥ 1.0× native", 1, "native", least=True)


TARGETS = (
    Target("`cuLaunchKernel` call", "launch-call", "≤ 0.15 µs", 0.15),
    Target("launches/s, 1 client", "storm1", "≥ 3× native", 3, "native", least=True),
    Target("launches/s, 14 clients", "storm14", "≥ 4× MPS", 4, "mps", least=True),
    Target("launch + sync, 1 client", "sync1", "≤ 0.9× native", 0.9, "native"),
    Target("launch + sync, total of 8 clients", "sync8", "≥ 1.0× MPS", 1, "mps", least=True),
    Target("launch + sync, total of 14 clients", "sync14", "≥ 1.0× MPS", 1, "mps", least=True),
    Target("— 8 fresh clients, their first 0.1 s", "sync8-first", "≥ 0.8× MPS", 0.8, "mps", least=True),
    Target("— 14 fresh clients, their first 0.1 s", "sync14-first", "≥ 0.8× MPS", 0.8, "mps", least=True),
    Target("14 fresh clients, 50,000 launches each", "standing14", "≥ 4 M/s", 4e6, least=True),
    Target("8 launches + sync, 1 client", "burst8", "≤ 0.6× native", 0.6, "native"),
    Target("12 clients of 8-block, 50 µs kernels", "blocks12", "≥ 1.0× MPS", 1, "mps", least=True),
    Target("46 clients of 8-block, 50 µs kernels", "blocks46", "≥ 1.0× MPS", 1, "mps", least=True),
    Target("— 256 threads a block, a wait every 100, 12 clients", "blocks12-wait", "≥ 1.0× MPS", 1, "mps", least=True),
    Target("— the same, 46 clients", "blocks46-wait", "≥ 1.5× MPS", 1.5, "mps", least=True),
    *paces(),
    Target("GPU memory, 12 clients", "memory12", "≤ 0.7 GiB", 0.7),
    Target("GPU memory, 48 clients", "memory48", "≤ 1.2 GiB", 1.2),
    Target("GPU memory, 256 clients", "memory256", "≤ 3.6 GiB", 3.6),
    Target("process start to first launch done", "start1", "≤ 5 ms", 5),
    Target("64 process starts at once", "start64", "≤ 300 ms in all", 300),
    Target("`cuMemAlloc` + `cuMemFree`, 64 KiB", "alloc-64k", "≤ 1 µs (and ≤ native)", 1),
    Target("`cuMemAlloc` + `cuMemFree`, 2 MiB", "alloc-2m", "≤ 1 µs (and ≤ native)", 1),
    Target("1 GiB pageable to device", "htod-pageable", "≥ 1.5× native", 1.5, "native", least=True),
    Target("1 GiB pageable to host", "dtoh-pageable", "≥ 1.2× native", 1.2, "native", least=True),
    Target("1 GiB pinned to device", "htod-pinned", "≥ 0.98× native", 0.98, "native", least=True),
    Target("1 GiB pinned to host", "dtoh-pinned", "≥ 0.98× native", 0.98, "native", least=True),
    Target("4 KiB pageable to device", "htod-4k", "≤ 1.2× native", 1.2, "native"),
    Target("4 KiB pageable to host", "dtoh-4k", "≤ 1.2× native", 1.2, "native"),
    Target("4 KiB pinned to device", "htod-4k-pinned", "≤ 1.2× native", 1.2, "native"),
    Target("4 KiB pinned to host", "dtoh-4k-pinned", "≤ 1.2× native", 1.2, "native"),
    Target("512 clients attached, 64 busy: right", "crowd512", "512", 512, least=True),
    Target("— processor, the 448 idle ones together", "crowd512.idle_clients", "none (≤ 0.5 %)", 0.5),
    Target("— processor, broker with 512 idle clients", "crowd512.idle_broker", "< 0.5 % of a core", 0.5),
    Target("neighbours: B's launch + sync, median", "neighbours.b_median", "≤ 1.3× B alone", 1.3, "neighbours.alone_median"),
    Target("neighbours: B's launch + sync, p99", "neighbours.b_p99", "≤ 1.3× B alone", 1.3, "neighbours.alone_p99"),
    Target("neighbours: C's rounds/s", "neighbours.c_rounds", "≥ 1.0× MPS", 1, "mps", least=True),
    Target("neighbours: never-seen image, slowest", "neighbours.fresh_image_largest", "≤ 270 ms (A's kernel + 20)", 270),
    Target("never-ending kernel: newcomer served, slowest", "endless", "≤ 3 s", 3000, worst=True),
    Target("never-ending kernel: B's p99 meanwhile", "endless.b_p99", "≤ 5 ms", 5000),
    Target("second of two identical programs, beside 250 ms kernels", "second", "no load (≤ 20 ms)", 20, worst=True),
    Target("launch + sync beside a flood", "flood", "≤ 2× alone", 2, "flood.alone"),
    Target("fault to bystander's launch done", "fault", "≤ 600 ms", 600),
)


def number(value, unit):
    if unit == "1/s":
        return f"{value / 1e6:.3f} M/s" if value >= 1e5 else f"{value / 1e3:.2f} k/s" if value >= 1e3 else f"{value:.0f} /s"
    unit = {"us": "µs", "% of a core": "%"}.get(unit, unit)
    digits = 0 if value >= 1000 or float(value).is_integer() else 1 if value >= 100 else 2 if value >= 1 else 3
    return f"{value:.{digits}f} {unit}"


def cell(figures, side, key):
    figure = figures.sides[side].get(key)
    if figure is None or not figure["values"]:
        reason = figures.reason(side, key)
        return "not possible" if reason.startswith("not possible") else "failed" if reason.startswith("failed") else "–"
    values = figure["values"]
    middle = statistics.median(values)
    spread = f" ±{(max(values) - min(values)) / 2 / middle * 100:.0f} %" if len(values) > 1 and middle else ""
    return number(middle, figure["unit"]) + spread


def table(figures):
    rows = []
    for target in TARGETS:
        ratio, verdict = target.verdict(figures)
        cells = [cell(figures, side, target.key) for side in SIDES]
        samples = figures.value("ours", target.key.replace(".p99", ".samples")) if target.key.endswith(".p99") else None
        work = target.work + (f" of {samples:.0f}" if samples and target.work == "— p99" else "")
        rows.append([work, *cells, "" if ratio is None else f"{ratio:.2f}×", target.text, verdict])
    return rows


def markdown(rows, notes):
    lines = ["| work | native | NVIDIA MPS | ours | ratio | target | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    lines += ["", "Median, ± half the spread. –: not run. " + " ".join(notes)]
    return "\n".join(lines) + "\n"


def print_table(rows):
    titles = ["work", "native", "NVIDIA MPS", "ours", "ratio", "target", "verdict"]
    rows = [titles] + [[text.replace("`", "").replace("*", "") for text in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


def notes_of(figures):
    """The reasons of what has no value, each once."""
    notes = {}
    for side in SIDES:
        for key, figure in figures.sides[side].items():
            if figure.get("reason"):
                notes.setdefault(f"{side}, {figure['reason']}", []).append(key)
    lines = [f"{', '.join(keys)}: {reason}." for reason, keys in notes.items()]
    for baseline in sorted(figures.baselines):
        lines.append(f"GPU memory by nvidia-smi, less the {baseline:.0f} MiB that the driver uses without any service.")
    shares = [f"{key.split('.')[0]} {figures.value('ours', key):.0f} %" for key in figures.sides["ours"] if key.endswith(".chained")]
    if shares:
        lines.append(f"Launches issued in chains: {', '.join(shares)}.")
    return lines


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: report.py FOLDER")
    folder = pathlib.Path(sys.argv[1])
    figures = Figures(folder)
    rows, notes = table(figures), notes_of(figures)
    print_table(rows)
    for note in notes:
        print(note)
    (folder / "bench.json").write_text(json.dumps(figures.sides, indent=1) + "\n")
    (folder / "table.md").write_text(markdown(rows, notes))
    plot.write_plots(figures, folder)


if __name__ == "__main__":
    main()
