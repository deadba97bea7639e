#!/usr/bin/env python3
# moved.py FOLDER - scripts/quickstart and scripts/test in a tree that was moved, renamed or copied.
# SPDX-License-Identifier: Apache-2.0
"""The scripts of the tree, with stand-in sources whose build only copies files."""
import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = pathlib.Path(sys.argv[1]).resolve()
LISTS = """cmake_minimum_required(VERSION 3.25)
project(standin NONE)
option(INVAR_CUDA "an option" OFF)
file(CONFIGURE OUTPUT invar CONTENT "echo '@CMAKE_SOURCE_DIR@' $1\\n" @ONLY)
add_custom_target(programs ALL COMMAND chmod +x invar)
enable_testing()
add_test(NAME place COMMAND ${CMAKE_SOURCE_DIR}/build/invar tested)
set_tests_properties(place PROPERTIES LABELS default)
"""


class Moved(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        self.tree = FOLDER / "one"
        (self.tree / "scripts").mkdir(parents=True)
        for name in ("common.sh", "quickstart", "test"):
            shutil.copy(ROOT / "scripts" / name, self.tree / "scripts")
        setup = self.tree / "scripts/setup"
        setup.write_text("#!/bin/sh\n", encoding="utf-8")
        setup.chmod(0o755)
        shutil.copy(ROOT / "CMakePresets.json", self.tree)
        (self.tree / "CMakeLists.txt").write_text(LISTS, encoding="utf-8")

    def runs(self, tree, script="quickstart", *, again):
        """Runs a script and returns its output; `again` is whether it must configure from
        scratch."""
        done = subprocess.run([tree / "scripts" / script], stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual("configured from scratch" in done.stdout, again, done.stdout)
        if script == "quickstart":
            self.assertIn(f"{tree} selfcheck\n", done.stdout)
        return done.stdout

    def test_moved(self):
        self.runs(self.tree, again=False)
        (self.tree / "build/mine.txt").write_text("notes", encoding="utf-8")
        (self.tree / "build/runs").mkdir()
        two = self.tree.rename(FOLDER / "two & more")
        control = subprocess.run(["cmake", "--preset", "cpu"], cwd=two, check=False,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.assertIn("is different than the directory", control.stderr)
        text = self.runs(two, again=True)
        self.assertIn(f"build/ was configured for {self.tree}/build: ", text)
        self.assertEqual((two / "build/mine.txt").read_text(encoding="utf-8"), "notes")
        self.assertTrue((two / "build/runs").exists())
        self.runs(two, again=False)

    def test_copied(self):
        self.runs(self.tree, again=False)
        cache = (self.tree / "build/CMakeCache.txt").read_bytes()
        copy = FOLDER / "copy"
        shutil.copytree(self.tree, copy)
        self.runs(copy, again=True)
        self.assertEqual((self.tree / "build/CMakeCache.txt").read_bytes(), cache)
        self.runs(self.tree, again=False)
        # Only the build folder is copied, into another tree.
        shutil.rmtree(copy / "build")
        shutil.copytree(self.tree / "build", copy / "build")
        self.runs(copy, again=True)

    def test_other_ways_to_the_same_tree(self):
        self.runs(self.tree, again=False)
        link = FOLDER / "link"
        link.symlink_to(self.tree)
        subprocess.run(["cmake", "-DINVAR_CUDA=ON", self.tree / "build"], check=True,
                       stdout=subprocess.DEVNULL)
        self.assertNotIn("scratch", subprocess.run(
            [link / "scripts/quickstart"], check=True, stdout=subprocess.PIPE, text=True).stdout)
        self.assertIn("INVAR_CUDA:BOOL=ON\n",
                      (self.tree / "build/CMakeCache.txt").read_text(encoding="utf-8"))

    def test_tests(self):
        self.runs(self.tree, "test", again=False)
        two = self.tree.rename(FOLDER / "two")
        self.assertIn("default: 1 passed, 0 failed", self.runs(two, "test", again=True))
        self.assertIn(f"{two} tested",
                      (two / "build/Testing/Temporary/LastTest.log").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
