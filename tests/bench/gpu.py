#!/usr/bin/env python3
# gpu.py INVAR [OP] - invar bench --device cuda with cuBLAS and cuDNN beside it, in one run.
#
# Without OP whole models follow, by model.py.
#
# The peers run through PyTorch: torch.mm (cuBLAS, bf16), torch._scaled_mm with a scale per row,
# scaled_dot_product_attention by cuDNN and its deterministic backward, copy_ for ops that move
# data. Medians of event timings on random data, operands rotated past the cache. Prints a table;
# ratio is the peer's time over ours.
# SPDX-License-Identifier: Apache-2.0
"""Ours beside the vendor's, as ratios."""
import json
import math
import os
import statistics
import subprocess
import sys
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

sys.dont_write_bytecode = True
import model  # noqa: E402

CACHE = 120 << 20
warnings.filterwarnings("ignore")


def median_time(calls, repetitions=5, target=0.02):
    """Seconds of one of `calls`, which are run in turn."""

    def batch(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for i in range(count):
            calls[i % len(calls)]()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / count

    batch(3)
    count = max(5, int(target / batch(5)))
    return statistics.median(batch(count) for _ in range(repetitions))


def noise(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.5


def sets_for(bytes_of_one):
    return min(8, CACHE // bytes_of_one + 1)


def peer_mm(rows, cols, depth):
    calls = []
    for _ in range(sets_for(cols * depth * 2)):
        x, w = noise(rows, depth), noise(cols, depth)
        out = torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16)
        calls.append(lambda x=x, w=w, out=out: torch.mm(x, w.t(), out=out))
    return "cuBLAS", median_time(calls)


def peer_dx(rows, cols, depth):
    dy, w = noise(rows, depth), noise(depth, cols)
    out = torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16)
    return "cuBLAS", median_time([lambda: torch.mm(dy, w, out=out)])


def peer_dw(rows, cols, tokens):
    dy, x = noise(tokens, rows), noise(tokens, cols)
    out = torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16)
    return "cuBLAS", median_time([lambda: torch.mm(dy.t(), x, out=out)])


def peer_fp8(rows, cols, depth):
    x = noise(rows, depth).to(torch.float8_e4m3fn)
    w = noise(cols, depth).to(torch.float8_e4m3fn)
    sx = torch.rand(rows, 1, device="cuda")
    sw = torch.rand(1, cols, device="cuda")
    call = lambda: torch._scaled_mm(x, w.t(), sx, sw, out_dtype=torch.bfloat16)  # noqa: E731
    return "cuBLAS fp8 rowwise", median_time([call])


def attention_tensors(batch, heads, kv_heads, length, dim, gradient):
    def heads_of(count):
        t = noise(batch, length, count, dim).transpose(1, 2)  # as packed rows lie
        return t.requires_grad_(gradient)

    return heads_of(heads), heads_of(kv_heads), heads_of(kv_heads), kv_heads != heads


def attend(q, k, v, grouped):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                                enable_gqa=grouped)


def peer_attention(sizes):
    tensors = attention_tensors(*sizes, False)
    return "cuDNN", median_time([lambda: attend(*tensors)])


def peer_attention_backward(sizes):
    q, k, v, grouped = attention_tensors(*sizes, True)
    out = attend(q, k, v, grouped)
    d_out = torch.randn_like(out)
    # PyTorch picks cuDNN for no forward that must be deterministic; its backward obeys the switch
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        call = lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)  # noqa: E731
        return "cuDNN deterministic", median_time([call])
    finally:
        torch.use_deterministic_algorithms(False)


def peer_copy(moved):
    x = torch.randn(int(moved) // 4, device="cuda").to(torch.bfloat16)  # half is read
    y = torch.empty_like(x)
    return "copy of as many bytes", median_time([lambda: y.copy_(x)])


def peer_of(row):
    op, shape = row["op"], row["shape"]
    if op.startswith("attention"):
        batch, heads, length, dim = shape.split()
        query, key = heads[1:].split("/")
        sizes = (int(batch[1:]), int(query), int(key), int(length[1:]), int(dim[1:]))
        return peer_attention(sizes) if op == "attention.fwd" else peer_attention_backward(sizes)
    if op.startswith("linear"):
        sizes = tuple(int(n) for n in shape.split("x"))
        if row["type"] == "fp8":
            return peer_fp8(*sizes)
        return {"linear.fwd": peer_mm, "linear.dx": peer_dx, "linear.dw": peer_dw}[op](*sizes)
    return peer_copy(row["rate"] * row["seconds"] * 1e9)


def main():
    command = [sys.argv[1], "bench", "--device", "cuda", "--json"]
    if len(sys.argv) > 2:
        command += ["--op", sys.argv[2]]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    rows = json.loads(ran.stdout)["rows"] if ran.stdout.rstrip().endswith("}") else []
    groups = {}
    print(f"{'op':16} {'type':6} {'shape':26} {'us':>10} {'rate':>8} {'':8} {'peer us':>10} "
          f"{'ratio':>6}  peer")
    for row in rows:
        try:
            name, seconds = peer_of(row)
        except RuntimeError as error:  # PyTorch has none for this
            name, seconds = f"none: {str(error).splitlines()[0][:60]}", math.nan
        torch.cuda.empty_cache()
        ratio = seconds / row["seconds"]
        if not math.isnan(ratio):
            groups.setdefault((row["op"], row["type"]), []).append(ratio)
        print(f"{row['op']:16} {row['type']:6} {row['shape']:26} {row['seconds'] * 1e6:10.1f} "
              f"{row['rate']:8.1f} {row['unit']:8} {seconds * 1e6:10.1f} {ratio:6.3f}  {name}"
              f"{'  DIFFERENT' if row['different'] else ''}", flush=True)
    for (op, kind), ratios in groups.items():
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{op} {kind}: geometric mean {mean:.3f}, least {min(ratios):.3f}")
    if len(sys.argv) == 2:
        print()
        model.compare(sys.argv[1])
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
