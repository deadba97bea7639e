#!/usr/bin/env python3
# engine.py BENCH [--threads N] [--repeats N] - training and generation compared with PyTorch eager.
#
# BENCH is the program bench.engine. The model is a Qwen3 of 3.4 million parameters (hidden 256, 4
# layers, vocabulary 1024), with the same weights on both sides: one optimizer step on 16 samples of
# 128 tokens, and 64 new tokens for 16 prompts of 32 with a KV cache. Each line is the best of
# several repetitions; in each repetition all candidates run one after the other. Needs
# tests/oracle/requirements.txt.
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of the engine and of transformers on PyTorch, on the CPU."""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
import transformers

SAMPLES, TOKENS, PROMPT, RESPONSE = 16, 128, 32, 64
VOCAB = 1024
TRAINED, GENERATED = SAMPLES * TOKENS, SAMPLES * RESPONSE
GOALS = {"train": 1.0, "generate": 3.0}


def make_model(folder):
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, intermediate_size=768, max_position_embeddings=512,
        tie_word_embeddings=True, initializer_range=0.02, bos_token_id=None, eos_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)


def tokens():
    i, j = torch.meshgrid(torch.arange(SAMPLES), torch.arange(TOKENS), indexing="ij")
    return (i * 7919 + j * 104729) % VOCAB


def time_calls(run, repeats):
    out = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        out.append(time.perf_counter() - start)
    return out


class Peer:
    """transformers on PyTorch, eager mode."""

    def __init__(self, folder, attention):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1)
        self.ids = tokens()

    def train(self):
        self.model.train()
        self.optimizer.zero_grad()
        table = self.model(self.ids, use_cache=False).logits[:, :-1].log_softmax(-1)
        (-table.gather(-1, self.ids[:, 1:, None]).mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def generate(self):
        self.model.eval()
        out = self.model.generate(self.ids[:, :PROMPT], max_new_tokens=RESPONSE, do_sample=True,
                                  top_k=0, use_cache=True, pad_token_id=0)
        assert out.shape == (SAMPLES, PROMPT + RESPONSE)


def run_invar(args, folder, kind, dtype, numerics, repeats):
    command = [args.bench, kind, folder, dtype, numerics, str(args.threads), str(repeats + 1)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(line) for line in out.split()][1:]


def measure(args, folder, kind):
    """Best seconds of each candidate; in each repetition all of them run once."""
    peers = {f"PyTorch, {a}": Peer(folder, a) for a in ("eager", "sdpa")}
    mine = {f"Invar, {d} {n}": (d, n) for d, n in (("fp32", "ieee"), ("bf16", "ieee"),
                                                   ("bf16", "sm90"))}
    seconds = {name: [] for name in (*peers, *mine)}
    for peer in peers.values():
        getattr(peer, kind)()  # the first call is slower
    for _ in range(args.repeats):
        for name, peer in peers.items():
            seconds[name] += time_calls(getattr(peer, kind), 1)
        for name, (dtype, numerics) in mine.items():
            seconds[name] += run_invar(args, folder, kind, dtype, numerics, 1)
    return {name: min(values) for name, values in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", type=str)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    args.bench = str(pathlib.Path(args.bench).resolve())
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, "
          f"{args.threads} threads, best of {args.repeats}\n")
    print("| what | who | s | tokens/s | ratio to the faster PyTorch | goal |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder)
        for kind, count in ("train", TRAINED), ("generate", GENERATED):
            rows = measure(args, folder, kind)
            peer = min(s for name, s in rows.items() if name.startswith("PyTorch"))
            for name, s in rows.items():
                goal = GOALS[kind] if name == "Invar, fp32 ieee" else ""
                print(f"| {kind} | {name} | {s:.3f} | {count / s:.0f} | {peer / s:.2f} | {goal} |")
            print(f"| {kind} | sm90 emulation | | | "
                  f"{rows['Invar, bf16 sm90'] / rows['Invar, bf16 ieee']:.1f} times the time | |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
