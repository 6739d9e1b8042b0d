#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_run_samples.py BUILD_FOLDER SCENES: scripts/run-samples, against a broker on the CPU driver or what MPSSHIM_TEST_DRIVER names."""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml

BUILD, SCENES = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"
DRIVER = os.environ.get("MPSSHIM_TEST_DRIVER", "cpu")
sys.path.insert(0, str(SCRIPTS / "lib"))
import sample_runs  # noqa: E402

BOTH_WAYS = ("--passes", "native,alone,together")


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Case(unittest.TestCase):
    """A folder for programs, and one for results."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mpsshim-test-samples-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.out = self.folder / "out"
        (self.folder / "programs").mkdir()

    def command(self, *options):
        return [sys.executable, "-B", str(SCRIPTS / "run-samples"), str(self.folder / "programs"), "--tree", str(BUILD), "--driver", DRIVER,
                "--out", str(self.out), "--timeout", "20", *options]

    def run_samples(self, *options):
        return subprocess.run(self.command(*options), capture_output=True, text=True, check=False, timeout=120)

    def manifest(self, **programs):
        entries = [{"name": name, "command": [str(SCENES), scene] if isinstance(scene, str) else scene} for name, scene in programs.items()]
        self.write_manifest(entries)

    def write_manifest(self, entries):
        (self.folder / "programs" / "samples.json").write_text(json.dumps({"program": entries}), "utf-8")

    def results(self):
        return {each["name"]: each for each in json.loads((self.out / "results.json").read_text("utf-8"))["programs"]}

    def outcomes(self, name):
        return {run["pass"]: run["outcome"] for run in self.results()[name]["runs"]}

    def children(self):
        """Numbers that scenes have written, once each is there."""
        return [int(path.read_text("utf-8")) for path in self.folder.glob("*.pid")]


class Examples(Case):
    def test_examples_are_right_alone_and_together(self):
        programs = {"process1": [], "matrix_mul": ["96"], "vector_add_drv": []}
        self.write_manifest([{"name": name, "command": [str(BUILD / "bin" / name), *words]} for name, words in programs.items()])
        ended = self.run_samples("--forwarded-only", "-j", "3", "--repeat", "2")
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        for name in programs:
            self.assertEqual(self.outcomes(name), {"alone": "passed", "together": "passed"})
        self.assertEqual(len(self.results()["process1"]["runs"]), 4)
        self.assertIn("Process 1 done.", (self.out / "output" / "process1.alone.0.txt").read_text("utf-8"))
        self.assertIn("[  12/12 ", ended.stdout)
        suites = xml.parse(self.out / "junit.xml").getroot()
        self.assertEqual([(suite.get("name"), suite.get("tests"), suite.get("failures")) for suite in suites],
                         [("alone", "3", "0"), ("together", "3", "0")])
        self.assertIn("| matrix_mul | passed | passed |", (self.out / "table.md").read_text("utf-8"))


class Verdicts(Case):
    def test_each_way_of_being_wrong_is_told(self):
        wrong = {"fail_forwarded": "exit status 1", "say_failed": "says FAILED", "waive_forwarded": "natively passed", "crash_forwarded": "SIGSEGV",
                 "differ": "'# of # correct' 0 times, not 1"}
        self.manifest(**{name: name for name in (*wrong, "pass", "waive", "numbers", "fail")})
        ended = self.run_samples(*BOTH_WAYS, "-j", "4")
        self.assertEqual(ended.returncode, 1, ended.stdout + ended.stderr)
        results = self.results()
        for name, words in wrong.items():
            self.assertFalse(results[name]["right"], name)
            self.assertEqual(len(results[name]["remarks"]), 1)
            self.assertIn("alone and together: ", results[name]["remarks"][0])
            self.assertIn(words, results[name]["remarks"][0])
        for name in ("pass", "waive", "numbers", "fail"):
            self.assertTrue(results[name]["right"], results[name]["remarks"])
        self.assertTrue(results["waive"]["judged"])
        self.assertFalse(results["fail"]["judged"])
        self.assertEqual(self.outcomes("crash_forwarded"), {"native": "passed", "alone": "crashed", "together": "crashed"})
        # What fails natively among others has had another try.
        self.assertEqual(self.outcomes("fail")["native alone"], "failed")
        self.assertIn("together: 3 failed, 3 passed, 2 waived, 1 crashed; 3 of 8 are right\n", ended.stdout)
        alone = xml.parse(self.out / "junit.xml").getroot()[1]
        failure = alone.find("testcase[@name='say_failed']/failure")
        self.assertIn("result: FAILED", failure.text)
        self.assertEqual((alone.get("failures"), alone.get("skipped")), ("5", "2"))

    def test_all_that_is_right_natively_is_right(self):
        self.manifest(good="pass", bad="fail", waived="waive")
        self.assertEqual(self.run_samples(*BOTH_WAYS).returncode, 0)

    def test_lines_of_a_programs_own(self):
        self.manifest(checksum="checksum")
        self.assertEqual(self.run_samples(*BOTH_WAYS).returncode, 0)
        self.write_manifest([{"name": "checksum", "command": [str(SCENES), "checksum"], "verdicts": ["^checksum"]}])
        self.assertEqual(self.run_samples(*BOTH_WAYS).returncode, 1)
        self.assertIn("'checksum 7' 0 times, not 1", self.results()["checksum"]["remarks"][0])

    def test_together_is_compared_with_alone_where_there_is_nothing_else(self):
        lock = self.folder / "lock"
        script = f'if mkdir {lock} 2>/dev/null; then echo one passed; else echo two passed; fi'
        self.write_manifest([{"name": "turns", "command": ["sh", "-c", script]}])
        self.assertEqual(self.run_samples("--forwarded-only").returncode, 1)
        self.assertIn("together: 'one passed' 0 times, not 1", self.results()["turns"]["remarks"])

    def test_what_native_runs_do_not_share_is_not_compared(self):
        counter = self.folder / "counter"
        script = f"echo x >> {counter}; echo run $(( $(wc -l < {counter}) % 2 )) | tr 01 ab; echo steady: passed"
        self.write_manifest([{"name": "turns", "command": ["sh", "-c", script], "verdicts": ["^run"]}])
        self.assertEqual(self.run_samples(*BOTH_WAYS, "-j", "1", "--repeat", "2").returncode, 0)

    def test_normalised_lines(self):
        lines = sample_runs.verdict_lines("took 1.5 ms\rerror -1.50e-07 at 0x1f\nok\nok\nGPU sm_90 passed\n/tmp/a/b: valid", folder="/tmp/a")
        self.assertEqual(lines, {"error # at #": 1, "ok": 2, "GPU sm_# passed": 1, "./b: valid": 1})
        self.assertEqual(sample_runs.verdict_lines("mpsshim[12]: every later call fails\nit failed"), {"it failed": 1})

    def test_a_missing_library_is_told_and_is_nobodys_fault(self):
        (self.folder / "none.c").write_text("void none(void) {}\n", "utf-8")
        (self.folder / "main.c").write_text("void none(void); int main(void) { none(); return 0; }\n", "utf-8")
        library = self.folder / "libnowhere.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, self.folder / "none.c"], check=True)
        subprocess.run(["cc", "-o", self.folder / "programs" / "needs", self.folder / "main.c", library], check=True)
        library.unlink()
        self.assertEqual(self.run_samples("--forwarded-only").returncode, 0)
        self.assertEqual(self.outcomes("needs"), {"alone": "lacking", "together": "lacking"})
        self.assertIn("libnowhere.so", self.results()["needs"]["remarks"][0])


class Limits(Case):
    def test_a_hanging_program_ends_with_all_its_processes(self):
        self.write_manifest([{"name": "hang", "command": [str(SCENES), "hang_forwarded", str(self.folder / "hang.pid")], "timeout_s": 1},
                             {"name": "leave", "command": [str(SCENES), "leave", str(self.folder / "leave.pid")]},
                             {"name": "pass", "command": [str(SCENES), "pass"]}])
        started = time.monotonic()
        ended = self.run_samples(*BOTH_WAYS)
        self.assertLess(time.monotonic() - started, 20)
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(self.outcomes("hang"), {"native": "passed", "alone": "late", "together": "late"})
        self.assertTrue(self.results()["leave"]["right"])
        self.assertEqual(len(self.children()), 2)
        self.assertEqual([pid for pid in self.children() if is_alive(pid)], [])

    def test_a_program_that_prints_without_end_is_stopped(self):
        self.manifest(flood="flood", **{"pass": "pass"})
        self.assertEqual(self.run_samples("--forwarded-only").returncode, 1)
        self.assertIn("printed more than 16 MiB", self.results()["flood"]["remarks"][0])
        self.assertTrue(self.results()["pass"]["right"])

    def test_a_broker_that_ends_is_blamed_and_replaced(self):
        self.write_manifest([{"name": "end", "command": [str(SCENES), "end_broker", str(BUILD / "bin" / "mpsctl")]},
                             {"name": "after", "command": [str(BUILD / "bin" / "vector_add_drv")]}])
        self.assertEqual(self.run_samples("--forwarded-only", "-j", "1").returncode, 1)
        self.assertFalse(self.results()["end"]["right"])
        self.assertIn("the broker ended", self.results()["end"]["remarks"][0])
        self.assertTrue(self.results()["after"]["right"], self.results()["after"])


class Interrupted(Case):
    def count(self):
        path = self.folder / "count"
        return len(path.read_text("utf-8").splitlines()) if path.exists() else 0

    def start(self, *options):
        self.write_manifest([{"name": f"count {i}", "command": [str(SCENES), "count", str(self.folder / "count")]} for i in range(6)])
        process = subprocess.Popen(self.command("--forwarded-only", "-j", "1", *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        while self.count() < 4:
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        return process

    def test_a_killed_run_goes_on_where_it_was(self):
        process = self.start()
        process.kill()
        process.wait()
        journal = self.out / "results.jsonl"
        done = len(journal.read_text("utf-8").splitlines()) - 1
        self.assertGreaterEqual(done, 3)
        with open(journal, "a", encoding="utf-8") as file:
            file.write('{"name": "count 5", "comm')
        time.sleep(0.3)  # the program that was under way is nobody's any more, and ends by itself
        before = self.count()
        ended = self.run_samples("--forwarded-only", "-j", "1", "--resume")
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual(self.count() - before, 12 - done)
        self.assertEqual({name: self.outcomes(name) for name in self.results()},
                         {f"count {i}": {"alone": "passed", "together": "passed"} for i in range(6)})
        # All is there: nothing is left to run.
        before = self.count()
        self.assertEqual(self.run_samples("--forwarded-only", "-j", "1", "--resume").returncode, 0)
        self.assertEqual(self.count(), before)
        # Results of other runs are not gone on with.
        refused = self.run_samples("--forwarded-only", "-j", "2", "--resume")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("give another --out", refused.stderr)

    def test_an_interrupted_run_leaves_nothing_behind(self):
        self.interrupt(lambda pid: os.kill(pid, signal.SIGTERM))

    def test_an_interruption_counts_whichever_thread_is_told(self):
        def tell_another_thread(pid):
            others = [int(thread) for thread in os.listdir(f"/proc/{pid}/task") if int(thread) != pid]
            self.assertEqual(ctypes.CDLL(None).tgkill(pid, others[0], signal.SIGTERM), 0)
        self.interrupt(tell_another_thread)

    def interrupt(self, tell):
        self.write_manifest([{"name": "pass", "command": [str(SCENES), "pass"]},
                             {"name": "hang", "command": [str(SCENES), "hang", str(self.folder / "hang.pid")]}])
        process = subprocess.Popen(self.command("--forwarded-only", "--timeout", "100"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        while not self.children_written():
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        tell(process.pid)
        self.assertEqual(process.wait(timeout=30), 130)
        self.assertIn("--resume goes on from here", process.stderr.read())
        self.assertEqual([pid for pid in self.children() if is_alive(pid)], [])
        # What was done is told.
        self.assertEqual(self.outcomes("pass"), {"alone": "passed"})
        self.assertEqual(self.outcomes("hang"), {})

    def children_written(self):
        return any(path.read_text("utf-8").endswith("\n") for path in self.folder.glob("*.pid"))


class Trees(Case):
    """A build tree as that of cuda-samples: programs in folders as their sources lie, arguments in test_args.json of the sources."""

    def setUp(self):
        super().setUp()
        self.tree, self.source = self.folder / "programs", self.folder / "source"
        for folder in (self.tree / "Samples/reader", self.source / "Samples/reader/data", self.tree / "CMakeFiles/probe", self.tree / "Samples/lib"):
            folder.mkdir(parents=True)
        (self.tree / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={self.source}\n", "utf-8")
        shutil.copy(SCENES, self.tree / "Samples/reader/reader")
        for other in ("CMakeFiles/probe/probe", "Samples/lib/libx.so.1"):
            shutil.copy(SCENES, self.tree / other)
        for other in ("omitted", "several", "pair"):
            (self.tree / "Samples" / other).mkdir()
            shutil.copy(SCENES, self.tree / "Samples" / other / other)
        (self.source / "Samples/reader/data/in.txt").write_text("seven\n", "utf-8")
        (self.source / "Samples/reader/beside.txt").write_text("seven\n", "utf-8")
        (self.source / "test_args.json").write_text(json.dumps({
            "reader": {"args": ["data", "seven"]}, "omitted": {"skip": True}, "pair": {"min_gpus": 99},
            "several": {"runs": [{"args": ["pass"]}, {"args": ["waive"]}, {"args": ["fail"], "skip": True}]}}), "utf-8")

    def test_arguments_and_data_are_found(self):
        ended = self.run_samples(*BOTH_WAYS)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        results = self.results()
        self.assertEqual(sorted(results), ["omitted", "pair", "reader", "several 1", "several 2", "several 3"])
        # The third of them reads what it needs as the first did: each has files of its own.
        self.assertEqual(self.outcomes("reader"), {"native": "passed", "alone": "passed", "together": "passed"})
        self.assertEqual(self.outcomes("several 2"), {"native": "waived", "alone": "waived", "together": "waived"})
        self.assertEqual((self.source / "Samples/reader/beside.txt").read_text("utf-8"), "seven\n")
        self.assertEqual([path.name for path in (self.tree / "Samples/reader").iterdir()], ["reader"])
        for name, words in (("omitted", "left out by test_args.json"), ("several 3", "left out by test_args.json"), ("pair", "needs 99 GPUs")):
            self.assertEqual(results[name]["runs"], [])
            self.assertIn(words, results[name]["remarks"][0])

    def test_some_of_them(self):
        ended = self.run_samples("--forwarded-only", "--filter", "^several [12]$", "--differing")
        self.assertEqual(ended.returncode, 0)
        self.assertEqual(sorted(self.results()), ["several 1", "several 2"])
        self.assertNotIn("| several", ended.stdout)


class WrongUse(Case):
    def refused(self, words, *options):
        ended = self.run_samples("--forwarded-only", *options)
        self.assertEqual(ended.returncode, 2, ended.stdout)
        self.assertIn(words, ended.stderr)

    def test_what_is_wrong_is_said(self):
        self.refused("has no programs")
        for entry, words in (({"command": ["true"]}, "has no 'name'"), ({"name": "x", "command": "true"}, "'command' must be a list"),
                             ({"name": "x", "command": ["true"], "limit": 3}, "unknown key 'limit'"),
                             ({"name": "x", "command": ["true"], "verdicts": ["("]}, "no regular expression")):
            self.write_manifest([entry])
            self.refused(words)
        self.write_manifest([{"name": "x", "command": ["true"]}] * 2)
        self.refused("is another's already")
        self.manifest(**{"pass": "pass"})
        self.refused("must be above 0", "--jobs", "0")
        self.refused("that --filter leaves", "--filter", "nobody")

    def test_a_program_that_is_not_there_fails(self):
        self.write_manifest([{"name": "gone", "command": ["./gone"]}])
        self.assertEqual(self.run_samples("--forwarded-only").returncode, 1)
        self.assertIn("cannot be started", self.results()["gone"]["remarks"][0])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
