#!/usr/bin/env python3
# bisect_faults.py INVAR INVAR_WRONG FOLDER - bisect and diff --replay locate a fault of one op.
#
# INVAR_WRONG has a device that is wrong in the op, or in the fused calls of the op, that its
# environment names (faulty_op_cuda.c). Recording must not change what runs: the chain of a wrong
# program is the same at every level. Bisect and diff --replay must name the point, the op, and
# whether only the fused call is wrong. Each fault is given to one of the two commands, and one of
# each statement about the parts to bisect; with INVAR_TEST_FULL=1 both get all faults.
# bisect_self.py does this with compiled commits.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import bisect_repo  # noqa: E402

INVAR, WRONG, FOLDER = map(os.path.abspath, sys.argv[1:])
RECIPE = os.path.abspath("recipes/quickstart.ini")
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
# Without an evaluation, which would take most of the time of a run.
KEYS = ["--rollout-batch-size", "4", "--n-samples-per-prompt", "2", "--on-mismatch", "record",
        "--eval-interval", "0"]
BUILD = "cp invar.sh $INVAR_BUILD/invar && chmod +x $INVAR_BUILD/invar"
ALONE = "fused {op} differs from its parts {where}, the parts are equal"
ALIKE = "fused {op} equals its parts {both}, the parts differ as well"

# Maps a fault to its point, its op, and the statement about the fused call's parts; None if the op
# is not fused there.
FAULTS = {
    "linear.fwd:residual": ("rollout.layer.0.attn", "linear.fwd", ALONE),
    "linear.fwd:act": ("layer.0.gate", "linear.fwd", ALONE),
    "rmsnorm.fwd:rotation.positions": ("rollout.layer.0.q", "rmsnorm.fwd", ALONE),
    "rmsnorm.bwd:residual": ("layer.1.dattn", "rmsnorm.bwd", ALONE),
    "linear.fwd": ("rollout.layer.0.q.proj", "linear.fwd", ALIKE),
    "attention.fwd": ("layer.0.o", "attention.fwd", None),
    # Faults of the rollout only: training does not compute these ops.
    "attention.paged": ("rollout.layer.0.o", "attention.paged", None),
    "kv.write": ("rollout.layer.0.k.cache", "kv.write", None),
    "sample": ("rollout.token", "sample", None),
}
# Bisect gets a fused call, its op, and an op that is not fused.
BISECTED = FAULTS if FULL else ("linear.fwd:residual", "linear.fwd", "attention.paged")
DIFFED = [wrong for wrong in FAULTS if FULL or wrong != "attention.paged"]
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)


def run(*words, code=0, **environment):
    """Runs a command and returns its output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=FOLDER,
                          env=bisect_repo.environment(**environment))
    if done.returncode != code:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}, expected {code}\n"
                 f"{done.stdout[:2000]}{done.stderr}")
    return done.stdout or done.stderr


def program(wrong, flags=""):
    """Returns the text of a program with a fault, or without one if `wrong` is None."""
    if not wrong:
        return f'#!/bin/sh\nexec {INVAR} "$@"\n'
    return f'#!/bin/sh\nINVAR_TEST_WRONG={wrong} exec {WRONG} "$@"{flags}\n'


def train(name, *flags, wrong=None):
    """Trains one step and returns its chain."""
    device = ["--device", "cuda"] if wrong else []
    run(WRONG if wrong else INVAR, "train", RECIPE, "--run", name, "--until", "0", "--no-report",
        *KEYS, *device, *flags, INVAR_TEST_WRONG=wrong or "")
    return json.loads(run(INVAR, "ledger", "show", name, "--json"))["run"]["chain"]


def check_bisect(number, wrong):
    """Bisects four commits, of which the last two have the fault."""
    point, op, parts = FAULTS[wrong]
    history = bisect_repo.History()
    last = history.add([], **{"invar.sh": program(None)})
    for commit in range(1, 4):
        last = history.add([last], **{"invar.sh": program(wrong if commit > 1 else None,
                                                          " --device cuda")})
    repo = os.path.join(FOLDER, f"repo{number}")
    ids = history.write(repo)
    words = [INVAR, "bisect", "--repo", repo, "--work", f"{repo}.work", "--build", BUILD, "--good",
             ids[0], "--bad", ids[-1], "--until", "0", *KEYS, RECIPE]
    answer = json.loads(run(*words, "--json", "--html", f"{repo}.html"))
    place = answer["place"]
    said = parts and parts.format(op=op, where="after the change",
                                  both="before the change and after the change")
    expect(answer["culprit"]["commit"] == ids[2], f"{wrong}: {answer['headline']}")
    expect((place["point"], place["op"]) == (point, op), f"{wrong}: named {place}")
    expect(place["fused"] == said, f"{wrong}: said {place['fused']}")
    if number == 0:  # the text and the page have it, too
        expect(said in run(*words), f"{wrong}: the text does not say it")
        with open(f"{repo}.html", encoding="utf-8") as page:
            expect(said in page.read(), f"{wrong}: the page does not say it")


def check_diff(number, wrong):
    """Diffs two runs with the programs that made them."""
    point, op, parts = FAULTS[wrong]
    other, wrapper = f"b{number}", os.path.join(FOLDER, f"program{number}")
    with open(wrapper, "w", encoding="ascii") as file:
        file.write(program(wrong))
    os.chmod(wrapper, 0o755)
    coarse = json.loads(run(INVAR, "diff", "a", other, "--json", code=1))
    expect(coarse["culprit"]["name"] != point, f"{wrong}: known without executing it again")
    words = [INVAR, "diff", "a", other, "--replay", "--program-b", wrapper]
    found = json.loads(run(*words, "--json", "--html", f"{other}.html", code=1))["culprit"]
    said = parts and parts.format(op=op, where="in B", both="in A and in B")
    expect((found["name"], found["op"]) == (point, op), f"{wrong}: the diff named {found}")
    alone = {"a_differs": False, "b_differs": parts == ALONE, "parts_equal": parts == ALONE}
    expect(found["fused"] == (alone if parts else None), f"{wrong}: the diff said {found}")
    if number == 0:  # the page has it, too; check_refusals reads the text
        with open(os.path.join(FOLDER, f"{other}.html"), encoding="utf-8") as page:
            expect(said in page.read(), f"{wrong}: the page of the diff does not say it")


def check_watching(number, wrong, right):
    """Trains the run of check_diff, and checks that every level gives the same bits. A fault of
    fused calls would vanish if level full split them."""
    chains = {"default": train(f"b{number}", wrong=wrong)}
    if FULL or number == 0:
        levels = ("step", "point", "full")
    else:
        levels = ("full",) if FAULTS[wrong][2] == ALONE else ()
    for level in levels:
        chains[level] = train(f"{level}{number}", "--debug-determinism", level, wrong=wrong)
    expect(len(set(chains.values())) == 1, f"{wrong}: watching changes what runs: {chains}")
    expect(chains["default"] != right, f"{wrong}: it changes nothing")


def check_refusals():
    """Checks programs that did not make the run, and options without effect."""
    said = run(INVAR, "diff", "a", "b0", "--replay", "--device", "cpu", code=1)
    expect("B has other bits than recorded" in said and "--program-b" in said, said)
    said = run(INVAR, "diff", "a", "b0", "--keep", "kept", code=129)
    expect("for --replay" in said, said)
    for other in ("/bin/false", "/bin/true"):
        said = run(INVAR, "diff", "a", "b0", "--replay", "--program-a", other, code=2)
        expect(f"{other} recorded nothing" in said, said)
    said = run(INVAR, "diff", "a", "b0", "--replay", "--program-a", "/nowhere", code=2)
    expect("A cannot be executed again" in said, said)
    same = json.loads(run(INVAR, "diff", "a", "a", "--replay", "--json"))
    expect(same["verdict"] == "identical", f"a run and itself: {same['headline']}")
    said = run(INVAR, "diff", "a", "b0", "--replay", "--program-b", "./program0", "--keep", "kept",
               "--threads", "1", code=1)
    statement = ALONE.format(op="linear.fwd", where="in B")
    expect(statement in said, f"the text of the diff does not say '{statement}'")
    kept = json.loads(run(INVAR, "diff", "kept/a/run", "kept/b/run", "--json", code=1))
    expect(kept["culprit"]["name"] == "rollout.layer.0.attn", f"what was kept: {kept['headline']}")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    right = train("a")
    for number, wrong in enumerate(FAULTS):
        check_watching(number, wrong, right)
        if wrong in DIFFED:
            check_diff(number, wrong)
        if wrong in BISECTED:
            check_bisect(number, wrong)
    check_refusals()
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


sys.exit(main())
