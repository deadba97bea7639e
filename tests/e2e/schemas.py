#!/usr/bin/env python3
# schemas.py INVAR FOLDER - the output of every command with --json, against the schema that `invar
# help --schema` prints; recipes against theirs.
#
# A small validator of our own knows the keywords of our schemas, and rejects others. If Python's
# jsonschema is installed, it must agree. Every member of an output must be described. Controls:
# each missing member, and each of another type, is detected, once per schema; jsonschema must agree
# on every sixteenth of them, with INVAR_TEST_FULL=1 on each.
# SPDX-License-Identifier: Apache-2.0
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import tiny

try:
    import jsonschema
except ImportError:
    jsonschema = None

INVAR = str(pathlib.Path(sys.argv[1]).resolve())
FOLDER = pathlib.Path(sys.argv[2]).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e/bisect"))
import bisect_repo  # noqa: E402  pylint: disable=wrong-import-position

os.environ.pop("CI", None)  # if it is set, nothing is recorded
ENVIRONMENT = bisect_repo.environment(XDG_CACHE_HOME=str(FOLDER / "cache"))
LINES = ("generate", "score")  # these print one object per line
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict,
         "array": list, "null": type(None)}
WORDS = {"$schema", "$defs", "$ref", "title", "description", "default", "x-effect", "x-miles",
         "type", "enum", "anyOf", "required", "properties", "additionalProperties", "items",
         "minimum", "maximum", "pattern"}
TINY = tiny.recipe(
    3, rollout={"rollout-batch-size": 4, "n-samples-per-prompt": 4}, optimizer={"lr": 0.01},
    eval={"eval-interval": 2, "eval-prompt-data": "max task:max"})
# Regular expressions of members that may be missing: they depend on an option, a mode or the
# machine, or are named by the user. The result of a query has any row.
OPTIONAL = {"train": "golden", "eval": r"sets\..*", "plan": r"choices\..*",
            "doctor": r"trouble|gpu|ranks\.(?!rank|wrong_bytes).*",
            "bench": r"rows\.(threads|share|compared|different)|train|decode"
                     r"|(train|decode)\.(bytes\..*|profile)",
            "ledger-query": "parameters"}
checks = 0
seen = {}
judged = {}  # faults of the parts of values
controlled = set()  # schemas, members and changes for which the controls have run
FULL = bool(os.environ.get("INVAR_TEST_FULL"))


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"schemas: {what}")


# ---- the validator ------------------------------------------------------------------------------

def is_of(value, name):
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, TYPES[name])


def faults(schema, value, whole, at="$"):
    """Returns what is wrong with a value, or not described. Controls share most parts of a value:
    the result of each part is kept."""
    if not isinstance(value, (dict, list)):
        return find_faults(schema, value, whole, at)
    place = (id(schema), id(value))
    if place not in judged:
        judged[place] = (find_faults(schema, value, whole, at), schema, value)  # keeps both alive
    return judged[place][0]


def find_faults(schema, value, whole, at):
    if not isinstance(schema, dict):
        return [] if schema else [f"{at}: is not described"]
    assert not set(schema) - WORDS, set(schema) - WORDS
    if "$ref" in schema:
        return faults(whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, whole, at)
    if "anyOf" in schema:
        found = [faults(one, value, whole, at) for one in schema["anyOf"]]
        return min(found, key=len)
    types = schema.get("type", list(TYPES))
    types = [types] if isinstance(types, str) else types
    if not any(is_of(value, name) for name in types):
        return [f"{at}: {value!r} is no {types}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        found.append(f"{at}: {value!r} does not look like {schema['pattern']}")
    if is_of(value, "number") and not (schema.get("minimum", value) <= value
                                       <= schema.get("maximum", value)):
        found.append(f"{at}: {value!r} is out of range")
    if isinstance(value, dict):
        found += [f"{at}: has no {name}" for name in schema.get("required", [])
                  if name not in value]
        for name, one in value.items():
            rest = schema.get("additionalProperties", False)
            found += faults(schema.get("properties", {}).get(name, rest), one, whole,
                            f"{at}.{name}")
    if isinstance(value, list):
        for i, one in enumerate(value):
            found += faults(schema.get("items", False), one, whole, f"{at}[{i}]")
    return found


def agrees(schema, value):
    """Returns whether jsonschema accepts the value; True if it is not installed."""
    return jsonschema is None or jsonschema.Draft202012Validator(schema).is_valid(value)


def firsts(value):
    """Returns the value with only the first element of every list; the others have the same
    form."""
    if isinstance(value, dict):
        return {name: firsts(one) for name, one in value.items()}
    return [firsts(one) for one in value[:1]] if isinstance(value, list) else value


def members(value, path=()):
    """Yields the path of every member."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield path + (name,)
            yield from members(one, path + (name,))
    elif isinstance(value, list) and value:
        yield from members(value[0], path + (0,))


def changed(value, path, change):
    """Returns a copy of the value with the member at the path removed or of another type."""
    wrong = copy.copy(value)
    if len(path) > 1:
        wrong[path[0]] = changed(value[path[0]], path[1:], change)
    elif change == "gone":
        del wrong[path[0]]
    else:
        wrong[path[0]] = {"of": ["another", "type"]}
    return wrong


def broken(name, value):
    """Yields copies of the value with each member changed that was not changed before."""
    value = firsts(value)
    for path in members(value):
        shown = ".".join(str(word) for word in path if word != 0)
        for change in ("gone", "of another type"):
            if change == "gone" and re.fullmatch(OPTIONAL.get(name, "(?!)"), shown):
                continue
            if FULL or (name, shown, change) not in controlled:
                controlled.add((name, shown, change))
                yield f"{shown} {change}", changed(value, path, change)


# ---- outputs ------------------------------------------------------------------------------------

def invar(*words, codes=(0,), **options):
    result = subprocess.run([INVAR, *words], capture_output=True, text=True, env=ENVIRONMENT,
                            cwd=FOLDER, stdin=subprocess.DEVNULL, timeout=300, **options)
    check(result.returncode in codes, f"{words}: exit code {result.returncode}\n{result.stderr}")
    return result.stdout


def schema(name):
    if name not in seen:
        seen[name] = [json.loads(invar("help", "--schema", name)), 0]
        if jsonschema:
            jsonschema.Draft202012Validator.check_schema(seen[name][0])
    return seen[name][0]


def holds(name, *words, codes=(0,), controls=True):
    """Runs the command with --json, validates its output, and returns it."""
    text = invar(*words, "--json", codes=codes)
    values = [json.loads(line) for line in text.splitlines()] if name in LINES \
        else [json.loads(text)]
    check(values, f"{words}: nothing was printed")
    for value in values:
        found = faults(schema(name), value, schema(name))
        check(not found, f"{words}: " + "; ".join(found[:3]))
        check(agrees(schema(name), value), f"{words}: jsonschema finds a fault")
    for change, wrong in broken(name, values[0]) if controls else ():
        check(faults(schema(name), wrong, schema(name)), f"{words}: {change} is not noticed")
        if FULL or len(controlled) % 16 == 0:
            check(jsonschema is None or not agrees(schema(name), wrong),
                  f"{words}: {change} is not noticed by jsonschema")
    seen[name][1] += 1
    return values[0]


def verbs():
    """Yields the schema names of all commands whose help has an option --json."""
    def names(*words):
        text = invar("help", *words)
        return [line.split()[0] for line in text.splitlines()
                if re.match(r"  [a-z][a-z-]* {2,}\S", line) and not line.startswith("  help")]
    for verb in names():
        own = invar("help", verb)
        # A command with subcommands lists them before its options.
        subs = [name for name in names(verb)
                if subprocess.run([INVAR, "help", verb, name], capture_output=True).returncode == 0]
        for words in [(verb,)] + [(verb, sub) for sub in subs]:
            if re.search(r"^  --json\b", own if words == (verb,) else invar("help", *words), re.M):
                yield "-".join(words)


def run_verbs():
    (FOLDER / "a.ini").write_text(TINY)
    (FOLDER / "b.ini").write_text("include = a.ini\n[optimizer]\nlr = 0.02\n")
    holds("train", "train", "a.ini", "--record-golden", "own.golden")
    holds("train", "train", "a.ini", "--golden", "own.golden")
    holds("train", "train", "b.ini", "--no-report")
    holds("eval", "eval", "a.ini", "--run", "runs/a")
    holds("replay", "replay", "runs/a", "--step", "1")
    holds("diff", "diff", "runs/a", "runs/b", codes=(1,))
    holds("diff", "diff", "runs/a", "runs/a", codes=(0, 6))
    holds("plan", "plan", "a.ini")
    holds("plan", "plan", "a.ini", "--gpus", "2", codes=(0, 1, 2))
    holds("version", "version")
    holds("doctor", "doctor", codes=(0, 1, 2))
    holds("doctor", "doctor", "--ranks", "2", codes=(0, 1, 2))
    holds("selfcheck", "selfcheck")
    holds("bench", "bench", "--op", "rope.table")
    holds("bench", "bench", "--model", "tiny", "--repetitions", "1")
    holds("ledger-ls", "ledger", "ls", "runs")
    holds("ledger-show", "ledger", "show", "runs/a")
    holds("ledger-show", "ledger", "show", "runs/a", "--step", "1")
    holds("ledger-verify", "ledger", "verify", "runs/a")
    holds("ledger-query", "ledger", "query")
    holds("ledger-query", "ledger", "query", "worst-tokens", "--run", "runs/a", controls=False)
    holds("ledger-sql", "ledger", "sql", "SELECT 1 AS i, 0.5 AS r, NULL AS n, x'0f' AS b", "runs/a",
          controls=False)
    holds("ledger-backup", "ledger", "backup", "runs/a", "--out", "copy.db")
    holds("ledger-import", "ledger", "import", "runs/a", "runs/b", "--into", "all.db")
    holds("triage", "triage", "runs/a", codes=(0, 1))
    holds("bug-report", "bug-report", "runs/a", "--out", "report.tar")
    holds("ab", "ab", "a.ini", "b.ini", "--seeds", "1", "--num-rollout", "1", codes=(1,))
    line = holds("generate", "generate", "a.ini", "--prompt", "12", "--load", "runs/a/checkpoints")
    (FOLDER / "tokens").write_text(json.dumps({"tokens": line["tokens"]}) + "\n")
    holds("score", "score", "a.ini", "--tokens", "tokens")
    invar("ci", "record", "a.ini")
    holds("ci-check", "ci", "check", "a.ini")
    holds("ci-status", "ci", "status", "--cases", ".")
    shutil.copy(FOLDER / "b.ini", FOLDER / "c.ini")
    for ending in ("golden", "points"):
        shutil.copy(FOLDER / f"a.{ending}", FOLDER / f"c.{ending}")
    holds("ci-check", "ci", "check", "c.ini", codes=(1, 4))
    holds("ci-review", "ci", "review", "c.ini", codes=(0, 1, 4, 6), controls=False)


def run_bisect():
    tree = FOLDER / "tree"
    all_flags = ("", "", "--weight-decay 0.5", "--weight-decay 0.5")
    bisect_repo.line({"invar.sh": f'#!/bin/sh\nexec {INVAR} "$@" {flags}\n# {number}\n'}
                     for number, flags in enumerate(all_flags)).write(tree)
    build = 'cp invar.sh "$INVAR_BUILD/invar" && chmod +x "$INVAR_BUILD/invar"'
    shared = ("--repo", str(tree), "--build", build, "a.ini")
    answer = holds("bisect", "bisect", "--good", "HEAD~3", *shared)
    check(answer["culprit"]["subject"] == "commit 2", "bisect found another commit")
    holds("bisect-view", "bisect", "view", "--repo", str(tree))
    log = FOLDER / "log"
    log.write_text(invar("bisect", "log", "--repo", str(tree)))
    holds("bisect-resume-log", "bisect", "resume-log", str(log), "--repo", str(tree), "--yes")
    holds("blame", "blame", "--good", "HEAD~3", *shared, codes=(0, 1))


# ---- recipes ------------------------------------------------------------------------------------

def typed(text, key):
    """A value as the type that the key has in the schema."""
    name = key.get("type", "string")
    return {"integer": int, "number": float, "boolean": lambda t: {"true": True, "false": False}[t],
            "string": str}[name](text)


def run_recipes():
    whole = schema("recipe")
    for path in sorted((ROOT / "recipes").glob("*.ini")):
        recipe, section = {}, None
        for line in path.read_text().splitlines():
            if line.startswith("["):
                section = line.strip()[1:-1]
                recipe[section] = {}
            elif line.strip() and line[0] not in "#;":
                name, _, value = line.partition("=")
                key = whole["properties"][section]["properties"][name.strip()]
                recipe[section][name.strip()] = typed(value.strip(), key)
        check(not faults(whole, recipe, whole), f"{path.name}: {faults(whole, recipe, whole)[:2]}")
        check(agrees(whole, recipe), f"{path.name}: jsonschema finds a fault")
    for wrong in ({"model": {"no-such-key": 1}}, {"modle": {}}, {"optimizer": {"lr": "fast"}},
                  {"optimizer": {"lr": -1.0}}, {"model": {"dtype": "fp12"}}, {"include": "a.ini"}):
        check(faults(whole, wrong, whole), f"{wrong} is not noticed")
        check(jsonschema is None or not agrees(whole, wrong), f"jsonschema takes {wrong}")
    seen["recipe"][1] += 1


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    listed = invar("help", "--schema").split()
    wanted = list(verbs())
    for name in wanted:
        check(name in listed, f"{name} prints JSON and has no schema")
    for name in listed:
        check(name == "recipe" or name in wanted, f"{name} has a schema and prints no JSON")
        check(json.loads(invar("help", "--schema", *name.split("-", 1)
                               if name.split("-")[0] in ("ledger", "ci", "bisect") else [name])),
              f"{name} is empty")
    check("did you mean 'train'" in subprocess.run(
        [INVAR, "help", "--schema", "trian"], capture_output=True, text=True).stderr,
        "a near name is not offered")
    run_verbs()
    run_bisect()
    run_recipes()
    left = [name for name in listed if not seen.get(name, [0, 0])[1]]
    check(not left, f"nobody looked at {left}")
    print(f"{checks} checks{'' if jsonschema else ', without jsonschema'}")


main()
