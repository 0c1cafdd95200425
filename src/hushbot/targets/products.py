"""Products of rows with a layer's weights, by the fastest routine that gives the same numbers.

Guarantees: what the layer itself gives, up to rounding; the routine depends on the machine, the types and the shapes,
never on a measurement, so the same run gives the same numbers. Without gradients only: elsewhere the layer is called.

On CPUs with AVX-512, torch's own fp32 products go through MKL, which takes its slower path on processors that are not
Intel's: oneDNN, which torch brings along, is up to twice as fast there. The weights are read where they lie; nothing
is packed or kept. oneDNN compiles and keeps a kernel for each number of rows, so rows are padded to few such numbers.

Voids it: nothing here; a layer of another class, with hooks, or with weights of a special kind is called as it is.

Source: `mkldnn::_linear_pointwise`, which torch's compiler uses for linear layers; `_routine` does without where torch
has no such thing, or it gives other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEAST = 2**20
"""So many products at least: for fewer, oneDNN takes longer to begin than it saves."""
_Routine = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def multiply(layer: Any, rows: Tensor) -> Tensor:
    """Return what a layer makes of rows, of shape (any, its inputs); of other shapes, as it does itself."""
    if type(layer) is not nn.Linear or not is_bare(layer) or rows.requires_grad or torch.is_grad_enabled():
        return layer(rows)  # type: ignore[no-any-return]
    weight, bias = layer.weight, layer.bias
    is_plain = type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype is torch.float32
    is_large = rows.dim() == 2 and weight.numel() * len(rows) >= _LEAST
    routine = _routine() if is_plain and is_large and rows.dtype is torch.float32 else None
    if routine is None:
        return layer(rows)  # type: ignore[no-any-return]
    n_more = padded(len(rows)) - len(rows)
    return routine(F.pad(rows, (0, 0, 0, n_more)) if n_more else rows, weight, bias)[: len(rows)]


def padded(n: int) -> int:
    """Return the next number of rows that products are made for: four to each power of two, eight above 1,024."""
    step = 1 << max(0, (n - 1).bit_length() - (3 if n <= 1024 else 4))
    return -(-n // step) * step


def is_bare(module: nn.Module) -> bool:
    """Return whether calling a module is calling its class's forward, and nothing else."""
    # Some libraries put a forward of their own beside the class's.
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


@cache
def _routine() -> _Routine | None:
    """Return a routine that is faster here than torch's own; None where there is none."""
    # Without oneDNN the routine is not there, which is found out below.
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return None

    def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")  # type: ignore[no-any-return]

    rows, weight, bias = (
        torch.linspace(-1, 1, n).sin().reshape(shape) for n, shape in ((21, (3, 7)), (35, (5, 7)), (5, (5,)))
    )
    try:
        is_right = torch.allclose(linear(rows, weight, bias), F.linear(rows, weight, bias), atol=1e-6)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return None
    return linear if is_right else None
