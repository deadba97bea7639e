#!/usr/bin/env python3
# programs.py BUILD FOLDER - the programs that scripts/quickstart builds, and the messages about
# missing modules.
# SPDX-License-Identifier: Apache-2.0
"""Reads the commands of quickstart's target from ninja, and runs programs without their modules."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD, FOLDER = (pathlib.Path(word).resolve() for word in sys.argv[1:])
MODULES = re.findall(r'^#define INVAR_MODULE_\w+ "(invar-\w+\.so)"$',
                     (ROOT / "base/process/module.h").read_text(encoding="utf-8"), re.MULTILINE)
HTTP = {"serve": ["serve", "recipes/quickstart.ini", "--load="],
        "http": ["train", "recipes/quickstart.ini", "--rm-type", "remote_rm", "--rm-url",
                 "http://127.0.0.1:1/", "--run", str(FOLDER / "run")]}


def outputs(target):
    """Returns the programs and shared objects that ninja makes for a target."""
    commands = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", target], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
    return {name for name in re.findall(r" -o (\S+)", commands) if not name.endswith(".o")}


class Target(unittest.TestCase):
    def setUp(self):
        script = (ROOT / "scripts/quickstart").read_text(encoding="utf-8")
        self.made = outputs(re.search(r"--target (\w+)$", script, re.MULTILINE)[1])

    def test_has_every_module_of_this_build(self):
        rules = subprocess.run(["ninja", "-C", BUILD, "-t", "targets", "all"], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        known = [name for name in MODULES if re.search(f"^{name}:", rules, re.MULTILINE)]
        self.assertEqual(len(MODULES), 5)
        self.assertGreaterEqual(set(known), {"invar-http.so", "invar-serve.so"})
        for name in known:
            self.assertIn(name, self.made)
            self.assertIn(name, outputs("invar"), "the program depends on its modules")
            self.assertNotIn(name, outputs("ledger_example"), "the control")

    def test_has_the_library_and_what_documents_run(self):
        self.assertIn("libinvar.so", self.made)
        named = set()
        for pattern in ("*.md", "docs/*.md", "engine/ext/example/*", "ledger/example/*"):
            for path in ROOT.glob(pattern):
                named |= set(re.findall(r"(?<![\w/-])build/((?:plugins/)?\w+(?:\.so)?)(?![\w./])",
                                        path.read_text(encoding="utf-8")))
        self.assertGreaterEqual(named, {"invar", "ledger_example", "plugins/reward.so"})
        self.assertLessEqual(named - {"corpus", "fuzz"}, self.made)

    def test_has_no_tests(self):
        self.assertFalse([name for name in self.made if "test" in name])


class Missing(unittest.TestCase):
    def place(self, name, *, cache):
        """Copies the program without modules, into a build folder or not."""
        program = FOLDER / name / "bin/invar"
        program.parent.mkdir(parents=True)
        shutil.copy(BUILD / "invar", program)
        if cache:
            (program.parent / "CMakeCache.txt").touch()
        return program

    def says(self, program, words):
        done = subprocess.run([program, *words], cwd=ROOT, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              check=False, env=os.environ | {"INVAR_API_KEY": "0" * 32})
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def test_in_a_build_folder(self):
        program = self.place("a build", cache=True)
        for name, words in HTTP.items():
            self.assertIn(f": run cmake --build '{program.parent}' --target invar_{name}\n",
                          self.says(program, words))

    def test_where_it_is_installed(self):
        program = self.place("prefix", cache=False)
        for words in HTTP.values():
            self.assertIn(": install the package invar of the build of this program\n",
                          self.says(program, words))

    def test_the_python_package(self):
        for name, cache, remedy in (("one", True, "run cmake --build {} --target invar_api"),
                                    ("two", False, "install the package with `pip install ")):
            folder = self.place(name, cache=cache).parent
            done = subprocess.run([sys.executable, "-c", "import invar"], check=False, text=True,
                                  stderr=subprocess.PIPE, env=os.environ | {
                                      "PYTHONPATH": str(ROOT / "python"),
                                      "PYTHONDONTWRITEBYTECODE": "1",
                                      "INVAR_LIBRARY": str(folder / "libinvar.so")})
            self.assertIn("; " + remedy.format(folder), done.stderr)


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unittest.main(argv=sys.argv[:1])
