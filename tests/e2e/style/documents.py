#!/usr/bin/env python3
# documents.py INVAR BUILD - the documents describe the program correctly and completely.
#
# In README.md, docs/*.md and similar files, links lead to a target, and every command, option,
# recipe key, test, script and file that they name exists. In the other direction, docs/commands.md
# has every command with every option, docs/ledger.md every named query, README.md a test for every
# promise, and docs/architecture.md every place that includes a third-party header. docs/keys.md is
# the page that the build wrote. Records (docs/records) are well formed and name existing commands.
# Control: each rule finds a bad sample.
# SPDX-License-Identifier: Apache-2.0
"""Compares the documents with the program."""
import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
WITH_KEYS = {"ab", "bisect", "blame", "eval", "generate", "pack", "plan", "replay", "score",
             "serve", "train"}
# Options of other programs and of our scripts that the documents name.
OTHERS = {"arch", "asan", "build", "burst", "component", "coverage", "full", "gpus-per-task",
          "help", "install", "markdown", "mpi", "nvtx", "peer", "prefix", "preset", "ref", "report",
          "schema", "target", "test-dir", "tsan", "version", "yes"}
KINDS = ("unit|property|golden|fault|fuzz|oracle|invariance|fake_gpu|gpu|cross|compiler|sanitizer|"
         "style|bench")
TEST = re.compile(rf"(?<![\w./-])(?:{KINDS})\.[a-z0-9_.*-]*[a-z0-9_*]")
FOLDERS = ("api|base|bisect|cli|cmake|docs|engine|kernels-deterministic|ledger|packaging|python|"
           "recipes|scripts|tests")
FILE = re.compile(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./*-]*[\w*/]")

PROMISES = "| # | you may change | these bits stay | tests |\n"
WRAPPERS = "| header | included in |\n"


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


class Program:
    """All that exists: commands with their options, recipe keys, parameters of queries, tests."""

    def __init__(self, invar, build):
        self.verbs = {}
        for verb in self.entries(output(invar, "help")):
            self.take(invar, (verb,))
        text = output(invar, "help", "train")
        self.keys = set(re.findall(r"^  --([a-z0-9-]+)", text[text.index("\n[model]"):], re.M))
        self.verbs[("train",)] -= self.keys
        self.parameters = {name for path in (ROOT / "ledger/queries").glob("*.sql")
                           for name in re.findall(r":(\w+) ", path.read_text().splitlines()[1])}
        listed = output("ctest", "--test-dir", build, "-N")
        self.tests = set(re.findall(r"Test +#\d+: (\S+)", listed))
        self.tests |= {f"gpu.{name}" for name in self.tests
                       if name.startswith(("unit", "property", "invariance"))}
        gpu = page("tests/gpu/CMakeLists.txt")
        self.tests |= {f"gpu.{name}" for name in re.findall(r"invar_gpu_test\((\S+)", gpu)}
        for text in (gpu, page("tests/CMakeLists.txt")):
            self.tests |= set(re.findall(r"add_executable\(((?:gpu|bench)\.\S+)", text))
        self.test_lines = "\n".join(self.tests)
        self.options = self.keys | self.parameters | OTHERS | set().union(*self.verbs.values())

    @staticmethod
    def entries(text):
        return re.findall(r"^  ([a-z][a-z-]*)  ", text, re.M)

    def take(self, invar, words):
        text = output(invar, "help", *words)
        self.verbs[words] = set(re.findall(r"^  --([a-z0-9-]+)", text, re.M))
        if words in (("bisect",), ("ci",), ("ledger",)):
            for sub in self.entries(text[:text.index("\n\n", text.index("\n  "))]):
                self.take(invar, (*words, sub))


def anchors(text):
    """Returns the anchors that GitHub makes of the headings."""
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-")
            for line in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)}


def split(text):
    """Returns blocks of commands, and inline code."""
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return blocks, [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", rest)]


def commands(pieces):
    """Yields the command and the rest of each `invar COMMAND ...`, with its continuation lines."""
    for piece in pieces:
        for line in re.sub(r"\\\n|\n +(?=[\[|-])", " ", piece).splitlines():
            match = re.match(r"(.*?)(?:^|(?<=[ (\"'$/]))invar ([a-z][a-z-]*)(?![\w/.])(.*)", line)
            # Not a comment, nor an argument of a script.
            if match and not re.search(r"^# $|\.(?:py|sh) \S*$", match[1]):
                rest = re.sub(r"\$\((?!\S*invar ).*?\)", "", match[3])
                yield match[2], re.split(r" # | && |; | \| (?=[a-z])", rest)[0]


def check_links(name, text, folder):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
        path, _, anchor = target.partition("#")
        file = folder / path
        if re.match(r"[a-z]+:", target):
            continue
        if not file.exists():
            yield f"{name}: the link {target} leads nowhere"
        elif anchor and anchor not in anchors(file.read_text() if path else text):
            yield f"{name}: there is no heading for the link {target}"


def check_commands(name, text, program):
    blocks, inline = split(text)
    for verb, rest in commands(blocks + inline):
        sub = re.match(r" ([a-z-]+)", rest)
        words = (verb, sub[1]) if sub and (verb, sub[1]) in program.verbs else (verb,)
        if verb == "help":
            continue
        if words not in program.verbs:
            yield f"{name}: invar has no verb '{verb}'"
            continue
        known = program.verbs[words] | {"help", "key", "option"}
        known |= program.keys if verb in WITH_KEYS else set()
        known |= program.parameters if words == ("ledger", "query") else set()
        for option in re.findall(r"--([a-z][a-z0-9-]*)", rest):
            if option not in known:
                yield f"{name}: invar {' '.join(words)} has no option --{option}"


def check_words(name, text, program):
    blocks, inline = split(text)
    for code in inline:
        for option in re.findall(r"(?:^|[ |(])--([a-z][a-z0-9-]*)", code):
            if option not in program.options:
                yield f"{name}: there is no option --{option}"
        key = re.match(r"([a-z0-9]+-[a-z0-9-]+) = ", code)
        if key and key[1] not in program.keys:
            yield f"{name}: there is no key {key[1]}"
    for code in blocks + inline:
        yield from check_names(name, code, program)


def check_names(name, text, program):
    """Yields tests and files that do not exist; words in capitals are placeholders."""
    for test in TEST.findall(text):
        pattern = re.escape(test).replace(r"\*", ".*") + r"(\.\w+)*"
        if not re.search(r"\.(?:c|db|golden|h|md|py|sh)$", test) and not re.search(
                f"^{pattern}$", program.test_lines, re.M):
            yield f"{name}: there is no test {test}"
    for file in FILE.findall(text):
        if not re.search(r"\b[A-Z]+\b", file) and not list(ROOT.glob(file.rstrip("/."))):
            yield f"{name}: there is no file {file}"


def check_verbs(name, text, program):
    """Yields commands without a section, and options that its section does not name."""
    parts = (part.partition("\n") for part in re.split(r"^##+ ", text, flags=re.M)[1:])
    sections = {title.strip(): body for title, _, body in parts}
    for words, options in program.verbs.items():
        title = " ".join(words)
        if title not in sections:
            yield f"{name}: has no section '{title}'"
            continue
        for option in sorted(options):
            if not re.search(rf"--{option}\b(?!-)", sections[title]):
                yield f"{name}: section '{title}' lacks --{option}"


def check_queries(name, text):
    """Yields named queries without a row with their question and parameters."""
    for path in sorted((ROOT / "ledger/queries").glob("*.sql")):
        head = path.read_text().splitlines()[:2]
        question, parameters = (line.partition(": ")[2] for line in head)
        parameters = re.sub(r":(\w+) \w+", r"\1", parameters)
        row = f"| `{path.stem}` | {question} | {parameters} |"
        if row not in text:
            yield f"{name}: lacks {row}"


def check_keys(name, text, build):
    """Checks that the key reference is the page that the build wrote."""
    written = pathlib.Path(build, "pages/keys.md")
    if text != written.read_text(encoding="utf-8"):
        yield f"{name}: differs from engine/config/keys.def: cp {written} {name}"


def records(*arguments):
    return subprocess.run(["scripts/records", *arguments], capture_output=True, text=True, cwd=ROOT,
                          check=False)


def check_promises(name, text, program):
    """Checks that each row of the table of promises names tests that exist."""
    table = text[text.index(PROMISES):].split("\n\n")[0]
    for row in re.findall(r"^\| *\d* *\| .* \| (.*) \|$", table, re.M):
        named = re.findall(r"`([a-z0-9_.*-]+)`", row)
        for test in named:
            if not fnmatch.filter(program.tests, test):
                yield f"{name}: there is no test {test}"
        if not named:
            yield f"{name}: a promise has no test: {row}"


def check_wrappers(name, text):
    """Checks that third-party headers are included exactly in the places of the table."""
    tree = [(path, page(path)) for path in output("scripts/sources", "*.c", "*.h").split()
            if not path.startswith("tests/")]
    table = text[text.index(WRAPPERS):].split("\n\n")[0]
    for headers, listed in re.findall(r"^\| (`[^|]*\.h`) \| (.*) \|$", table, re.M):
        places = set(re.findall(r"`([^`]+)`", listed))
        for header in re.findall(r"`([^`]+)`", headers):
            files = [path for path, lines in tree if f"#include <{header}>" in lines]
            used = {place for place in places for path in files
                    if path == place or path.startswith(place + "/")}
            odd = [path for path in files
                   if not any(path == place or path.startswith(place + "/") for place in places)]
            if odd or used != places:
                yield f"{name}: {header} is included in {odd}, and not in {places - used}"


def check_records(program):
    listed = records()
    names = re.findall(r"^(\S+) +\d+  ", listed.stdout, re.M)
    for printed in (listed, records(*names), records("--markdown", *names)):
        if printed.returncode != 0 or not names:
            yield printed.stderr.strip()
            return
    for path in sorted((ROOT / "docs/records").glob("*.tsv")):
        lines = path.read_text().splitlines()
        rows = [line.split("\t") for line in lines if not line.startswith("# ")]
        every = [line.removeprefix("# command: ") for line in lines if line.startswith("# command")]
        if "command" in rows[0]:
            every = [row[rows[0].index("command")] for row in rows[1:]]
        for command in sorted(set(every)):
            yield from check_record(path.name, command, program)
        for row in rows:
            if rows.count(row) > 1:
                yield f"{path.name}: a row stands twice: {' '.join(row)}"
        commits = [line.removeprefix("# commit: ") for line in lines if line.startswith("# commit")]
        if "commit" in rows[0]:
            commits = [row[rows[0].index("commit")] for row in rows[1:]]
        yield from check_history(path.name, sorted(set(commits)))


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT,
                          check=False)


def whole_history():
    return git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"


def check_history(name, commits):
    """In a complete clone, every commit that a record names must belong to the history."""
    for commit in commits if whole_history() else []:
        if commit == "-":
            continue
        if git("merge-base", "--is-ancestor", commit.split()[0], "HEAD").returncode:
            yield f"{name}: {commit} is no commit of this history"


def check_record(name, command, program):
    for pattern in re.findall(r"-[RE] '?([^' ]+)", command):
        if not any(re.search(pattern, test) for test in program.tests):
            yield f"{name}: no test matches {pattern}"
    rest = re.sub(r"-[RE] '?[^' ]+'?", "", command)
    yield from check_names(name, rest, program)
    yield from check_commands(name, f"`{rest}`", program)


def control_records():
    """Control: records with a missing part are rejected."""
    good = ("# title: a\n# date: 2026-11-16\n# commit: -\n# machine: m\n# command: scripts/test\n"
            "what\tms\na\t1\n")
    bad = [good.replace("# command: scripts/test\n", ""), good.replace("scripts/test", "-"),
           good.replace("# title: a\n", ""), good.replace("2026-11-16", "today"),
           good.replace("a\t1", "a"), good.replace("a\t1", "a\t"), good.replace("a\t1\n", "")]
    with tempfile.TemporaryDirectory() as folder:
        for text, code in [(good, 0)] + [(text, 1) for text in bad]:
            pathlib.Path(folder, "sample.tsv").write_text(text)
            if records("--folder", folder, "sample").returncode != code:
                yield f"control: scripts/records does not end with {code} for {text!r}"
        if records("--folder", folder, "nothing").returncode != 2:
            yield "control: scripts/records does not refuse a name that is not there"
    if whole_history() and not list(check_history("control", ["0" * 40])):
        yield "control: a commit that does not exist is not found missing"


def control(program):
    """Control: each rule finds exactly one fault in a bad sample."""
    docs = ROOT / "docs"
    samples = [
        (check_links, "[a](nothing.md)", docs), (check_links, "[a](#none)", docs),
        (check_commands, "```\ninvar frobnicate\n```\n", program),
        (check_commands, "```\nbuild/invar train a \\\n  --leraning-rate 1\n```\n", program),
        (check_commands, "`invar ledger show RUN --stepp 1`", program),
        (check_words, "`--frob`", program), (check_words, "`no-such-key = 1`", program),
        (check_words, "`unit.none.of_these`", program), (check_words, "`tests/none.sh`", program),
        (check_record, "ctest -R '^nothing.at.all$'", program),
        (check_record, "tests/none.sh DIR", program),
        (check_promises, PROMISES + "| | a | b | *planned* |", program),
        (check_promises, PROMISES + "| 3 | a | b | `train.none` |", program),
        (check_wrappers, WRAPPERS + "| `jansson.h` | `base/json` |"),
        (check_wrappers, WRAPPERS + "| `xxhash.h` | `base/hash.c`, `cli` |"),
    ]
    for rule, sample, *rest in samples:
        found = list(rule("sample", sample, *rest))
        if len(found) != 1:
            yield f"control: {rule.__name__} finds {found} in {sample}"
    yield from control_records()
    missing = " ".join(check_verbs("sample", "## train\n", program))
    if "no section 'ledger show'" not in missing or "'train' lacks --fresh" not in missing:
        yield "control: check_verbs finds nothing missing in an empty page"
    if not list(check_queries("sample", "")):
        yield "control: check_queries finds nothing missing in an empty page"
    if not list(check_keys("sample", page("docs/keys.md").replace("lr", "rl"), sys.argv[2])):
        yield "control: check_keys does not find an edited page"


def main():
    program = Program(*sys.argv[1:])
    wrong = [*control(program), *check_records(program)]
    wrong += check_verbs("docs/commands.md", page("docs/commands.md"), program)
    wrong += check_queries("docs/ledger.md", page("docs/ledger.md"))
    wrong += check_keys("docs/keys.md", page("docs/keys.md"), sys.argv[2])
    wrong += check_promises("README.md", page("README.md"), program)
    wrong += check_wrappers("docs/architecture.md", page("docs/architecture.md"))
    for path in [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "recipes/README.md",
                 *sorted((ROOT / "docs").glob("*.md"))]:
        name = str(path.relative_to(ROOT))
        text = page(name)
        wrong += check_links(name, text, path.parent)
        wrong += check_commands(name, text, program)
        wrong += check_words(name, text, program)
    if wrong:
        print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
