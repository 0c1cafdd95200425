"""What one of several processes has of a training: its part of every logical batch, and the means to add parts up.

Guarantees: the parts of a batch are disjoint and together the batch, whatever the number of processes; what is added
up or told is the same on all of them, to the last bit. Alone, nothing is computed that was not computed before there
were several.

What voids it: processes that do not all come by here, in the same order; the one that is missing is waited for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from hushbot.errors import HushbotError

Item = TypeVar("Item")
_BUCKET = 1 << 25
"""Numbers that are added up at a time: 128 MB of them."""


@dataclass(frozen=True)
class Share:
    """One process's part in a training."""

    rank: int = 0
    """Which one; the first writes every file."""
    size: int = 1
    """How many there are."""
    is_lockstep: bool = False
    """Whether every pass of the model is a joint one, as it is where each process holds a part of each weight."""

    @property
    def is_first(self) -> bool:
        """Return whether this process writes files, draws noise and shows progress."""
        return self.rank == 0

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Return this process's part: every `size`-th of them."""
        return list(items[self.rank :: self.size])

    def numbers(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, in double precision."""
        if self.size == 1:
            return list(values)
        row = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(row)
        found: list[float] = row.tolist()
        return found

    def anywhere(self, facts: Iterable[bool]) -> list[bool]:
        """Return which facts hold in any process, where each knows them of its part of the weights only."""
        known = [bool(fact) for fact in facts]
        return [n > 0 for n in self.numbers([float(fact) for fact in known])] if self.is_lockstep else known

    def n_idle(self, n_passes: int) -> int:
        """Return how many passes another process makes beyond this one's, where all must make as many.

        To be asked before the passes: all must ask at the same time.
        """
        if not self.is_lockstep:
            return 0
        most = torch.tensor(n_passes)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(most) - n_passes

    @torch.no_grad()
    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.size == 1:
            return
        for group in _buckets(tensors):
            # One call for many tensors: an adapter has hundreds of small ones.
            flat = torch.cat([tensor.flatten() for tensor in group])
            dist.all_reduce(flat)
            for tensor, part in zip(group, torch.split(flat, [t.numel() for t in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def add_up_gradients(self, weights: Iterable[nn.Parameter]) -> None:
        """Make each weight's gradient the sum over all processes; one that has none anywhere keeps none."""
        if self.size == 1 or self.is_lockstep:  # in lockstep the backward pass has added them up
            return
        parts = list(weights)
        counts = self.numbers([float(weight.grad is not None) for weight in parts])
        found = []
        for weight, n_having in zip(parts, counts, strict=True):
            if n_having:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                found.append(weight.grad)
        self.add_up(found)

    def tell(self, value: Any) -> Any:
        """Return what the first process has."""
        if self.size == 1:
            return value
        told = [value]
        dist.broadcast_object_list(told, src=0)
        return told[0]

    def check_same(self, what: str, content: object) -> None:
        """Check that all processes have the same of something.

        Raises:
            HushbotError: This one has another than the first.
        """
        digest = hashlib.sha256(repr(content).encode()).hexdigest()
        if self.tell(digest) != digest:
            raise HushbotError(
                f"{what}: process {self.rank} of {self.size} (counted from 0) has other ones than the first, so they "
                "cannot train together; use the same versions in all, or set trainer.devices=1"
            )


ALONE = Share()


def whole(tensor: Any) -> Tensor:
    """Return all of a tensor of which each process holds a part; all must ask for it. Others are whole already.

    Args:
        tensor: A weight itself, where it is one: what DeepSpeed knows of it is not known of its detached data.
    """
    if hasattr(tensor, "ds_id"):
        from deepspeed.utils import safe_get_full_fp32_param

        return safe_get_full_fp32_param(tensor).view(tensor.ds_shape).to(tensor.dtype)  # type: ignore[no-any-return]
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found


def part_of(weight: Any) -> Tensor:
    """Return what this process holds of a weight's numbers, which may be none."""
    if hasattr(weight, "ds_id"):  # of stage 3; the last parts are filled up with anything
        own: Tensor = weight.ds_tensor.detach().flatten()
        return own[: max(0, weight.ds_numel - dist.get_rank() * own.numel())]
    local: Tensor = weight.to_local() if isinstance(weight, DTensor) else weight
    return local.detach()


def parted_like(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return this process's part of a tensor that all have whole, parted as a weight is; or the tensor itself."""
    if not isinstance(weight, DTensor):
        return tensor
    here = tensor.to(weight.device, weight.dtype)
    return distribute_tensor(here, weight.device_mesh, weight.placements, src_data_rank=None)


def _buckets(tensors: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    """Yield groups of tensors of one kind, of not too many numbers together."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for kind in kinds.values():
        group: list[Tensor] = []
        for tensor in kind:
            if group and sum(t.numel() for t in group) + tensor.numel() > _BUCKET:
                yield group
                group = []
            group.append(tensor)
        if group:
            yield group
