#!/usr/bin/env python3
# sizes.py INVAR FOLDER [--write] - the numbers of docs/models.md, compared with `invar plan`.
#
# Works in FOLDER with config.json files of the models of the page, without weights. Every number of
# the three tables is computed again; --write writes the numbers into the page. The numbers of GPUs
# and the rows of the two largest models are computed with INVAR_TEST_FULL=1 only. Then the commands
# of the page run as printed, with the tutorial's data and a tokenizer.
# SPDX-License-Identifier: Apache-2.0
"""Compares the sizes that docs/models.md states with `invar plan`."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import tutorial
from tutorial import ROOT, blocks

PAGE = ROOT / "docs/models.md"
FULL = "INVAR_TEST_FULL" in os.environ
INVAR, FOLDER = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])

# Layers, hidden size, features of the MLP, query heads, key and value heads, tied embeddings.
SHAPES = {"Qwen3-0.6B": (28, 1024, 3072, 16, 8, True), "Qwen3-1.7B": (28, 2048, 6144, 16, 8, True),
          "Qwen3-4B": (36, 2560, 9728, 32, 8, True), "Qwen3-8B": (36, 4096, 12288, 32, 8, False),
          "Qwen3-14B": (40, 5120, 17408, 40, 8, False),
          "Qwen3-32B": (64, 5120, 25600, 64, 8, False)}


def make_configs():
    """Creates the folders of the models as on a hub, without weights and tokenizers."""
    for name, (layers, hidden, features, heads, groups, tied) in SHAPES.items():
        folder = FOLDER / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
            "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": groups, "head_dim": 128, "intermediate_size": features,
            "max_position_embeddings": 40960, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": tied, "attention_bias": False, "hidden_act": "silu",
            "eos_token_id": 151645}), encoding="ascii")


def plan(model, *arguments):
    """Returns the output of `invar plan --json`; exit code 1 means that the run does not fit."""
    command = [INVAR, "plan", "size.ini", "--hf-checkpoint", f"models/{model}", "--json",
               *arguments]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout or "null")


def gib(count):
    return f"{count / 2**30:.1f}"


def min_gpus(model, memory):
    """Returns the smallest number of GPUs on which all weights can be trained."""
    found = plan(model, "--recompute-granularity", "full", "--memory", memory,
                 "--gpus", "1,2,4,8,16,32", "--all")
    return str(min(layout["gpus"] for layout in found["layouts"] if layout["fits"]))


def options(keys):
    """Returns `key = value`, `key = value` as options."""
    return [word for key, value in re.findall(r"`([\w-]+) = ([\w.-]+)`", keys)
            for word in (f"--{key}", value)]


def row_of(cells):
    """Returns the cells of a row of the page, as the program computes them."""
    first = cells[0]
    if first in ("Qwen3-14B", "Qwen3-32B") and not FULL:
        return cells
    if first in SHAPES:
        lora = ("--memory", "141GB", "--lora-rank", "16")
        resident = [plan(first, *more)["resident"] for more in (
            lora[:2], lora, (*lora, "--dtype", "int4"))]
        gpus = [min_gpus(first, "80GB"), min_gpus(first, "141GB")] if FULL else cells[-2:]
        return [first, *map(gib, resident), *gpus]
    if first == "none" or options(first):
        before = ["--memory", "80GB"] if len(cells) == 4 else ["--memory", "141GB", "--lora-rank",
                                                               "16"]
        found = plan("Qwen3-4B", *before, *options(first))
        return [*cells[:-2], gib(found["need"]), "yes" if found["fits"] else "no"]
    return cells


def run_as_printed():
    """Runs the plan commands of the page with data and a tokenizer. Returns their number."""
    tokenizer = ROOT / "tests/oracle/folders/4.57.6/qwen3-fp16"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, FOLDER / "models/Qwen3-4B")
    tutorial.make_data(FOLDER / "data/gsm8k")
    prepare, = [text for _, name, text in blocks(tutorial.PAGE) if name == "prepare.py"]
    tutorial.run([sys.executable, "-c", prepare], FOLDER, os.environ)
    (FOLDER / "bin").mkdir()
    (FOLDER / "bin/invar").symlink_to(INVAR)
    found = [command for _, _, text in blocks(PAGE)
             for command in text.replace("\\\n", "").splitlines()
             if command.startswith("invar plan") and (FULL or "--gpus" not in command)]
    for command in found:
        words = f"PATH=$PWD/bin:$PATH; {command}"
        if "longest sample: 2048" in tutorial.run(["bash", "-c", words], FOLDER, os.environ):
            sys.exit(f"{command}: the data were not read")
    return len(found)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    make_configs()
    recipe, = [text for _, name, text in blocks(PAGE) if name == "size.ini"]
    (FOLDER / "size.ini").write_text(recipe, encoding="ascii")
    lines, rows = [], 0
    was = PAGE.read_text(encoding="utf-8")
    for line in was.splitlines():
        if line.startswith("| ") and line.endswith("|"):
            cells = [cell.strip() for cell in line[1:-1].split("|")]
            found = row_of(cells)
            if found is not cells:
                line = "| " + " | ".join(found) + " |"
                line, rows = line.replace("|  |", "| |"), rows + 1
        lines.append(line)
    now = "\n".join(lines) + "\n"
    if "--write" in sys.argv:
        PAGE.write_text(now, encoding="utf-8")
    elif now != was:
        wrong = [pair for pair in zip(was.splitlines(), lines) if pair[0] != pair[1]]
        sys.exit("docs/models.md is not what plan prints:\n" + "\n".join(
            f"is         {a}\nshould be  {b}" for a, b in wrong))
    commands = run_as_printed()
    print(f"{rows} rows, {commands} commands")
    return 0 if (rows, commands) == ((18, 3) if FULL else (16, 2)) else 1


if __name__ == "__main__":
    sys.exit(main())
