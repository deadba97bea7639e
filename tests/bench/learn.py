#!/usr/bin/env python3
# learn.py PROGRAM FOLDER [--device DEVICE] [--seeds N] [--sft "OPTIONS"] [--grpo "OPTIONS"]
#          [--all "OPTIONS"] [--replay STEP] [--questions N]
#
# Trains SmolLM2-135M-Instruct on arithmetic word problems, SFT and then GRPO, and measures its
# accuracy on problems that it was not trained on: before, after SFT and after GRPO, with several
# seeds (recipes/stories-sft.ini, recipes/stories-grpo.ini). Needs
# FOLDER/models/SmolLM2-135M-Instruct (scripts/smollm2). The first seed is repeated with other free
# keys, which must give the same chain; one of its steps is replayed on the CPU while the other runs
# continue. Control: sampling in FP8 without importance weights. FOLDER/runs.tsv and
# FOLDER/curves.tsv have the results.
#
# Exit code: 0 done, 1 a chain or a replayed step differs, 2 a run failed.
# SPDX-License-Identifier: Apache-2.0
"""A real model learns: accuracy before and after SFT and GRPO."""
import argparse
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
MODEL = "models/SmolLM2-135M-Instruct"
SETS = ("test", "unseen")


def wilson(share, count):
    """The 95 % confidence interval of a share."""
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count
                                               + z * z / (4 * count * count))
    return middle - half, middle + half


class Bench:
    def __init__(self, arguments):
        self.program = [os.path.abspath(arguments.program)]
        self.folder = arguments.folder
        self.files = {name: f"data/stories/{name}.jsonl@[0:{arguments.questions}]" for name in SETS}
        self.always = ["--device", arguments.device, *shlex.split(arguments.all)]
        self.options = {"sft": shlex.split(arguments.sft), "grpo": shlex.split(arguments.grpo)}
        self.rows, self.curves = [], []

    def invar(self, *words, log=None):
        result = subprocess.run(self.program + list(words), cwd=self.folder, check=False, text=True,
                                stdout=subprocess.PIPE, stderr=log or subprocess.PIPE)
        if result.returncode:
            errors = result.stderr or pathlib.Path(log.name).read_text(encoding="utf-8")
            print(result.stdout, errors, sep="\n", file=sys.stderr)
            sys.exit(f"learn.py: {shlex.join(words)}: exit code {result.returncode}")
        return result.stdout

    def query(self, run, name):
        return json.loads(self.invar("ledger", "query", name, "--run", run, "--json"))

    def sql(self, run, text):
        return json.loads(self.invar("ledger", "sql", text, run, "--json"))

    def train(self, kind, name, *options):
        """Trains one run; adds a row of runs.tsv and points of curves.tsv."""
        run, start = f"runs/{name}", time.monotonic()
        with open(self.folder / f"{name}.log", "w", encoding="utf-8") as log:
            self.invar("train", str(TREE / f"recipes/stories-{kind}.ini"), *self.always,
                       "--run", run, "--eval-prompt-data",
                       " ".join(f"{name} {path}" for name, path in self.files.items()),
                       *self.options[kind], *options, log=log)
        seconds = time.monotonic() - start
        row = {"run": name, "seconds": seconds}
        shown = json.loads(self.invar("ledger", "show", run, "--json"))["run"]
        row["steps"], row["chain"] = shown["steps"], shown["chain"]
        tokens = self.sql(run, "SELECT sum(a.value * b.value) AS tokens FROM gauge a JOIN gauge b"
                          " USING (run, step, seg) JOIN series s ON s.series = a.series"
                          " JOIN series t ON t.series = b.series"
                          " WHERE s.name = 'perf/train_tok_per_s'"
                          " AND t.name = 'perf/train_time'")
        row["tokens"] = tokens[0]["tokens"]
        gap = self.sql(run, "SELECT max(value) AS most FROM (SELECT series, value FROM metric"
                       " UNION ALL SELECT series, value FROM gauge) JOIN series USING (series)"
                       " WHERE name = 'train/logp_diff_max'")
        row["logp_diff_max"] = gap[0]["most"]
        for point in self.query(run, "eval-history"):
            if point["metric"] == f"eval/{point['dataset']}":
                self.curves.append((name, point["dataset"], point["step"], point["value"]))
                row.setdefault(f"{point['dataset']} before", point["value"])
                row[point["dataset"]] = point["value"]
        self.rows.append(row)
        print(name, *(f"{key} {value}" for key, value in row.items() if key != "run"), flush=True)
        return row

    def count_numbers(self):
        """Share of the untrained model's responses that end in the right number, boxed or not."""
        right = 0
        text = (self.folder / "data/stories/test.jsonl").read_text(encoding="ascii")
        labels = [json.loads(line)["label"] for line in text.splitlines()]
        answers = self.invar("generate", str(TREE / "recipes/stories-grpo.ini"), *self.always,
                             "--hf-checkpoint", MODEL, "--prompts", self.files["test"],
                             "--rollout-temperature", "0", "--rollout-max-response-len", "256",
                             "--json")
        answers = [json.loads(line)["text"] for line in answers.splitlines()]
        for answer, label in zip(answers, labels):
            numbers = re.findall(r"\d[\d,]*", answer)
            right += bool(numbers) and numbers[-1].replace(",", "") == label
        return right / len(answers)

    def write(self):
        columns = ["run", "steps", "tokens", "seconds", "test before", "test", "unseen before",
                   "unseen", "logp_diff_max", "chain"]
        with open(self.folder / "runs.tsv", "w", encoding="ascii") as out:
            print(*columns, sep="\t", file=out)
            for row in self.rows:
                print(*(row.get(column, "-") for column in columns), sep="\t", file=out)
        with open(self.folder / "curves.tsv", "w", encoding="ascii") as out:
            print("run", "set", "step", "accuracy", sep="\t", file=out)
            for point in self.curves:
                print(*point, sep="\t", file=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sft", default="", help="more options of each SFT run")
    parser.add_argument("--grpo", default="", help="more options of each GRPO run")
    parser.add_argument("--all", default="", help="more options of all runs")
    parser.add_argument("--replay", type=int, default=250, help="step to replay on the CPU")
    parser.add_argument("--questions", type=int, default=1000, help="of each set")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    if not (bench.folder / MODEL / "config.json").exists():
        sys.exit(f"learn.py: {bench.folder / MODEL}: no model; make it with scripts/smollm2")
    subprocess.run([TREE / "scripts/word-problems", bench.folder / "data/stories"], check=True)

    print("untrained: right numbers with or without a box", bench.count_numbers(), flush=True)
    chains, replay = {}, None
    for seed in map(str, range(1, arguments.seeds + 1)):
        bench.train("sft", f"sft-{seed}", "--rollout-seed", seed)
        bench.invar("convert", f"runs/sft-{seed}/checkpoints", f"models/stories-sft-{seed}")
        start = ["--rollout-seed", seed, "--hf-checkpoint", f"models/stories-sft-{seed}"]
        saves = ["--save-interval", str(arguments.replay)] if seed == "1" else []
        chains[seed] = bench.train("grpo", f"grpo-{seed}", *start, *saves)["chain"]
        if seed == "1":
            replay = subprocess.Popen(bench.program + ["replay", "runs/grpo-1", "--step",
                                                       str(arguments.replay), "--device", "cpu"],
                                      cwd=bench.folder, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT)
    first = ["--rollout-seed", "1", "--hf-checkpoint", "models/stories-sft-1"]
    again = bench.train("grpo", "grpo-1-again", *first, "--use-dynamic-batch-size",
                        "--max-tokens-per-gpu", "5000", "--rollout-concurrency", "50",
                        "--save", "none")["chain"]
    bench.train("grpo", "control-fp8", *first, "--rollout-dtype", "fp8")
    bench.write()
    print("repeated with other free keys:", "equal" if again == chains["1"] else "DIFFERENT")
    for name in SETS:
        for row in bench.rows:
            low, high = wilson(row[name], arguments.questions)
            print(f"{name:7} {row['run']:13} {row[f'{name} before']:.3f} -> {row[name]:.3f}"
                  f"  95 %: {low:.3f} to {high:.3f}")
    print(replay.communicate()[0])
    return 0 if again == chains["1"] and replay.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
