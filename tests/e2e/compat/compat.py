#!/usr/bin/env python3
# compat.py INVAR HINDERED FOLDER - runs of version 0.1.0 (make.py) verify, replay and continue.
#
# A step that is executed again must have the bits that 0.1.0 recorded. Journals of version 1 are
# read, and reported as unchecked; a changed number in one is found by the step that it changes.
# HINDERED is killed right after it has replaced a journal.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile

from make import HERE, RUNS, train

INVAR, HINDERED = map(os.path.abspath, sys.argv[1:3])
FOLDER = pathlib.Path(sys.argv[3]).absolute()
os.environ["INVAR_TEST_KILL"] = "1"  # only HINDERED reads it
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print(what, file=sys.stderr)


def run(*words, says=""):
    done = subprocess.run([INVAR, *words], cwd=FOLDER, capture_output=True, text=True)
    expect(done.returncode == 0 and says in done.stdout,
           f"{' '.join(words)}: exit code {done.returncode}: {done.stdout}{done.stderr}")


def column(name, query):
    with sqlite3.connect(f"file:{FOLDER / name / 'ledger.db'}?mode=ro", uri=True) as db:
        return [row[0] for row in db.execute(query)]


def resume(name, chain, *words, says="", warns=False):
    """Resumes the run to its end and compares its chain with that of 0.1.0, if there is one."""
    code, said, answer = train(INVAR, FOLDER, name, *words)
    warnings = re.findall("warning: step 2 was executed again: all points are those of segment 0, "
                          f"but not metric .*'invar diff {name}/ledger.db {name}/ledger.db'", said)
    expect(len(warnings) == said.count("warning") == warns, f"{name}: not {int(warns)}: {said}")
    expect(code == 0 and says in said, f"{name}: exit code {code}: {said}")
    expect(chain is None or answer.get("chain") == chain,
           f"{name}: chain {answer.get('chain')}, with 0.1.0 {chain}")
    run("ledger", "verify", f"{name}/ledger.db", says="clean")
    return answer


def repeated(name):
    """Returns the steps that two segments have."""
    return column(name, "SELECT step FROM step GROUP BY step HAVING count(*) > 1 ORDER BY step")


def unchecked(name):
    return column(name, "SELECT count(*) FROM event WHERE kind = 'unchecked-journal'") == [1]


def check_excuses():
    """A replay of a 0.1.0 run tolerates the metrics that 0.1.0 recorded wrongly, and nothing
    else."""
    series = "WHERE step = 3 AND series = (SELECT series FROM series WHERE name = '%s')"
    other = "UPDATE step SET content = zeroblob(16) WHERE step = 3"
    for name, change, what in (
            ("sft", f"UPDATE metric SET value_bits = 1 {series % 'train/loss'}",
             "metric train/loss"),
            ("sft", "DELETE FROM metric " + series % "train/grad_norm", "metric train/grad_norm"),
            ("sft", "UPDATE sample SET tokens = 1 WHERE step = 3 AND idx = 1", "sample 1"),
            ("plain", other, "content hash, but no row"),
            ("plain", f"UPDATE metric SET value_bits = 1 {series % 'rollout/raw_reward'}; {other}",
             "metric rollout/raw_reward"),
            ("plain", f"UPDATE sample SET reward_bits = 1 WHERE step = 3 AND idx = 1; {other}",
             "reward of sample 1"),
            ("plain", f"UPDATE sample SET advantage = NULL WHERE step = 3 AND idx = 1; {other}",
             "advantage of sample 1"),
            ("plain", f"UPDATE sample SET diff_bits = 1 WHERE step = 3 AND idx = 2; {other}",
             "diff of sample 2")):
        shutil.rmtree(FOLDER / "excused", ignore_errors=True)
        shutil.copytree(FOLDER / name, FOLDER / "excused")
        with sqlite3.connect(FOLDER / "excused/ledger.db") as db:
            triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            names, makes = zip(*triggers.fetchall())
            db.executescript(";".join([*map("DROP TRIGGER {}".format, names), change, *makes]))
        db.close()
        done = subprocess.run([INVAR, "replay", "excused", "--step", "3", "--load",
                               f"{name}/checkpoints"], cwd=FOLDER, capture_output=True, text=True)
        headline = f"different: step 3 has the same bits, but another {what}\n"
        expect(done.returncode == 1 and headline in done.stdout,
               f"{name}, {change}: exit code {done.returncode}: {done.stdout}{done.stderr}")


def check_killed():
    """A kill right after a journal of version 1 is replaced does not lose the event about it."""
    for name, file, words in (("agents", "sessions.jsonl", []),
                              ("clock", "schedule.jsonl", ["--ckpt-step", "1"])):
        run = f"{name}-killed"
        shutil.copytree(FOLDER / name, FOLDER / run)
        code, said, _ = train(HINDERED, FOLDER, name, *words, run=run)
        expect(code == -9 and '"sum"' in (FOLDER / run / file).read_text(),
               f"{run}: exit code {code}, and a kill after {file} was replaced: {said}")
        expect(unchecked(run), f"{run}: no event says that {file} was unchecked")


def check_changed():
    """Without sums, a changed number of the schedule is found by the recorded step that it
    changes."""
    shutil.copytree(FOLDER / "clock", FOLDER / "changed")
    record = FOLDER / "changed/schedule.jsonl"
    text = record.read_text()
    # sample 13, which is in the batch of step 3
    record.write_text(text.replace("[[13,2]", "[[13,3]"))
    code, said, _ = train(INVAR, FOLDER, "clock", "--ckpt-step", "1", run="changed")
    expect(record.read_text() != text and code == 1 and
           "step 3 was executed again and differs from segment 0 of the ledger: the first point "
           "that differs is " in said, f"a changed schedule: exit code {code}: {said}")


def shown(*words):
    """Runs `invar ledger` with these words."""
    return subprocess.run([INVAR, "ledger", *words], cwd=FOLDER, capture_output=True, text=True)


def check_measured():
    """An SFT run of 0.1.0 recorded zeros for rewards and comparisons; no output shows them."""
    zeros = "SELECT count(*) FROM metrics WHERE name = 'train/logp_diff_max' AND value = 0"
    expect(column("sft", zeros) != [0], "no zeros in the metrics of sft")
    expect(column("sft", "SELECT count(*) FROM samples WHERE diff = 0") != [0], "none in samples")
    for query in ("logprob-gap", "worst-tokens"):
        done = shown("query", query, "sft", "--json")
        expect(done.returncode == 6 and done.stdout == "[]\n", f"{query}: {done}")
    for words in (["query", "metric-summary", "sft"], ["show", "sft"],
                  ["show", "sft", "--step", "1"]):
        text = shown(*words).stdout
        expect("train/sft_loss" in text and "logp_diff" not in text and "raw_reward" not in text,
               f"{words}: {text}")
    samples = json.loads(shown("show", "sft", "--step", "1", "--json").stdout)["samples"]
    expect(samples, "no samples in step 1 of sft")
    for sample in samples:
        expect(all(sample[key] is None for key in ("reward", "advantage", "diff")), f"{sample}")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    with tarfile.open(HERE / "runs-0.1.0.tar.gz") as archive:
        archive.extractall(FOLDER)
    chains = json.loads((FOLDER / "chains.json").read_text())
    for name in RUNS:
        run("ledger", "verify", f"{name}/ledger.db", says="clean")
    for name in ("plain", "clock"):
        run("replay", name, "--step", "3", says="identical\n")
    check_measured()
    # 0.1.0 recorded comparisons that an SFT run does not make.
    run("replay", "sft", "--step", "3",
        says="identical in all bits; version 0.1.0 recorded false metrics for 2 steps")
    check_excuses()
    run("replay", "judge", "--step", "2", says="identical")
    run("replay", "agents", "--step", "1", says="identical")
    run("replay", "plain.pack", says="identical")
    run("train", "tiny.ini", "--run", "new", "--no-report", "--golden", "plain.golden",
        says="identical, 4 of 4")

    check_changed()
    check_killed()
    for name, others in (("plain", 0), ("sft", 2)):  # sft loses its false metrics
        answer = resume(name, chains[name], "--ckpt-step", "1", warns=others > 0)
        expect(repeated(name) == [2, 3], f"{name}: steps {repeated(name)} were executed again")
        expect(answer["other_content"] == others, f"{name}: other content: {answer}")
        resume(name, None, "--num-rollout", "5")
    run("replay", "sft", "--step", "3", says="identical\n")  # recorded with async-save = false
    run("ledger", "show", "sft", says="2 steps executed again: the same bits, but other metrics")
    resume("judge", None)
    expect(repeated("judge") == [2], f"judge: steps {repeated('judge')} were executed again")

    resume("agents", chains["agents"], says="sessions.jsonl was written by version 0.1.0")
    asked = (FOLDER / "asked").read_text().split()
    expect(asked[:2] == ["10", "11"], f"agents: samples {asked} were led again")
    expect(unchecked("agents"), "agents: no event says that the journal is unchecked")

    old = (FOLDER / "clock/schedule.jsonl").read_text()
    resume("clock", chains["clock"], "--ckpt-step", "1",
           says="schedule.jsonl was written by version 0.1.0")
    new = [json.loads(x) for x in (FOLDER / "clock/schedule.jsonl").read_text().splitlines()]
    expect(new[0]["invar_schedule"] == 2 and all(x.pop("sum") for x in new), "clock: no sums")
    expect(new[1:] == [json.loads(x) for x in old.splitlines()[1:]], "clock: other ticks")
    expect(unchecked("clock"), "clock: no event says that the journal is unchecked")
    (FOLDER / "old.jsonl").write_text(old)
    code, said, answer = train(INVAR, FOLDER, "clock", "--rollout-record", "old.jsonl", run="obeys")
    expect(code == 0 and "old.jsonl has no sums and is unchecked" in said and
           answer["chain"] == chains["clock"], f"obeys: exit code {code}: {said}")
    return 1 if failures else 0


sys.exit(main())
