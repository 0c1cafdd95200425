"""One dialogue moves the sum by at most the clipping norm, and the noise has the size the accountant was told."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hushbot.errors import ConfigError
from hushbot.training.clipping import ClippedSum, noisy_gradient


def parameters(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape)) for shape in shapes]


def two() -> list[nn.Parameter]:
    return parameters((2,), (1, 1))


def add_each(clipped: ClippedSum, per_dialogue: list[Tensor], many: bool) -> None:
    if many:
        clipped.add_many(per_dialogue)
    else:
        for i in range(len(per_dialogue[0])):
            clipped.add([grad[i] for grad in per_dialogue])


@pytest.mark.parametrize("many", [False, True])
def test_the_norm_is_that_of_all_parameters_together(many: bool) -> None:
    clipped = ClippedSum(two(), 1.0)
    # Norms 3 = |(1, 2, 2)| and 0.3: the first is scaled by a third, the second not at all.
    add_each(clipped, [torch.tensor([[1.0, 2.0], [0.1, 0.2]]), torch.tensor([[[2.0]], [[0.2]]])], many)
    torch.testing.assert_close(clipped.sums[0], torch.tensor([1 / 3 + 0.1, 2 / 3 + 0.2]))
    torch.testing.assert_close(clipped.sums[1], torch.tensor([[2 / 3 + 0.2]]))
    assert clipped.n_dialogues == 2


@pytest.mark.parametrize("many", [False, True])
def test_up_to_the_norm_nothing_changes(many: bool) -> None:
    clipped = ClippedSum(parameters((2,)), 5.0)
    add_each(clipped, [torch.tensor([[3.0, 4.0]])], many)
    assert clipped.sums[0].tolist() == [3.0, 4.0]
    clipped.reset()
    add_each(clipped, [torch.zeros(1, 2)], many)
    assert clipped.sums[0].tolist() == [0.0, 0.0]
    assert clipped.n_dialogues == 1


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e10, 1e25, 3e38])
@pytest.mark.parametrize("limit", [1e-3, 1.0])
def test_the_clipped_norm_never_exceeds_the_limit(size: float, limit: float, many: bool) -> None:
    """1e25 squared is no float32 any more."""
    clipped = ClippedSum(parameters((50, 40), (7,)), limit)
    generator = torch.Generator().manual_seed(0)
    per_dialogue = [size * (2 * torch.rand(1, *p.shape, generator=generator) - 1) for p in clipped.parameters]
    add_each(clipped, per_dialogue, many)
    norm = math.sqrt(sum(float(total.double().pow(2).sum()) for total in clipped.sums))
    wanted = min(limit, math.sqrt(sum(float(grad.double().pow(2).sum()) for grad in per_dialogue)))
    assert norm == pytest.approx(wanted, rel=1e-6)


def test_a_norm_over_many_numbers_is_not_underestimated() -> None:
    clipped = ClippedSum(parameters((3_000_000,)), 1.0)
    clipped.add([torch.full((3_000_000,), 0.1)])
    assert float(clipped.sums[0].double().norm()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_dialogue_that_is_not_finite_contributes_nothing(bad: float, many: bool) -> None:
    clipped = ClippedSum(two(), 1.0)
    add_each(clipped, [torch.tensor([[0.5, 0.0], [bad, 0.1], [0.25, 0.0]]), torch.zeros(3, 1, 1)], many)
    assert clipped.sums[0].tolist() == [0.75, 0.0]
    assert clipped.sums[1].tolist() == [[0.0]]


def test_a_parameter_without_a_gradient_stays_out() -> None:
    clipped = ClippedSum(two(), 1.0)
    clipped.add([None, torch.tensor([[2.0]])])
    clipped.add([None, None])
    assert clipped.sums[0].tolist() == [0.0, 0.0]
    assert clipped.sums[1].tolist() == [[1.0]]


def test_gradients_for_other_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="1 parameters for 2"):
        ClippedSum(two(), 1.0).add_many([torch.zeros(3, 2)])


@pytest.mark.parametrize("many", [False, True])
def test_low_precision_gradients_are_clipped_in_float32(many: bool) -> None:
    clipped = ClippedSum(parameters((1000,)), 1.0)
    grad = torch.linspace(-3, 3, 1000).to(torch.bfloat16)[None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        add_each(
            clipped,
            [
                grad,
            ],
            many,
        )
    assert clipped.sums[0].dtype == torch.float32
    torch.testing.assert_close(clipped.sums[0], grad[0].float() / grad[0].float().norm(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_a_senseless_limit_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match=r"max_grad_norm=.*recipe\.dp_sgd"):
        ClippedSum(two(), limit)


def test_without_noise_the_gradient_is_the_sum_over_the_expected_number() -> None:
    clipped = ClippedSum(two(), 10.0)
    clipped.add([torch.tensor([1.0, 2.0]), torch.tensor([[4.0]])])
    noisy_gradient(clipped, noise_multiplier=0.0, expected_batch_size=8.0, generator=torch.Generator())
    assert [p.grad.tolist() for p in clipped.parameters if p.grad is not None] == [[0.125, 0.25], [[0.5]]]


def draws(n: int, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float) -> Tensor:
    """Return n successive gradients of an empty batch."""
    clipped = ClippedSum(parameters((20_000,)), max_grad_norm)
    generator = torch.Generator().manual_seed(3)
    out = []
    for _ in range(n):
        noisy_gradient(
            clipped, noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size, generator=generator
        )
        assert clipped.parameters[0].grad is not None
        out.append(clipped.parameters[0].grad)
    return torch.stack(out)


def test_an_empty_batch_is_noise_of_the_right_size() -> None:
    noise = draws(5, noise_multiplier=1.5, max_grad_norm=0.2, expected_batch_size=4.0)
    assert float(noise.std()) == pytest.approx(1.5 * 0.2 / 4.0, rel=0.03)
    assert abs(float(noise.mean())) < 4 * 0.075 / math.sqrt(noise.numel())


def test_successive_noise_is_unrelated() -> None:
    correlation = torch.corrcoef(draws(5, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1.0))
    correlation.fill_diagonal_(0.0)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(20_000)


def test_noise_comes_from_the_given_generator_alone() -> None:
    clipped = ClippedSum(two(), 1.0)
    settings = {"noise_multiplier": 1.0, "expected_batch_size": 1.0}
    before = torch.get_rng_state()
    noisy_gradient(clipped, generator=torch.Generator().manual_seed(1), **settings)
    first = clipped.parameters[0].grad
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    noisy_gradient(clipped, generator=torch.Generator().manual_seed(1), **settings)
    assert first is not None
    assert clipped.parameters[0].grad is not None
    assert torch.equal(clipped.parameters[0].grad, first)


def test_noise_is_drawn_in_double_precision() -> None:
    """A float32 normal on the CPU ends at 5.8 standard deviations."""
    clipped = ClippedSum(parameters((100,)), 1.0)
    noisy_gradient(clipped, noise_multiplier=2.0, expected_batch_size=1.0, generator=torch.Generator().manual_seed(1))
    expected = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert clipped.parameters[0].grad is not None
    torch.testing.assert_close(clipped.parameters[0].grad, 2 * expected.float())


def test_noise_reaches_parameters_of_every_kind_in_their_own_precision() -> None:
    weights = [nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)), nn.Parameter(torch.zeros(4))]
    noisy_gradient(ClippedSum(weights, 1.0), noise_multiplier=1.0, expected_batch_size=1.0, generator=torch.Generator())
    for weight in weights:
        assert weight.grad is not None
        assert weight.grad.dtype == weight.dtype
        assert weight.grad.count_nonzero() == 4


def test_senseless_noise_is_refused_with_every_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        noisy_gradient(
            ClippedSum(two(), 1.0),
            noise_multiplier=math.nan,
            expected_batch_size=0.0,
            generator=torch.Generator(),
        )
    assert len(caught.value.problems) == 2
