#!/usr/bin/env python3
# pairs.py INVAR FOLDER [PART PARTS] - pairs of features: --dry-run, plan, train and help agree.
#
# A feature is a key with a value other than its default (cli/combinations/features.def). Each pair
# becomes a recipe of a tiny model, which is checked with --dry-run, planned and trained. Either all
# three reject the pair, with the same message and before a run folder exists, or the run succeeds.
# `invar help combinations` must list exactly the rejected pairs, with these messages. By default a
# sample is run in which each feature is in at least one pair; with INVAR_TEST_FULL=1 all pairs are
# run, or one of PARTS parts.
# SPDX-License-Identifier: Apache-2.0
"""Runs pairs of features and compares the verdicts."""
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parents[3]
TABLE = TREE / "cli" / "combinations" / "features.def"
TOKENIZER = TREE / "tests" / "oracle" / "folders" / "4.57.6" / "qwen3-fp16"
STRIDE = 37  # distance in the table of most pairs of the sample
WORKERS = 2
SECONDS = 120  # a run that takes longer hangs
# message of plan for several ranks that train nothing
STEPS_ONLY = "invar: --gpus plans training steps"
# Messages about the content of a file, which plan may not read.
CONTENT = re.compile(r"invar: (?:saved-\d+|data\.jsonl|(?:dense|moe)/config\.json)\b")
LAYOUT = ("tensor-model-parallel-size", "context-parallel-size", "expert-model-parallel-size",
          "pipeline-model-parallel-size")

Feature = collections.namedtuple("Feature", "name keys needs")
# whys: messages of --dry-run if it rejects the pair
Result = collections.namedtuple("Result", "pair whys problem")


# ---- the table ---------------------------------------------------------------------------------

def keys_of(text):
    """Returns [(key, value)] of "key = value; word; ..."; a word has the value None."""
    parts = (part.partition(" = ") for part in text.split("; ") if part)
    return [(key, value if equals else None) for key, equals, value in parts]


class Table:
    """The entries of features.def."""

    def __init__(self):
        text = re.sub(r"/\*.*?\*/", "", TABLE.read_text("ascii"), flags=re.S)
        literal = r'"(?:[^"\\]|\\.)*"'
        self.bases, self.needs, self.models, self.features = [], [], {}, []
        self.alternatives = [Feature("", [], [])]
        for kind, inside in re.findall(rf"INVAR_(\w+)\(((?:{literal}|[^\")])*)\)", text):
            arguments = ["".join(json.loads(part) for part in re.findall(literal, argument))
                         for argument in re.findall(rf"(?:{literal}\s*)+", inside)]
            if kind == "BASE":
                self.bases.append((arguments[0], keys_of(arguments[1])))
            elif kind == "NEED":
                self.needs.append((arguments[0], arguments[1], keys_of(arguments[2])))
            elif kind == "ALSO":
                self.alternatives.append(Feature("", [], keys_of(arguments[0])))
            elif kind == "MODEL":
                self.models[arguments[0]] = keys_of(arguments[1])
            else:
                self.features.append(Feature(arguments[0], *map(keys_of, arguments)))

    def pairs(self):
        """Returns the index pairs of all features with different keys."""
        return [(i, k) for i, k in itertools.combinations(range(len(self.features)), 2)
                if self.features[i].keys[0][0] != self.features[k].keys[0][0]]

    def recipe(self, features):
        """Returns the recipe keys of these features and their needs; the first value of a key
        wins."""
        words = {word for feature in features for word, value in feature.needs if value is None}
        kinds = {"all", "file" if "file" in words else "task",
                 "folder" if words & {"file", "folder"} else "own"}
        keys = {}
        for key, text in (pair for feature in features for pair in feature.keys):
            keys.setdefault(key, text)
        for feature in features:
            for word, value in feature.needs:
                wanted = [(word, value)] if value is not None else [
                    pair for name, kind, pairs in self.needs
                    if name == word and kind in kinds for pair in pairs]
                for key, text in wanted:
                    keys.setdefault(key, text)
        for kind, pairs in self.bases:
            for key, text in pairs if kind in kinds else []:
                keys.setdefault(key, text)
        return keys, "folder" if "folder" in kinds else "own"

    def variants(self, first, second):
        """Returns the pair with the needs of both, in both orders, with the needs of one of them,
        and bare; then the same with each alternative."""
        bare = [feature._replace(needs=[]) for feature in (first, second)]
        pairs = [(first, second), (second, first), (first, bare[1]), (bare[0], second), bare]
        return [(other, *pair) for other in self.alternatives for pair in pairs]


# ---- running -----------------------------------------------------------------------------------

def flags_of(keys):
    """Returns the number of ranks, at least that of the layout, and the flags for these keys."""
    keys, parts = dict(keys), 1
    for key in LAYOUT:
        parts *= int(keys.get(key, 1))
    least = parts + int(keys.get("rollout-num-gpus", 0))
    ranks = str(max(least, int(keys.pop("ranks", 1))))
    return ranks, [word for key, value in keys.items() for word in (f"--{key}", value)]


def call(invar, folder, flags, *words, verb="train"):
    """Returns exit code and last message of a command on the recipe with these flags."""
    ranks, keys = flags
    command = [invar, verb, "pair.ini", "--run", "made", *keys, *words]
    if verb == "train" or ranks != "1":
        command += [{"train": "--ranks", "plan": "--gpus"}[verb], ranks]
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return -1, f"did not end within {SECONDS} seconds"
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    return done.returncode, lines[-1] if lines else ""


class PairRunner:
    """Runs pairs in folders of their own below `folder`."""

    def __init__(self, invar, folder):
        self.invar, self.folder, self.table = invar, folder, Table()
        shutil.rmtree(folder, ignore_errors=True)
        for kind in ("own", "folder"):
            self.prepare(folder / "files" / kind, kind)

    def prepare(self, files, kind):
        """Creates the files that features name; models of the kind "folder" have a tokenizer."""
        files.mkdir(parents=True)
        (files / "pair.ini").write_text("", "ascii")
        (files / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        (files / "evals.ini").write_text("[held]\npath = task:max\n", "ascii")
        (files / "sink.py").write_text("import sys\nsys.stdin.read()\n", "ascii")
        lines = [json.dumps({"input": "ab"[i % 2] * (1 + i % 3), "label": "b"}) for i in range(6)]
        (files / "data.jsonl").write_text("\n".join(lines) + "\n", "ascii")
        shutil.copy(pathlib.Path(__file__).with_name("plugin.py"), files)
        for name, keys in self.table.models.items():
            own = self.table.recipe([Feature(name, keys, [])])[0]
            self.make(files, own, "--save-hf", name + "-{rollout_id}")
            (files / f"{name}-1").rename(files / name)
            for path in TOKENIZER.iterdir() if kind == "folder" else []:
                if not path.name.startswith(("config", "generation", "model")):
                    shutil.copy(path, files / name)
        needs = [("folder", None)] if kind == "folder" else []
        base = self.table.recipe([Feature("", [], needs)])[0]
        self.make(files, base, "--save-debug-rollout-data", "saved-{rollout_id}")

    def make(self, files, keys, *words):
        code, why = call(self.invar, files, flags_of(keys), "--no-report", *words)
        assert code == 0, (keys, why)
        shutil.rmtree(files / "made")

    def try_pair(self, place):
        """Returns the verdicts about a pair."""
        pair = [self.table.features[i] for i in place]
        folder = self.folder / "{}-{}".format(*place)
        folder.mkdir()
        try:
            return self.compare(pair, folder)
        finally:
            shutil.rmtree(folder)

    def compare(self, pair, folder):
        name = " with ".join(feature.name for feature in pair)
        dry = []
        variants = self.table.variants(*pair)
        for features in variants:
            where = folder / str(len(dry))
            dry.append(call(self.invar, where, self.place(where, features), "--dry-run"))
            if dry[-1][0] == 0:
                break
        refused = dry[-1][0] != 0
        number = 0 if refused else len(dry) - 1
        where = folder / str(number)
        flags = self.place(where, variants[number])
        plan = call(self.invar, where, flags, verb="plan")
        train = call(self.invar, where, flags, "--no-report")
        problem = ""
        if train != (dry[0] if refused else (0, train[1])):
            problem = f"--dry-run: {dry[number]}, train: {train}"
        elif plan != (dry[0] if refused else (0, plan[1])) \
                and not (CONTENT.match(dry[0][1]) and plan[0] == 0) \
                and not plan[1].startswith(STEPS_ONLY):
            problem = f"--dry-run: {dry[number]}, plan: {plan}"
        elif refused and (where / "made").exists():
            problem = f"train: {train} after the run had begun"
        return Result(name, [why for _, why in dry] if refused else [], problem)

    def place(self, folder, features):
        """Creates a folder with the files of a recipe. Returns the flags of the recipe."""
        keys, kind = self.table.recipe(features)
        if not folder.exists():
            folder.mkdir()
            for path in (self.folder / "files" / kind).iterdir():
                (folder / path.name).symlink_to(path)
        return flags_of(keys)


# ---- help --------------------------------------------------------------------------------------

def read_help(invar):
    """Returns {pair: reason} of `invar help combinations`, and its last line."""
    done = subprocess.run([invar, "help", "combinations"], capture_output=True, check=True,
                          text=True)
    *lines, empty, last = done.stdout.splitlines()
    found = [re.fullmatch(r"(\S+ = .*? with \S+ = .*?): (.*)", line) for line in lines]
    assert empty == "" and all(found), lines[:1]
    return {match[1]: match[2] for match in found}, last


def check_help(listed, results):
    """Yields differences between help and these results. Help does not know what files contain. If
    the reason is about a key outside of the pair, help names the feature that needs the key."""
    for pair, why in listed.items():
        keys = "|".join(re.findall(r"(?:^| with )(\S+) = ", pair))
        if not re.search(rf"(?<![a-z-])(?:{keys})(?![a-z-])", why):
            yield f"help: {pair}: {why}\n  names no key of the pair"
    for result in results:
        if any(map(CONTENT.match, result.whys)):
            continue
        why = re.sub(r"^invar: (?:--[a-z0-9-]+: )?", "", "".join(result.whys[:1]))
        if re.sub("^[a-z-]+ needs [a-z-]+: ", "", listed.get(result.pair, "")) != why:
            yield f"{result.pair}\n  help: {listed.get(result.pair)}\n  --dry-run: {why}"


# ---- the test ----------------------------------------------------------------------------------

def choose_pairs(table, part, parts):
    """Returns the pairs to run."""
    pairs = table.pairs()
    if os.environ.get("INVAR_TEST_FULL"):
        return pairs[part::parts]
    near = sorted(pairs, key=lambda pair: abs(pair[1] - pair[0] - STRIDE))
    covered, chosen = set(), []
    for count in 2, 1:  # first the pairs of two new features, then the features that are left over
        for pair in near:
            if len(set(pair) - covered) == count:
                covered.update(pair)
                chosen.append(pair)
    return chosen


def main():
    invar, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    part, parts = map(int, sys.argv[3:5] or (0, 1))
    bench = PairRunner(str(invar), folder)
    chosen = choose_pairs(bench.table, part, parts)
    listed, last = read_help(invar)
    total = f"{len(listed)} of {len(bench.table.pairs())} pairs of {len(bench.table.features)} "
    problems = [] if last.startswith(total) else [f"help ends with: {last}"]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(bench.try_pair, chosen))
    wrong = [result for result in results if result.problem]
    problems += [f"{result.pair}\n  {result.problem}" for result in wrong]
    problems += check_help(listed, results)
    print(*problems, sep="\n")
    print(f"{len(results)} of {len(bench.table.pairs())} pairs of {len(bench.table.features)} "
          f"features: {sum(bool(result.whys) for result in results)} refused, "
          f"{len(results) - len(wrong)} with equal verdicts")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
