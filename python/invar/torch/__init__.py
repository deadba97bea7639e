# invar.torch - Invar's kernels in PyTorch, and transformers models that use them.
# SPDX-License-Identifier: Apache-2.0
"""Kernels whose results do not depend on the batch, for PyTorch on CPUs.

    import invar.torch

    invar.torch.make_invariant(model)      # a Llama, Qwen3 or Qwen3-MoE of transformers

docs/python.md says what is replaced and what then holds.
"""
from invar.torch.model import make_invariant
from invar.torch.ops import attention, device, linear, logprob, moe, rmsnorm, set_device, swiglu

__all__ = ["attention", "device", "linear", "logprob", "make_invariant", "moe", "rmsnorm",
           "set_device", "swiglu"]
