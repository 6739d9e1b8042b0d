# SPDX-License-Identifier: Apache-2.0
"""Compares what programs did natively and through a broker, and writes it as a table, JSON and JUnit XML."""
import collections
import json
import re
import xml.etree.ElementTree as xml

NATIVE, AGAIN, ALONE, TOGETHER = "native", "native alone", "alone", "together"
FORWARDED = (ALONE, TOGETHER)
TITLES = {NATIVE: "native", ALONE: "alone", TOGETHER: "together"}
GOOD = {"passed", "waived"}


class Judgement:
    """What the runs of one program come to. `judged` is False where nothing can be said: skipped, or not right natively either."""

    def __init__(self, program, runs):
        self.program = program
        self.runs = {name: [run for run in runs if run["pass"] == name] for name in (NATIVE, AGAIN, ALONE, TOGETHER)}
        # What failed natively among others was run again with the GPU to itself, and that counts.
        self.native = self.runs[AGAIN] or self.runs[NATIVE]
        self.judged, self.remarks, self.bad = False, [], {}
        if program.skip:
            self.remarks.append(program.skip)
        elif runs:
            self._judge()

    def _judge(self):
        forwarded = [run for name in FORWARDED for run in self.runs[name]]
        bad_natively = next((run for run in self.native if run["outcome"] not in GOOD), None)
        if bad_natively:
            self.remarks.append(f"natively: {bad_natively['words']}")
            better = [name for name in FORWARDED if self.runs[name] and all(run["outcome"] in GOOD for run in self.runs[name])]
            if better:
                self.remarks.append("but right " + " and ".join(better))
            return
        if forwarded and all(run["outcome"] == "lacking" for run in forwarded):
            self.remarks.append(forwarded[0]["words"])
            return
        self.judged = True
        wanted = {"passed"} if any(run["outcome"] == "passed" for run in self.native) else GOOD
        reference = self.native or [run for run in self.runs[ALONE] if run["outcome"] in GOOD][:1]
        for run in forwarded:
            if run.get("broker_ended"):
                self._blame(run, "the broker ended")
            elif run["outcome"] not in wanted:
                self._blame(run, run["words"] + (", natively passed" if run["outcome"] == "waived" else ""))
            elif reference and (line := first_difference(reference, run)):
                self._blame(run, line)
        for words in dict.fromkeys(self.bad.values()):
            self.remarks.append(" and ".join(name for name in self.bad if self.bad[name] == words) + ": " + words)

    def _blame(self, run, words):
        self.bad.setdefault(run["pass"], words)

    @property
    def fine(self):
        return not self.bad

    def cell(self, name):
        runs = self.native if name == NATIVE else self.runs[name]
        if not runs:
            return "", ""
        words = next((run["words"] for run in runs if run["outcome"] not in GOOD), runs[0]["words"])
        if name in self.bad:
            words = "**differs**" if words == "passed" else f"**{words}**"
        return words, f"{sum(run['seconds'] for run in runs) / len(runs):.1f}"


def first_difference(reference, run):
    """The first verdict line that `run` has and no reference run, or the reverse; those that reference runs do not share are left out."""
    counts = [collections.Counter(each["verdicts"]) for each in reference]
    unsteady = {line for one in counts for line in one if any(other[line] != one[line] for other in counts)}
    theirs = collections.Counter(run["verdicts"])
    for line in [*counts[0], *theirs]:
        if line not in unsteady and counts[0][line] != theirs[line]:
            return f"'{line}' {theirs[line]} times, not {counts[0][line]}"
    return ""


def judge(programs, runs):
    by_name = collections.defaultdict(list)
    for run in runs:
        by_name[run["name"]].append(run)
    return [Judgement(program, by_name[program.name]) for program in programs]


def totals(judgements, passes):
    """{pass: {outcome: programs}}, and for forwarded passes how many of those that can be judged are right."""
    table = {}
    for name in passes:
        kinds = collections.Counter()
        for each in judgements:
            runs = each.native if name == NATIVE else each.runs[name]
            if runs:
                kinds[next((run["outcome"] for run in runs if run["outcome"] not in GOOD), runs[0]["outcome"])] += 1
        table[name] = dict(kinds)
        if name in FORWARDED:
            judged = [each for each in judgements if each.judged and each.runs[name]]
            table[name]["right"] = sum(name not in each.bad for each in judged)
            table[name]["judged"] = len(judged)
    return table


def totals_line(name, kinds):
    count = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items(), key=lambda item: -item[1]) if kind not in ("right", "judged"))
    right = f"; {kinds['right']} of {kinds['judged']} are right" if "judged" in kinds else ""
    return f"{TITLES[name]}: {count or 'nothing'}{right}"


def table(judgements, passes, differing_only=False):
    """A Markdown table, a row a program."""
    titles = [TITLES[name] for name in passes]
    lines = ["| program | " + " | ".join(titles) + " | " + " | ".join(f"{title} s" for title in titles) + " | remark |",
             "| --- |" + " --- |" * (2 * len(passes) + 1)]
    for each in judgements:
        if differing_only and each.fine:
            continue
        cells = [each.cell(name) for name in passes]
        words = "; ".join(each.remarks).replace("|", "\\|")
        lines.append("| " + " | ".join([each.program.name, *(c.replace("|", "\\|") for c, _ in cells), *(s for _, s in cells), words]) + " |")
    return "\n".join(lines)


def write_json(path, head, judgements, passes):
    programs = [{"name": each.program.name, "command": list(each.program.command), "judged": each.judged, "right": each.fine,
                 "remarks": each.remarks, "runs": [run for name in each.runs for run in each.runs[name]]} for each in judgements]
    path.write_text(json.dumps(head | {"totals": totals(judgements, passes), "programs": programs}, indent=1) + "\n", "utf-8")


def _printable(text):
    """Without the characters that XML 1.0 has no place for."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def write_junit(path, judgements, passes):
    """A suite a pass. What cannot be judged is skipped, with the reason; natively nothing is a failure but what cannot be run."""
    root = xml.Element("testsuites", name="run-samples")
    for name in passes:
        suite = xml.SubElement(root, "testsuite", name=TITLES[name])
        failures = skipped = tests = 0
        for each in judgements:
            runs = each.native if name == NATIVE else each.runs[name]
            if not runs and not each.program.skip:
                continue
            tests += 1
            case = xml.SubElement(suite, "testcase", classname=TITLES[name], name=each.program.name,
                                  time=f"{sum(run['seconds'] for run in runs):.3f}")
            if name in each.bad:
                failures += 1
                failed = next((run for run in runs if run["outcome"] not in GOOD), runs[-1])
                xml.SubElement(case, "failure", message=_printable(each.bad[name])).text = _printable("\n".join(failed["tail"]))
            elif not each.judged or (runs and runs[0]["outcome"] == "waived"):
                skipped += 1
                xml.SubElement(case, "skipped", message=_printable("; ".join(each.remarks) or "waived"))
        suite.set("tests", str(tests))
        suite.set("failures", str(failures))
        suite.set("skipped", str(skipped))
    xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
