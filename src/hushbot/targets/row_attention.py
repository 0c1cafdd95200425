"""Attention of rows that each read one more token, their common prompts read once for all rows that continue them.

Guarantees: a row attends to its prompt and to its own tokens under one softmax, as it would if it had a copy of the
prompt, up to rounding. All queries of a prompt are multiplied with its keys and values in one product, and heads that
share keys are not given copies of them. Without a cache of rows the implementation is exactly transformers' `sdpa`.

Voids it: attention that is more than softmax over scaled products. Logit caps, attention sinks and position biases are
refused; what else a model may do is measured (`CausalLM.supports_sharing`).

Source: transformers, "Attention interface"; Juravsky et al. (2024), Hydragen, for the products of a common prompt.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hushbot.targets.row_cache import RowCache, SharedPrompt

NAME = "hushbot_rows"
"""The attention implementation's name."""
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    row_cache: RowCache | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as the rows of a cache do; the signature is transformers' (batch, heads, tokens, head size)."""
    if row_cache is None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    odd = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if odd:
        raise ValueError(f"{type(module).__name__} attends with {', '.join(odd)}")
    if attention_mask is None or not attention_mask.is_floating_point() or query.shape[2] != 1:
        raise ValueError(
            f"{type(module).__name__} does not read one token per row under a mask that is added to scores"
        )
    n_rows, n_heads, _, width = query.shape
    # Heads that share keys stand together: (rows, heads of the keys, heads that share them, head size).
    queries = (query * (width**-0.5 if scaling is None else scaling)).reshape(n_rows, key.shape[1], -1, width)
    prompts = row_cache.shared_prompts(int(module.layer_idx))  # type: ignore[arg-type]
    attended = attend(queries, key, value, attention_mask, prompts)
    return attended.reshape(n_rows, 1, n_heads, value.shape[-1]), None


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, prompts: list[SharedPrompt]) -> Tensor:
    """Return what rows of one query per head read from their prompts and from their own tokens.

    Args:
        queries: Scaled, of shape (rows, heads of the keys, heads that share them, width).
        keys: Of the rows' own tokens, (rows, heads of the keys, longest, width).
        values: Likewise.
        mask: What is added to the scores of own tokens, (rows, 1, 1, longest).
        prompts: What rows have in common; a row belongs to one at most.
    """
    scores = torch.matmul(queries, keys.transpose(2, 3)) + mask
    n_before = max((prompt.keys.shape[1] for prompt in prompts), default=0)
    if prompts:
        before = _scores_before(queries, prompts, n_before)
        scores = torch.cat([before, scores], dim=-1)
    # In fp32 at least, as transformers does it.
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
    read = torch.matmul(weights[..., n_before:], values)
    for prompt in prompts:
        n_tokens = prompt.keys.shape[1]
        found = _by_head(weights[prompt.rows, :, :, :n_tokens]) @ prompt.values
        read[prompt.rows] += _by_row(found, read.shape[2])
    return read


def _scores_before(queries: Tensor, prompts: list[SharedPrompt], n_before: int) -> Tensor:
    """Return the scores of the prompts' tokens, (rows, heads of the keys, heads that share them, longest prompt)."""
    found = [
        _by_row(_by_head(queries[prompt.rows]) @ prompt.keys.transpose(1, 2), queries.shape[2]) for prompt in prompts
    ]
    if len(found) == 1 and len(found[0]) == len(queries):
        return found[0]
    scores = queries.new_full((*queries.shape[:3], n_before), -torch.inf)
    for prompt, part in zip(prompts, found, strict=True):
        scores[prompt.rows, :, :, : part.shape[3]] = part
    return scores


def _by_head(rows: Tensor) -> Tensor:
    """Return (rows, heads, sharing, any) as (heads, rows and sharing, any)."""
    return rows.transpose(0, 1).flatten(1, 2)


def _by_row(heads: Tensor, n_sharing: int) -> Tensor:
    """Return (heads, rows and sharing, any) as (rows, heads, sharing, any)."""
    return heads.reshape(heads.shape[0], -1, n_sharing, heads.shape[2]).transpose(0, 1)


# Once for the process; the name is ours, so nothing else is affected.
AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
