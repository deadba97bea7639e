# formats.py - fp8, mxfp8 and int4 for the linear layers, as in `invar train`.
#
# fp8 and mxfp8 quantize weights, inputs and the gradients of outputs for the products; the gradient
# of a weight is computed from the stored values, in bf16. int4 quantizes weights only.
# SPDX-License-Identifier: Apache-2.0
"""Quantized operands of products."""
from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from invar.ops import Quantised, format_of
from invar.torch.calls import operator, ready, run

PLAIN = ""  # the format of operands that stay as they are stored
_CODES = {"fp8": torch.float8_e4m3fn, "mxfp8": torch.float8_e4m3fn, "int4": torch.uint8}
_SCALES = {"fp8": torch.float32, "mxfp8": torch.float8_e8m0fnu, "int4": torch.bfloat16}


def _empty(x: Tensor, name: str, rows_per_scale: int, period: int) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    scales = Quantised.scales(name, rows, columns, rows_per_scale, period)
    return (x.new_empty(rows, columns // 2 if name == "int4" else columns, dtype=_CODES[name]),
            x.new_empty(scales, dtype=_SCALES[name]))


@operator("invar::quantise")
def _quantise(x: Tensor, name: str, rows_per_scale: int, period: int) -> tuple[Tensor, Tensor]:
    codes, scale = _empty(x, name, rows_per_scale, period)
    run("quantise", x=ready(x), q=Quantised(name, codes, scale, rows_per_scale, period))
    return codes, scale


@_quantise.register_fake
def _(x: Tensor, name: str, rows_per_scale: int, period: int) -> tuple[Tensor, Tensor]:
    return _empty(x, name, rows_per_scale, period)


def quantise(x: Tensor, format: str, *, weight: bool = False, period: int = 0) -> Quantised:
    """Returns codes and scales of a matrix in float32 or bfloat16.

    A weight in fp8 has one scale per 128 x 128 values; the blocks start again after `period` rows.
    """
    rows = format_of(format).weight_rows if weight else 1
    codes, scale = _quantise(x, format, rows, period if rows > 1 else 0)
    return Quantised(format, codes, scale, rows, period if rows > 1 else 0)


def dequantise(q: Quantised, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Returns the values that codes and scales represent."""
    columns = q.codes.shape[1] * (2 if q.format == "int4" else 1)
    x = torch.empty(q.codes.shape[0], columns, dtype=dtype, device=q.codes.device)
    run("dequantise", x=x, q=q)
    return x


def activation(x: Tensor, name: str) -> Union[Tensor, Quantised]:
    """Returns the operand of a product for a matrix of inputs, or of gradients of outputs."""
    return ready(x) if name in (PLAIN, "int4") else quantise(x, name)


def weight(w: Tensor, name: str, codes: Optional[Tensor], scale: Optional[Tensor],
           period: int = 0) -> Union[Tensor, Quantised]:
    """Returns the operand of a product for a weight with these codes and scales."""
    if name == PLAIN:
        return ready(w)
    rows = format_of(name).weight_rows
    return Quantised(name, codes, scale, rows, period if rows > 1 else 0)


class _Kept:
    """Codes and scales of the current values of a weight; copies and pickles do not have them."""

    def __init__(self, state: object, codes: list[Tensor]) -> None:
        self.state, self.codes = state, codes

    def __reduce__(self) -> Any:
        return _Kept, (None, [])


def prepared(w: Tensor, name: str, make: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Returns codes and scales of a weight: made once if it is not trained, else at each use.

    Cached ones are used until PyTorch counts a write to the weight.
    """
    if w.dtype != torch.bfloat16:
        raise NotImplementedError(f"weights of the format {name} are quantised from bfloat16; "
                                  f"this one is {w.dtype}")
    trained = w.requires_grad and torch.is_grad_enabled()
    if trained or w.is_inference() or torch.compiler.is_compiling():
        return make()
    state = (name, w._version, w.data_ptr())
    kept: Optional[_Kept] = getattr(w, "_invar_codes", None)
    if kept is None or kept.state != state:
        with torch.inference_mode(False), torch.no_grad():  # a later backward may keep them
            kept = _Kept(state, make())
        w._invar_codes = kept  # type: ignore[attr-defined]
    return kept.codes
