#!/usr/bin/env python3
# gpu.py LIBRARY [--profile] - Invar's operators on PyTorch's CUDA tensors, and models with them.
#
# Runs invariant.py and formats.py on the GPU; then tests that need a GPU: the bits of the CPU with
# numerics sm90 (control: with ieee they differ); the order of streams (control: a call in the wrong
# stream); errors that are reported late; torch.compile; models large enough for the fast kernels
# (control: the stock model). Last, the speed next to stock models in the same process, as lines of
# JSON; --profile adds a table of kernels. Exit code 77 if there is no PyTorch or no GPU.
# SPDX-License-Identifier: Apache-2.0
"""Tests of invar.torch on a GPU."""
import copy
import json
import statistics
import sys
import time
import unittest

import built

built.use(sys.argv[1])

try:
    import torch
    import transformers
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available():
    sys.exit(77)
import invar  # noqa: E402  pylint: disable=wrong-import-position
import invar.ops  # noqa: E402  pylint: disable=wrong-import-position
import invar.torch  # noqa: E402  pylint: disable=wrong-import-position
import formats  # noqa: E402  pylint: disable=wrong-import-position
import invariant  # noqa: E402  pylint: disable=wrong-import-position
from invariant import FAMILIES, TYPES, batch_of, bits, build  # noqa: E402

PROFILE = "--profile" in sys.argv
LARGER = {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
          "max_position_embeddings": 1024}
torch.set_default_device("cuda")


def tell(**facts):
    print(json.dumps(facts), flush=True)


class Operators(invariant.Operators):
    """Compares with PyTorch in double precision, on the GPU."""


class Models(invariant.Models):
    """Batch size, padding, position and cache, on the GPU."""


class Products(formats.Products):
    """Number formats, on the GPU."""


class Whole(formats.Whole):
    """Models in a number format, on the GPU."""


def calls(dtype, tokens, where):
    """Yields results and gradients of every operator, from the same numbers on either device."""
    draw = torch.Generator("cpu").manual_seed(tokens)

    def leaf(*shape, factor=0.5):
        values = torch.randn(*shape, generator=draw, device="cpu") * factor
        return values.to(dtype).to(where).requires_grad_()

    x, w, b, n, up = (leaf(tokens, 256), leaf(384, 256), leaf(384), leaf(256), leaf(tokens, 256))
    q, k, v = leaf(tokens, 4, 64), leaf(tokens, 2, 64), leaf(tokens, 2, 64)
    r, gate_up, down = leaf(8, 256), leaf(8, 256, 256, factor=0.1), leaf(8, 256, 128, factor=0.1)
    starts = torch.tensor([0, tokens // 3, tokens // 3, tokens], device="cpu")
    targets = torch.randint(0, 256, (tokens,), generator=draw, device="cpu").to(where)
    for name, leaves, out in (
            ("linear", (x, w, b), invar.torch.linear(x, w, b)),
            ("rmsnorm", (x, n), invar.torch.rmsnorm(x, n, 1e-6)),
            ("swiglu", (x, up), invar.torch.swiglu(x, up)),
            ("attention", (q, k, v), invar.torch.attention(q, k, v, starts)),
            ("moe", (x, r, gate_up, down), invar.torch.moe(x, r, gate_up, down, 2)),
            ("logprob", (x,), invar.torch.logprob(x, targets)),
            *((name, (x, w, r, gate_up, down), invar.torch.moe(
                invar.torch.linear(invar.torch.linear(x, w, None, name), w.T.contiguous(), None,
                                   name), r, gate_up, down, 2, True, name))
              for name in formats.FORMATS if dtype == torch.bfloat16)):
        weights = torch.randn(out.shape, generator=draw, device="cpu").to(out.dtype).to(where)
        yield name, (out, *torch.autograd.grad(out, leaves, weights))


class Gpu(unittest.TestCase):
    """Behavior that only a GPU can get wrong."""

    def setUp(self):
        torch.manual_seed(5)
        invar.torch.set_device(invar.ops.Device("cpu", numerics="sm90"))

    def tearDown(self):
        invar.torch.set_device(invar.ops.Device("cpu"))
        invar.torch.device("cuda").wait()

    def test_the_bits_of_a_cpu(self):
        for dtype, _ in TYPES:
            for tokens in (1, 3, 64, 200):
                far = calls(dtype, tokens, "cuda")
                for (name, mine), (_, theirs) in zip(far, calls(dtype, tokens, "cpu")):
                    for i, (one, other) in enumerate(zip(mine, theirs)):
                        with self.subTest(name, dtype=dtype, tokens=tokens, result=i):
                            self.assertTrue(torch.equal(bits(one.cpu()), bits(other)))

    def test_numerics_differ(self):
        """Control: with other numerics, the comparison above finds differences."""
        invar.torch.set_device(invar.ops.Device("cpu", numerics="ieee"))
        same = [torch.equal(bits(mine[0].cpu()), bits(theirs[0])) for (_, mine), (_, theirs) in
                zip(calls(torch.bfloat16, 200, "cuda"), calls(torch.bfloat16, 200, "cpu"))]
        self.assertFalse(all(same))

    def test_models_have_the_bits_of_a_cpu(self):
        for family in FAMILIES:
            for dtype, _ in TYPES:
                with self.subTest(family, dtype=dtype):
                    torch.manual_seed(3)
                    far = invar.torch.make_invariant(build(family).to(dtype))
                    near = copy.deepcopy(far).cpu()
                    samples = [torch.randint(0, 160, (n,)) for n in (4, 19, 11)]
                    ids, mask = batch_of(samples, "left", 21)
                    positions = (mask.cumsum(1) - 1).clamp(min=0)
                    logits = []
                    for model, where in ((far, "cuda"), (near, "cpu")):
                        out = model(input_ids=ids.to(where), attention_mask=mask.to(where),
                                    position_ids=positions.to(where)).logits
                        out.float().square().mean().backward()
                        logits.append(out)
                    keep = mask.bool().cpu()
                    self.assertTrue(torch.equal(bits(logits[0].cpu())[keep],
                                                bits(logits[1])[keep]))
                    pairs = list(zip(far.parameters(), near.parameters()))
                    self.assertTrue(all(torch.equal(bits(a.grad.cpu()), bits(b.grad))
                                        for a, b in pairs))

    def test_streams(self):
        """Inputs become ready late in their stream; all streams share the scratch memory."""
        streams = [torch.cuda.Stream() for _ in range(4)]
        w = torch.randn(512, 1024).bfloat16()
        inputs = [torch.randn(300, 1024).bfloat16() for _ in range(40)]
        wanted = [bits(invar.torch.linear(x, w)) for x in inputs]
        torch.cuda.synchronize()
        for turn, x in enumerate(inputs):
            with torch.cuda.stream(streams[turn % 4]):
                late = torch.zeros_like(x)
                torch.cuda._sleep(2_000_000)
                late.copy_(x)
                y = invar.torch.linear(late, w)
                self.assertTrue(torch.equal(bits(y), wanted[turn]), turn)

    def test_a_wrong_stream_is_seen(self):
        """Control of the streams: a call that does not wait for its input has other bits."""
        device = invar.ops.Device("cuda")
        own, other = torch.cuda.Stream(), torch.cuda.Stream()
        x, late, y = torch.ones(64, 64), torch.zeros(64, 64), torch.zeros(64, 64)
        device.run("add", {"out": y, "a": late, "b": late}, stream=other.cuda_stream)
        torch.cuda.synchronize()
        with torch.cuda.stream(own):
            torch.cuda._sleep(400_000_000)
            late.copy_(x)
            device.run("add", {"out": y, "a": late, "b": late}, stream=other.cuda_stream)
        torch.cuda.synchronize()
        self.assertEqual(float(y.sum()), 0.0)
        device.close()

    def test_faults_are_told(self):
        device = invar.torch.device("cuda")
        logits = torch.randn(2, 4)
        invar.torch.logprob(logits, torch.tensor([0, 99]))
        with self.assertRaisesRegex(invar.Error, "logprob.fwd: .*99"):
            device.wait()
        device.wait()  # reported once
        with self.assertRaisesRegex(invar.Error, "99"):
            for _ in range(1000):  # a later call reports it without waiting
                invar.torch.logprob(logits, torch.tensor([0, 99]))
                time.sleep(0.001)

    def test_refused(self):
        x = torch.ones(2, 4)
        device = invar.torch.device("cuda")
        for fields, words in (({"out": x.cpu(), "a": x, "b": x}, "host's memory"),
                              ({"out": x, "a": x, "b": x.cpu()}, "host's memory")):
            with self.assertRaisesRegex(invar.Error, words):
                device.run("add", fields)
        with self.assertRaisesRegex(invar.Error, "cuda:0"):
            invar.ops.Device("cpu").run("add", {"out": x, "a": x, "b": x})
        for kind in ("cuda:99", "cuda:", "cuda:x", "cpu:0", "cuda:0x"):
            with self.assertRaises(invar.Error, msg=kind):
                invar.ops.Device(kind)
        with self.assertRaisesRegex(invar.Error, "CUDA graph"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                invar.torch.swiglu(x, x)
        torch.cuda.synchronize()
        self.assertEqual(len(set(invar.torch.swiglu(x, x).flatten().tolist())), 1)

    def test_dlpack_without_torch(self):
        """A tensor of another library has only DLPack."""
        class Other:
            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack__(self, **kwargs):
                return self.tensor.__dlpack__(**kwargs)

            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()

        x, y = torch.randn(5, 7), torch.zeros(5, 7)
        invar.torch.device("cuda").run("add", {"out": Other(y), "a": Other(x), "b": Other(x)})
        self.assertTrue(torch.equal(y, x + x))

    def test_compile(self):
        def block(x, n, w, q, starts):
            h = invar.torch.linear(invar.torch.rmsnorm(x, n, 1e-6), w)
            return invar.torch.swiglu(h, h) + invar.torch.attention(q, q, q, starts).flatten(1)

        x, n, w, q = (torch.randn(*s).bfloat16().requires_grad_() for s in
                      ((48, 128), (128,), (256, 128), (48, 4, 64)))
        starts = torch.tensor([0, 20, 48])
        plain, made = (torch.autograd.grad(f(x, n, w, q, starts).float().square().sum(),
                                           (x, n, w, q))
                       for f in (block, torch.compile(block, backend="aot_eager")))
        for one, other in zip(plain, made):
            self.assertTrue(torch.equal(bits(one), bits(other)))

    def test_larger_models(self):
        """Sizes that use the tensor cores; prompts of up to 300 tokens."""
        samples = [torch.randint(0, 4096, (3 + (37 * i) % 298,)) for i in range(64)]
        control = 0
        for family in FAMILIES:
            with self.subTest(family):
                model = build(family, **LARGER).bfloat16().eval()
                control += self.differing(model, samples, (2, 17, 64))
                invar.torch.make_invariant(model)
                self.assertEqual(self.differing(model, samples, range(1, 65)), 0)
        self.assertGreater(control, 0)
        tell(what="control", samples_of_stock_models_that_differ=control)

    @torch.no_grad()
    def differing(self, model, samples, sizes):
        alone = [bits(model(input_ids=sample[None]).logits[0]) for sample in samples]
        bad = 0
        for size in sizes:
            side, first = ("left", "right")[size % 2], (5 * size) % (65 - size)
            group = samples[first:first + size]
            ids, mask = batch_of(group, side, max(map(len, group)) + size % 4)
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            logits = bits(model(input_ids=ids, attention_mask=mask, position_ids=positions).logits)
            for i in range(size):
                bad += not torch.equal(logits[i][mask[i].bool()], alone[first + i])
        return bad


# ---- speed -------------------------------------------------------------------------------------


def seconds(function, rounds):
    """Returns the median time of a call; the first two calls are not counted."""
    taken = []
    for _ in range(rounds + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[2:])


def profile(name, function):
    function()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA,
                                            torch.profiler.ProfilerActivity.CPU]) as taken:
        function()
        torch.cuda.synchronize()
    print(name, flush=True)
    print(taken.key_averages().table(sort_by="self_cuda_time_total", row_limit=22,
                                     max_name_column_width=90), flush=True)


def speed():
    """Measures a random model of the size of Qwen3-0.6B, in bf16, with and without Invar."""
    config = transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
        max_position_embeddings=40960)
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    stock = transformers.Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    mine = invar.torch.make_invariant(copy.deepcopy(stock))
    stock.config.use_cache = mine.config.use_cache = False
    for batch, length, padded in ((8, 2048, False), (8, 2048, True), (64, 256, False),
                                  (1, 512, False)):
        ids = torch.randint(0, 151936, (batch, length))
        mask = torch.ones_like(ids)
        if padded:
            for i in range(batch):
                mask[i, :i * length // (2 * batch)] = 0
        more = {"attention_mask": mask} if padded else {}

        def prefill(model):
            with torch.no_grad():
                model(input_ids=ids, logits_to_keep=1, **more)

        def train(model):
            model.zero_grad(set_to_none=True)
            model(input_ids=ids, labels=ids, **more).loss.backward()

        for name, work in (("prefill", prefill), ("train", train)):
            rates = {}
            for turn in range(2):  # both twice, alternating: the clock may have changed
                for label, model in (("eager", stock), ("invariant", mine)):
                    rate = int(mask.sum()) / seconds(lambda w=work, m=model: w(m), 5)
                    rates[label] = max(rate, rates.get(label, 0.0))
            tell(what=name, model="qwen3-0.6b", dtype="bf16", batch=batch, length=length,
                 padded=padded, eager_tokens_per_s=round(rates["eager"]),
                 invariant_tokens_per_s=round(rates["invariant"]),
                 ratio=round(rates["invariant"] / rates["eager"], 3))
            if PROFILE and not padded and batch in (1, 8):
                for label, model in (("eager", stock), ("invariant", mine)):
                    profile(f"{name}, {label}, {batch} x {length}", lambda w=work, m=model: w(m))
    invar.torch.device("cuda").wait()
    gradients = []
    for _ in range(2):
        train(mine)
        gradients.append([bits(p.grad.clone()) for p in mine.parameters()])
    same = all(torch.equal(a, b) for a, b in zip(*gradients))
    tell(what="gradients, twice", model="qwen3-0.6b", equal=same)
    return same


if __name__ == "__main__":
    tell(what="machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__,
         transformers=transformers.__version__, invar=invar.library_version())
    passed = unittest.main(argv=sys.argv[:1] + ["-v"], exit=False).result.wasSuccessful()
    sys.exit(0 if speed() and passed else 1)
