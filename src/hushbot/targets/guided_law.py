"""The laws by which a phrase is chosen, and the random numbers behind every choice.

Guarantees: `phrase_law` gives each phrase its share of the probability of all phrases; n draws are split over options
as n independent draws would be; random numbers belong to a seed, a prompt's position and a key, nothing else.

`token_law` is another law: Q(c) is the product of p(t_i) / Z_i, Z_i the mass of the tokens allowed at step i, where the
phrase law is the product of p(t_i) over its sum. The two agree only where the products of the Z_i do.

Source: Task-oriented dialogue state extraction, section IV-B2 (w = Sample(P(w' | prefix), w' in C)).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from hushbot.errors import AuditError
from hushbot.intervals import FloatArray

Law = Literal["phrase", "token"]


class Lot(NamedTuple):
    """What the random numbers of some draws hang on, and nothing else does."""

    seed: int
    position: int
    key: bytes

    def uniform(self) -> float:
        """Return a number in [0, 1): all that one draw needs, at a tenth of the time of a generator."""
        return (int.from_bytes(self._digest("one")[:8], "big") >> 11) / 2**53

    def uniforms(self, n: int) -> FloatArray:
        """Return n numbers in [0, 1)."""
        return np.array([self.uniform()]) if n == 1 else self.generator().random(n)

    def generator(self, purpose: str = "") -> np.random.Generator:
        """Return random numbers that are drawn for a purpose and for no other."""
        return np.random.default_rng(int.from_bytes(self._digest(purpose), "big"))

    def _digest(self, purpose: str) -> bytes:
        named = f"{self.seed}/{self.position}/".encode() + self.key
        return hashlib.blake2b(named, digest_size=16, person=purpose.encode()).digest()


def phrase_law(scores: FloatArray, temperature: float) -> FloatArray:
    """Return the probability of each phrase from its log-probability as a whole; temperature 0 takes the best.

    Phrases of several texts are rows of a table.
    """
    if not np.all(np.isfinite(scores)):
        raise AuditError("a phrase has a log-probability that is not finite; doubt the target")
    if temperature == 0:
        best = np.argmax(scores, axis=-1, keepdims=True)
        return np.asarray(np.arange(scores.shape[-1]) == best, dtype=np.float64)
    weights = np.exp((scores - scores.max(axis=-1, keepdims=True)) / temperature)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float64)


def token_law(paths: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], temperature: float) -> FloatArray:
    """Return the probability of each phrase when every token is drawn among those that lead to some phrase.

    Args:
        paths: The tokens of each phrase; no path is the beginning of another.
        scores: The log-probability of each of those tokens after the ones before it.
        temperature: Of each token's draw; 0 takes the best at each step.
    """
    children: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for path, values in zip(paths, scores, strict=True):
        for i, (token, value) in enumerate(zip(path, values, strict=True)):
            children[tuple(path[:i])][token] = value
    steps: dict[tuple[int, ...], dict[int, float]] = {}
    for node, options in children.items():
        chances = phrase_law(np.array(list(options.values())), temperature)
        steps[node] = dict(zip(options, chances.tolist(), strict=True))
    return np.array(
        [np.prod([steps[tuple(path[:i])][token] for i, token in enumerate(path)]) for path in paths], dtype=np.float64
    )


def split_counts(chances: FloatArray, counts: Sequence[int], lots: Sequence[Lot]) -> list[dict[int, int]]:
    """Return per text how many of its draws fall on each option, options without a draw left out.

    Args:
        chances: The probability of each option, texts in rows.
        counts: How many draws there are of each text.
        lots: What each text's draws hang on.
    """
    cumulative = chances.cumsum(axis=1)
    # A single draw inverts the cumulative distribution.
    uniforms = np.array([lot.uniform() if count == 1 else 0.0 for lot, count in zip(lots, counts, strict=True)])
    totals = cumulative[:, -1]
    # Rounding may lift the product to the total itself, past every option.
    wanted = np.minimum(uniforms * totals, np.nextafter(totals, 0.0))
    single = (cumulative > wanted[:, None]).argmax(axis=1).tolist()
    return [
        {single[at]: 1} if count == 1 else split_count(chances[at], count, lot.generator())
        for at, (lot, count) in enumerate(zip(lots, counts, strict=True))
    ]


def split_count(chances: FloatArray, count: int, rng: np.random.Generator) -> dict[int, int]:
    """Return how many of some draws fall on each option, options without a draw left out."""
    drawn = rng.multinomial(count, chances / chances.sum()).tolist()
    return {i: n for i, n in enumerate(drawn) if n}


def accepted(
    counts: dict[int, int], bounds: FloatArray, scores: FloatArray, temperature: float, rng: np.random.Generator
) -> dict[int, int]:
    """Return draws under the phrase law, made of draws under that of upper bounds of its scores.

    It is rejection sampling: each draw is kept in proportion to how much of the bound there is, else made anew.

    Args:
        counts: How many draws fell on each phrase.
        bounds: The log-probabilities that they were drawn with.
        scores: The true ones, nowhere greater but for rounding.
        temperature: Of the draws, above 0.
        rng: Random numbers that nothing else was drawn with.
    """
    # A token that is all but certain may be rounded to more than that.
    shares = np.exp(np.minimum(scores - bounds, 0.0) / temperature)
    kept = {phrase: int(rng.binomial(count, shares[phrase])) for phrase, count in counts.items()}
    anew = split_count(phrase_law(scores, temperature), sum(counts.values()) - sum(kept.values()), rng)
    together = {phrase: kept.get(phrase, 0) + anew.get(phrase, 0) for phrase in sorted({*kept, *anew})}
    return {phrase: count for phrase, count in together.items() if count}
