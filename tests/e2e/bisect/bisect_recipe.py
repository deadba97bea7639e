#!/usr/bin/env python3
# bisect_recipe.py INVAR FOLDER - invar bisect and blame of recipes, with scripts as programs.
#
# The program of a commit is a script that runs INVAR with another learning rate, so that nothing is
# compiled and the planted changes are real changes of bits. Found must be: the commit, step, point
# and op; a third value; every change; a metric that crosses a bound; a nondeterministic program;
# trials that need no build or no run; agent recipes by a record. Control: a key without effect
# gives equal ends. The recipe is a very small one and histories are short, because a trial costs
# about 0.1 s; with INVAR_TEST_FULL=1 the recipe is recipes/moe.ini, histories are longer,
# three trials run at once, and agents are also searched by exit codes.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import shutil
import subprocess
import sys

import bisect_repo

INVAR = str(pathlib.Path(sys.argv[1]).resolve())
FOLDER = pathlib.Path(sys.argv[2]).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import tiny  # noqa: E402  pylint: disable=wrong-import-position

FULL = bool(os.environ.get("INVAR_TEST_FULL"))
RECIPE = str(ROOT / "recipes/moe.ini" if FULL else FOLDER / "small.ini")
BUILD = "cp invar.sh $INVAR_BUILD/invar && chmod +x $INVAR_BUILD/invar"
checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"bisect_recipe: {what}")


def script(flags, comment=""):
    return f'#!/bin/sh\n# {comment}\nexec {INVAR} "$@" {flags}\n'


def small_recipe():
    """Returns a recipe whose samples teach something from the first step on."""
    return tiny.recipe(8, rollout={"rollout-batch-size": 4, "n-samples-per-prompt": 4},
                       model={"init-method-std": 0.08}, optimizer={"lr": 0.003})


def repository(name, scripts):
    """Makes a linear history with one commit per script. Returns the folder and the ids."""
    folder = FOLDER / name
    return folder, bisect_repo.line({"invar.sh": text} for text in scripts).write(folder)


def invar(verb, folder, *arguments, code=0, recipe=RECIPE):
    """Runs a command on a repository and returns its JSON answer."""
    command = [INVAR, verb, "--repo", str(folder), "--work", f"{folder}.work", "--build", BUILD,
               "--json", recipe, *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    check(result.returncode == code,
          f"{arguments}: exit code {result.returncode}, expected {code}: {result.stderr}")
    return json.loads(result.stdout)


def test_one_change():
    """The commit is found, and the optimizer as what changed; equal programs are run once."""
    scripts = [script("--lr 0.004" if i >= 13 else "", comment=i // 4) for i in range(24)]
    folder, commits = repository("one", scripts)
    answer = invar("bisect", folder, "--good", commits[0], "--bad", commits[-1])
    check(answer["verdict"] == "found" and answer["culprit"]["commit"] == commits[13], "culprit")
    check(answer["confirmed"] and not answer["third"], "confirmed, and two values only")
    place = answer["place"]
    check(place["step"] == 0 and place["op"] == "adamw" and place["fine"], f"place {place}")
    check(place["point"].startswith("weight."), f"point {place['point']}")
    check(answer["search_trials"] <= 5, f"{answer['search_trials']} trials for 23 commits")
    ends = [t for t in answer["trials"] if t["role"].endswith(" end")]
    check(len(ends) == 2 and all(t["via"] == "ran" and t["run_s"] > 0 for t in ends),
          f"the ends' cost {ends}")
    reasons = [t["via"] for t in answer["trials"] if t["role"] == "search"]
    check("program" in reasons, f"no equal program was used: {reasons}")
    again = invar("bisect", folder, "--good", commits[0], "--bad", commits[-1])
    check(again["culprit"] == answer["culprit"], "asked again it answers the same")
    check(again["trials"] == answer["trials"], "and runs nothing")
    # By default, only the test bisect.kill has several trials of a recipe at once.
    if FULL:
        parallel = invar("bisect", folder, "--good", commits[0], "--bad", commits[-1], "--jobs",
                         "3", "--timeout", "100")  # another timeout is another bisect state
        check(parallel["culprit"]["commit"] == commits[13], "three at a time")
        # Control: within equal programs there is nothing to find.
        same = invar("bisect", folder, "--good", commits[0], "--bad", commits[12], "--until", "2",
                     code=2)
        check(same["verdict"] == "same-ends", same["verdict"])
    # The answer has the number of compared steps; this recipe has 5.
    short = FOLDER / "short.ini"
    short.write_text(tiny.recipe(5))
    same = invar("bisect", folder, "--good", commits[0], "--bad", commits[12], code=2,
                 recipe=str(short))
    check(same["verdict"] == "same-ends", same["verdict"])
    check(same["question"] == "chain up to step 4", same["question"])


def test_many_changes():
    rates = ["", "--lr 0.002", "--lr 0.004", "--lr 0.005"]
    planted = [5, 9, 14] if FULL else [2, 4]
    scripts = [script(rates[sum(i >= p for p in planted)], i // 2)
               for i in range(18 if FULL else 6)]
    folder, commits = repository("many", scripts)
    ends = ["--good", commits[0], "--bad", commits[-1]]
    if FULL:
        answer = invar("bisect", folder, *ends)
        check(answer["culprit"]["commit"] in [commits[p] for p in planted], "one of the changes")
    answer = invar("bisect", folder, *ends, "--all-changes")
    found = [change["commit"] for change in answer["changes"]]
    check(found == [commits[p] for p in planted], f"changes {found}")
    some = ends if FULL else ["--good", commits[1], "--bad", commits[3]]
    blame = invar("blame", folder, *some, "--kind", "param", "--until", "1")
    known = [change["commit"] for change in blame["changes"]]
    check(known == (found if FULL else found[:1]), f"blame of parameters: {known}")
    # Documented limit: between ends with equal values no change is searched.
    first, back, count = (6, 9, 16) if FULL else (2, 3, 6)
    undone = [script("--lr 0.004" if first <= i < back else "", i // 2) for i in range(count)]
    undone += [script("--lr 0.002", 0)]
    folder2, commits2 = repository("undone", undone)
    answer = invar("bisect", folder2, "--good", commits2[0], "--bad", commits2[-1], "--all-changes")
    check(commits2[count] in [change["commit"] for change in answer["changes"]], "the last change")
    for option, word, known in (("--kind", "grads", "act, grad, param"),
                                ("--phase", "fwd", "rollout, forward, backward"),
                                ("--op", "linear.forward", "advantage, loss, reward")):
        misspelt = subprocess.run([INVAR, "blame", "--good", "HEAD", option, word, "a.ini"],
                                  capture_output=True, text=True, check=False)
        check(misspelt.returncode == 129 and f"there is no {option[2:]} '{word}'" in misspelt.stderr
              and known in misspelt.stderr, f"blame of a word that there is not: {misspelt}")
    nowhere = subprocess.run([INVAR, "blame", "--good", "HEAD", "--html", "nowhere/page.html",
                              "a.ini"], capture_output=True, text=True, check=False)
    check(nowhere.returncode == 2 and "its folder does not exist" in nowhere.stderr,
          f"a page that cannot be written: {nowhere}")
    data = invar("blame", folder, *ends, "--point", "batch.tokens", "--until", "0", code=2)
    check(data["verdict"] == "same-ends", "tokens of step 0 come before the optimizer")


def test_metric():
    scripts = [script("--lr 0.004" if i >= 3 else "", i) for i in range(5)]
    folder, commits = repository("metric", scripts)
    ends = ["--good", commits[0], "--bad", commits[-1], "--until", "2"]
    answer = invar("bisect", folder, *ends, "--metric", "train/lr-pg_0 > 0.0035")
    check(answer["culprit"]["commit"] == commits[3], "a metric above a bound")
    answer = invar("bisect", folder, *ends, "--metric", "max_logp_diff != 0", code=2)
    check(answer["verdict"] == "wrong-end", "log-probs never differ, so the bad end is good")
    untestable = invar("bisect", folder, *ends, "--metric", "no_such_metric > 0", code=125)
    check(untestable["verdict"] == "untestable", "a metric that no run has")


def test_third_and_skip():
    """A program that crashes is skipped, and the suspects are listed."""
    broken = "#!/bin/sh\nexit 1\n"
    scripts = [script("", i) for i in range(2)] + [broken] * 3
    scripts += [script("--lr 0.004", i) for i in range(2)]
    folder, commits = repository("skip", scripts)
    answer = invar("bisect", folder, "--good", commits[0], "--bad", commits[-1], code=2)
    check(answer["verdict"] == "suspects", answer["verdict"])
    suspects = {suspect["commit"] for suspect in answer["suspects"]}
    check(suspects == set(commits[2:6]), "three that crash, and the first that is bad")
    end = invar("bisect", folder, "--good", commits[0], "--bad", commits[3], code=125)
    check(end["verdict"] == "untestable" and end["who"] == commits[3], "an end that crashes")


def test_nondeterministic():
    """A culprit that gives two results is reported as nondeterministic."""
    dice = '#!/bin/sh\nexec ' + INVAR + ' "$@" --lr 0.00$(od -An -N2 -tu2 /dev/urandom | tr -d " ")'
    scripts = [script("", i) for i in range(2)] + [f"{dice}\n# {i}\n" for i in range(2)]
    folder, commits = repository("dice", scripts)
    answer = invar("bisect", folder, "--good", commits[0], "--bad", commits[-1], code=3)
    check(answer["verdict"] == "nondeterministic" and answer["who"] == commits[2], answer["who"])


def test_command():
    """A command that writes its own ledger runs once at each end, and once more to confirm."""
    scripts = [script("--lr 0.004" if i >= 3 else "", i) for i in range(5)]
    folder, commits = repository("command", scripts)
    diary = FOLDER / "command.diary"
    run = (f'echo $INVAR_COMMIT >>{diary}; sh invar.sh train {RECIPE} --run $INVAR_RUN/run'
           ' --until 2 --no-report && mv $INVAR_RUN/run/ledger.db $INVAR_RUN')
    result = subprocess.run([INVAR, "bisect", "--repo", folder, "--work", f"{folder}.work", "--run",
                             run, "--chain", "--good", commits[0], "--bad", commits[-1], "--json"],
                            capture_output=True, text=True)
    check(result.returncode == 0, result.stderr + result.stdout)
    answer = json.loads(result.stdout)
    check(answer["culprit"]["commit"] == commits[3] and answer["place"]["step"] == 0, "a command")
    ran = diary.read_text().split()
    check(ran.count(commits[0]) == 1 and ran.count(commits[-1]) == 1, f"the ends ran once: {ran}")
    check(ran.count(commits[3]) == 2 and ran.count(commits[2]) == 2, f"confirmed: {ran}")


def test_pinned():
    """The recipe is read once: the search does not depend on later changes of the file."""
    scripts = [script("--lr 0.004" if i >= 3 else "", i) for i in range(5)]
    folder, commits = repository("pinned", scripts)
    recipe = FOLDER / "pinned.ini"
    shutil.copy(ROOT / "recipes/moe.ini", recipe)
    golden = ROOT / "recipes/moe.golden"
    ends = ["--good", commits[0], "--bad", commits[-1], "--golden", str(golden)]
    short = [] if FULL else ["--until", "1"]
    answer = invar("bisect", folder, *ends, *short, recipe=str(recipe))
    log = subprocess.run([INVAR, "bisect", "log", "--repo", folder, "--work", f"{folder}.work"],
                         capture_output=True, text=True, check=True).stdout
    (FOLDER / "pinned.log").write_text(log)
    wrong = invar("bisect", folder, "--good", commits[3], "--bad", commits[4], *ends[4:],
                  "--until", "1", code=2, recipe=str(recipe))
    check(wrong["verdict"] == "wrong-end", "a good end that is not the golden's")
    recipe.unlink()
    result = subprocess.run([INVAR, "bisect", "resume-log", FOLDER / "pinned.log", "--yes",
                             "--repo", folder, "--work", FOLDER / "elsewhere", "--json"],
                            capture_output=True, text=True)
    check(result.returncode == 0, result.stderr)
    resumed = json.loads(result.stdout)
    check(resumed["culprit"]["commit"] == answer["culprit"]["commit"], "from the log alone")
    check(resumed["trials"] == answer["trials"], "and nothing is asked again")


def agent_recipe(agent, **more):
    """Returns a recipe with an agent."""
    return tiny.recipe(3, rollout={
        "prompt-data": "task:guess", "rollout-max-response-len": 12, "rm-type": "none",
        "custom-agent-path": agent, **more})


def test_agents():
    """A record finds a program that trains differently; one that samples differently is skipped."""
    recipe, record = FOLDER / "game.ini", FOLDER / "game"
    agent = f"python3 {ROOT}/engine/ext/example/agent.py"
    recipe.write_text(agent_recipe(agent))
    subprocess.run([INVAR, "train", recipe, "--run", record, "--no-report"], check=True,
                   capture_output=True)
    scripts = [script("--lr 0.004" if i >= 2 else "", i) for i in range(4)]
    folder, commits = repository("agents", scripts)
    ends = ["--good", commits[0], "--bad", commits[-1]]
    bare = subprocess.run([INVAR, "bisect", "--repo", folder, "--work", f"{folder}.work", "--build",
                           BUILD, recipe, *ends], capture_output=True, text=True, check=False)
    check(bare.returncode == 129 and "set agent-record = RUN" in bare.stderr, f"no record: {bare}")
    recipe.write_text(agent_recipe(agent, **{"agent-record": record}))
    answer = invar("bisect", folder, *ends, recipe=str(recipe))
    place = answer["place"]
    check(answer["culprit"]["commit"] == commits[2] and answer["confirmed"], "agents: the culprit")
    check(place["step"] == 0 and place["op"] == "adamw", f"agents: place {place}")
    # A program that samples other tokens cannot follow the record.
    scripts = [script("--rollout-temperature 0.5" if i >= 2 else "", i) for i in range(3)]
    folder, commits = repository("drawn", scripts)
    ends = ["--good", commits[0], "--bad", commits[-1]]
    answer = invar("bisect", folder, *ends, recipe=str(recipe), code=125)
    check(answer["verdict"] == "untestable", f"another sampler: {answer['verdict']}")
    if not FULL:
        return  # By default, the test bisect.kill searches by exit codes.
    run = f"sh invar.sh train {recipe} --run $INVAR_RUN/run --no-report"
    result = subprocess.run([INVAR, "bisect", "--repo", folder, "--work", f"{folder}.work", "--run",
                             run, *ends, "--json"], capture_output=True, text=True, check=False)
    check(result.returncode == 0 and
          json.loads(result.stdout)["culprit"]["commit"] == commits[2], f"by exit codes: {result}")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    if not FULL:
        pathlib.Path(RECIPE).write_text(small_recipe())
    test_one_change()
    test_many_changes()
    test_metric()
    test_third_and_skip()
    test_nondeterministic()
    test_command()
    test_pinned()
    test_agents()
    print(f"{checks} checks")


main()
