#!/usr/bin/env python3
# checksrc_test.py - every rule of scripts/checksrc rejects a bad sample and accepts a good one.
# SPDX-License-Identifier: Apache-2.0
"""Negative and positive samples for scripts/checksrc, in a tree of their own."""
import importlib.machinery
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = REPOSITORY / "scripts/checksrc"
checksrc = importlib.machinery.SourceFileLoader("checksrc", str(PROGRAM)).load_module()
SPDX = "SPDX-License-Identifier: Apache-2.0"


def c_file(name, body="", includes='#include "base/invar_banned.h"\n'):
    return f"/*\n * {name} - a sample.\n *\n * {SPDX}\n */\n{includes}{body}"


class Checksrc(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        banned = (REPOSITORY / "base/invar_banned.h").read_text(encoding="utf-8")
        self.write("base/invar_banned.h", banned)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def rules(self, path, text):
        """Returns the rules that report this file."""
        self.write(path, text)
        return {rule for _, rule, _ in checksrc.check(self.root, path)}

    def accepts(self, path, text):
        self.assertEqual(self.rules(path, text), set(), text)

    def refuses(self, rule, path, text):
        self.assertEqual(self.rules(path, text), {rule}, text)

    def refuses_body(self, rule, body, path="engine/sample.c"):
        self.refuses(rule, path, c_file(path.split("/")[-1], body))

    def test_program(self):
        self.write("engine/sample.c", c_file("sample.c"))
        self.write("engine/bad.c", c_file("bad.c", "    exit(1);\n"))
        for file, code, line in (("engine/sample.c", 0, ""),
                                 ("engine/bad.c", 1, "engine/bad.c:7: banned: exit(): ")):
            done = subprocess.run([PROGRAM, "--root", self.root, file], capture_output=True,
                                  text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (code, ""))
            self.assertTrue(done.stdout.startswith(line or "checksrc: 1 files, 0 findings"))
        many = [f"cli/schema/{i}.json" for i in range(26)]
        done = subprocess.run([PROGRAM, "--root", self.root, "engine/sample.c", *many],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.stdout.split(":")[0], "cli/schema", done)

    def test_conflict(self):
        for mark in ("<" * 7 + " HEAD", ">" * 7 + " 0c8f1da5"):
            self.refuses("conflict", "docs/sample.md", f"# A sample\n{mark}\n")
        self.accepts("docs/sample.md", "# A sample\n<<<<<<<\n")

    def test_inner_arrows(self):
        for path, target in (("engine/model/sample.c", "engine/run/x.h"),
                             ("engine/model/graph/sample.c", "engine/model/x.h"),
                             ("engine/fresh/sample.c", "engine/model/x.h"),
                             ("engine/run/sample.c", "engine/fresh/x.h"),
                             ("ledger/store/sample.c", "ledger/internal.h"),
                             ("ledger/sample.c", "ledger/view/x.h"),
                             ("ledger/view/golden/sample.c", "ledger/view/diff/x.h"),
                             ("base/sample.c", "base/json/x.h"),
                             ("kernels-deterministic/cuda/common/sample.cuh",
                              "kernels-deterministic/cuda/sm90/x.cuh"),
                             ("kernels-deterministic/cuda/common/sample.cuh",
                              "kernels-deterministic/cuda/sm90/rows/x.cuh")):
            line = f'#include "{target}"\n#include "base/invar_banned.h"\n'
            self.refuses("include", path, c_file(path.split("/")[-1], includes=line))
        for path, target in (("engine/run/sample.c", "engine/model/x.h"),
                             ("engine/model/sample.c", "engine/model/x.h"),
                             ("ledger/store/sample.c", "ledger/ledger.h"),
                             ("engine/ext/example/sample.c", "engine/ext/x.h"),
                             ("tests/unit/base/sample.c", "tests/support.h")):
            line = f'#include "{target}"\n#include "base/invar_banned.h"\n'
            self.accepts(path, c_file(path.split("/")[-1], includes=line))

    def test_rooms_have_no_cycle(self):
        # The folder kernels-deterministic is exempt: device.c includes the checks and steps, which
        # include its types.
        done, left = set(), {room: {r for r in rooms if r in checksrc.ROOMS}
                             for room, rooms in checksrc.ROOMS.items()
                             if not room.startswith("kernels-deterministic")}
        while left:
            free = {room for room, rooms in left.items() if rooms <= done}
            self.assertTrue(free, left)
            done |= free
            left = {room: rooms for room, rooms in left.items() if room not in free}

    def test_mentions(self):
        self.write("engine/model/model.h", c_file("model.h"))
        for text in ("model.c", "model/gone.h", "engine/model.h"):
            self.refuses_body("mention", f"/* as {text} says */\n")
            self.refuses("mention", "docs/a.md", f"See `{text}`.\n")
        for text in ("model.h", "model/model.h", "engine/model/model.h", "sqlite3.h", "NAME.c",
                     "model.*", "*.c"):
            self.accepts("engine/sample.c", c_file("sample.c", f"/* as {text} says */\n"))
        self.accepts("engine/sample.c", c_file("sample.c", 'const char *x = "gone.h";\n'))
        self.accepts("docs/a.md", "[model](../engine/model/model.h)\n")

    def test_mirror(self):
        self.refuses("mirror", "tests/unit/gone/sample.c", c_file("sample.c"))
        self.write("engine/files/tar.h", c_file("tar.h"))
        self.accepts("tests/unit/engine/files/sample.c", c_file("sample.c"))

    def test_crowded(self):
        for folder in ("engine/run", "tests/e2e", "tests"):
            files = [f"{folder}/{i}.c" for i in range(25)] + [f"{folder}/below/a.c", "docs/a.md"]
            self.assertEqual(list(checksrc.crowded(files)), [])
            for more in ("x.sh", "x.json", "x"):
                found = list(checksrc.crowded(files + [f"{folder}/{more}"]))
                self.assertEqual([(f[0], f[2]) for f in found], [(folder, "folder")])
        self.assertEqual(list(checksrc.crowded([f"ledger/queries/{i}.sql" for i in range(50)])), [])

    def test_ambiguous(self):
        self.write("engine/run/a.h", c_file("a.h", "typedef struct invar_a invar_a;\n"))
        self.write("engine/run/b.h", c_file("b.h", "typedef enum invar_b {\n    X\n} invar_b;\n"))
        self.write("base/c.h", c_file("c.h", "typedef struct invar_a {\n    int x;\n} invar_a;\n"))
        files = ["engine/run/a.h", "engine/run/b.h"]
        self.assertEqual(list(checksrc.ambiguous(self.root, files)), [])
        found = list(checksrc.ambiguous(self.root, files + ["base/c.h"]))
        self.assertEqual([(f[0], f[2]) for f in found], [("engine/run/a.h", "type")])

    def test_cycles(self):
        """A cycle across folders or in engine/run is reported; one inside of base is not."""
        def found(folders):
            names = [f"{folders[i]}/{name}" for i, name in enumerate("ab")]
            self.write(f"{names[0]}.h", c_file("a.h", "", ""))
            self.write(f"{names[0]}.c", c_file("a.c", "", f'#include "{names[1]}.h"\n'))
            self.write(f"{names[1]}.h", c_file("b.h", "", f'#include "{names[0]}.h"\n'))
            files = [f"{names[0]}.h", f"{names[0]}.c", f"{names[1]}.h"]
            self.assertEqual(checksrc.include_cycles(self.root, files), [names])
            return [finding[2] for finding in checksrc.cyclic(self.root, files)]

        self.assertEqual(found(["base", "base"]), [])
        self.assertEqual(found(["engine/run", "engine/run"]), ["cycle"])
        self.assertEqual(found(["engine/config", "engine/text"]), ["cycle"])

    def test_private_headers(self):
        """A private header is one unit with the file that it belongs to."""
        self.write("engine/run/a.h", c_file("a.h", "", ""))
        self.write("engine/run/a_internal.h", c_file("a.h", "", '#include "engine/run/a.h"\n'))
        self.write("engine/run/a.c", c_file("a.c", "", '#include "engine/run/a_internal.h"\n'))
        files = ["engine/run/a.h", "engine/run/a.c", "engine/run/a_internal.h"]
        self.assertEqual(checksrc.include_cycles(self.root, files), [])

    def test_good_files(self):
        self.accepts("engine/sample.c", c_file("sample.c", "int invar_x(void);\n"))
        self.accepts("scripts/sample", f"#!/bin/sh\n# A sample.\n# {SPDX}\ntrue\n")

    def test_text(self):
        self.refuses_body("tab", "int\tx;\n")
        self.refuses_body("space", "int x; \n")
        self.refuses_body("space", "int x;\n\n")
        self.refuses_body("space", "int x;")
        self.refuses_body("columns", f"/* {'x' * 95} */\n")
        self.accepts("engine/sample.c", c_file("sample.c", f"/* {'ä' * 94} */\n"))
        self.refuses("columns", "docs/a.md", f"{'x' * 101}\n")
        self.refuses("columns", "docs/a.md", f"|{'x' * 140}\n")
        self.accepts("docs/a.md", f"{'x' * 100}\n|{'x' * 139}\n")
        self.accepts("docs/changelog.md", f"{'x' * 101}\n")

    def test_head(self):
        self.refuses("spdx", "engine/sample.h", "/*\n * sample.h - a sample.\n */\n")
        self.refuses("head", "engine/sample.h", f"/* {SPDX} */\n")
        self.write("engine/other.h", "")
        self.refuses("head", "engine/sample.h", c_file("other.h", includes=""))
        self.refuses("head", "scripts/sample", f"#!/bin/sh\ntrue # {SPDX}\n")

    def test_pinned(self):
        head = f"# a workflow\n# {SPDX}\n"
        self.accepts("docs/ci/a.yml", f"{head}- uses: a/b@{'0a' * 20} # v1.2\n")
        for name in ("a/b@v4", "a/b", f"a/b@{'0a' * 20}", f"a/b@{'0a' * 19} # v1.2"):
            self.refuses("pinned", "docs/ci/a.yml", f"{head}      - uses: {name}\n")

    def test_unfinished(self):
        for word in ("TO" "DO", "FIX" "ME", "XX" "X"):
            self.refuses_body("todo", f"/* {word} later */\n")
            self.refuses_body("todo", f"/* {word}(somebody) */\n")
            self.accepts("engine/sample.c", c_file("sample.c", f"/* {word}(#12) later */\n"))

    def test_status(self):
        self.refuses_body("status", "    return INVAR_E_IO;\n")
        self.refuses_body("status", "    return (INVAR_E_IO);\n")
        self.accepts("engine/sample.c", c_file("sample.c", "return INVAR_FAIL(INVAR_E_IO, 0);\n"))

    def test_banned(self):
        for call in ("malloc(8)", "free (p)", "exit(1)", "printf(x)", "sscanf(x)", "strcpy(a, b)",
                     "expf(x)", "pow(x, y)", "qsort(a, n)", "time(NULL)", "rand()", "MPI_Reduce(a)",
                     "MPI_Iallreduce(a)", "MPI_Reduce_scatter_block(a)", "MPI_Exscan(a)",
                     "ncclReduce(a)", "ncclAllReduce(a)", "ncclReduceScatter(a)",
                     "invar_recipe_int(r, INVAR_KEY_LR)", "INVAR_RECIPE_ENUM(t, r, 1)"):
            self.refuses_body("banned", f"    {call};\n")
        self.refuses_body("banned", "x = __expf(x);\n", "kernels-deterministic/cuda/sample.cu")
        for fine in ("/* malloc(8) */", 'x = "printf(";', "a->free(p);", "invar_exp(x);",
                     "snprintf(b, n, f);", "// exit(1)", "MPI_Isend(a);", "ncclAllGather(a);",
                     "invar_recipe_entry_get(&e, r, 1);"):
            self.accepts("engine/sample.c", c_file("sample.c", f"    {fine}\n"))
        self.accepts("tests/unit/sample.c", c_file("sample.c", "expf(x); malloc(1);\n", ""))
        self.accepts("base/alloc.c", c_file("alloc.c", "free(block);\n"))

    def test_poison(self):
        self.refuses("poison", "engine/sample.c", c_file("sample.c", includes=""))
        self.refuses("poison", "engine/sample.c",
                     c_file("sample.c", '#include <time.h>\n'))
        self.accepts("engine/sample.h", c_file("sample.h", includes=""))
        self.accepts("kernels-deterministic/sample.c", c_file(
            "sample.c", '#include "kernels-deterministic/ops.def"\n'))

    def test_include(self):
        for target, path in (("<xxhash.h>", "engine/sample.c"), ("<cmocka.h>", "base/sample.c"),
                             ("<sqlite3.h>", "engine/sample.c"), ("<mpi.h>", "base/sample.c"),
                             ("<sqlite3.h>", "ledger/sample.c"), ("<jansson.h>", "ledger/sample.c"),
                             ("<cuda_runtime.h>", "engine/sample.c"),
                             ('"sample.h"', "engine/sample.c"), ('"../base/x.h"', "base/sample.c"),
                             ('"engine/x.h"', "base/sample.c"), ('"ledger/x.h"', "base/sample.c"),
                             ('"engine/x.h"', "kernels-deterministic/sample.c"),
                             ('"ledger/x.h"', "kernels-deterministic/sample.c"),
                             ('"engine/x.h"', "ledger/sample.c"),
                             ('"engine/x.h"', "bisect/sample.c"), ('"cli/x.h"', "engine/sample.c"),
                             ('"bisect/x.h"', "engine/sample.c"), ('"tests/x.h"', "cli/sample.c")):
            line = f'#include {target}\n#include "base/invar_banned.h"\n'
            self.refuses("include", path, c_file("sample.c", includes=line))
        for target, path in (("<xxhash.h>", "base/hash.c"), ("<cmocka.h>", "tests/sample.c"),
                             ('"ledger/x.h"', "engine/sample.c"), ('"engine/x.h"', "cli/sample.c"),
                             ('"ledger/x.h"', "bisect/sample.c"), ("<stdio.h>", "base/sample.c"),
                             ('"cli/x.h"', "tests/sample.c"), ("<sqlite3.h>", "ledger/store/sql.c"),
                             ("<jansson.h>", "ledger/view/sample.c"),
                             ("<jansson.h>", "cli/sample.c")):
            line = f'#include {target}\n#include "base/invar_banned.h"\n'
            self.accepts(path, c_file(path.split("/")[-1], includes=line))


if __name__ == "__main__":
    unittest.main()
