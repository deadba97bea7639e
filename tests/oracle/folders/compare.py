#!/usr/bin/env python3
# compare.py INVAR FOLDER ... - compares Invar's reading of the folders of make.py with
# transformers.
#
# In each FOLDER every NAME.json belongs to a Hugging Face folder NAME. Tokens must be equal;
# log-probabilities, computed in fp32 on both sides, may differ by LIMIT. Needs no transformers.
# Control: expected values shifted by one token must differ by more.
# SPDX-License-Identifier: Apache-2.0
"""Tokens and log-probabilities of folders that versions of transformers wrote."""
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

LIMIT = 1e-4
invar = pathlib.Path(sys.argv[1]).resolve()


def run(verb, folder, *flags, lines=()):
    """Returns the output of a command, one JSON object per line; its last flag may need a file of
    `lines`."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.flush()
        done = subprocess.run([invar, verb, "--hf-checkpoint", folder, "--dtype", "fp32", "--json",
                               *flags, *([file.name] if lines else [])],
                              capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{folder}: {verb}: {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def prompts(answers):
    return [answer["tokens"][:answer["prompt_tokens"]] for answer in answers]


def compare_texts(folder, expected):
    one = ["--rollout-max-response-len", "1"]
    texts = run("generate", folder, *one, "--prompts",
                lines=[{"input": text} for text, _ in expected["texts"]])
    assert prompts(texts) == [tokens for _, tokens in expected["texts"]], f"{folder}: other tokens"
    if importlib.util.find_spec("jinja2"):
        text, tokens = expected["chat"]
        chat = run("generate", folder, "--prompt", text, "--apply-chat-template", *one)
        assert prompts(chat) == [tokens], f"{folder}: another chat"


def distance(got, expected):
    assert [len(line) for line in got] == [len(line) for line in expected]
    return max(abs(a - b) for x, y in zip(got, expected) for a, b in zip(x, y))


def compare(folder, expected):
    """Returns the largest difference from the expected values, unshifted and shifted by one."""
    tokens, right = zip(*expected["samples"])
    got = [line["logprobs"] for line in
           run("score", folder, "--tokens", lines=[{"tokens": t} for t in tokens])]
    wrong = [line[1:] + line[:1] for line in right]
    compare_texts(folder, expected)
    return distance(got, right), distance(got, wrong)


def main():
    count = 0
    for path in sorted(p for top in sys.argv[2:] for p in pathlib.Path(top).rglob("*.json")):
        folder = path.with_suffix("")
        if not folder.is_dir():
            continue
        expected = json.loads(path.read_text(encoding="utf-8"))
        off, control = compare(folder, expected)
        print(f"{expected['transformers']:8} {folder.name:22} log-probs differ by {off:.1e}")
        assert off <= LIMIT < control, f"{folder}: log-probs differ by {off}, limit {LIMIT}"
        count += 1
    assert count > 0, "there are no folders"
    print(f"{count} folders, as transformers has them")


if __name__ == "__main__":
    main()
