#!/usr/bin/env python3
# flop.py - compares the FLOPs that PyTorch counts with those of engine/train/flop.h.
#
# Standard input: JSON lines of `test.unit.engine.train.flop print`, with sizes of models and
# samples and Invar's counts. The products of each line are computed with tensors of the same sizes
# under PyTorch's FlopCounterMode, forward and backward: attention query by query over its visible
# keys, experts one by one. The two counts must be equal. Negative control: a model with one more
# layer must give another count.
# SPDX-License-Identifier: Apache-2.0
"""FLOPs of training, counted by PyTorch."""
import json
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode


class Products:
    """The matrix products of a model of one size."""

    def __init__(self, sizes):
        self.s = sizes
        self.frozen = sizes["rank"] > 0

    def weight(self, rows, cols, learns):
        return torch.randn(rows, cols, requires_grad=learns)

    def linear(self, x, out):
        """Runs a linear layer, with its adapter if there is one."""
        y = x @ self.weight(x.shape[1], out, not self.frozen)
        if self.frozen:
            y = y + (x @ self.weight(x.shape[1], self.s["rank"], True)) @ self.weight(
                self.s["rank"], out, True)
        return y

    def attention(self, x, layer):
        s = self.s
        q = self.linear(x, s["heads"] * s["head_dim"]).view(-1, s["heads"], s["head_dim"])
        k = self.linear(x, s["kv_heads"] * s["head_dim"]).view(-1, s["kv_heads"], s["head_dim"])
        v = self.linear(x, s["kv_heads"] * s["head_dim"]).view(-1, s["kv_heads"], s["head_dim"])
        share = s["heads"] // s["kv_heads"]
        rows = []
        for t in range(x.shape[0]):
            sees = s["window"] if s["window"] and layer >= s["window_from"] else t + 1
            first = max(0, t + 1 - sees)
            heads = []
            for h in range(s["heads"]):
                keys, values = k[first:t + 1, h // share], v[first:t + 1, h // share]
                heads.append((q[t:t + 1, h] @ keys.T).softmax(-1) @ values)
            rows.append(torch.cat(heads, 1))
        return self.linear(torch.cat(rows), s["hidden"])

    def gated(self, x, width):
        return self.linear(self.linear(x, width) * self.linear(x, width), self.s["hidden"])

    def mlp(self, x, sparse):
        s = self.s
        if not sparse:
            return self.gated(x, s["intermediate"])
        scores = x @ self.weight(s["hidden"], s["experts"], not self.frozen)
        y = sum(self.gated(x, s["expert_intermediate"]) for _ in range(s["slots"]))
        return y * scores.sum(1, keepdim=True)

    def train(self, prompt, tokens):
        # every input needs a gradient, because the embedding or an adapter below it is trained
        x = torch.randn(tokens - 1, self.s["hidden"], requires_grad=True)
        for layer, sparse in enumerate(self.s["sparse"]):
            x = x + self.attention(x, layer)
            x = x + self.mlp(x, sparse)
        head = self.weight(self.s["hidden"], self.s["vocab"], not self.frozen)
        (x[prompt - 1:] @ head).sum().backward()


def count(sizes):
    with FlopCounterMode(display=False) as counter:
        for prompt, tokens in sizes["samples"]:
            Products(sizes).train(prompt, tokens)
    return counter.get_total_flops()


def main():
    torch.manual_seed(1)
    models = [json.loads(line) for line in sys.stdin]
    if len(models) < 10:
        sys.exit(f"only {len(models)} models came")
    for sizes in models:
        found = count(sizes)
        if found != sizes["flop"]:
            sys.exit(f"{sizes['name']}, rank {sizes['rank']}: PyTorch counts {found}, Invar "
                     f"{sizes['flop']}")
    # Negative control: one more layer is noticed.
    more = models[0] | {"sparse": models[0]["sparse"] + [0]}
    if count(more) == models[0]["flop"]:
        sys.exit("another model has the same count")
    print(f"{len(models)} models, equal")


if __name__ == "__main__":
    main()
