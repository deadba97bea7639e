# fixture.py - one case of the oracle while it is computed, and the fixture file of all cases.
# SPDX-License-Identifier: Apache-2.0
"""Helpers of generate.py: random inputs, float64 everywhere, the file format."""
import math
import struct
import zlib

import numpy
import torch
import transformers
from torch.overrides import TorchFunctionMode

MAGIC = b"INVORA01"
TAGS = {torch.float32: b"f32 ", torch.float64: b"f64 ", torch.bfloat16: b"bf16",
        torch.int32: b"i32 ", torch.int64: b"i64 ", torch.uint8: b"u8  "}
STORAGE = {"f32": torch.float32, "bf16": torch.bfloat16}


class Wide(TorchFunctionMode):
    """Runs code that asks for float32 in float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def widen(x):
            return torch.float64 if x is torch.float32 else x
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(widen, args), **{k: widen(v) for k, v in (kwargs or {}).items()})


def single(x):
    """Returns x rounded to float32, as a C program reads it."""
    return float(numpy.float32(x))


def agree(a, b):
    """Checks that two oracles of the same value agree to float64, so no step has rounded to
    float32."""
    assert (a - b).abs().max() <= 1e-12 * b.abs().max(), "the oracles disagree"


class Case:
    """Draws the inputs of one case from its own random stream, and collects its tensors."""

    def __init__(self, tensors, exact, seed, name, storage):
        self.tensors, self.exact = tensors, exact
        self.prefix = f"{name}/{storage}/" if storage else f"{name}/"
        self.type = STORAGE.get(storage, torch.float32)
        self.generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{self.prefix}".encode()))

    def put(self, name, tensor, exact=True):
        assert self.prefix + name not in self.tensors
        self.tensors[self.prefix + name] = tensor.detach().contiguous()
        if exact:
            self.exact.add(self.prefix + name)

    def draw(self, *shape, scale=1.0):
        """Returns nearly normal float64: sums of integers, so that every machine draws the same."""
        words = torch.randint(0, 1 << 24, (4, *shape), generator=self.generator)
        return (words.sum(0).double() / (1 << 24) - 2) * math.sqrt(3) * scale

    def given(self, name, tensor, dtype=None):
        """Records an input, rounded to storage; returns it as float64 that requires a gradient."""
        tensor = tensor.to(dtype or self.type)
        self.put(name, tensor)
        return tensor.double().requires_grad_()

    def normal(self, name, *shape, scale=1.0, dtype=None):
        return self.given(name, self.draw(*shape, scale=scale), dtype)

    def number(self, name, value):
        self.put(name, torch.tensor(value))

    def integers(self, name, tensor, dtype=torch.int32):
        self.put(name, torch.as_tensor(tensor).to(dtype))

    def segments(self, name, lengths):
        self.integers(name, numpy.cumsum([0, *lengths]), torch.int64)

    def permutation(self, n):
        return torch.randperm(n, generator=self.generator)

    def expect(self, **results):
        for name, tensor in results.items():
            assert tensor.dtype == torch.float64 and tensor.isfinite().all()
            self.put(name, tensor.float(), exact=False)

    def expect_gradients(self, outputs, inputs):
        """outputs: pairs (value, gradient of the value); inputs: {gradient's name: its tensor}."""
        values, given = zip(*outputs)
        self.expect(**dict(zip(inputs, torch.autograd.grad(values, inputs.values(), given))))


# ---- the file ----------------------------------------------------------------------------------

def padded(data):
    return data + bytes(-len(data) % 8)


def encode(tensors, seed):
    """Returns the bytes of the file; tests/oracle/oracle.h describes the format."""
    origin = (f"seed {seed}, torch {torch.__version__}, transformers {transformers.__version__}, "
              f"numpy {numpy.__version__}").encode()
    out = [struct.pack("<8sII", MAGIC, len(tensors), len(origin)), padded(origin + b"\0")]
    for name, tensor in tensors.items():
        out.append(struct.pack("<4sIII", TAGS[tensor.dtype], tensor.dim(), len(name), 0))
        out.append(struct.pack(f"<{tensor.dim()}q", *tensor.shape))
        out.append(padded(name.encode() + b"\0"))
        out.append(padded(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()))
    return b"".join(out)


def decode(data):
    """Returns the tensors of a file and the text of its origin."""
    types = {tag: dtype for dtype, tag in TAGS.items()}
    at = 0

    def take(size):
        nonlocal at
        part, at = data[at:at + size], at + size + -size % 8
        return part

    magic, count, length = struct.unpack("<8sII", take(16))
    assert magic == MAGIC, "this is no fixture file"
    origin, tensors = take(length + 1)[:-1].decode(), {}
    for _ in range(count):
        tag, rank, length, _ = struct.unpack("<4sIII", take(16))
        shape = struct.unpack(f"<{rank}q", take(8 * rank))
        name = take(length + 1)[:-1].decode()
        part = bytearray(take(math.prod(shape) * types[tag].itemsize))
        tensors[name] = torch.frombuffer(part, dtype=types[tag]).reshape(shape)
    return tensors, origin


def difference(name, old, new, exact):
    """Returns a text with the difference of two tensors, or None if there is none."""
    if old.dtype != new.dtype or old.shape != new.shape:
        return f"{name}: {old.dtype} {tuple(old.shape)} is now {new.dtype} {tuple(new.shape)}"
    if exact:
        same = old.reshape(-1).view(torch.uint8).equal(new.reshape(-1).view(torch.uint8))
        return None if same else f"{name}: the bits differ"
    # One unit in the last place of f32, and for small elements the noise of large ones. Values
    # stored as f64 are computed from angles of up to 40000.
    noise = torch.finfo(old.dtype).eps if old.dtype == torch.float32 else 1e-10
    old, new = old.double(), new.double()
    error = (old - new).abs() - noise * old.abs() - 1e-12 * old.abs().max()
    return None if error.max() <= 0 else f"{name}: the results differ by {(old - new).abs().max()}"
