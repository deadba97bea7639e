#!/usr/bin/env python3
# tutorial.py INVAR FOLDER [VENV] - docs/tutorial.md, as printed, by somebody who follows it.
#
# Works in FOLDER, with a small random model where the page has a real one, and with lines made in
# the form of GSM8K. Files that the page prints are written, its shell commands are run. With VENV,
# a virtual environment that is made there with transformers, the page's Python is run, too.
# SPDX-License-Identifier: Apache-2.0
"""Runs every command of the tutorial."""
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
    """(language, file name or None, text) of every fenced block; a file's name stands before it."""
    found = []
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
    page = path.read_text(encoding="utf-8")
    for match in fence.finditer(page):
        name = re.search(r"`([\w./-]+)`:\n\n$", page[: match.start()])
        found.append((match[1], name and name[1], match[2]))
    return found


def make_model(folder):
    """A folder that transformers wrote, with room for the prompts of the page."""
    shutil.copytree(ROOT / "tests/oracle/folders/4.57.6/qwen3-fp16", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 2048
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def make_data(folder):
    """Lines of GSM8K's form."""
    folder.mkdir(parents=True)
    dice = random.Random(2)
    for name, count in (("train", 64), ("test", 8)):
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(count):
                a, b = dice.randint(2, 60), dice.randint(2, 60)
                file.write(json.dumps({
                    "question": f"Ann has {a} clips and buys {b} more. How many has she now?",
                    "answer": f"She has {a}+{b} = <<{a}+{b}={a + b}>>{a + b} clips.\n"
                              f"#### {a + b}"}) + "\n")


def install(venv):
    """Python with what the oracles need, PyTorch and transformers among it."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = f"{venv}/bin/python"
    requirements = ROOT / "tests/oracle/requirements.txt"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
    return python


def run(command, folder, environment):
    """One line of the page; what it prints is shown where it fails."""
    done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def main():
    invar, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    python = install(sys.argv[3]) if len(sys.argv) > 3 else None
    shutil.rmtree(folder, ignore_errors=True)
    make_model(folder / "models/SmolLM2-135M-Instruct")
    make_data(folder / "data/gsm8k")
    (folder / "build").mkdir()
    (folder / "build/invar").symlink_to(invar.resolve())
    environment = {name: value for name, value in os.environ.items() if name != "INVAR_LEDGER"}
    commands = 0
    for language, name, text in blocks():
        if name:
            (folder / name).write_text(text, encoding="utf-8")
        elif language == "sh":
            for command in text.replace("\\\n", "").splitlines():
                output = run(["bash", "-c", command], folder, environment)
                commands += 1
                print(f"$ {command}\n{output}", flush=True)
        elif language == "python" and python:
            print(run([python, "-c", text], folder, environment), flush=True)
            commands += 1
    print(f"{commands} commands")
    model = folder / "models/SmolLM2-135M-Instruct"
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / "exported" / name).read_bytes() != (model / name).read_bytes():
            sys.exit(f"exported/{name} is not the model's")
    configs = [json.loads((path / "config.json").read_text(encoding="utf-8"))
               for path in (folder / "exported", model)]
    if [config.pop("dtype", config.pop("torch_dtype", None)) for config in configs] != [
            "bfloat16", "float16"] or configs[0] != configs[1]:
        sys.exit(f"exported/config.json has other keys than the model's: {configs}")
    return 0 if commands >= 10 else 1


if __name__ == "__main__":
    sys.exit(main())
