#!/usr/bin/env python3
# check.py HF WORK - compares Invar's results in WORK (smollm2.sh) with transformers on the folder
# HF.
#
# transformers computes in float64, Invar in fp32. Tokens and greedy text must be equal,
# log-probabilities within 1e-4. The two steps of GRPO start from the samples and rewards that Invar
# recorded; PyTorch repeats them, and the weights that Invar exported must have moved like
# PyTorch's. The exported folder is then scored like the first one.
# SPDX-License-Identifier: Apache-2.0
"""A real model, end to end, against transformers."""
import json
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from fixture import Wide  # noqa: E402, fixture.py is in the parent folder

LOGPROBS = 1e-4
SAMPLED = 1e-3  # larger limit: the second step begins with weights that differ already
MOVED = 2e-3  # relative to the norm of the change of two steps
LR, EPS, DECAY, CLIP = 1e-4, 1e-4, 0.01, 1.0  # the keys of train.ini, and defaults of Invar


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def load(folder):
    """Loads a folder with from_pretrained, in float64 throughout."""
    saved = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model = transformers.AutoModelForCausalLM.from_config(
        saved.config, dtype=torch.float64, attn_implementation="eager").eval()
    model.load_state_dict(saved.state_dict())
    # In this model it is <|im_end|>, which prompts contain; PyTorch would give its embedding no
    # gradient.
    model.model.embed_tokens.padding_idx = None
    assert all(x.dtype == torch.float64 for x in [*model.parameters(), *model.buffers()])
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def logprobs(model, tokens):
    """Returns the log-probability of every token but the first; keeps the graph."""
    logits = model(torch.tensor([tokens])).logits[0, :-1]
    return logits.log_softmax(-1)[torch.arange(len(tokens) - 1), tokens[1:]]


def check_text(model, tokenizer, work):
    for answer in lines(work / "greedy.jsonl"):
        prompt = answer["tokens"][:answer["prompt_tokens"]]
        made = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40)[0]
        assert made.tolist() == answer["tokens"], f"greedy: {tokenizer.decode(made)}"
        text = tokenizer.decode(made[len(prompt):], skip_special_tokens=True)
        assert text == answer["text"], f"{text!r} is not {answer['text']!r}"
    assert any("Paris" in answer["text"] for answer in lines(work / "greedy.jsonl"))
    print(f"greedy text: {len(lines(work / 'greedy.jsonl'))} answers equal, such as {text!r}")


def check_tokens(tokenizer, work):
    texts, answers = lines(HERE / "texts.jsonl"), lines(work / "raw.jsonl")
    for line, answer in zip(texts, answers, strict=True):
        expected = tokenizer.encode(line["input"], add_special_tokens=False)
        assert answer["tokens"][:answer["prompt_tokens"]] == expected, line["input"]
    chats = lines(HERE / "prompts.jsonl")
    for line, answer in zip(chats, lines(work / "greedy.jsonl"), strict=True):
        chat = [{"role": "user", "content": line["input"]}]
        chat = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        expected = tokenizer.encode(chat, add_special_tokens=False)
        assert answer["tokens"][:answer["prompt_tokens"]] == expected, line["input"]
    print(f"tokens: {len(texts)} texts and {len(chats)} chats equal")


def check_logprobs(model, samples, scores, what):
    worst = count = 0
    with torch.no_grad():
        for sample, score in zip(lines(samples), lines(scores), strict=True):
            expected = logprobs(model, sample["tokens"])
            assert len(score["logprobs"]) == len(expected)
            worst = max(worst, (expected - torch.tensor(score["logprobs"])).abs().max().item())
            count += len(expected)
    print(f"log-probs {what}: {count} differ by at most {worst:.1e}")
    assert 0 < worst <= LOGPROBS


def advantages(samples):
    """Returns rewards minus the mean of their group, divided by its standard deviation."""
    out = []
    for sample in samples:
        group = torch.tensor([s["reward"] for s in samples if s["group"] == sample["group"]])
        out.append((sample["reward"] - group.mean()) / (group.std(correction=1) + 1e-6))
    return out


def step(model, optimizer, samples):
    optimizer.zero_grad()
    for sample, advantage in zip(samples, advantages(samples)):
        logp = logprobs(model, sample["tokens"])[sample["prompt_tokens"] - 1:]
        recorded = torch.tensor(sample["logprobs"])
        assert (logp - recorded).abs().max() < SAMPLED, "other weights sampled this"
        ratio = (logp - logp.detach()).exp()
        (-advantage * ratio).mean().div(len(samples)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return norm.item()


def check_training(model, work):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=LR, betas=(0.9, 0.999), eps=EPS)
    norms = [step(model, optimizer, [s for s in lines(work / f"rollout-{i}.jsonl")
                                     if "reward" in s]) for i in range(2)]
    exported, _ = load(work / "exported-1")
    moved = off = 0.0
    for (name, ours), theirs in zip(exported.named_parameters(), model.parameters(), strict=True):
        moved += (theirs.detach() - before[name]).double().norm().item() ** 2
        off += (theirs.detach() - ours.detach()).double().norm().item() ** 2
    print(f"GRPO: gradients of norm {norms[0]:.4g} and {norms[1]:.4g}; weights moved by "
          f"{moved ** 0.5:.4g}, and differ by {off ** 0.5:.2g}")
    assert moved > 0 and off ** 0.5 <= MOVED * moved ** 0.5


def check(hf, work):
    model, tokenizer = load(hf)
    check_tokens(tokenizer, work)
    check_text(model, tokenizer, work)
    check_logprobs(model, work / "greedy.jsonl", work / "scores.jsonl", "of answers")
    check_logprobs(model, work / "raw.jsonl", work / "raw_scores.jsonl", "of texts")
    check_training(model, work)
    exported, again = load(work / "exported-1")
    check_tokens(again, work)
    check_logprobs(exported, work / "greedy.jsonl", work / "exported_scores.jsonl",
                   "of the exported folder")


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_default_dtype(torch.float64)
    with Wide():
        check(*map(pathlib.Path, sys.argv[1:3]))


if __name__ == "__main__":
    main()
