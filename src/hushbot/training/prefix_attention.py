"""Attention over a packed dialogue: one shared trunk and branches that each see a beginning of it.

Guarantees: a branch attends to the first `prefix` tokens of the trunk and to itself, causally, and to nothing
else; so with the position ids it would have had alone, every token gets the hidden state it would have had
alone, up to floating-point rounding. Several dialogues may stand one after another in one pass (`Forest`): each
attends to itself only. No mask over the whole sequence is built: the trunk is one causal block,
each branch one rectangle, so the cost is that of the pairs which exist. Works with every model that goes
through transformers' `AttentionInterface` (Llama- and GPT-2-type, grouped-query heads, peft adapters,
gradient checkpointing); others get the same attention as one dense mask.

Void where attention is not all there is to context, or not plain: state-space layers, sliding windows, logit
caps and attention sinks are refused. `verify` compares packed sequences with ordinary rows on the model
itself, so an architecture that slips through all checks is refused too. Dropout makes equality a statement
about expectations only.

Source: transformers, "Attention interface"; the structure is our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hushbot.errors import ConfigError

NAME = "hushbot_prefix"
"""The attention implementation's name; without a layout it is exactly transformers' `sdpa`."""
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch of a packed sequence."""

    length: int
    """Its tokens; branches follow the trunk and each other without gaps."""
    prefix: int
    """How many of the trunk's tokens come before it."""


@dataclass(frozen=True, slots=True)
class PrefixLayout:
    """Who attends to whom in a packed sequence; plain numbers, so it belongs to no device."""

    trunk: int
    """Tokens of the trunk, which attends to itself causally."""
    branches: tuple[Branch, ...] = ()

    @property
    def n_tokens(self) -> int:
        """Return the length of the packed sequence."""
        return self.trunk + sum(branch.length for branch in self.branches)

    @property
    def trees(self) -> tuple[PrefixLayout, ...]:
        """Return the packed sequences that stand in one pass: this one alone."""
        return (self,)

    def dense_mask(self, *, device: torch.device | str = "cpu") -> Tensor:
        """Return the same attention as a (1, 1, n, n) boolean mask, True where a query sees a key."""
        mask = torch.zeros(self.n_tokens, self.n_tokens, dtype=torch.bool, device=device)
        mask[: self.trunk, : self.trunk] = _causal(self.trunk, 0, device)
        start = self.trunk
        for branch in self.branches:
            stop = start + branch.length
            mask[start:stop, : branch.prefix] = True
            mask[start:stop, start:stop] = _causal(branch.length, 0, device)
            start = stop
        return mask[None, None]


@dataclass(frozen=True, slots=True)
class Forest:
    """Several packed sequences one after another in one pass, each attending to itself only."""

    trees: tuple[PrefixLayout, ...]
    """The layout of each, in order and without gaps."""

    @property
    def n_tokens(self) -> int:
        """Return the length of all sequences together."""
        return sum(tree.n_tokens for tree in self.trees)

    def dense_mask(self, *, device: torch.device | str = "cpu") -> Tensor:
        """Return the same attention as a (1, 1, n, n) boolean mask: block-diagonal."""
        mask = torch.zeros(self.n_tokens, self.n_tokens, dtype=torch.bool, device=device)
        start = 0
        for tree in self.trees:
            stop = start + tree.n_tokens
            mask[start:stop, start:stop] = tree.dense_mask(device=device)[0, 0]
            start = stop
        return mask[None, None]


Layout: TypeAlias = PrefixLayout | Forest


def prefix_logits(
    model: nn.Module,
    input_ids: Tensor,
    position_ids: Tensor,
    layout: Layout,
    keep: Tensor,
    *,
    dense: bool = False,
) -> Tensor:
    """Return the logits at the positions `keep` of one packed sequence or forest, (len(keep), vocabulary).

    Leaves the model's attention implementation at `NAME`: gradient checkpointing computes layers again during
    the backward pass, when it is too late to switch.
    """
    base = _base_model(model)
    if dense or not base._supports_attention_backend:
        # Added to the scores, so that eager and sdpa implementations read it alike.
        hidden = ~layout.dense_mask(device=input_ids.device)
        dtype = next(base.parameters()).dtype
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        output = model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=mask,
            use_cache=False,
            logits_to_keep=keep,
        )
    else:
        if base.config._attn_implementation != NAME:
            base.set_attn_implementation(NAME)
        output = model(
            input_ids=input_ids,
            position_ids=position_ids,
            # A 4-D mask is passed on as it is, which keeps transformers from building an n x n one.
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device),
            use_cache=False,
            logits_to_keep=keep,
            prefix_layout=layout,
        )
    logits: Tensor = output.logits[0]
    return logits


@torch.no_grad()
def verify(model: nn.Module) -> None:
    """Compare two small packed sequences in one pass with their ordinary rows on this very model.

    Raises:
        ConfigError: They differ, so the architecture cannot be trained on packed dialogues.
    """
    config = _base_model(model).config.get_text_config()
    if getattr(_base_model(model), "_is_stateful", False):
        raise ConfigError(f"backbone: {config.model_type} models keep a running state; choose an attention model")
    device = next(model.parameters()).device
    ids = [(7 * i + 3) % config.vocab_size for i in range(15)]
    # Trunk of 5, a branch after its first 2 tokens, a branch after its first 4; then another dialogue.
    layout = Forest((PrefixLayout(5, (Branch(4, 2), Branch(3, 4))), PrefixLayout(3)))
    positions = [0, 1, 2, 3, 4, 2, 3, 4, 5, 4, 5, 6, 0, 1, 2]
    rows = [ids[:5], ids[:2] + ids[5:9], ids[:4] + ids[9:12], ids[12:]]
    was_training, attention = model.training, config._attn_implementation
    model.eval()
    try:
        ids_tensor = torch.tensor([ids], device=device)
        keep = torch.tensor([4, 8, 11, 14], device=device)
        packed = prefix_logits(model, ids_tensor, torch.tensor([positions], device=device), layout, keep)
        alone = torch.stack(
            [model(input_ids=torch.tensor([row], device=device), use_cache=False).logits[0, -1] for row in rows]
        )
    finally:
        model.train(was_training)
        # Whoever only asks the model, and never trains it, keeps the attention it was loaded with.
        _base_model(model).set_attn_implementation(attention)
    error = float((packed.float() - alone.float()).abs().max() / alone.float().abs().max())
    tolerance = _TOLERANCE if alone.dtype == torch.float32 else 50 * _TOLERANCE
    if not error <= tolerance:
        raise ConfigError(
            f"backbone: {config.model_type} gives other logits for packed dialogues than for rows (relative "
            f"difference {error:.2g} > {tolerance:g}); choose a model with plain causal attention"
        )


def _base_model(model: nn.Module) -> Any:
    """Return the transformers model inside an engine or an adapter, or the model itself."""
    inner = getattr(model, "module", model)
    unwrap = getattr(inner, "get_base_model", None)
    return unwrap() if unwrap is not None else inner


def _causal(n_queries: int, prefix: int, device: torch.device | str) -> Tensor:
    """Return a mask in which query i sees the prefix and the first i + 1 tokens after it."""
    return torch.ones(n_queries, prefix + n_queries, dtype=torch.bool, device=device).tril_(prefix)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    prefix_layout: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as the layout says; the signature is transformers' (batch, heads, tokens, head size)."""
    if prefix_layout is None:
        if attention_mask is not None and attention_mask.shape[-1] != key.shape[2]:
            raise ConfigError(f"backbone: {type(module).__name__} does not pass the packed layout on to attention")
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    _refuse_unsupported(module, prefix_layout, options)
    n_groups = query.shape[1] // key.shape[1]
    if n_groups > 1:
        key, value = key.repeat_interleave(n_groups, 1), value.repeat_interleave(n_groups, 1)
    trees = prefix_layout.trees
    pieces = (torch.split(tensor, [tree.n_tokens for tree in trees], 2) for tensor in (query, key, value))
    outputs = [
        output
        for tree, q, k, v in zip(trees, *pieces, strict=True)
        for output in _tree_attention(tree, q, k, v, dropout, scaling)
    ]
    return torch.cat(outputs, 2).transpose(1, 2), None


def _tree_attention(
    layout: PrefixLayout, query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None
) -> list[Tensor]:
    """Attend within one packed sequence: the trunk, then each branch."""
    sizes = [layout.trunk, *(branch.length for branch in layout.branches)]
    queries, keys, values = (torch.split(tensor, sizes, 2) for tensor in (query, key, value))
    outputs = [
        F.scaled_dot_product_attention(queries[0], keys[0], values[0], dropout_p=dropout, is_causal=True, scale=scaling)
    ]
    for branch, q, k, v in zip(layout.branches, queries[1:], keys[1:], values[1:], strict=True):
        outputs.append(
            F.scaled_dot_product_attention(
                q,
                torch.cat([keys[0][:, :, : branch.prefix], k], 2),
                torch.cat([values[0][:, :, : branch.prefix], v], 2),
                attn_mask=_causal(branch.length, branch.prefix, q.device),
                dropout_p=dropout,
                scale=scaling,
            )
        )
    return outputs


def _refuse_unsupported(module: nn.Module, layout: Layout, options: dict[str, Any]) -> None:
    """Raise where plain causal attention is not what this layer computes."""
    odd = [name for name in _UNSUPPORTED if options.get(name) is not None]
    window = options.get("sliding_window")
    reach = max(
        max([tree.trunk, *(branch.prefix + branch.length for branch in tree.branches)]) for tree in layout.trees
    )
    if odd or (window is not None and window < reach):
        reason = ", ".join(odd) or f"a sliding window of {window} tokens, less than the {reach} of this dialogue"
        raise ConfigError(
            f"backbone: {type(module).__name__} uses {reason}, which packed training does not "
            "compute; choose a model with plain causal attention or lower backbone.max_length"
        )


# Once for the process; the name is ours, so nothing else is affected.
AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
