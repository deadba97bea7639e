#!/usr/bin/env python3
# lag.py INVAR BENT HINDERED FOLDER - asynchronous rollouts by a declared schedule (rollout-lag).
#
# Runs save checkpoints of all weight versions and files of their rollouts. By the formula of
# docs/async.md each token belongs to one version: `invar score` with the checkpoint of that version
# must give its log-prob, bit for bit; control: the next version must not. The ledger must name the
# same versions. Threads, concurrency, probes, ranks, overlap, stops, kills and replays must not
# change the chain. BENT records the log-prob of one in-flight token wrong, which the run must
# detect. HINDERED delays threads and ranks at random, which must not matter, or fails to sample.
# All of this also holds for surplus groups of over-sampling, which are kept for later rollouts.
# INVAR_TEST_FULL=1 also runs each free key alone, each way with and without ranks, more steps, more
# schedules and more forks.
# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

from asynchronous import (BENT, FOLDER, FULL, HERE, HINDERED, INVAR, OVERLAP, ROLLOUTS, begin, bits,
                          check_replay, command, end, expect, kill, newest, score_rollouts, train)


def lagging(lag, segment):
    words = ["--rollout-lag", str(lag)]
    return words + ["--rollout-segment-tokens", str(segment)] if segment else words


def version(lag, segment, rollout, token):
    """Returns the weight version of a token by the formula of docs/async.md."""
    begin = max(0, rollout - lag)
    return min(rollout, begin + token // segment) if segment else begin


# ---- every token has the weights that the schedule declares --------------------------------------

def check_tokens(name, lag, segment, recipe):
    """Scores all rollouts with the versions that the run has checkpoints of."""
    right = wrong = mixed = 0
    rollouts, wanted = [], []
    for rollout in range(ROLLOUTS):
        lines = (FOLDER / f"{name}-{rollout}").read_text(encoding="utf-8").splitlines()
        samples = [s for s in map(json.loads, lines) if "tokens" in s]
        begun = min(s["rollout"] for s in samples)
        rollouts.append(samples)
        wanted.append(range(max(0, begun - lag), rollout + 2))
    scores = score_rollouts(name, recipe, rollouts, wanted)
    for rollout, (samples, scored) in enumerate(zip(rollouts, scores)):
        for i, sample in enumerate(samples):
            drawn = [bits(x) for x in sample["logprobs"]]
            of = [version(lag, segment, sample["rollout"], t) for t in range(len(drawn))]
            mixed += of[0] != of[-1]
            expect(sample.get("weights_first", sample["weights"]) == of[0]
                   and sample["weights"] == of[-1],
                   f"{name}: rollout {rollout}, sample {i}: versions {sample['weights']}, {of}")
            for t, logp in enumerate(drawn):
                right += logp == scored[of[t]][i][t]
                wrong += logp == scored[of[t] + 1][i][t]
                expect(logp == scored[of[t]][i][t],
                       f"{name}: rollout {rollout}, sample {i}, token {t} is not of {of[t]}")
    # Control: a schedule that is off by one version.
    expect(right > 100 and wrong < right / 10, f"{name}: {right} tokens right, {wrong} off by one")
    expect((mixed > 0) == (segment > 0), f"{name}: {mixed} samples of several versions")


def check_ledger(name, lag, segment):
    with sqlite3.connect(FOLDER / name / "ledger.db") as ledger:
        rows = list(ledger.execute("SELECT step, weights_first, weights_last, tokens - "
                                   "prompt_tokens FROM samples"))
        steps = list(ledger.execute("SELECT step, weights FROM timeline"))
    expect(len(rows) == ROLLOUTS * 12, f"{name}: {len(rows)} samples in the ledger")
    for step, first, last, tokens in rows:
        expect((first, last) == (version(lag, segment, step, 0),
                                 version(lag, segment, step, tokens - 1)),
               f"{name}: step {step}: the ledger has versions {first} to {last}")
    expect(all(step == weights for step, weights in steps), f"{name}: versions of steps {steps}")


def check_schedule(lag, segment, recipe="dense"):
    name = f"{recipe}-{lag}-{segment}"
    chain = train(name, *lagging(lag, segment), "--save-interval", "1", "--save-debug-rollout-data",
                  str(FOLDER / (name + "-{rollout_id}")), recipe=recipe, rollouts=ROLLOUTS + 1)
    if FULL or lag < 3:
        check_tokens(name, lag, segment, recipe)
    if recipe != "dense" and not FULL:
        return chain["chain"], None
    again = train(f"{name}-short", *lagging(lag, segment), "--save", "none", recipe=recipe)
    check_ledger(f"{name}-short", lag, segment)
    return chain["chain"], again["chain"]


# ---- one chain, with every way of execution ------------------------------------------------------

def check_execution(chain):
    how = lagging(2, 3)
    free = ["--threads", "1", "--rollout-concurrency", "2", "--kv-pages", "20",
            "--debug-determinism", "point", "--speculative-algorithm", "ngram",
            "--disable-prefix-sharing", "true", "--chunked-prefill-size", "3"]
    # check_beside has the other ways, with random delays.
    variants = {"free": free, "beside-free": [*OVERLAP, *free]}
    if FULL:
        variants |= {
            "three-ranks": ["--ranks", "3"],
            "one-thread": ["--threads", "1", "--rollout-concurrency", "2", "--kv-pages", "20"],
            "watched": ["--debug-determinism", "point", "--threads", "2"],
            "guessed": ["--speculative-algorithm", "ngram", "--disable-prefix-sharing", "true"],
            "chunks": ["--chunked-prefill-size", "3"],
            "two-ranks": ["--ranks", "2"],
            "apart": ["--ranks", "2", "--rollout-num-gpus", "1"],
            "apart-two": ["--ranks", "3", "--rollout-num-gpus", "2"],
            "beside": OVERLAP,
            "beside-one-thread": [*OVERLAP, "--threads", "1", "--kv-pages", "20"],
            "beside-watched": [*OVERLAP, "--debug-determinism", "point"],
            "beside-guessed": [*OVERLAP, "--speculative-algorithm", "ngram"],
            "beside-ranks": [*OVERLAP, "--ranks", "2"],
            "stages": ["--ranks", "2", "--pipeline-model-parallel-size", "2"]}
    for name, words in variants.items():
        got = train(f"way-{name}", *how, "--save", "none", *words)["chain"]
        expect(got == chain, f"{name}: chain {got}, expected {chain}")


def check_divided():
    """Compares layouts of a model that is large enough to be divided into two shards."""
    shutil.copy(HERE / "sharded_model.ini", FOLDER / "divided.ini")
    how = [*lagging(2, 1), "--save", "none", "--threads", "1"]
    one = train("divided-one", *how, recipe="divided", rollouts=4)["chain"]
    for name, words in (("two", ["--ranks", "2"]), ("four", ["--ranks", "4"]),
                        ("apart", ["--ranks", "4", "--rollout-num-gpus", "2",
                                   "--rollout-num-gpus-per-engine", "2"])):
        got = train(f"divided-{name}", *how, "--tensor-model-parallel-size", "2", *words,
                    recipe="divided", rollouts=4)["chain"]
        expect(got == one and one, f"divided, {name}: chain {got}, expected {one}")


def count(path, rank, name):
    """Returns how often the trace has a slice of this name on the track of a rank."""
    return sum(e["ph"] == "X" and (e["pid"], e["tid"], e["name"]) == (2, rank, name)
               for e in json.loads(path.read_text()))


def check_overlap(chain):
    """Ranks that only sample run ahead of training, and also verify the tokens that they
    sampled."""
    how = [*lagging(2, 3), "--ranks", "2", "--rollout-num-gpus", "1"]
    for check in ("false", "true") if FULL else ("false",):
        trace = FOLDER / f"trace-{check}"
        got = train(f"overlap-{check}", *how, "--save", "none", "--check-logprobs", check,
                    "--trace", str(trace))["chain"]
        expect(got == chain, f"check-logprobs = {check}: chain {got}, expected {chain}")
        drawn = count(trace, 1, "rollout")
        expect(drawn >= 2 * ROLLOUTS, f"check-logprobs = {check}: sampled {drawn} times")
    if not FULL:
        return  # check_pieces stops such a run
    for rollouts, ranks in ((2, how), (4, lagging(2, 3)), (ROLLOUTS, how)):
        got = train("overlap-pieces", *ranks, "--check-logprobs", "false", rollouts=rollouts)
    expect(got["chain"] == chain, f"overlapped, in pieces: chain {got['chain']}, not {chain}")


def spans(path, name):
    """Returns begin and end of each slice of a phase, in microseconds."""
    return [(e["ts"], e["ts"] + e["dur"]) for e in json.loads(path.read_text())
            if e["ph"] == "X" and (e["pid"], e["name"]) == (1, name)]


def check_beside(chain):
    """Overlapped sampling with random delays gives the same chain in any order of threads and
    ranks."""
    trace = FOLDER / "trace-beside"
    variants = {"beside": OVERLAP, "beside-ranks": [*OVERLAP, "--ranks", "2"],
            "apart-unchecked": ["--ranks", "3", "--rollout-num-gpus", "2", "--check-logprobs",
                                "false"]}
    if FULL:
        variants |= {"in-turn": [], "ranks": ["--ranks", "2"],
                     "beside-unchecked": [*OVERLAP, "--check-logprobs", "false"],
                     "apart": ["--ranks", "2", "--rollout-num-gpus", "1"]}
    for seed in range(1, 21 if FULL else 2):
        for name, words in variants.items():
            got = train(f"late-{name}", *lagging(2, 3), "--save", "none", "--trace", str(trace),
                        *words, program=HINDERED, env={"INVAR_TEST_DELAYS": str(seed)})["chain"]
            expect(got == chain, f"{name}, delays {seed}: chain {got}, expected {chain}")
            if name == "beside":
                ahead, train_ = spans(trace, "ahead"), spans(trace, "train")
                both = sum(a < d and c < b for a, b in ahead for c, d in train_)
                expect(len(ahead) == ROLLOUTS - 1 and both > 0,
                       f"{len(ahead)} times ahead, {both} of them while a step trained")
    lora, fp8, chains = ["--lora-rank", "4", "--lora-alpha", "8"], ["--rollout-dtype", "fp8"], set()
    models = [("experts", []), ("dense", [*lora, *fp8])]
    ways = ([], [*OVERLAP, "--ranks", "2"])
    if FULL:
        models, ways = [*models, ("dense", fp8), ("dense", lora)], ([], OVERLAP, ways[1])
    for recipe, words in models:
        name = "".join(["alike-", recipe, *words])
        want, *others = (train(name + "".join(more), *lagging(2, 3), "--save", "none", *words,
                               *more, recipe=recipe)["chain"]
                         for more in ways)
        expect(set(others) == {want}, f"{name}, beside: chains {others}, expected {want}")
        chains.add(want)
    expect(len(chains) == len(models), f"adapters and formats share chains: {chains}")


def check_slow():
    """Verification during training takes longer than the timeout but reports progress: other ranks
    wait."""
    how = [*lagging(2, 3), "--save", "none", "--micro-batch-size", "1"]
    chain = train("swift", *how, rollouts=3)["chain"]
    worlds = ([*OVERLAP, "--ranks", "2"], ["--ranks", "2", "--rollout-num-gpus", "1"])
    for ranks in worlds if FULL else worlds[:1]:
        begin = time.monotonic()
        got = train("slow" + ranks[-1], *how, *ranks, rollouts=3, program=HINDERED,
                    env={"INVAR_TEST_PATIENCE": "1000"})["chain"]
        expect(got == chain, f"{ranks}, slow: chain {got}, expected {chain}")
        # Control: the run took longer than the timeout after which a hanging rank is given up.
        expect(time.monotonic() - begin > 1.2, f"{ranks}: nobody was slow")


def check_beside_ends(chain):
    """A failing sampler, or a signal, ends the run with one message; the run resumes to the same
    chain."""
    how = [*lagging(2, 3), *OVERLAP, "--save-interval", "1"]
    worlds = ([], ["--ranks", "2"]) if FULL else (["--ranks", "2"],)
    for number in range(1, ROLLOUTS) if FULL else (2,):
        for ranks in worlds:
            name = f"unfed-{number}-{len(ranks)}"
            train(name, *how, *ranks, program=HINDERED, code=2,
                  says="a test: no memory for samples ahead",
                  env={"INVAR_TEST_FAILURE": str(number)})
            got = train(name, *how)["chain"]
            expect(got == chain, f"{name}: chain {got}, expected {chain}")
    # the weights are not copied: sampling would agree with itself
    for ranks in worlds:
        train(f"stale-{len(ranks)}", *how, *ranks, program=HINDERED, code=1,
              env={"INVAR_TEST_STALE": "5"}, says="of the copy that samples is not that of the")
    # train.life sends both signals to runs in turn
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143))[0 if FULL else 1:]:
        name = f"signal-{code}"
        run = subprocess.Popen(command(name, *how, program=HINDERED), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env={**os.environ,
                                                               "INVAR_TEST_DELAYS": "3"})
        while run.poll() is None and newest(name) < 1:
            time.sleep(0.002)
        run.send_signal(number)
        expect(run.wait() == code, f"{name}: exit code {run.returncode}, expected {code}")
        got = train(name, *how)["chain"]
        expect(got == chain, f"{name}: chain {got}, expected {chain}")


def check_pieces(chain):
    """Stops and extends a run on other ranks each time, and replays steps in the middle."""
    how = lagging(2, 3)
    pieces = [(1, []), (2, ["--ranks", "2"]), (3, OVERLAP), (4, []),
              (5, [*OVERLAP, "--ranks", "2"]),
              (ROLLOUTS, ["--ranks", "2", "--rollout-num-gpus", "1"])]
    for rollouts, ranks in pieces if FULL else (*pieces[1:3], pieces[5]):
        got = train("pieces", *how, *ranks, rollouts=rollouts)["chain"]
        if rollouts <= 2:  # fewer rollouts than the lag: nothing is sampled beyond the end
            short = train(f"short-{rollouts}", *how, "--save", "none", rollouts=rollouts)["chain"]
            expect(short == got, f"{rollouts} rollouts: chain {short}, expected {got}")
    expect(got == chain, f"in pieces: chain {got}, expected {chain}")
    for step in (1, ROLLOUTS - 1) if FULL else (ROLLOUTS - 1,):
        check_replay("pieces", step)


def check_kills(chain):
    how = [*lagging(2, 3), "--save-interval", "1", "--keep-checkpoints", "2"]
    expect(train("unkilled", *how)["chain"] == chain, "with checkpoints: another chain")
    got = kill("killed", how, 30 if FULL else 2)
    expect(got == chain, f"after kills: chain {got}, expected {chain}")


def check_failure():
    """A rollout fails halfway: the checkpoint has the samples that were in flight before it."""
    how = [*lagging(2, 3), "--rm-type", "none", "--custom-rm-path", f"python3 {HERE}/failing.py"]
    left = FOLDER / "left"
    left.write_text("100")
    chain = train("judged", *how)["chain"]
    worlds = ([], [*OVERLAP, "--ranks", "2"], ["--ranks", "2"], OVERLAP)
    for ranks in worlds if FULL else worlds[1:2]:
        name = "failed" + "".join(ranks)
        left.write_text("3")
        train(name, *how, *ranks, code=2, says="a checkpoint of step 2 is saved")
        left.write_text("100")
        got = train(name, *how)["chain"]
        expect(got == chain, f"{name}: chain {got}, expected {chain}")


def check_fork(name, lag, parent, steps):
    """The fork can be resumed after some of its steps or after its parent's last, which is 2, and
    the next step can be replayed; with FULL after each of them."""
    at, last = 2, ROLLOUTS - 1
    fork = ["--fork", str(FOLDER / parent), "--fork-step", str(at)]
    chain = train(name, *lag, *fork, "--save-interval", "1")["chain"]
    expect(chain is not None, f"{name}: no chain")
    if FULL or name == "fork-more":
        got = train(name + "-unchecked", *lag, *fork, "--check-logprobs", "false")
        expect(got["chain"] == chain, f"{name}, unchecked: chain {got['chain']}, expected {chain}")
    for step in range(at, last) if FULL else steps:
        got = train(name, *lag, "--save-interval", "1", "--ckpt-step", str(step))["chain"]
        expect(got == chain, f"{name}, from step {step} on: chain {got}, expected {chain}")
        check_replay(name, step + 1)


def check_fork_rewards():
    """Samples that were finished in flight under another reward rule get the rewards of the fork's
    rule."""
    train("fork-rule", *lagging(1, 0), "--fork", str(FOLDER / "dense-1-0"), "--fork-step", "2",
          "--rm-type", "deterministic_random", "--save-debug-rollout-data",
          str(FOLDER / "fork-rule-{rollout_id}"))
    seen = set()
    for rollout in range(3, ROLLOUTS):
        lines = (FOLDER / f"fork-rule-{rollout}").read_text(encoding="utf-8").splitlines()
        for sample in (s for s in map(json.loads, lines) if "tokens" in s):
            coin = hashlib.sha256((str(sample["tokens"]) + sample["response"]).encode())
            seen.add((rollout, sample["reward"]))
            expect(sample["reward"] == coin.digest()[0] % 2,
                   f"rollout {rollout}, sample {sample['index']}: reward {sample['reward']}")
    expect({(3, 0), (3, 1)} <= seen, f"all samples in flight have one reward: {seen}")


def check_forks(chain):
    """In-flight samples are forked, too; a fork may have another lag, and must keep the data."""
    how = lagging(2, 3)
    fork = ["--fork", str(FOLDER / "unkilled"), "--fork-step", "4"]
    first = train("fork", *how, *fork, "--name", "fork", "--lr", "0.01", rollouts=8)["chain"]
    expect(first not in (None, chain), "a fork with another lr has the same chain")
    train("unlagged", rollouts=3)
    check_fork("fork-begun", how, "unlagged", (2,))
    check_fork("fork-more", lagging(3, 3), "dense-2-3", (2, 3))
    if FULL:
        check_fork("fork-one", lagging(1, 0), "dense-3-1", (2,))
    check_fork("fork-none", [], "dense-3-1", (2,))
    check_fork_rewards()
    guess = HERE.parents[2] / "engine/ext/example/guess.py"
    train("fork-undrawn", *fork, "--load-debug-rollout-data",
          str(FOLDER / "dense-2-3-{rollout_id}"), rollouts=8, code=129,
          says="samples are in flight, and the recipe cannot continue them")
    train("fork-led", *fork, "--custom-generate-function-path", f"python3 {guess}", rollouts=8,
          code=129, says="is in flight, and is not led by a plug-in")
    train("fork-data", *how, *fork, "--name", "x", "--rollout-seed", "9", rollouts=8, code=129,
          says="a fork keeps the data")
    train("fork-short", *how, *fork, "--name", "x", "--rollout-max-response-len", "3", rollouts=8,
          code=129, says="rollout-max-response-len")
    train("fork-few", *how, *fork, "--name", "x", "--n-samples-per-prompt", "2", rollouts=8,
          code=129, says="a fork keeps these numbers")
    for prompts in ("3", "5"):
        train("fork-prompts", *how, *fork, "--name", "x", "--rollout-batch-size", prompts,
              rollouts=8, code=129, says="a fork keeps these numbers")


def check_filter():
    """Groups that a filter drops are replaced, and the chain stays the same after a stop."""
    how = [*lagging(2, 3), "--dynamic-sampling-filter", "nonzero_std",
           "--over-sampling-batch-size", "5"]
    chain = train("filter", *how)["chain"]
    train("filter-pieces", *how, rollouts=3)
    expect(train("filter-pieces", *how)["chain"] == chain, "with a filter, in pieces: chain")
    if FULL:
        got = train("filter-none", *how, "--save", "none")["chain"]
        expect(got == chain, "with a filter: chain")


# ---- surplus groups ------------------------------------------------------------------------------

SURPLUS = ["--rm-type", "deterministic_random", "--dynamic-sampling-filter", "nonzero_std",
           "--over-sampling-batch-size", "11"]
KEEP = ["--over-sampling-keep-surplus", "true"]


def metric(name, metric_name):
    with sqlite3.connect(FOLDER / name / "ledger.db") as ledger:
        return [value for _, value in ledger.execute(
            "SELECT step, value FROM metrics WHERE name = ? ORDER BY step", (metric_name,))]


def check_reuse(name, lag):
    """Surplus groups are used first and in order; the rollout files agree with the metrics."""
    reused = metric(name, "rollout/over_sampling/reused")
    waits = metric(name, "rollout/over_sampling/surplus")
    dropped = metric(name, "rollout/dynamic_filter/dropped")
    seen = []
    for rollout in range(ROLLOUTS + 1):
        lines = (FOLDER / f"{name}-{rollout}").read_text(encoding="utf-8").splitlines()
        samples = [s for s in map(json.loads, lines) if "tokens" in s]
        groups = [s["group"] for s in samples][::3]
        late = {s["group"] for s in samples if s["rollout"] < rollout}
        expect(len(late) == reused[rollout] and all(s["rollout"] <= rollout for s in samples),
               f"{name}: rollout {rollout} has {len(late)} groups that waited, {reused}")
        expect(groups == sorted(set(groups)), f"{name}: rollout {rollout} has groups {groups}")
        before = waits[rollout - 1] if rollout else 0
        expect(reused[rollout] == min(4, before), f"{name}: {before} waited, {reused}")
        if lag == 0:  # every group is used or kept, and the oldest are used first
            expect(reused[rollout] < 4 or dropped[rollout] == 0, f"{name}: sampled for nothing")
            expect(not seen or min(groups) > max(seen), f"{name}: {groups} after {seen}")
        expect(waits[rollout] <= 11 * (lag + 1), f"{name}: {waits} groups wait")
        seen += groups
    expect(len(set(seen)) == len(seen), f"{name}: a group is trained on twice")
    expect(0 < sum(reused) < len(seen) and 0 < max(waits), f"{name}: no surplus: {reused}")


def check_filtered(keeps, drops):
    """Surplus that is not kept does not count as rejected: the first rollouts reject the same
    groups."""
    rejected = [metric(name, "rollout/dynamic_filter/dropped")[0] for name in (keeps, drops)]
    surplus = metric(keeps, "rollout/over_sampling/surplus")[0]
    expect(rejected[0] == rejected[1] > 0 and surplus > 0,
           f"{drops}: {rejected} groups were rejected by the same filter, {surplus} kept")


def check_surplus_life(name, lag, how, chain):
    """Checks one chain in pieces, on ranks and with other free keys; each step can be replayed."""
    pieces = ((2, []), (3, ["--ranks", "2"]), (5, []),
              (ROLLOUTS + 1, ["--ranks", "2", "--rollout-num-gpus", "1"]))
    for rollouts, ranks in pieces if FULL else pieces[1::2]:
        got = train(f"{name}-pieces", *how, *ranks, rollouts=rollouts)["chain"]
    expect(got == chain, f"{name}, in pieces: chain {got}, expected {chain}")
    for step in (2, ROLLOUTS) if FULL else (ROLLOUTS,):
        check_replay(f"{name}-pieces", step)
    one = ["--threads", "1", "--rollout-concurrency", "2"]
    variants = [("free", [*one, "--debug-determinism", "point"])] if FULL or lag else []
    if FULL:
        variants += [("one", one), ("ranks", ["--ranks", "3"]),
                     ("watched", ["--debug-determinism", "point"])]
    for way, words in variants:
        got = train(f"{name}-{way}", *how, "--save", "none", *words,
                    rollouts=ROLLOUTS + 1)["chain"]
        expect(got == chain, f"{name}, {way}: chain {got}, expected {chain}")


def check_surplus_bent():
    """A wrong token in a surplus group is detected before the weights that sampled it change."""
    # a rollout that samples nothing
    first = metric("surplus-0", "rollout/over_sampling/reused").index(4)
    lines = (FOLDER / f"surplus-0-{first}").read_text(encoding="utf-8").splitlines()
    late = next(s for s in map(json.loads, lines) if s.get("rollout", first) < first
                and "tokens" in s)
    bent = command("surplus-bent", *SURPLUS, *KEEP, "--save", "none")
    done = subprocess.run([BENT, *bent[1:]], capture_output=True, text=True,
                          env={**os.environ, "INVAR_TEST_WRONG_LOGPROB": str(late["index"])})
    says = f"of sample {late['index']} of rollout {late['rollout']}, which version"
    expect(done.returncode == 1 and f"step {late['rollout']}:" in done.stderr
           and says in done.stderr, f"a wrong token: {done.returncode}: {done.stderr}")


def check_surplus():
    for lag, segment in ((0, 0), (2, 3)):
        plain, name = SURPLUS + (lagging(lag, segment) if lag else []), f"surplus-{lag}"
        how = plain + KEEP
        chain = train(name, *how, "--save-interval", "1", "--save-debug-rollout-data",
                      str(FOLDER / (name + "-{rollout_id}")), rollouts=ROLLOUTS + 1)["chain"]
        if FULL or lag:
            check_tokens(name, lag, segment, "dense")
        check_reuse(name, lag)
        check_surplus_life(name, lag, how, chain)
        if lag == 0 and not FULL:
            continue
        dropped = train(f"{name}-dropped", *plain, "--save", "none",
                        rollouts=ROLLOUTS + 1)["chain"]
        expect(dropped not in (None, chain), f"{name}: surplus changes nothing")
        check_filtered(name, f"{name}-dropped")
        killed = kill(f"{name}-killed", [*how, "--save-interval", "1"], 10 if FULL else 1)
        expect(killed == train(f"{name}-unkilled", *how)["chain"], f"{name}: after kills: {killed}")
    check_surplus_bent()
    fork = ["--fork", str(FOLDER / "surplus-2"), "--fork-step", "3"]
    forks = [("drained", []), ("lr", [*KEEP, *lagging(2, 3), "--lr", "0.01"])]
    if FULL:
        forks.append(("kept", [*KEEP, *lagging(1, 0)]))
    for name, words in forks:
        chain = train(f"surplus-{name}", *SURPLUS, *words, *fork)["chain"]
        if name == "drained" and not FULL:
            expect(chain, "a fork that drains the surplus has no chain")
            continue
        train(f"surplus-{name}-2", *SURPLUS, *words, *fork, rollouts=5)
        got = train(f"surplus-{name}-2", *SURPLUS, *words)["chain"]
        expect(got == chain and chain, f"a fork, {name}: chain {got}, expected {chain}")
    expect(sum(metric("surplus-lr", "rollout/over_sampling/reused")) > 0, "a fork reuses nothing")
    train("x", *KEEP, code=129, says="dynamic-sampling-filter")
    train("x", *SURPLUS, *KEEP, "--load-debug-rollout-data", "a-{rollout_id}", code=129,
          says="over-sampling-keep-surplus")


def check_losses(plain):
    """Importance weights take effect with a lag, and recorded log-probs may be the old ones."""
    how = lagging(2, 3)
    seen = {plain}
    losses = [("tis", ["--use-tis", "true", "--tis-clip", "1.1"]),
              ("copied", ["--use-rollout-logprobs", "true"]),
              ("mis", ["--use-mis", "true", "--mis-level", "sequence"]),
              ("fp8", ["--rollout-dtype", "fp8"])]
    for name, words in losses if FULL else losses[:2]:
        got = train(name, *how, "--save", "none", *words)["chain"]
        expect(got not in seen, f"{name}: the chain of another loss")
        seen.add(got)
    expect(train("bound", *how, "--save", "none", "--max-logp-diff", "1e-6", code=1,
                 says="more than max-logp-diff")["chain"] is None, "no bound")
    if FULL:
        got = train("unscored", *how, "--save", "none", "--check-logprobs", "false")["chain"]
        expect(got is not None, "without check-logprobs")


def check_bent():
    """Rollout 3 begins at tick 1, and one of its tokens gets a wrong log-prob there."""
    words = command("bent", *lagging(2, 3), "--save", "none")
    ways = ([], ["--use-rollout-logprobs", "true"], ["--ranks", "2"])
    for ranks in ways if FULL else ways[1:2]:  # check_surplus_bent has no further keys
        shutil.rmtree(FOLDER / "bent", ignore_errors=True)
        done = subprocess.run([BENT, *words[1:], *ranks], capture_output=True, text=True)
        expect(done.returncode == 1 and "step 1: log-probabilities" in done.stderr
               and "of rollout 3, which version 1 of the weights drew" in done.stderr,
               f"a wrong token in flight: exit code {done.returncode}: {done.stderr}")
    ways = (["--ranks", "3", "--rollout-num-gpus", "2"],
            [*OVERLAP, "--ranks", "2"], OVERLAP)  # verified while the step trains
    for ranks in ways if FULL else ways[:2]:
        shutil.rmtree(FOLDER / "bent", ignore_errors=True)
        done = subprocess.run([BENT, *words[1:], *ranks], capture_output=True, text=True)
        expect(done.returncode == 1 and "step 2: log-probabilities" in done.stderr
               and "of rollout 3, which version 1 of the weights drew" in done.stderr,
               f"a wrong token, beside: exit code {done.returncode}: {done.stderr}")
    shutil.rmtree(FOLDER / "bent", ignore_errors=True)
    done = subprocess.run([BENT, *words[1:], "--check-logprobs", "false"], capture_output=True)
    expect(done.returncode == 0, "a wrong token in flight is found without check-logprobs")


def check_refusals():
    train("x", "--rollout-segment-tokens", "3", code=129, says="a rollout-lag above 0")
    train("x", "--rollout-lag", "1", "--loss-type", "sft_loss",
          "--n-samples-per-prompt", "1", code=129, says="rollout-lag")
    train("x", "--rollout-lag", "1", "--debug-rollout-only", "true", code=129, says="rollout-lag")
    train("x", "--rollout-lag", "1", "--load-debug-rollout-data", "a-{rollout_id}", code=129,
          says="rollout-lag")
    train("x", "--use-tis", "true", code=129, says="rollout-lag")
    train("x", *OVERLAP, code=129, says="a rollout-lag above 0")
    train("x", *lagging(1, 0), *OVERLAP, "--audit", "8", code=129, says="audit = 0")
    train("x", *lagging(1, 0), *OVERLAP, "--ranks", "2", "--rollout-num-gpus", "1", code=129,
          says="rollout-num-gpus = 0")
    for axis in ("tensor-model", "context", "pipeline-model", "expert-model"):
        train("x", *lagging(1, 0), *OVERLAP, "--ranks", "2", f"--{axis}-parallel-size", "2",
              recipe="experts", code=129, says="it needs ranks that sample by themselves")


def check_damage():
    """A checkpoint whose in-flight samples were changed is rejected."""
    saved = FOLDER / "unkilled/checkpoints"
    newest = max(p for p in saved.iterdir() if p.is_dir())
    flight = newest / "flight.jsonl"
    text = flight.read_text(encoding="utf-8")
    flight.write_text(text.replace('"draw":0', '"draw":1', 1), encoding="utf-8")
    train("unkilled", *lagging(2, 3), rollouts=9, code=2, says="flight.jsonl is damaged")
    flight.write_text(text, encoding="utf-8")
    expect(train("unkilled", *lagging(2, 3), rollouts=7)["chain"] is not None, "restored")


def main():
    begin()
    chains = set()
    schedules = ((1, 0), (2, 3), (3, 1), *(((1, 4),) if FULL else ()))
    for lag, segment in schedules:
        chain, short = check_schedule(lag, segment)
        chains |= {chain, short}
        if (lag, segment) == (2, 3):
            lagged = short
    expect(len(chains) == 2 * len(schedules), f"schedules share chains: {chains}")
    check_schedule(2, 3, recipe="experts")
    expect(train("none", "--save", "none")["chain"] not in chains, "a lag of 0 has a lag's chain")
    check_execution(lagged)
    if FULL:
        check_divided()
    check_overlap(lagged)
    check_beside(lagged)
    check_slow()
    check_beside_ends(lagged)
    check_pieces(lagged)
    check_kills(lagged)
    check_failure()
    check_forks(lagged)
    check_damage()
    check_filter()
    check_surplus()
    check_losses(lagged)
    check_bent()
    check_refusals()
    return end()


sys.exit(main())
