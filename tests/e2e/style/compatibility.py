#!/usr/bin/env python3
# compatibility.py - docs/compatibility.md has the file and interface versions of the code.
#
# Runs in the root of the tree. Every version number in a header must be in one of the two tables,
# or belong to the modules of one build. Control: a document that is one version behind is found.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import re
import sys

DOCUMENT = pathlib.Path("docs/compatibility.md")
# Last column of the document's row -> file and expression of the number in the code.
FILES = {
    "`INVAR_LEDGER_VERSION`": ("ledger/ledger.h", r"#define INVAR_LEDGER_VERSION (\d+)"),
    "`INVAR_CHECKPOINT_VERSION`": ("engine/files/checkpoint/checkpoint.h",
                                   r"#define INVAR_CHECKPOINT_VERSION (\d+)"),
    "`INVAR_JOURNAL_VERSION`": ("engine/files/journal.h", r"#define INVAR_JOURNAL_VERSION (\d+)"),
    "`INVAR_ROLLOUT_FILE_VERSION`": ("engine/sample/rollout/file/rollout_file.h",
                                     r"#define INVAR_ROLLOUT_FILE_VERSION (\d+)"),
    "`# invar golden`": ("ledger/view/golden/golden.c",
                         r'"# invar golden",\s+\.version = (\d+)'),
    "`# invar golden points`": ("ledger/view/golden/points_file.c",
                                r'"# invar golden points",\s+\.version = (\d+)'),
    "`INVAR_PACK_FORMAT`": ("engine/run/replay/pack.h",
                            r'#define INVAR_PACK_FORMAT "invar-pack (\d+)"'),
    "`invar-seal`": ("ledger/seal.c", r'"invar-seal (\d+) "'),
    "`# invar bisect`": ("bisect/state/state_internal.h", r'"# invar bisect (\d+)\\n"'),
}
INTERFACES = {
    "`INVAR_API_ABI`": ("api/invar.h", r"#define INVAR_API_ABI (\d+)"),
    "`ABI`": ("python/invar/_library.py", r"^ABI = (\d+)"),
    "`INVAR_PLUGIN_ABI`": ("engine/ext/invar_plugin.h", r"#define INVAR_PLUGIN_ABI (\d+)"),
}
# Formats of which older versions can be read -> file and expression of the oldest one.
FIRST = {
    "`INVAR_LEDGER_VERSION`": ("ledger/store/ledger_schema.c", r"if \(version < (\d+)\)"),
    "`INVAR_JOURNAL_VERSION`": ("engine/files/journal.c", r", (\d+), INVAR_JOURNAL_VERSION\)"),
    "`INVAR_ROLLOUT_FILE_VERSION`": ("engine/sample/rollout/file/rollout_file_read.c",
                                     r'read_int\(&version, l, "version", (\d+), '),
}
MODULES = {"INVAR_MPI_ABI", "INVAR_NCCL_ABI", "INVAR_HTTP_ABI", "INVAR_SERVE_ABI",
           "INVAR_BACKEND_ABI"}


def number(place):
    """Returns the only match of the expression in the file."""
    path, pattern = place
    found = re.findall(pattern, pathlib.Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    if len(found) != 1:
        sys.exit(f"{path}: {pattern} is there {len(found)} times")
    return found[0]


def rows(text, title):
    """Returns the table below a title as lists of cells, without its head."""
    section = text[text.index(f"\n## {title}\n"):].split("\n## ", 2)[1]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def differences(text):
    """Returns one line for each statement of the document that the code contradicts."""
    bad = []
    files = {row[3]: (row[1], row[2]) for row in rows(text, "Files")}
    for name in set(files) ^ set(FILES):
        bad.append(f"Files: {name} is only in the document or only in this test")
    for name in set(files) & set(FILES):
        now = number(FILES[name])
        read = f"{number(FIRST[name])} to {now}" if name in FIRST else now
        if files[name] != (now, read):
            bad.append(f"Files: {name}: {files[name]}, the code has {(now, read)}")
    interfaces = {row[2]: row[1] for row in rows(text, "Interfaces")}
    code = {name: number(place) for name, place in INTERFACES.items()}
    if interfaces != code:
        bad.append(f"Interfaces: {interfaces}, the code has {code}")
    if code["`ABI`"] != code["`INVAR_API_ABI`"]:
        bad.append("the Python package and libinvar have different numbers")
    return bad


def defined():
    """Returns every version of a format or interface that a header of the product defines."""
    names = set()
    for folder in ("api", "base", "bisect", "cli", "engine", "kernels-deterministic", "ledger"):
        for path in pathlib.Path(folder).rglob("*.h"):
            names |= set(re.findall(r"^#define (INVAR_\w+_(?:VERSION|ABI)) \d+",
                                    path.read_text(encoding="utf-8"), re.MULTILINE))
    return names


def main():
    text = DOCUMENT.read_text(encoding="utf-8")
    bad = differences(text)
    known = {name.strip("`") for name in {**FILES, **INTERFACES}} | MODULES
    bad += [f"{name} is in a header and not in {DOCUMENT}" for name in sorted(defined() - known)]
    for line in bad:
        print(line, file=sys.stderr)
    # Control: a document that is one version behind is found.
    behind = re.sub(r"^(\| \[ledger\].*? \| )\d+ \|", r"\g<1>0 |", text, flags=re.MULTILINE)
    if behind == text or len(differences(behind)) != len(differences(text)) + 1:
        sys.exit("the control: an old document is not found")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
