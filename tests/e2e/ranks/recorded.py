#!/usr/bin/env python3
# recorded.py INVAR BENT HINDERED FOLDER - asynchronous rollouts by the clock, and by its record.
#
# Runs with rollout-schedule = recorded, in turn and overlapped, have threads with random delays:
# the clock decides, so their records and chains differ. Each run has one chain with its own record:
# replayed, followed by another run (rollout-record) on one rank or several, killed and resumed. By
# the record each token belongs to one weight version: `invar score` with the checkpoint of that
# version must give its log-prob, bit for bit; control: the next version must not. No group is
# trained on twice, or later than rollout-max-delay allows. A record that was changed or truncated
# is rejected, or gives another chain. BENT records the log-prob of an in-flight token wrong, which
# must be detected. INVAR_TEST_FULL=1 has more delays, kinds of runs, kills and changed records.
# SPDX-License-Identifier: Apache-2.0
import json
import re
import shutil
import sqlite3
import subprocess
import sys

from asynchronous import (BENT, FOLDER, FULL, HERE, HINDERED, INVAR, OVERLAP, ROLLOUTS, begin, bits,
                          check_replay, command, end, expect, kill, score_rollouts, train)

# Values of rollout-batch-size, n-samples-per-prompt and rollout-max-response-len of the recipe
BATCH, EACH, LONGEST = 4, 3, 11
LAG = 2


def recorded(lag, delay=2):
    return ["--rollout-lag", str(lag), "--rollout-schedule", "recorded", "--rollout-max-delay",
            str(delay), "--rm-type", "deterministic_random", "--lr", "0.004"]


def following(name):
    return ["--rollout-record", str(FOLDER / name)]


def read(name):
    """Returns for each tick the groups of its batch, and the tokens of the samples that stayed in
    flight."""
    ticks = {}
    for line in map(json.loads, (FOLDER / name / "schedule.jsonl").read_text().splitlines()[1:]):
        tick = ticks.setdefault(line["tick"], {})
        tick["batch"] = line.get("batch", tick.get("batch"))
        if "drawn" in line:
            tick["drawn"] = dict(line["drawn"])
    return ticks


def late(name, seed, *words, **how):
    """Trains with random delays of threads and ranks."""
    return train(name, *words, program=HINDERED, env={"INVAR_TEST_DELAYS": str(seed)}, **how)


# ---- the record is true --------------------------------------------------------------------------

def check_batches(name, lag, delay):
    """Checks that each group is trained on once, neither before it begins nor later than
    allowed."""
    seen, early, overdue = set(), 0, 0
    for tick, event in read(name).items():
        batch = event["batch"]
        expect(len(batch) == BATCH and batch == sorted(set(batch)) and not seen & set(batch),
               f"{name}: tick {tick} trains on {batch}")
        seen |= set(batch)
        labels = [group // BATCH for group in batch]
        expect(all(tick - delay <= r <= tick + lag for r in labels),
               f"{name}: tick {tick} trains on rollouts {labels}")
        due = set(range(max(0, tick - delay + 1) * BATCH))
        expect(due <= seen, f"{name}: tick {tick} leaves {due - seen}, which are too late then")
        early += sum(r > tick for r in labels)
        overdue += sum(r < tick for r in labels)
        expect(all(0 <= t < LONGEST and i // EACH not in seen for i, t in event["drawn"].items()),
               f"{name}: tick {tick} has left {event['drawn']}")
    return early, overdue


def check_tokens(name, recipe="dense"):
    ticks, right, wrong, mixed = read(name), 0, 0, 0
    rollouts, versions, wanted = [], [], []
    for rollout in range(ROLLOUTS - 1):
        lines = (FOLDER / f"{name}-{rollout}").read_text(encoding="utf-8").splitlines()
        samples = [s for s in map(json.loads, lines) if "tokens" in s]
        of = []
        for s in samples:
            of.append([])
            for tick in range(max(0, s["rollout"] - LAG), rollout + 1):
                done = ticks[tick]["drawn"].get(s["index"], len(s["logprobs"]))
                of[-1] += [tick] * (done - len(of[-1]))
        rollouts.append(samples)
        versions.append(of)
        wanted.append(range(min(v[0] for v in of), rollout + 2))
    scores = score_rollouts(name, recipe, rollouts, wanted)
    for rollout, (samples, of, scored) in enumerate(zip(rollouts, versions, scores)):
        for i, s in enumerate(samples):
            mixed += of[i][0] != of[i][-1]
            expect((s.get("weights_first", s["weights"]), s["weights"]) == (of[i][0], of[i][-1]),
                   f"{name}: rollout {rollout}, sample {i}: versions {s['weights']}, {of[i]}")
            for t, logp in enumerate(map(bits, s["logprobs"])):
                right += logp == scored[of[i][t]][i][t]
                wrong += logp == scored[of[i][t] + 1][i][t]
                expect(logp == scored[of[i][t]][i][t],
                       f"{name}: rollout {rollout}, sample {i}, token {t} is not of {of[i][t]}")
    expect(right > 100 and wrong < right / 10, f"{name}: {right} tokens right, {wrong} off by one")
    return mixed


def check_ledger(name, lag, delay, steps=1):
    """Query and metrics have the age of the weights in rollouts; each rollout makes `steps`
    versions."""
    with sqlite3.connect(FOLDER / name / "ledger.db") as ledger:
        rows = list(ledger.execute("SELECT step, weights_first, weights_last FROM samples"))
        most = dict(ledger.execute("SELECT step, value FROM metrics WHERE name = "
                                   "'rollout/staleness/max'"))
    expect(len(rows) == ROLLOUTS * BATCH * EACH, f"{name}: {len(rows)} samples in the ledger")
    expect(all(first % steps == last % steps == 0 for _, first, last in rows),
           f"{name}: versions in the ledger {rows}")
    rows = [(step // steps, first // steps, last // steps) for step, first, last in rows]
    expect(all(0 <= rollout - first <= lag + delay and first <= last <= rollout
               for rollout, first, last in rows), f"{name}: rollouts in the ledger {rows}")
    expect(most == {rollout * steps: max(r - first for r, first, _ in rows if r == rollout)
                    for rollout in range(ROLLOUTS)}, f"{name}: rollout/staleness/max {most}")
    done = subprocess.run([INVAR, "ledger", "query", "staleness", str(FOLDER / name / "ledger.db"),
                           "--json"], capture_output=True, text=True)
    oldest = max(rollout - first for rollout, first, _ in rows)
    expect(done.returncode == 0 and f'"most_lag": {oldest}' in done.stdout.replace('":', '": ')
           .replace(":  ", ": "), f"{name}: staleness, {oldest}: {done.stdout}{done.stderr}")


# ---- a record gives one chain --------------------------------------------------------------------

def check_record(name, chain, how, variants, recipe="dense"):
    """Runs that follow the record in other variants, and replays, have its chain and write the same
    record."""
    for way, words in variants.items():
        got = train(f"{name}-{way}", *how, *following(name), *words, recipe=recipe)["chain"]
        expect(got == chain, f"{name}, obeyed {way}: chain {got}, expected {chain}")
        expect(read(f"{name}-{way}") == read(name), f"{name}, obeyed {way}: another record")
    for step in (0, 3, ROLLOUTS - 1) if FULL else (3,) if name.startswith("clock") else ():
        check_replay(name, step)


def stays_in_flight(name):
    """Returns whether the run has the samples in flight that the checks of edited records need."""
    ticks = read(name)
    later = [{g for k in range(t, ROLLOUTS) for g in ticks[k]["batch"]} for t in ticks]
    used = [t for t in range(ROLLOUTS - 1) if any(i // EACH in later[t] for i in ticks[t]["drawn"])]
    ends = [t for t in range(ROLLOUTS - 2) if set(ticks[t]["drawn"]) - set(ticks[t + 1]["drawn"])]
    return len(used) > 1 and bool(ends)


def check_clock():
    """Other delays give other records and chains, and each chain follows from its record."""
    variants = {"plain": [], "beside": OVERLAP, "ranks": ["--ranks", "2"],
            "apart": ["--ranks", "2", "--rollout-num-gpus", "1"]}
    one_of_each = {"apart": variants["apart"],
                   "free": [*OVERLAP, "--threads", "1", "--rollout-concurrency", "2", "--kv-pages",
                            "20", "--debug-determinism", "point", "--speculative-algorithm",
                            "ngram"]}
    more = {"ranks-beside": [*OVERLAP, "--ranks", "2"], "three": ["--ranks", "3"],
            "apart-unchecked": ["--ranks", "3", "--rollout-num-gpus", "2", "--check-logprobs",
                                "false"],
            "watched": ["--debug-determinism", "point"],
            "guessed": ["--speculative-algorithm", "ngram"],
            "small": ["--threads", "1", "--rollout-concurrency", "2", "--kv-pages", "20"]}
    kinds = [(recorded(2), []), (recorded(2), OVERLAP), (recorded(1, 1), OVERLAP),
             (recorded(3), OVERLAP)]
    chains, early, overdue, mixed, number, again = {}, 0, 0, 0, 0, 0
    # On a busy machine the clock may do little: then it gets more runs to do it in.
    while number < (20 if FULL else 4) or number < 40 and not (early and overdue and mixed):
        how, beside = kinds[number % 4]
        name = f"clock-{number}"
        lag, delay = int(how[1]), int(how[5])
        run = late(name, number + again, *how, *beside, "--save-interval", "1",
                   "--save-debug-rollout-data", str(FOLDER / (name + "-{rollout_id}")))
        if number == 0 and again < 20 and not stays_in_flight(name):
            again += 1
            shutil.rmtree(FOLDER / name)
            continue
        chains[name] = run["chain"]
        some = check_batches(name, lag, delay)
        early, overdue = early + some[0], overdue + some[1]
        if lag == LAG:
            mixed += check_tokens(name)
        check_ledger(name, lag, delay)
        check_record(name, run["chain"], how,
                     {**variants, **more} if FULL else one_of_each if number == 1
                     else {"ranks": variants["ranks"]} if number == 0 else {})
        number += 1
    for name, words in (("in-turn", ["--rollout-concurrency", "3"]), ("wide", [])):
        chains[name] = train(name, *recorded(2), *words)["chain"]
    expect(early > 0 and overdue > 0 and mixed > 0,
           f"the clock has done little: {early} early, {overdue} late groups, {mixed} mixed")
    expect(len({chains[n] for n in ("clock-0", "clock-1", "in-turn", "wide")}) > 1,
           f"the clock decides nothing: {chains}")
    return chains


def check_others():
    """Experts, another format, adapters, losses and evaluations: overlapped, and by the record."""
    kinds = [("experts", ["--num-steps-per-rollout", "2"]),
             ("dense", ["--lora-rank", "4", "--lora-alpha", "8", "--rollout-dtype", "fp8"]),
             ("dense", ["--use-tis", "true", "--tis-clip", "1.1", "--eval-prompt-data",
                        "m task:max", "--eval-interval", "2", "--rollout-stop", '["5"]',
                        "--speculative-algorithm", "ngram"])]
    if FULL:
        kinds += [("experts", []), ("dense", ["--rollout-dtype", "fp8"]),
                  ("dense", ["--lora-rank", "4", "--lora-alpha", "8"]),
                  ("dense", ["--use-tis", "true", "--tis-clip", "1.1"]),
                  ("dense", ["--use-rollout-logprobs", "true"]),
                  ("dense", ["--num-steps-per-rollout", "2"]),
                  ("dense", ["--advantage-estimator", "ppo"]),
                  ("dense", ["--eval-prompt-data", "m task:max", "--eval-interval", "2"]),
                  ("dense", ["--rollout-stop", '["5"]', "--speculative-algorithm", "ngram"])]
    for number, (recipe, words) in enumerate(kinds):
        name = "-".join(["alike", str(number), recipe, *words[:1]])
        how = [*recorded(2), *words, "--save-interval", "1"]
        chain = late(name, 3, *how, *OVERLAP, recipe=recipe)["chain"]
        ways = {"ranks": ["--ranks", "2"]}
        check_record(name, chain, how, {"plain": [], **ways} if FULL else ways, recipe=recipe)
        if words[:1] == ["--num-steps-per-rollout"]:
            check_ledger(name, 2, 2, int(words[1]))


def check_pieces(chain):
    """A run that is extended piece by piece follows the record of the complete one."""
    how = [*recorded(2), *following("clock-1")]
    pieces = [(1, []), (2, ["--ranks", "2"]), (4, OVERLAP), (ROLLOUTS, [])]
    for rollouts, words in pieces if FULL else pieces[1:]:
        got = train("pieces", *how, *words, rollouts=rollouts)["chain"]
    expect(got == chain, f"in pieces: chain {got}, expected {chain}")
    train("pieces", *recorded(2), rollouts=ROLLOUTS + 2)  # the further rollouts follow the clock
    expect(len(read("pieces")) == ROLLOUTS + 2, "a run that obeyed does not go on by itself")
    check_replay("pieces", ROLLOUTS + 1)


def check_kills():
    """A killed run has the chain of an undisturbed run that follows its complete record."""
    how = [*recorded(2), "--save-interval", "1", "--keep-checkpoints", "2"]
    for name, words in (("killed", how), ("killed-unsaved", [*recorded(2), "--save", "none"])):
        if name == "killed":
            chain = kill(name, words, 30 if FULL else 2)
        else:  # starts again at step 0, from the record alone
            first = late(name, 5, *words, *OVERLAP)["chain"]
            record = FOLDER / name / "schedule.jsonl"
            record.write_bytes(record.read_bytes()[:-9])  # a kill has cut the last line
            chain = train(name, *words)["chain"]
            expect(chain == first, f"{name}: chain {chain}, expected {first}")
        got = train(f"{name}-again", *recorded(2), *following(name))["chain"]
        expect(got == chain and chain, f"{name}: chain {chain}, obeyed without kills {got}")
        if FULL or name == "killed":
            check_replay(name, ROLLOUTS - 1)
    steps = [row for row in read("killed")]
    expect(steps == list(range(ROLLOUTS)), f"the record of a killed run has ticks {steps}")


def check_failure():
    """A plug-in fails after the batch was recorded: the run resumes with that batch."""
    how = [*recorded(2)[:6], "--rm-type", "none", "--custom-rm-path", f"python3 {HERE}/failing.py"]
    left = FOLDER / "left"
    for words in ([], OVERLAP) if FULL else (OVERLAP,):
        name = "failed" + "".join(words)
        left.write_text("3")
        train(name, *how, *words, code=2, says="a checkpoint of step 2 is saved")
        failed = read(name)[3]["batch"]
        left.write_text("100")
        chain = train(name, *how, *words)["chain"]
        expect(read(name)[3]["batch"] == failed, f"{name}: another batch after the failure")
        got = train(f"{name}-again", *how, *following(name))["chain"]
        expect(got == chain and chain, f"{name}: chain {chain}, obeyed {got}")


# ---- wrong records -------------------------------------------------------------------------------

def version_1(path):
    """Returns the lines of a record in version 1, which has no sums, so that edits reach the
    reader."""
    lines = [re.sub(r',"sum":"[0-9a-f]{32}"}$', "}", x) for x in path.read_text().splitlines()]
    head = re.sub(r'^{"invar_schedule":2,"run":"(\w+)","uuid":"\w+"}$',
                  r'{"invar_schedule":1,"run":"\1"}', lines[0])
    return [x + "\n" for x in (head, *lines[1:])]


def edited(name, change):
    """Writes an edited copy of the record, and returns the flags that name it."""
    lines = version_1(FOLDER / "clock-0/schedule.jsonl")
    (FOLDER / name).write_text("".join(change(lines)))
    return ["--rollout-record", str(FOLDER / name)]


def without(lines, tick, event):
    return [x for x in lines if not x.startswith(f'{{"tick":{tick},"{event}"')]


def replaced(lines, tick, event, value):
    head = f'{{"tick":{tick},"{event}":'
    return [head + json.dumps(value, separators=(",", ":")) + "}\n" if x.startswith(head) else x
            for x in lines]


def check_counts(chain):
    """A token count that is off by one gives another chain or an error."""
    ticks, same, tried = read("clock-0"), 0, 0
    for tick in range(ROLLOUTS - 1):
        if tried >= 4 and not FULL:
            break
        trained = {g for later in range(tick, ROLLOUTS) for g in ticks[later]["batch"]}
        used = [i for i in ticks[tick]["drawn"] if i // EACH in trained]
        for index in used[:None if FULL else 1]:
            for by in (-1, 1):
                drawn = dict(ticks[tick]["drawn"])
                drawn[index] += by
                how = edited("one-off", lambda x, t=tick, d=drawn: replaced(x, t, "drawn",
                                                                            sorted(d.items())))
                shutil.rmtree(FOLDER / "off", ignore_errors=True)
                done = subprocess.run(command("off", *recorded(2), "--save", "none", *how),
                                      capture_output=True, text=True)
                tried += 1
                same += done.returncode == 0 and json.loads(done.stdout)["chain"] == chain
    expect(tried > 3 and same == 0, f"{same} of {tried} records that are off by one have the chain")


def check_ends():
    """A run whose own record leaves a sample in flight after its end fails with a message about
    that sample."""
    how, ticks, told = [*recorded(2), "--save", "none"], read("clock-0"), 0
    train("behind", *how, *following("clock-0"))
    record = FOLDER / "behind/schedule.jsonl"
    lines = version_1(record)
    shutil.copytree(FOLDER / "behind", FOLDER / "behind-before")
    for tick, index in ((t, i) for t in ticks for i in ticks[t]["drawn"]
                        if t + 2 in ticks and i not in ticks[t + 1]["drawn"]):
        drawn = sorted({**ticks[tick]["drawn"], index: LONGEST - 1}.items())
        shutil.rmtree(FOLDER / "behind")
        shutil.copytree(FOLDER / "behind-before", FOLDER / "behind")
        record.write_text("".join(replaced(lines, tick, "drawn", drawn)))
        done = subprocess.run(command("behind", *how, rollouts=ROLLOUTS + 1), capture_output=True,
                              text=True)
        told += done.returncode == 1 and f"sample {index} is not where the record" in done.stderr
        if told:
            return
    expect(False, "no sample ends before the place that the record has")


# Batches in which the groups of rollout 0 wait longer than allowed.
LATE = [f'{{"tick":{tick},"batch":[{",".join(map(str, range(4 * tick + 4, 4 * tick + 8)))}]}}\n'
        f'{{"tick":{tick},"drawn":[]}}\n' for tick in range(ROLLOUTS)]


# Errors of a record that are found while the run samples; all others are found before it has a
# folder.
SAMPLED = ("not those of a rollout", "fewer than it names", "which is in its batch",
           "as many tokens as it may have", "which may not be trained on later")


def check_wrong():
    how, ticks = [*recorded(2), "--save", "none"], read("clock-0")
    batch = ticks[2]["batch"]
    left = next(t for t in ticks if ticks[t]["drawn"])
    index, had = next(iter(ticks[left]["drawn"].items()))
    for says, change in (
            ("ends before tick 5", lambda x: x[:-2]),
            ("ends before tick 5", lambda x: x[:-1]),
            ("an event of tick 3; expected \"batch\" of tick 2",
             lambda x: without(without(x, 2, "batch"), 2, "drawn")),
            ("expected \"drawn\" of tick 2", lambda x: without(x, 2, "drawn")),
            ("is out of order", lambda x: replaced(x, 2, "batch", batch[::-1])),
            (f"tick 2 has a batch of {len(batch) - 1} groups",
             lambda x: replaced(x, 2, "batch", batch[:-1])),
            ("not those of a rollout", lambda x: replaced(x, 2, "batch", [*batch[:-1], 999])),
            ("is invalid", lambda x: replaced(x, 2, "batch", [*batch[:-1], "1"])),
            ("is invalid", lambda x: replaced(x, 1, "drawn", [[1, 2, 3]])),
            ("is out of order", lambda x: replaced(x, 1, "drawn", [[3, 2], [3, 2]])),
            ("fewer than it names", lambda x: replaced(x, 0, "drawn", [[9999, 2]])),
            ("which is in its batch",
             lambda x: replaced(x, 0, "drawn", [[ticks[0]["batch"][0] * EACH, 1]])),
            ("as many tokens as it may have",
             lambda x: replaced(x, left, "drawn", [[index, LONGEST]])),
            (f"and had {had} before",
             lambda x: replaced(x, left + 1, "drawn", [[index, had - 1]]) if had else x[:-1]),
            ("which may not be trained on later",
             lambda x: x[:1] + LATE),
            ("invar_schedule", lambda x: x[1:]),
            ("has a sum in every line", lambda x: ['{"invar_schedule":2,"run":"00"}\n', *x[1:]])):
        shutil.rmtree(FOLDER / "wrong", ignore_errors=True)
        train("wrong", *how, *edited("edited", change), code=2, says=says)
        expect((FOLDER / "wrong").exists() == (says in SAMPLED),
               f"wrong: a record of which the run says {says!r} is found when it begins")


def check_own():
    """The run's own record file belongs to another run, has a gap, or is empty."""
    how = [*recorded(2), "--save-interval", "1"]
    train("own", *how, rollouts=3)
    record = FOLDER / "own/schedule.jsonl"
    text, old = record.read_text(), "".join(version_1(record))
    for says, other in (("is the schedule of another run", old.replace(old[28:36], "00000000", 1)),
                        ("is the schedule of another run",
                         (FOLDER / "clock-0/schedule.jsonl").read_text()),
                        ("schedule.jsonl:3: the sum does not follow", text.replace("[[", "[ [", 1)),
                        ("the run continues with tick 3", "".join(text.splitlines(True)[:-2])),
                        ("the run continues with tick 3", "")):
        record.write_text(other)
        train("own", *how, code=2, says=says)
    record.write_text(text + '{"tick":3,"ba')  # stands for a kill while writing
    train("own", *how)
    expect(record.read_text().startswith(text) and len(read("own")) == ROLLOUTS, "own, cut off")
    check_replay("own", 4)


def check_bent():
    """A wrong token of a sample that stays in flight is detected, in turn and overlapped."""
    for words in ([], OVERLAP, ["--ranks", "2"]) if FULL else (OVERLAP, ["--ranks", "2"]):
        shutil.rmtree(FOLDER / "bent", ignore_errors=True)
        train("bent", *recorded(2), *following("clock-0"), "--save", "none", *words, program=BENT,
              code=1, says="log-probabilities of rollout and scoring differ at token")


def check_forks():
    """A fork has its own record, which begins with its first rollout."""
    fork = ["--fork", str(FOLDER / "killed"), "--fork-step", str(ROLLOUTS - 1)]
    chain = train("fork", *recorded(2), *fork, "--clip-grad", "0.5", "--save-interval",
                  "1", rollouts=ROLLOUTS + 3)["chain"]
    expect(list(read("fork")) == list(range(ROLLOUTS, ROLLOUTS + 3)), "the record of a fork")
    check_replay("fork", ROLLOUTS + 2)
    got = train("fork-again", *recorded(2), *fork, "--clip-grad", "0.5", *following("fork"),
                rollouts=ROLLOUTS + 3)["chain"]
    expect(got == chain and chain, f"a fork: chain {chain}, obeyed {got}")
    train("fork-more", *recorded(3), *fork, rollouts=ROLLOUTS + 3, code=129,
          says="a fork keeps these numbers")
    # Samples of the first tick that has not begun them; only a recorded schedule has such samples.
    batch = read("clock-0")[0]["batch"]
    bare = [[i, 0] for i in range((LAG + 1) * BATCH * EACH) if i // EACH not in batch]
    record = edited("bare-record", lambda x: replaced(x, 0, "drawn", bare))
    train("bare", *recorded(2), *record, "--save-interval", "1", rollouts=1)
    train("fork-declared", "--rollout-lag", "2", "--fork", str(FOLDER / "bare"), "--fork-step",
          "0", rollouts=ROLLOUTS + 3, code=129,
          says="samples in flight are of another rollout-schedule")


def check_refusals():
    for words, says in (
            (["--rollout-schedule", "recorded"], "a rollout-lag above 0"),
            (["--rollout-lag", "1", "--rollout-max-delay", "3"], "rollout-schedule = recorded"),
            (["--rollout-lag", "1", "--rollout-record", "x"], "rollout-schedule = recorded"),
            ([*recorded(1), "--rollout-segment-tokens", "2"], "rollout-segment-tokens"),
            ([*recorded(1), "--dynamic-sampling-filter", "nonzero_std"], "dynamic-sampling-filter"),
            ([*recorded(1), "--custom-generate-function-path", "x"],
             "custom-generate-function-path"),
            (recorded(60, 5), "more than 64 together"),
            ([*recorded(1), "--ranks", "2"], "give rollout-record"),
            ([*recorded(1), "--debug-determinism", "point"], "give rollout-record")):
        train("x", *words, code=129, says=says)
    (FOLDER / "empty").mkdir()
    for place in ("nothing", "empty"):
        train("x", *recorded(1), "--rollout-record", str(FOLDER / place), code=2,
              says="has no, schedule.jsonl")
    for word in ("--golden", "--record-golden"):
        train("x", *recorded(1), word, "x.golden", code=129, says="set rollout-record = RUN")
    done = subprocess.run([INVAR, "ab", "--a", INVAR, "--b", INVAR, str(FOLDER / "dense.ini"),
                           "--seeds", "1", "--work", str(FOLDER / "work"), *recorded(1)],
                          capture_output=True, text=True)
    expect(done.returncode == 129 and "set rollout-record = RUN" in done.stderr,
           f"ab: {done.returncode}: {done.stderr}")


def check_ci():
    """Programs are compared by a record: a golden needs one, because the clock differs from run to
    run."""
    cases = FOLDER / "cases"
    cases.mkdir()
    text = (FOLDER / "dense.ini").read_text().replace("[rollout]\n", "[rollout]\nnum-rollout = 4\n"
                                                      "rollout-lag = 2\n"
                                                      "rollout-schedule = recorded\n", 1)
    for name, more, code, says in (
            ("clock", "", 129, "set rollout-record = RUN"),
            ("record", f"rollout-record = {FOLDER / 'in-turn'}\n", 0, "")):
        case = cases / f"{name}.ini"
        case.write_text(text.replace("[rollout]\n", "[rollout]\n" + more, 1))
        done = subprocess.run([INVAR, "ci", "record", str(case), "--program", INVAR],
                              capture_output=True, text=True, cwd=FOLDER)
        expect(done.returncode == code and says in done.stderr,
               f"ci record {name}: {done.returncode}: {done.stdout}{done.stderr}")


def main():
    begin()
    chains = check_clock()
    check_pieces(chains["clock-1"])
    check_others()
    check_kills()
    check_failure()
    check_counts(chains["clock-0"])
    check_ends()
    check_wrong()
    check_own()
    check_bent()
    check_forks()
    check_refusals()
    check_ci()
    return end()


sys.exit(main())
