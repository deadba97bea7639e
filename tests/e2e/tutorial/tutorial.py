#!/usr/bin/env python3
# tutorial.py INVAR FOLDER [VENV] [--model HF --data GSM8K] - runs every command of
# docs/tutorial.md.
#
# Works in FOLDER, with a small random model instead of the page's model, and with generated lines
# in the form of GSM8K. Files that the page prints are written, its shell commands are run. With
# VENV, a virtual environment with transformers is made there, and the page's Python is run, too.
# With --model and --data, the page's model and data, every output line and hash that the page shows
# must be printed (about 30 minutes on two cores).
# SPDX-License-Identifier: Apache-2.0
"""Runs every command of the tutorial."""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/tutorial.md"


def blocks(path=PAGE):
    """Returns (language, file name or None, text) of every fenced block; the file name precedes
    it."""
    found = []
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
    page = path.read_text(encoding="utf-8")
    for match in fence.finditer(page):
        name = re.search(r"`([\w./-]+)`:\n\n$", page[: match.start()])
        found.append((match[1], name and name[1], match[2]))
    return found


def make_model(folder):
    """Makes a folder that transformers wrote, with a context for the prompts of the page."""
    shutil.copytree(ROOT / "tests/oracle/folders/4.57.6/qwen3-fp16", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 2048
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def make_data(folder):
    """Writes lines in the form of GSM8K."""
    folder.mkdir(parents=True)
    rng = random.Random(2)
    for name, count in (("train", 64), ("test", 8)):
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(count):
                a, b = rng.randint(2, 60), rng.randint(2, 60)
                file.write(json.dumps({
                    "question": f"Ann has {a} clips and buys {b} more. How many has she now?",
                    "answer": f"She has {a}+{b} = <<{a}+{b}={a + b}>>{a + b} clips.\n"
                              f"#### {a + b}"}) + "\n")


def install(venv):
    """Makes a virtual environment with the requirements of the oracles, including PyTorch."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = f"{venv}/bin/python"
    requirements = ROOT / "tests/oracle/requirements.txt"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
    return python


def run(command, folder, environment):
    """Runs one line of the page and returns its output, which is printed on failure."""
    done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def link_model_and_data(folder, model, data):
    """Links the model and the data of the page, and checks the SHA-256 of the data."""
    page = PAGE.read_text(encoding="utf-8")
    (folder / "models").mkdir(parents=True)
    (folder / "models/SmolLM2-135M-Instruct").symlink_to(model.resolve())
    (folder / "data").mkdir()
    (folder / "data/gsm8k").symlink_to(data.resolve())
    for name in ("train.jsonl", "test.jsonl"):
        if hashlib.sha256((data / name).read_bytes()).hexdigest() not in page:
            sys.exit(f"{data / name}: not the file that the tutorial names")


def compare(outputs):
    """Checks that sections 1 to 8 of the page show what was printed, except for times and paths."""
    page = PAGE.read_text(encoding="utf-8").split("\n## 9. ")[0]
    printed = " ".join("\n".join(outputs).split())
    claims = re.findall(r"`([0-9a-f]{32})`", page) + re.findall(r"has (0\.\d+) in the", page)
    for language, _, text in blocks():
        if language == "text" and text in page:
            lines = [line for line in text.splitlines() if not re.match("train: |config ", line)]
            claims += [" ".join(line.split()) for line in lines if line]
    missing = [claim for claim in claims if claim not in printed]
    if missing or len(claims) < 20:
        sys.exit("the tutorial shows what was not printed:\n" + "\n".join(missing))
    print(f"{len(claims)} lines and hashes of the page were printed")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("invar", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("venv", nargs="?")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    given = parser.parse_args()
    invar, folder, real = given.invar, given.folder, given.model is not None
    python = install(given.venv) if given.venv else None
    shutil.rmtree(folder, ignore_errors=True)
    if real:
        link_model_and_data(folder, given.model, given.data)
    else:
        make_model(folder / "models/SmolLM2-135M-Instruct")
        make_data(folder / "data/gsm8k")
    (folder / "build").mkdir()
    (folder / "build/invar").symlink_to(invar.resolve())
    environment = {name: value for name, value in os.environ.items() if name != "INVAR_LEDGER"}
    outputs = []
    for language, name, text in blocks():
        if name:
            (folder / name).write_text(text, encoding="utf-8")
        elif language == "sh":
            for command in text.replace("\\\n", "").splitlines():
                outputs.append(run(["bash", "-c", command], folder, environment))
                print(f"$ {command}\n{outputs[-1]}", flush=True)
        elif language == "python" and python:
            outputs.append(run([python, "-c", text], folder, environment))
            print(outputs[-1], flush=True)
    print(f"{len(outputs)} commands")
    if real:
        compare(outputs)
        return 0
    model = folder / "models/SmolLM2-135M-Instruct"
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / "exported" / name).read_bytes() != (model / name).read_bytes():
            sys.exit(f"exported/{name} is not the model's")
    configs = [json.loads((path / "config.json").read_text(encoding="utf-8"))
               for path in (folder / "exported", model)]
    if [config.pop("dtype", config.pop("torch_dtype", None)) for config in configs] != [
            "bfloat16", "float16"] or configs[0] != configs[1]:
        sys.exit(f"exported/config.json has other keys than the model's: {configs}")
    return 0 if len(outputs) >= 10 else 1


if __name__ == "__main__":
    sys.exit(main())
