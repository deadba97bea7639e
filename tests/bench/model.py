#!/usr/bin/env python3
# model.py INVAR [SHAPE ...] [--peer FILE.so] - complete models compared with other libraries.
#
# Times training and decoding of three implementations in one run: the engine; the engine with
# cuBLAS and cuDNN instead of our products and attention (tests/bench/peer.cpp, compiled here unless
# FILE is given), which shows the cost of determinism; transformers on PyTorch (bf16, sdpa, fused
# AdamW, generate). Weights and tokens are random. Prints a table; ratio is the other's time divided
# by ours. A shape whose step does not fit is trained with fewer layers, which its rows say.
# SPDX-License-Identifier: Apache-2.0
"""Times of complete training steps and of decoding, ours and those of other libraries."""
import argparse
import gc
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch.utils import cpp_extension

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 5
LAYERS_THAT_FIT = {"qwen3-8b": 12}


def make_peer(folder):
    """Compiles the shared object for bench.peers and returns its path."""
    out = pathlib.Path(folder) / "peer.so"
    command = ["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-o", str(out), f"-I{ROOT}",
               str(ROOT / "tests/bench/peer.cpp")]
    command += [f"-I{path}" for path in cpp_extension.include_paths("cuda")]
    for path in cpp_extension.library_paths("cuda"):
        command += [f"-L{path}", f"-Wl,-rpath,{path}"]
    command += ["-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-lc10", "-lc10_cuda", "-lcublas",
                "-lcudart"]
    subprocess.run(command, check=True)
    return str(out)


def peers_of(invar):
    """Returns the program that times our ops and those of peers in turn."""
    return str(pathlib.Path(invar).resolve().with_name("bench.peers"))


def run_json(program, shape, part, *more):
    command = [*program, "--device", "cuda", "--json", "--model", shape, "--only", part, *more]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout)[part]


def print_line(shape, part, who, seconds, tokens, base):
    print(f"{shape:13} {part:24} {who:34} {seconds * 1e3:10.2f} {tokens / seconds:10.0f} "
          f"{seconds / base:6.3f}", flush=True)


def time_call(call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


class Peer:
    """A transformers model with the sizes of a shape."""

    def __init__(self, shape, layers):
        import transformers  # pylint: disable=import-outside-toplevel

        transformers.utils.logging.set_verbosity_error()
        kind, hidden, heads, kv_heads, wide, all_layers, tied = {
            "qwen3-0.6b": (transformers.Qwen3Config, 1024, 16, 8, 3072, 28, True),
            "qwen2.5-1.5b": (transformers.Qwen2Config, 1536, 12, 2, 8960, 28, True),
            "qwen3-8b": (transformers.Qwen3Config, 4096, 32, 8, 12288, 36, False)}[shape]
        more = {"head_dim": 128} if kind is transformers.Qwen3Config else {}
        config = kind(vocab_size=151936, hidden_size=hidden, num_attention_heads=heads,
                      num_key_value_heads=kv_heads, intermediate_size=wide,
                      num_hidden_layers=layers or all_layers, tie_word_embeddings=tied,
                      max_position_embeddings=32768, bos_token_id=None, eos_token_id=None, **more)
        with torch.device("cuda"):
            self.model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="sdpa")

    def train(self, samples, length):
        """Seconds of a step; the weights are bf16 and have no masters."""
        ids = torch.randint(151936, (samples, length), device="cuda")
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)

        def step():
            self.model(ids, labels=ids, use_cache=False).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        self.model.train()
        for _ in range(2):
            step()
        return statistics.median(time_call(step) for _ in range(STEPS))

    def decode(self, batch, context, few=4, many=44):
        """Seconds of one more token for each sequence."""
        ids = torch.randint(151936, (batch, context), device="cuda")
        mask = torch.ones_like(ids)  # otherwise a random token could be taken for padding

        def generate(count):
            return lambda: self.model.generate(ids, attention_mask=mask, max_new_tokens=count,
                                               do_sample=True, top_k=0, pad_token_id=0)

        self.model.eval()
        generate(many)()  # allocates the memory for the timed calls
        return (time_call(generate(many)) - time_call(generate(few))) / (many - few)


def measure(invar, peer, shape):
    layers = LAYERS_THAT_FIT.get(shape)
    cut = ("--layers", str(layers)) if layers else ()
    alone = run_json((invar, "bench"), shape, "train", *cut)
    train = run_json((peers_of(invar),), shape, "train", "--peer", peer, *cut)
    decode = run_json((peers_of(invar),), shape, "decode", "--peer", peer)
    name = f"train{f', {layers} layers' if layers else ''}"
    tokens = train["samples"] * train["length"]
    print_line(shape, name, "Invar", train["seconds"], tokens, train["seconds"])
    print_line(shape, name, "Invar, digests and ledger", alone["recorded"]["step"]["seconds"],
               tokens, alone["seconds"])
    print_line(shape, name, "Invar, cuBLAS and cuDNN", train["peer_seconds"], tokens,
               train["seconds"])
    print(f"{shape:13} {name:24} cost of determinism "
          f"{100 * (train['seconds'] / train['peer_seconds'] - 1):+.1f} %")
    print_line(shape, "decode", "Invar", decode["seconds"], decode["batch"], decode["seconds"])
    print_line(shape, "decode", "Invar, cuBLAS", decode["peer_seconds"], decode["batch"],
               decode["seconds"])
    try:
        other = Peer(shape, layers)
        print_line(shape, name, "transformers", other.train(train["samples"], train["length"]),
                   tokens, train["seconds"])
        del other
        other = Peer(shape, None)
        print_line(shape, "decode", "transformers",
                   other.decode(decode["batch"], decode["context"]), decode["batch"],
                   decode["seconds"])
    except ImportError as error:
        print(f"{shape:13} no transformers here: {error}")
    other = None
    gc.collect()
    torch.cuda.empty_cache()


def compare(invar, shapes=(), peer=None):
    print(f"{'shape':13} {'what':24} {'who':34} {'ms':>10} {'tokens/s':>10} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        peer = peer or make_peer(folder)
        for shape in shapes or ("qwen3-0.6b", "qwen2.5-1.5b", "qwen3-8b"):
            measure(invar, peer, shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("invar")
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--peer")
    args = parser.parse_args()
    compare(args.invar, args.shapes, args.peer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
