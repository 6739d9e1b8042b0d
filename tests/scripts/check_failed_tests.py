# SPDX-License-Identifier: Apache-2.0
"""scripts/lib/failed_tests.py: says what a failed test of a real CTest run has printed, and nothing where all have passed."""
import pathlib
import subprocess
import sys
import tempfile

TESTS = """add_test("good one" "/bin/echo" "not to be seen")
add_test("bad one" "/bin/sh" "-c" "echo what went wrong; exit 3")
"""


def main(root: str) -> None:
    tool = pathlib.Path(root) / "scripts" / "lib" / "failed_tests.py"
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "CTestTestfile.cmake").write_text(TESTS)
        run = subprocess.run(["ctest", "-R", "good"], cwd=folder, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        told = subprocess.run([sys.executable, "-B", tool, folder], capture_output=True, text=True)
        assert (told.returncode, told.stdout) == (0, ""), told
        assert subprocess.run(["ctest"], cwd=folder, capture_output=True).returncode != 0
        told = subprocess.run([sys.executable, "-B", tool, folder], capture_output=True, text=True)
        assert told.returncode == 0 and "bad one" in told.stdout and "\nwhat went wrong\n" in told.stdout, told
        assert "not to be seen" not in told.stdout, told
    assert subprocess.run([sys.executable, "-B", tool], capture_output=True).returncode == 2


main(*sys.argv[1:])
