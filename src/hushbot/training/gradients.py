"""Per-dialogue gradients: three engines that hand each dialogue's own gradient to a `ClippedSum`.

Guarantees:

* A dialogue's gradient depends on that dialogue and the weights alone: its loss is divided by its own number of
  supervised tokens, never by a batch's, and whatever it shares a pass of the model with changes nothing.
* The three engines give the same sums, up to rounding; how dialogues are grouped into passes changes nothing.
* No engine leaves anything behind: no hook, no attribute, and `p.grad` is what it was. A raw sum of gradients that
  were not clipped never stands there.

Void where a model couples the dialogues of a pass other than by attention; models known to (rotary embeddings that
follow the longest sequence of a pass) are refused by the engines that share passes, and `prefix_attention.verify`
compares on the model itself.

Sources: our own; the third engine is Opacus' (Yousefpour et al. 2021, arXiv 2109.12298).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hushbot.errors import ConfigError
from hushbot.training.clipping import ClippedSum, noisy_gradient
from hushbot.training.packing import PackedDialogue, loss_sum, losses

__all__ = [
    "ClippedSum",
    "EngineName",
    "GradientEngine",
    "HooksEngine",
    "LoopEngine",
    "OpacusEngine",
    "make_engine",
    "noisy_gradient",
]

EngineName: TypeAlias = Literal["auto", "loop", "hooks", "opacus"]
_REMEDY = "set recipe.dp_sgd.engine=loop"
_SEQUENCE_DEPENDENT = ("dynamic", "longrope")


class GradientEngine(Protocol):
    """One way to compute the gradients of dialogues, one by one."""

    name: str
    parameters: list[nn.Parameter]
    """What is trained, in the order of `model.parameters()`."""

    def accumulate(self, packs: Sequence[PackedDialogue], clipped: ClippedSum) -> None:
        """Add each dialogue's gradient to the sum; no dialogues, no change."""
        ...


class LoopEngine:
    """One backward pass per dialogue: for every model, at the memory of one dialogue. The reference."""

    name = "loop"

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.parameters = _trainable(model)

    def accumulate(self, packs: Sequence[PackedDialogue], clipped: ClippedSum) -> None:
        """Add each dialogue's gradient to the sum."""
        for packed in packs:
            loss = loss_sum(self._model, packed) / packed.n_supervised
            clipped.add(torch.autograd.grad(loss, self.parameters, allow_unused=True))


class HooksEngine:
    """Several dialogues per pass, for models that train weights and biases of linear layers only, as LoRA does.

    The gradient of a linear layer's weight for one dialogue is the product of what flowed into and out of the layer at
    that dialogue's tokens. It is taken during the backward pass; the batch's own weight gradient is never computed.

    Args:
        model: The model.
        chunk_tokens: Tokens per pass; only a dialogue that has more of them by itself exceeds it.

    Raises:
        ConfigError: Something else is trained than linear layers, or by several layers together.
    """

    name = "hooks"

    def __init__(self, model: nn.Module, chunk_tokens: int) -> None:
        _check_shared_passes(model, chunk_tokens)
        self._model = model
        self._chunk_tokens = chunk_tokens
        self._linears = _trainable_linears(model)
        self.parameters = _trainable(model)

    def accumulate(self, packs: Sequence[PackedDialogue], clipped: ClippedSum) -> None:
        """Add each dialogue's gradient to the sum."""
        for chunk in _chunks(packs, lambda group: sum(p.n_tokens for p in group) <= self._chunk_tokens):
            clipped.add_many(self._gradients(chunk))

    def _gradients(self, packs: Sequence[PackedDialogue]) -> list[Tensor]:
        taps = _Taps(packs, self.parameters[0].device)
        handles = [module.register_forward_hook(taps.hook(name)) for name, module in self._linears.items()]
        try:
            each = losses(self._model, packs)
        finally:
            # Before the backward pass, in which checkpointed layers run a second time.
            for handle in handles:
                handle.remove()
        if idle := sorted(self._linears.keys() - taps.ran):
            raise ConfigError(
                f"recipe.dp_sgd.engine=hooks: {idle[0]} is trained and did not run as a module in the forward pass; "
                f"{_REMEDY}"
            )
        total = (each / each.new_tensor([packed.n_supervised for packed in packs])).sum()
        torch.autograd.grad(total, [taps.probe], allow_unused=True)
        return [
            found if (found := taps.gradients.get(weight)) is not None else weight.new_zeros(len(packs), *weight.shape)
            for weight in self.parameters
        ]


class OpacusEngine:
    """Opacus' per-sample gradients over padded rows, one row per dialogue: a cross-check and a yardstick.

    Args:
        model: The model, in training mode.
        chunk_tokens: Tokens per pass, padding included; only a dialogue that has more by itself exceeds it.
    """

    name = "opacus"

    def __init__(self, model: nn.Module, chunk_tokens: int) -> None:
        _check_shared_passes(model, chunk_tokens)
        self._model = model
        self._chunk_tokens = chunk_tokens
        self.parameters = _trainable(model)

    def accumulate(self, packs: Sequence[PackedDialogue], clipped: ClippedSum) -> None:
        """Add each dialogue's gradient to the sum."""
        by_length = sorted(packs, key=lambda packed: packed.n_tokens)
        for chunk in _chunks(by_length, lambda group: len(group) * group[-1].n_tokens <= self._chunk_tokens):
            clipped.add_many(self._gradients(chunk))

    def _gradients(self, packs: Sequence[PackedDialogue]) -> list[Tensor]:
        from opacus.grad_sample import GradSampleHooks

        if not self._model.training:
            raise ConfigError(
                "recipe.dp_sgd.engine=opacus: Opacus sees models in training mode only; call model.train()"
            )
        kept = [weight.grad for weight in self.parameters]
        hooks = GradSampleHooks(self._model, loss_reduction="sum")
        try:
            each = _padded_losses(self._model, packs)
            torch.autograd.backward((each / each.new_tensor([packed.n_supervised for packed in packs])).sum())
            found: list[Any] = [getattr(weight, "grad_sample", None) for weight in self.parameters]
        finally:
            hooks.cleanup()
            for module in self._model.modules():
                for name in ("activations", "max_batch_len"):
                    vars(module).pop(name, None)
            for weight, grad in zip(self.parameters, kept, strict=True):
                weight.grad = grad
        n_missing = sum(not isinstance(grad, Tensor) for grad in found)
        if n_missing:
            raise ConfigError(
                f"recipe.dp_sgd.engine=opacus: Opacus has no gradient per dialogue for {n_missing} of {len(found)} "
                f"trained tensors; {_REMEDY}"
            )
        return found


def make_engine(name: EngineName, model: nn.Module, *, chunk_tokens: int) -> GradientEngine:
    """Return an engine: `auto` is hooks where they are exact for this model, else the loop.

    Raises:
        ConfigError: No such engine, or it cannot train this model.
    """
    if name == "loop":
        return LoopEngine(model)
    if name == "hooks":
        return HooksEngine(model, chunk_tokens)
    if name == "opacus":
        return OpacusEngine(model, chunk_tokens)
    if name != "auto":
        raise ConfigError(f"engine={name!r} must be one of {', '.join(get_args(EngineName))}; set recipe.dp_sgd.engine")
    _check_chunk(chunk_tokens)
    try:
        return HooksEngine(model, chunk_tokens)
    except ConfigError:
        return LoopEngine(model)


class _Tap(torch.autograd.Function):
    """The identity, which tells what gradient comes by."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, probe: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        ctx.receive = receive
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.receive(grads[0])
        return grads[0], None, None


class _Taps:
    """What flows into and out of linear layers in one pass, made into one gradient per dialogue at once."""

    def __init__(self, packs: Sequence[PackedDialogue], device: torch.device) -> None:
        # The gradient of this is asked for, so that the backward pass visits every tap and no weight.
        self.probe = torch.zeros((), device=device, requires_grad=True)
        self.ran: set[str] = set()
        self.gradients: dict[Tensor, Tensor] = {}
        self._inputs: dict[str, Tensor] = {}
        # The output head sees supervised positions only; the start token makes the two totals differ.
        lengths = [packed.n_tokens for packed in packs], [packed.n_supervised for packed in packs]
        self._lengths = {sum(each): each for each in lengths}

    def hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        """Return the forward hook of a linear layer."""

        def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            n_rows = output.shape[:-1].numel()
            if name in self.ran or n_rows not in self._lengths or not torch.is_grad_enabled():
                raise ConfigError(
                    f"recipe.dp_sgd.engine=hooks: {name} ran twice, without a gradient or on {n_rows} rows, not once "
                    f"on each token ({', '.join(map(str, self._lengths))} here); {_REMEDY}"
                )
            self.ran.add(name)
            self._inputs[name] = inputs[0].detach()
            tapped: Tensor = _Tap.apply(output, self.probe, lambda grad: self._receive(name, module, grad))  # type: ignore[no-untyped-call]
            return tapped

        return record

    def _receive(self, name: str, module: nn.Module, grad: Tensor) -> None:
        lengths = self._lengths[grad.shape[:-1].numel()]
        outer = [part.float() for part in torch.split(grad.flatten(0, -2), lengths)]
        inner = torch.split(self._inputs.pop(name).flatten(0, -2), lengths)
        weight, bias = module.weight, module.bias
        if isinstance(weight, Tensor) and weight.requires_grad:
            with torch.autocast(grad.device.type, enabled=False):
                self.gradients[weight] = torch.stack([g.T @ a.float() for g, a in zip(outer, inner, strict=True)])
        if isinstance(bias, Tensor) and bias.requires_grad:
            self.gradients[bias] = torch.stack([g.sum(0) for g in outer])


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    if not parameters:
        raise ConfigError("the model has no trainable parameter; check backbone.lora")
    return parameters


def _trainable_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the layers that are trained, by name; anything but untied linear layers is an error."""
    found: dict[str, nn.Linear] = {}
    owners: dict[Tensor, str] = {}
    for name, module in model.named_modules():
        for own_name, weight in module.named_parameters(name, recurse=False):
            if not weight.requires_grad:
                continue
            if type(module) is not nn.Linear:
                raise ConfigError(
                    f"recipe.dp_sgd.engine=hooks: {own_name} is trained and belongs to a {type(module).__name__}, "
                    f"not to a plain linear layer; {_REMEDY} or train an adapter (backbone.lora)"
                )
            if weight in owners:
                raise ConfigError(
                    f"recipe.dp_sgd.engine=hooks: {own_name} is trained and tied to {owners[weight]}; {_REMEDY} or "
                    "train an adapter (backbone.lora)"
                )
            owners[weight] = own_name
            found[name] = module
    return found


def _check_shared_passes(model: nn.Module, chunk_tokens: int) -> None:
    """Refuse a model in which the longest dialogue of a pass changes what the others compute."""
    _check_chunk(chunk_tokens)
    kinds = {str(getattr(module, "rope_type", "")) for module in model.modules()}
    if odd := sorted(kind for kind in kinds if any(name in kind for name in _SEQUENCE_DEPENDENT)):
        raise ConfigError(
            f"recipe.dp_sgd.engine: rotary embeddings of type {odd[0]} follow the longest dialogue of a pass, so "
            f"dialogues cannot share one; {_REMEDY}"
        )


def _check_chunk(chunk_tokens: int) -> None:
    if chunk_tokens < 1:
        raise ConfigError(f"chunk_tokens={chunk_tokens} must be at least 1; set recipe.dp_sgd.chunk_tokens")


def _chunks(
    packs: Sequence[PackedDialogue], fits: Callable[[Sequence[PackedDialogue]], bool]
) -> Iterator[list[PackedDialogue]]:
    """Cut into groups of neighbours that fit into one pass; whole dialogues, at least one each."""
    group: list[PackedDialogue] = []
    for packed in packs:
        if group and not fits([*group, packed]):
            yield group
            group = []
        group.append(packed)
    if group:
        yield group


def _padded_losses(model: nn.Module, packs: Sequence[PackedDialogue]) -> Tensor:
    """Return `packing.losses` from a batch with one padded row per dialogue."""
    shape = len(packs), max(packed.n_tokens for packed in packs)
    device = packs[0].input_ids.device
    ids, positions = (torch.zeros(shape, dtype=torch.long, device=device) for _ in range(2))
    # Padding sees itself, or its scores would be a softmax over nothing.
    sees = torch.eye(shape[1], dtype=torch.bool, device=device).repeat(shape[0], 1, 1, 1)
    for i, packed in enumerate(packs):
        n = packed.n_tokens
        ids[i, :n], positions[i, :n] = packed.input_ids[0], packed.position_ids[0]
        sees[i, 0, :n, :n] = packed.layout.dense_mask(device=device)[0, 0]
    dtype = next(model.parameters()).dtype
    mask = torch.zeros(sees.shape, dtype=dtype, device=device).masked_fill_(~sees, torch.finfo(dtype).min)
    keep = torch.unique(torch.cat([packed.sources for packed in packs]))
    output = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False, logits_to_keep=keep)
    rows = [torch.searchsorted(keep, packed.sources) for packed in packs]
    return torch.stack(
        [
            F.cross_entropy(logits[row].float(), packed.targets, reduction="sum")
            for logits, row, packed in zip(output.logits, rows, packs, strict=True)
        ]
    )
