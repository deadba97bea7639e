#!/usr/bin/env python3
# prose_test.py - every check of scripts/prose finds a bad sample, and nothing in a good one.
#
# The program also runs over a small tree: a count above the recorded one fails, an equal one
# passes, and --record writes the counts that it prints.
# SPDX-License-Identifier: Apache-2.0
"""Negative and positive samples for scripts/prose."""
import importlib.machinery
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = REPOSITORY / "scripts/prose"
prose = importlib.machinery.SourceFileLoader("prose", str(PROGRAM)).load_module()

HEAD = ("/*\n * sample.h - rows of a table.\n *\n * Rows are sorted by key, so that a reader finds"
        " one by bisection.\n *\n * SPDX-License-Identifier: Apache-2.0\n */\n")


def field(comment):
    return (f"{HEAD}typedef struct invar_table {{\n    int64_t count; /* {comment} */\n"
            "} invar_table;\n")


def contract(comment):
    return f"{HEAD}/* {comment} */\nint64_t invar_table_count(const invar_table *table);\n"


# Check, path of the samples, a bad text, a good text.
SAMPLES = (
    ("head", "engine/rl/sample.c", "/*\n * sample.c - rows.\n */\n" + "int x;\n" * 101,
     HEAD.replace("table.", "table, kept\n * in order.") + "int x;\n" * 101),
    ("continues", "engine/rl/sample.h", field("number of rows, each with a key,"),
     field("number of rows, each with a key")),
    ("field", "engine/rl/sample.h", field("of the rows above"), field("number of rows")),
    ("contract", "engine/rl/sample.h", contract("What the table holds now, in rows."),
     contract("Returns the number of rows.")),
    ("short", "engine/rl/sample.h", contract("At once."),
     contract("Returns the count without waiting.")),
    ("pronoun", "engine/rl/sample.h", field("how often it, and none of those, has them"),
     field("number of rows whose key is unique")),
    ("colon", "engine/rl/sample.h", field("limit on rows; 0: no limit"),
     field("limit on rows; 0 for no limit")),
    ("word", "engine/rl/sample.h", field("rows that nobody has read"), field("odd number of rows")),
    ("word", "docs/sample.md", "The server has a desk.\n", "The server has a table, of course.\n"),
    ("phrase", "engine/rl/sample.h", field("number of rows that goes on"), field("number of rows")),
    ("phrase", "docs/sample.md", "The run goes on.\n", "The run continues.\n"),
    ("static", "engine/rl/sample.c", HEAD + "static int run(void)\n{\n    return 1;\n}\n",
     HEAD + "static int run_row(void)\n{\n    return 1;\n}\n"),
    ("name", "engine/rl/sample.h", field("number of rows").replace("count;", "at;"),
     field("number of rows")),
    ("private", "engine/rl/sample.h", HEAD + "void invar_desk_open(void);\n",
     HEAD + "void invar_session_open(void); /* no invar_desk */\n"),
    ("british", "docs/sample.md", "Normalise the colour.\n",
     "Normalize the color of `quantise`.\n"),
    ("fronted", "docs/sample.md", "Of several runs it shows two.\n", "What is a run?\n"),
    ("heading", "docs/sample.md", "| what | how |\n| --- | --- |\n",
     "| command | effect |\n| --- | --- |\n"),
    ("message", "engine/rl/sample.c",
     HEAD + 'int x = INVAR_FAIL(INVAR_E_IO, "%s: nobody (%d) reads it", name(1), 2);\n',
     HEAD + 'int x = INVAR_FAIL(INVAR_E_IO, "%s: no process reads the file", name(1));\n'),
)


class Prose(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def test_samples(self):
        self.assertEqual({name for name, *_ in SAMPLES}, set(prose.CHECKS))
        for name, path, bad, good in SAMPLES:
            for text, expected in ((bad, {name}), (good, set())):
                self.write(path, text)
                file = prose.File(self.root, path)
                found = {check for check in prose.CHECKS if prose.CHECKS[check](file)}
                self.assertEqual(found, expected, (name, text))

    def test_lines(self):
        self.write("engine/rl/sample.h", field("of the rows above"))
        file = prose.File(self.root, "engine/rl/sample.h")
        self.assertEqual(prose.CHECKS["field"](file), [(9, "of the rows above")])

    def program(self, *arguments):
        done = subprocess.run([self.root / "scripts/prose", *arguments], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def test_program(self):
        for path in ("scripts/prose", "scripts/sources", "scripts/common.sh"):
            self.write(path, (REPOSITORY / path).read_text(encoding="utf-8"))
            (self.root / path).chmod(0o755)
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.write("engine/rl/sample.h", field("of the rows above"))
        code, text = self.program("--record")
        self.assertEqual(code, 0, text)
        table = (self.root / "scripts/prose.tsv").read_text(encoding="utf-8")
        self.assertEqual(table.expandtabs(12), text)
        self.assertEqual(self.program()[0], 0)
        self.write("engine/rl/other.h", field("of the rows above"))
        code, text = self.program()
        self.assertEqual(code, 1)
        self.assertTrue(text.endswith(
            "prose: engine/rl: field: 2 findings, 1 are accepted: "
            "scripts/prose --list field engine/rl\n"), text)
        self.assertEqual(self.program("--list", "field", "engine/rl/other.h"),
                         (0, "engine/rl/other.h:9: field: of the rows above\n"))
        self.write("engine/rl/other.h", field("number of rows"))
        self.write("engine/rl/sample.h", field("number of rows"))
        self.assertEqual(self.program()[0], 0)


if __name__ == "__main__":
    unittest.main()
