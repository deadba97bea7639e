#!/usr/bin/env python3
# exit_codes.py INVAR LEDGER_MAKE PAGES FOLDER - the exit codes: one table everywhere, and each code
# occurs.
# SPDX-License-Identifier: Apache-2.0
"""Compares code, help, manual pages and documents, then ends a command with every code."""
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]
INVAR, MAKE, PAGES, FOLDER = (pathlib.Path(word).resolve() for word in sys.argv[1:])
STOPS = {130: signal.SIGINT, 143: signal.SIGTERM, 153: signal.SIGXFSZ}


def answer(*words):
    return subprocess.run([INVAR, *words], cwd=FOLDER, check=True, stdout=subprocess.PIPE,
                          text=True).stdout


def listed(text):
    """Returns {code: meaning} of the lines "  CODE  meaning" of a help; indented lines continue
    one."""
    table = {}
    for line in text.splitlines():
        if match := re.match(r"  (\d+) +(\S.*)$", line):
            code = int(match[1])
            assert code not in table
            table[code] = match[2]
        elif table and line.startswith("    "):
            table[code] += " " + line.strip()
    return table


def paged(text):
    """Returns {code: meaning} of the section EXIT STATUS of a manual page."""
    section = re.search(r"^\.SH EXIT STATUS\n(.*?)(?=^\.SH )", text, re.MULTILINE | re.DOTALL)
    return {int(code): " ".join(meaning.replace("\\-", "-").replace("\\(aq", "'").split())
            for code, meaning in re.findall(r"^\.TP\n\.B (\d+)\n((?:(?!\.).*\n)+)",
                                            section[1] if section else "", re.MULTILINE)}


def codes_of(*verb):
    """Returns the lines below "Exit codes:" of a command's help, which names no code elsewhere."""
    text, found, codes = answer("help", *verb).partition("Exit codes:\n")
    assert not re.search(r"^Exit code(?!s are those)", text, re.MULTILINE), verb
    return re.match(r"(?:  .*\n)+", codes)[0] if found else ""


def page(verb):
    return PAGES / f"man1/{'-'.join(('invar', *verb))}.1"


def verbs(*group):
    """Returns the commands that `invar help`, or the help of a group, lists."""
    names = re.findall(r"^  ([a-z][a-z-]*)  ", answer("help", *group), re.MULTILINE)
    return [(*group, name) for name in names if page((*group, name)).exists()]


class Table(unittest.TestCase):
    def setUp(self):
        self.codes = listed(answer("help", "exit-codes"))

    def test_has_what_the_code_has(self):
        header = (ROOT / "base/process/process.h").read_text(encoding="utf-8")
        numbers = [int(n) for n in re.findall(r"^    INVAR_EXIT_\w+ = (\d+)", header,
                                              re.MULTILINE)]
        stops = [128 + number for number in STOPS.values()]
        self.assertEqual(list(self.codes), sorted(numbers + stops))
        self.assertEqual(list(STOPS), stops)

    def test_is_in_the_documents(self):
        text = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
        section = text[text.index("\n## Exit codes\n"):].split("\n\n", 4)[2]
        rows = {int(code): meaning
                for code, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)}
        self.assertEqual(rows, self.codes)
        for name in ("commands", "bisect", "ledger"):
            text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
            tables = re.findall(r"^\| (?:exit )?code \|.*\n\|[- |]*\n((?:\|.*\n)+)", text,
                                re.MULTILINE)
            self.assertTrue(tables, name)
            for table in tables:
                found = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
                self.assertTrue(found and found <= set(self.codes), table)

    def test_is_in_the_manual(self):
        self.assertEqual(paged((PAGES / "man1/invar.1").read_text(encoding="utf-8")), self.codes)

    def test_of_a_verb_are_those_of_its_help(self):
        """Tables of a command in docs/commands.md have the words of its help, others its codes."""
        def table(text, column=1):
            rows = re.findall(r"^\| (\d+) \|(.*)\|$", text, re.MULTILINE)
            cells = {int(code): row.split("|")[column - 1].strip() for code, row in rows}
            return {code: cell.replace("`", "") for code, cell in cells.items() if cell}

        pages = {name: (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
                 for name in ("commands", "bisect", "ledger")}
        held = 0
        for section in re.split(r"^##+ ", pages["commands"], flags=re.MULTILINE):
            verb, head = section.split("\n")[0], "| exit code | meaning |\n"
            if head in section:
                text = section.partition(head)[2].partition("\n\n")[0]
                self.assertEqual(table(text), listed(codes_of(*verb.split())), verb)
                held += 1
        self.assertGreater(held, 4)
        section = pages["bisect"].partition("\n## Exit codes\n")[2].partition("\n\n*Not")[0]
        for column, verb in enumerate((("bisect",), ("ab",), ("ci", "check")), 1):
            self.assertEqual(set(table(section, column)), set(listed(codes_of(*verb))), verb)
        section = pages["ledger"].partition("| exit code | meaning for `invar diff` |")[2]
        self.assertEqual(set(table(section.partition("\n\n")[0])), set(listed(codes_of("diff"))))

    def test_verbs_have_no_others(self):
        several, pages = 0, {"invar.1"}
        for verb in [v for name in verbs() for v in (name, *verbs(*name))]:
            found = listed(codes_of(*verb))
            self.assertLessEqual(set(found), set(self.codes), verb)
            self.assertEqual(paged(page(verb).read_text(encoding="utf-8")), found, verb)
            several += len(found) > 1
            pages.add(page(verb).name)
        self.assertGreater(several, 8)
        self.assertEqual(pages, {path.name for path in (PAGES / "man1").iterdir()})


class Happens(unittest.TestCase):
    """Each code of the table, by a command that a user types."""

    @classmethod
    def setUpClass(cls):
        (FOLDER / "tiny.ini").write_text(tiny.recipe(1), encoding="ascii")
        for name, more in {"a": "seed=0", "b": "fault=diverges:1:layer.1.mlp.out", "c": "seed=7",
                           "none": "steps=0"}.items():
            (FOLDER / name).mkdir()
            subprocess.run([MAKE, FOLDER / name / "ledger.db", "steps=2", f"name={name}", more],
                           check=True)

    def ends(self, code, *words, **environment):
        done = subprocess.run([INVAR, *words], cwd=FOLDER, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              env=os.environ | environment)
        self.assertEqual(done.returncode, code, f"{words}: {done.stdout}")
        self.ended.add(code)

    def stops(self, code, run, act, **more):
        """Stops a run when its train.log exists, and checks the exit code."""
        words = [INVAR, "train", "tiny.ini", "--run", run, "--num-rollout", "1000000",
                 "--no-report"]
        with subprocess.Popen(words, cwd=FOLDER, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              **more) as process:
            while act and process.poll() is None and not (FOLDER / run / "train.log").exists():
                time.sleep(0.05)
            if act:
                process.send_signal(act)
            self.assertEqual(process.wait(300), code)
        self.ended.add(code)

    def test_each_one(self):
        self.ended = set()
        self.ends(0, "version")
        self.ends(1, "diff", "a", "c")
        self.ends(2, "ledger", "show", "nowhere")
        self.ends(3, "diff", "a", "b")
        self.ends(4, "train", "tiny.ini", "--run", "never", "--golden", "nowhere.golden")
        self.ends(6, "triage", "none")
        self.ends(125, "selfcheck", "--device", "cuda", INVAR_MODULES="/nowhere")
        self.ends(129, "train", "tiny.ini", "--nonsense", "1")
        self.stops(130, "int", signal.SIGINT)
        self.stops(143, "term", signal.SIGTERM)
        self.stops(143, "hup", signal.SIGHUP)
        self.stops(153, "limit", None, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (200 * 1024, 200 * 1024)))
        self.assertEqual(self.ended, set(listed(answer("help", "exit-codes"))))


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unittest.main(argv=sys.argv[:1])
