"""Attention of rows: what a row reads is what it would read alone, from one copy of its prompt or from its own."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from hushbot.targets.row_attention import NAME, attend
from hushbot.targets.row_cache import RowCache, SharedPrompt

HEADS, SHARING, WIDTH, LONGEST = 2, 3, 4, 5
LENGTHS = (5, 1, 3, 2)
"""Own tokens of each row."""


def random(*shape: int) -> Tensor:
    """Return numbers that depend on the shape only."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def naive(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend to tokens one after another, for one query of one head."""
    weights = [float(torch.exp(query @ key)) for key in keys]
    return sum(
        (w * value for w, value in zip(weights, values, strict=True)), torch.zeros(WIDTH, dtype=torch.float64)
    ) / sum(weights)


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([], id="no prompt"),
        pytest.param([(slice(None), 7)], id="one prompt"),
        pytest.param([(torch.tensor([0, 3]), 2), (torch.tensor([1, 2]), 6)], id="two prompts"),
        pytest.param([(torch.tensor([2, 1]), 6)], id="rows without a prompt"),
    ],
)
def test_rows_read_their_prompt_and_their_own_tokens(groups: list[tuple[Tensor | slice, int]]) -> None:
    queries, keys = random(4, HEADS, SHARING, WIDTH), random(4, HEADS, LONGEST, WIDTH)
    values = random(4, HEADS, LONGEST, WIDTH) + 1
    mask = torch.zeros(4, 1, 1, LONGEST, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        mask[row, :, :, length:] = -torch.inf
    prompts = [SharedPrompt(rows, random(HEADS, n, WIDTH), random(HEADS, n, WIDTH) - 1) for rows, n in groups]
    read = attend(queries, keys, values, mask, prompts)
    assert read.shape == (4, HEADS, SHARING, WIDTH)
    for row, length in enumerate(LENGTHS):
        for head in range(HEADS):
            before = [prompt for prompt in prompts if row in torch.arange(4)[prompt.rows]]
            seen = [key for prompt in before for key in prompt.keys[head]] + list(keys[row, head, :length])
            said = [value for prompt in before for value in prompt.values[head]] + list(values[row, head, :length])
            for query, got in zip(queries[row, head], read[row, head], strict=True):
                assert got.tolist() == pytest.approx(naive(query, seen, said).tolist(), abs=1e-12)


def test_without_a_cache_of_rows_it_is_the_fused_attention() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: Any = LlamaForCausalLM(
            LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
        ).eval()
    ids, mask = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    with torch.no_grad():
        model.set_attn_implementation("sdpa")
        expected = model(input_ids=ids, attention_mask=mask).logits
        model.set_attn_implementation(NAME)
        assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, expected)


@pytest.mark.parametrize(
    ("mask", "option", "message"),
    [
        (torch.zeros(1, 1, 1, 2), "softcap", "attends with softcap"),
        (torch.zeros(1, 1, 1, 2), "s_aux", "attends with s_aux"),
        (torch.ones(1, 1, 1, 2, dtype=torch.bool), None, "under a mask that is added"),
        (None, None, "under a mask that is added"),
    ],
)
def test_what_it_does_not_compute_is_refused(mask: Tensor | None, option: str | None, message: str) -> None:
    attention = cast("Any", AttentionInterface())[NAME]
    states, cache = (
        torch.zeros(1, 1, 2, 4),
        RowCache([(torch.zeros(1, 0, 4), torch.zeros(1, 0, 4))], n_rows=1, capacity=2),
    )
    options = {} if option is None else {option: torch.tensor(1.0)}
    with pytest.raises(ValueError, match=message):
        attention(nn.Identity(), states[:, :, :1], states, states, mask, row_cache=cache, **options)
