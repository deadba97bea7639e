# invar.torch - Invar's kernels in PyTorch, and transformers models that use them.
# SPDX-License-Identifier: Apache-2.0
"""Kernels whose results do not depend on the batch, for PyTorch on CPUs and on an H100 or H200.

    import invar.torch

    invar.torch.make_invariant(model)      # a Llama, Qwen3 or Qwen3-MoE of transformers

docs/python.md lists the replaced modules and the guarantees.
"""
from invar.torch.calls import device, set_device
from invar.torch.experts import moe
from invar.torch.formats import dequantise, quantise
from invar.torch.model import make_invariant
from invar.torch.ops import attention, embedding, linear, logprob, rmsnorm, swiglu

__all__ = ["attention", "dequantise", "device", "embedding", "linear", "logprob",
           "make_invariant", "moe", "quantise", "rmsnorm", "set_device", "swiglu"]
