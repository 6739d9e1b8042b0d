#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_lint.py SOURCE_TREE
Each gate of scripts/lint finds a fault that is put into a small tree for it, and finds nothing in the same tree without."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCES = pathlib.Path(sys.argv[1]).resolve()
ANNOTATED = '''#include "proto/cond_var.hpp"
struct Counter {
  mpsshim::Mutex mutex;
  mpsshim::CondVar changed;
  int value GUARDED_BY(mutex) = 0;
  void add() REQUIRES(mutex) { ++value; }
};
int take(Counter& counter) {
  std::unique_lock lock(counter.mutex);
  counter.changed.wait(lock, [&]() REQUIRES(counter.mutex) { return counter.value != 0; });
  counter.add();
  {
    const mpsshim::Unlocked meanwhile(counter.mutex);
  }
  return counter.value;
}
'''
CASE = '#include "tests/support/catch.hpp"\nTEST_CASE("a case") {\n%s\n}\n'
# Gate, what it needs, file, contents without and with a fault, what is said of the fault.
FAULTS = (
    ('tests', (), 'tests/a.cpp', CASE % '  REQUIRE(one() == 1);', CASE % '  one();', r'tests/a.cpp:2: the case asserts nothing'),
    ('tests', (), 'tests/a.cpp', CASE % '  if (on_gpu()) MPSSHIM_SKIP("why");\n  CHECK(one());', CASE % '  if (on_gpu()) return;\n  CHECK(one());',
     r'tests/a.cpp:3: the case is left before'),
    ('tests', (), 'tests/a.cpp', 'int looks() { REQUIRE(one()); return 2; }\n' + CASE % '  CHECK(looks() == 2);',
     'int looks() { REQUIRE(one()); return 2; }\n' + CASE % '  (void)looks();', r'tests/a.cpp:4: all that the case does'),
    ('tests', (), 'tests/a.cpp', CASE % '  CHECK(one());', (CASE % '  CHECK(one());').replace('a case', 'one; two'),
     r'tests/a.cpp:2: CTest splits the title'),
    ('names', (), 'broker/a.cpp', '// Pairs with is_here().\nbool is_here();\n', '// Pairs with is_gone().\nbool is_here();\n', r'broker/a.cpp:1: is_gone\(\) is nowhere'),
    ('names', (), 'docs/a.md', 'See `docs/a.md`.\n', 'See `broker/gone.cpp`.\n', r'docs/a.md:1: there is no file or folder broker/gone.cpp'),
    ('threads', ('clang++',), 'broker/a.cpp', ANNOTATED, ANNOTATED.replace('  std::unique_lock lock(counter.mutex);\n', '').replace(
        '  counter.changed.wait(lock, [&]() REQUIRES(counter.mutex) { return counter.value != 0; });\n', ''), r"broker/a.cpp:\d+: calling function 'add'"),
    ('threads', ('clang++',), 'broker/a.cpp', ANNOTATED, ANNOTATED.replace('[&]() REQUIRES(counter.mutex) {', '[&] {'),
     r"broker/a.cpp:\d+: reading variable 'value'"),
    ('threads', ('clang++',), 'broker/a.cpp', ANNOTATED, ANNOTATED.replace('  int value', '  int other'), r'broker/a.cpp:\d+: '),
    ('alone', ('git', 'c++'), 'broker/a.cpp', '#include <string>\nstd::string a();\n', '#include <cstdio>\nstd::vector<int> a();\n',
     r"broker/a.cpp:2: .*vector"),
    ('alone', ('git', 'c++'), 'broker/a.hpp', '#pragma once\n#include <string>\nstd::string a();\n', '#pragma once\nstd::string a();\n',
     r"broker/a.hpp:2: .*(std|string)"),
    ('format', ('git', 'clang-format'), 'broker/a.cpp', 'int one() { return 1; }\n', 'int one()   {   return 1; }\n', r'broker/a.cpp:1: about here'),
    ('tidy', ('git', 'clang-tidy'), 'broker/a.cpp', 'int half(int number) { return number / 2; }\n',
     'float half(int number) { return static_cast<float>(number / 2) + number / 3; }\n', r'broker/a.cpp:1: .*bugprone-integer-division'),
)


def make_tree(root):
    for name in ('proto', 'broker', 'tests', 'docs', 'scripts/lib', 'build/release'):
        (root / name).mkdir(parents=True)
    for name in ('proto/mutex.hpp', 'proto/cond_var.hpp', 'proto/thread_annotations.hpp', '.clang-format', '.clang-tidy'):
        shutil.copy(SOURCES / name, root / name)
    (root / 'scripts/lib/names_from_elsewhere.txt').write_text('clang  a compiler\n')
    (root / '.gitignore').write_text('/build/\n')
    (root / 'build/release/compile_commands.json').write_text(json.dumps(
        [{'directory': str(root), 'file': 'broker/a.cpp', 'command': f'c++ -I{root} -std=c++20 -c broker/a.cpp'}]))


def git(root, *words):
    subprocess.run(['git', '-c', 'user.name=nobody', '-c', 'user.email=nobody', *words], cwd=root, check=True, capture_output=True)


def lint(root, gate):
    return subprocess.run([sys.executable, '-B', SOURCES / 'scripts/lint', '--root', root, '--base', 'HEAD', gate], capture_output=True, text=True,
                          check=False)


def check(gate, path, good, bad, said):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        make_tree(root)
        git(root, 'init', '-q')
        git(root, 'add', '.')
        git(root, 'commit', '-q', '-m', 'a tree')
        for text, is_good in ((good, True), (bad, False)):
            (root / path).write_text(text)
            git(root, 'add', '--intent-to-add', '.')
            done = lint(root, gate)
            told = done.stdout + done.stderr
            if is_good and done.returncode != 0:
                sys.exit(f'{gate} finds something where there is nothing to be found:\n{text}\n{told}')
            if not is_good and (done.returncode != 1 or not re.search(said, told)):
                sys.exit(f'{gate} does not find the fault, exit status {done.returncode}:\n{text}\n{told}')


def main():
    left_out = []
    for gate, needed, path, good, bad, said in FAULTS:
        if all(shutil.which(program) for program in needed):
            check(gate, path, good, bad, said)
        else:
            left_out.append(gate)
    if left_out:
        print(f'mpsshim-skip: no tools for {", ".join(sorted(set(left_out)))}')


if __name__ == '__main__':
    main()
