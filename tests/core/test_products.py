"""Products with weights: the layer's own numbers, and when it is asked itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hushbot.targets import products
from hushbot.targets.products import multiply


def layer(n_in: int = 64, n_out: int = 512, **options: Any) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(n_in, n_out, **options)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many rows a fast routine is asked for, on a machine that has one."""
    sizes: list[int] = []

    def routine(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        sizes.append(len(rows))
        return F.linear(rows, weight, bias)

    monkeypatch.setattr(products, "_routine", lambda: routine)
    return sizes


@pytest.mark.parametrize("n_rows", [1, 31, 32, 33, 500])
@pytest.mark.parametrize("bias", [True, False])
def test_it_gives_what_the_layer_gives(n_rows: int, bias: bool) -> None:
    one, rows = layer(bias=bias), torch.randn(n_rows, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(multiply(one, rows), one(rows), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(multiply(one, rows[::2]), one(rows[::2]), atol=1e-5, rtol=1e-5)


def test_a_fast_routine_is_for_many_products(asked: list[int]) -> None:
    with torch.no_grad():
        multiply(layer(), torch.randn(31, 64))  # 31 * 64 * 512 are less than 2^20
        multiply(layer(), torch.randn(32, 64))
    assert asked == [32]


def test_rows_are_padded_to_few_numbers(asked: list[int]) -> None:
    rows = torch.randn(1100, 64)
    with torch.no_grad():
        for n in range(32, 1100):
            assert multiply(layer(), rows[:n]).shape == (n, 512)
    assert sorted(set(asked))[:9] == [32, 40, 48, 56, 64, 80, 96, 112, 128]
    assert len(set(asked)) == 4 * 5 + 2  # from 32 to 1024, and 1152
    assert all(n <= size <= 1.25 * n for n, size in zip(range(32, 1100), asked, strict=True))


def test_whatever_is_special_is_called_as_it_is(asked: list[int]) -> None:
    rows, calls = torch.randn(100, 64), list[str]()

    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    hooked, replaced = layer(), layer()
    hooked.register_forward_hook(lambda *_: calls.append("hook"))
    replaced.forward = lambda rows: calls.append("forward") or rows  # type: ignore[assignment,func-returns-value]
    with torch.no_grad():
        assert torch.equal(multiply(hooked, rows), F.linear(rows, hooked.weight, hooked.bias))
        assert multiply(replaced, rows) is rows
        doubled = Doubled(64, 512)
        assert torch.equal(multiply(doubled, rows), 2 * F.linear(rows, doubled.weight, doubled.bias))
        for dtype in (torch.float64, torch.bfloat16):
            assert multiply(layer(dtype=dtype), rows.to(dtype)).dtype is dtype
        assert multiply(layer(), rows[0]).shape == (512,)
        assert multiply(layer(), rows[None]).shape == (1, 100, 512)
    assert calls == ["hook", "forward"]
    assert asked == []


def test_gradients_are_the_layers_own(asked: list[int]) -> None:
    one = layer()
    multiply(one, torch.randn(100, 64)).sum().backward()
    assert one.weight.grad is not None
    assert asked == []
