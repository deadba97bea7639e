#!/usr/bin/env python3
# bench_model.py INVAR PEERS SAMPLING PLUGINS - invar bench --model on a tiny shape: consistent
# numbers.
#
# PEERS and SAMPLING are the programs bench.peers and bench.sampling of tests/bench, PLUGINS the
# folder of the shared objects of tests/plugin. Bytes, counts, formulas, bits,
# messages and exit codes are compared with values that this file computes from the shape; times
# only have to be positive. With INVAR_TEST_FULL=1 options are also given alone, a model has many
# layers, and a profile has the complete size.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import subprocess
import sys

INVAR, PEERS, SAMPLING, PLUGINS = *sys.argv[1:4], pathlib.Path(sys.argv[4])
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
SMALL = () if FULL else ("--tokens", "2x8", "--batch", "3", "--context", "9")
LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, WIDE, VOCAB = 2, 128, 4, 2, 64, 256, 512
LINEAR = LAYERS * HIDDEN * ((2 * HEADS + 2 * KV_HEADS) * DIM + 3 * WIDE)
NORMS = LAYERS * (2 * HIDDEN + 2 * DIM) + HIDDEN
PARAMETERS = LINEAR + NORMS + VOCAB * HIDDEN
N_PARAMS = 2 + 11 * LAYERS
# Bytes of the compute weights of the linear layers, scales included; all others are bf16 or f32.
LINEAR_BYTES = {"fp32": 4 * LINEAR, "bf16": 2 * LINEAR, "fp8": LINEAR + 4 * LINEAR // 128**2,
                "mxfp8": LINEAR + LINEAR // 32, "int4": LINEAR // 2 + 2 * LINEAR // 32}
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print(what, file=sys.stderr)


def run(*words, code=0, program=(INVAR, "bench")):
    command = [*program, "--model", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    expect(done.returncode == code, f"{' '.join(command)}: exit code {done.returncode}, expected "
                                    f"{code}: {done.stderr}")
    return done


def answer(*words):
    done = run("tiny", "--json", "--repetitions", "2" if FULL else "1", *words)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def sampling(part, *words):
    done = run("tiny", "--only", part, *words, program=(SAMPLING,))
    return json.loads(done.stdout)


def check_bytes(dtype):
    a = answer("--dtype", dtype, "--threads", "2", *SMALL)
    others = (4 if dtype == "fp32" else 2) * (PARAMETERS - LINEAR)
    expect(a["parameters"] == PARAMETERS, f"{dtype}: {a['parameters']} parameters")
    expect(a["bytes"]["masters"] == 4 * PARAMETERS, f"{dtype}: bytes of masters")
    expect(a["bytes"]["weights"] == others + LINEAR_BYTES[dtype], f"{dtype}: bytes of weights")
    train, decode = a["train"], a["decode"]
    bytes_of = train["bytes"]
    expect(8 * PARAMETERS <= bytes_of["optimizer"] < 9 * PARAMETERS, f"{dtype}: optimizer")
    expect(bytes_of["gradients"] >= 4 * PARAMETERS, f"{dtype}: gradients")
    expect(bytes_of["activations"] > 0 and decode["bytes"]["cache"] > 0, f"{dtype}: activations")
    expect(train["grad_norm"] > 0, f"{dtype}: the gradient is {train['grad_norm']}")
    points = [train["recorded"][level]["points"] for level in ("step", "point", "full")]
    expect(points[0] == 6 + 2 * N_PARAMS, f"{dtype}: {points[0]} points")
    expect(points[0] < points[1] < points[2], f"{dtype}: finer points {points}")


def check_train():
    a = answer("--only", "train", "--tokens", "3x20", "--threads", "1")
    train = a["train"]
    expect("decode" not in a, "--only train decodes")
    expect((train["samples"], train["length"]) == (3, 20), "--tokens is not obeyed")
    # A query also attends to itself: 20 * 21 / 2 pairs.
    product = 6 * (LINEAR + VOCAB * HIDDEN) + 6 * LAYERS * HEADS * DIM * 21
    expect(train["flops"] == 60 * product, f"{train['flops']} FLOP, expected {60 * product}")
    for what in (train, *train["recorded"].values()):
        expect(what["seconds"] > 0, f"{what}")
    # A model with hundreds of parameters: a point may be computed from many tensors.
    if FULL:
        deep = answer("--only", "train", "--tokens", "1x4", "--layers", "30", "--repetitions", "1")
        expect(deep["train"]["recorded"]["full"]["points"] > 1000, "few points of many layers")
    rate = train["tokens_per_second"] * train["seconds"]
    expect(abs(rate - 60) < 1e-3, f"a step has {rate} tokens")
    ways = [("--threads", "2", "--micro-batch", "1", "--profile")]
    if FULL:
        ways = [("--threads", "2"), ("--micro-batch", "1"), ("--profile",)]
    for words in ways:
        other = answer("--only", "train", "--tokens", "3x20", *words)["train"]
        expect(other["grad_norm"] == train["grad_norm"], f"other bits with {' '.join(words)}")
    pieces = answer("--only", "train", "--tokens", "3x20", "--logical-tp", "8")["train"]
    expect(pieces["grad_norm"] != train["grad_norm"], "--logical-tp is not obeyed")


def check_decode():
    a = answer("--only", "decode", "--batch", "3", "--context", "9", "--profile", "--layers", "1")
    decode = a["decode"]
    expect("train" not in a and a["layers"] == 1, "--only decode, or --layers, is not obeyed")
    expect((decode["batch"], decode["context"]) == (3, 9), "--batch or --context is not obeyed")
    expect(decode["last_context"] > 9 and decode["prefill_seconds"] > 0, "nothing was decoded")
    calls = calls_of(decode["profile"])
    expect(calls.get("sample") == calls.get("attention.paged") == decode["profile"]["rounds"],
           f"calls of a layer and of the sampler: {calls}")


def check_rollout():
    rollout = sampling("rollout", "--batch", "3", "--context", "9", "--threads", "1")
    expect((rollout["batch"], rollout["context"]) == (3, 9), "rollout: --batch or --context")
    kinds = [rollout[kind] for kind in ("reading_prompts", "all_sequences", "fewer_sequences")]
    count = rollout["prompts"] * rollout["samples"]
    expect(sum(kind["tokens"] for kind in kinds) == rollout["tokens"], "tokens of the passes")
    expect(sum(kind["seconds"] for kind in kinds) <= rollout["seconds"], "seconds of the passes")
    expect(count * rollout["shortest"] < rollout["tokens"] < count * rollout["longest"],
           f"{rollout['tokens']} tokens of {count} samples")
    expect(kinds[1]["tokens"] == 3 * kinds[1]["passes"], "a pass with all sequences")
    alone = rollout["decoding_alone"]
    expect(9 + rollout["shortest"] / 2 < alone["context"] < 9 + rollout["longest"],
           f"decoding alone has a context of {alone['context']}")
    expect(abs(alone["tokens_per_second"] * alone["seconds"] - 3) < 1e-6, "its rate")
    expect(rollout["tokens_again"] == 0, "tokens were computed again in a cache with room for all")
    rate = alone["tokens_per_second"] * rollout["of_decoding_alone"]
    expect(abs(rate / rollout["tokens_per_second"] - 1) < 1e-6, "its fraction")
    other = sampling("rollout", "--batch", "1", "--threads", "2")
    expect(other["tokens"] == rollout["tokens"], "the lengths of the responses differ")


def check_speculation():
    a = sampling("speculation", "--batch", "3", "--layers", "1")
    expect(a["batch"] == 3, "speculation: --batch is not obeyed")
    for text in ("table", "problems"):
        none, *rows = a[text]
        expect([row["tokens_at_a_time"] for row in a[text]] == [0, 2, 4, 8], "speculation: rows")
        expect(none["drafted"] == 0, "speculation: guesses where there are none")
        for row in rows:
            expect(row["tokens"] == none["tokens"], "speculation: the responses differ")
            expect(row["passes"] < none["passes"], f"speculation: {text} saves no pass")
            expect(0 < row["accepted"] <= row["drafted"], "speculation: guesses that held")
    expect(2 * a["table"][2]["passes"] < a["table"][0]["passes"], "speculation: a table repeats")


def check_experts():
    done = run("tiny-moe", "--json", "--repetitions", "1", "--tokens", "2x16")
    a = json.loads(done.stdout)
    experts, slots, wide = 8, 2, 128
    attention = LAYERS * HIDDEN * (2 * HEADS + 2 * KV_HEADS) * DIM
    router, expert = LAYERS * HIDDEN * experts, LAYERS * 3 * HIDDEN * wide
    whole = attention + NORMS + VOCAB * HIDDEN + router + experts * expert
    expect(a["parameters"] == whole, f"{a['parameters']} parameters, expected {whole}")
    active = attention + router + slots * expert + VOCAB * HIDDEN
    flops = 32 * (6 * active + 6 * LAYERS * HEADS * DIM * 17)
    expect(a["train"]["flops"] == flops, f"{a['train']['flops']} FLOP, expected {flops}")
    expect(a["decode"]["seconds"] > 0, "a model with experts does not decode")


def calls_of(profile):
    calls = {}
    for row in profile["rows"]:
        calls[row["op"]] = calls.get(row["op"], 0) + row["calls"]
    inside = sum(row["seconds"] for row in profile["rows"])
    expect(0 < inside <= profile["seconds"], "the ops took longer than everything")
    return calls


def check_profile():
    calls = calls_of(answer("--only", "train", "--profile", *SMALL)["train"]["profile"])
    expected = {"attention.fwd": LAYERS, "attention.bwd": LAYERS, "grad.norm": 1}
    for op, count in expected.items():
        expect(calls.get(op) == count, f"{op}: {calls.get(op)} calls, expected {count}")


def compare(*words, code=0):
    return run("tiny", "--repetitions", "1", *words, code=code, program=(PEERS,))


def check_peer():
    done = compare("--json", "--peer", str(PLUGINS / "peer.so"), "--profile", *SMALL)
    a = json.loads(done.stdout)
    train = a["train"]
    expect(train["peer_seconds"] > 0 and a["decode"]["peer_seconds"] > 0, "the peer was not timed")
    calls = calls_of(train["peer_profile"])
    expect(calls.get("attention.bwd") == LAYERS, f"calls of the peer: {calls}")
    expect(train["peer_norm_ratio"] == 1, f"the peer's gradient: {train['peer_norm_ratio']}")
    if FULL:
        text = compare("--peer", str(PLUGINS / "peer.so"), "--profile").stdout
        expect("cost of determinism" in text and "peer ms" in text, text)
    done = compare("--peer", str(PLUGINS / "peer_other.so"), *SMALL, code=1)
    expect("it computes something else" in done.stderr, done.stderr)
    done = compare("--peer", str(PLUGINS / "not_a_plugin.so"), code=129)
    expect("no ops for this device" in done.stderr, done.stderr)
    done = compare("--peer", "/does/not/exist.so", code=129)
    expect("--peer: " in done.stderr, done.stderr)


def check_text():
    text = run("tiny", "--profile", "--dtype", "mxfp8", "--repetitions", "1", *SMALL).stdout
    for part in ("tiny: mxfp8, ieee on cpu, 2 layers", "digests of the step, ledger",
                 "reading the prompts", "attention.bwd", "the host", "  100.0%\n"):
        expect(part in text, f"\"{part}\" is not in:\n{text}")
    expect("\033" not in text, "colour went into a file")


def check_messages():
    for words, text in ((("gpt",), "there are qwen3-0.6b"),
                        (("tiny", "--tokens", "8"), "--tokens 8: expected"),
                        (("tiny", "--tokens", "0x8"), "--tokens 0x8: expected"),
                        (("tiny", "--tokens", "1x99999"), "at most 1024 tokens"),
                        (("tiny", "--dtype", "int3"), "--dtype int3: there are fp32, bf16"),
                        (("tiny", "--numerics", "sm80"), "there are ieee and sm90"),
                        (("tiny", "--only", "sleep"), "there are train and decode"),
                        (("tiny", "--logical-tp", "3"), "--logical-tp 3: is not 1, 2, 4 or 8"),
                        (("tiny", "--device", "tpu"), "there are cpu and cuda"),
                        (("tiny", "--optimizer-cpu-offload"), "give --device cuda")):
        done = run(*words, code=129)
        expect(text in done.stderr, f"{' '.join(words)}: {done.stderr}")


for each in LINEAR_BYTES:
    check_bytes(each)
check_train()
check_decode()
check_rollout()
check_speculation()
check_experts()
check_profile()
check_peer()
check_text()
check_messages()
print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
