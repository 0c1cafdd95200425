"""Guided sampling through single questions: whole phrases by their probability, free pieces up to a delimiter."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from hushbot.errors import AuditError, ConfigError
from hushbot.targets.guided import (
    Choice,
    Free,
    Grammar,
    Guided,
    GuidedDraws,
    Law,
    ask_for_guided,
    end_of_piece,
    phrase_law,
    sample_guided,
    split_count,
    token_law,
)
from hushbot.targets.guided_law import Lot, accepted, split_counts
from hushbot.targets.guided_texts import Node as Drawn
from hushbot.targets.guided_texts import merged
from hushbot.targets.places import Place
from hushbot.types import Decoding

if TYPE_CHECKING:
    from torch import Tensor

    from hushbot.protocols import Target

PLAIN = Decoding()
CHARACTERS = {"a": 0.4, "b": 0.2, ",": 0.2, "\\": 0.1, "\n": 0.1}


@dataclass
class Typist:
    """Writes characters independently of each other, each a token."""

    chances: Mapping[str, float] = field(default_factory=lambda: CHARACTERS)
    extra: Mapping[str, float] = field(default_factory=lambda: {"!": 0.25})
    """What is scored and never written."""
    n_questions: int = field(default=0, init=False)
    n_pairs: int = field(default=0, init=False)
    n_drawn: int = field(default=0, init=False)
    pairs: set[tuple[str, str]] = field(default_factory=set, init=False)
    sampled: list[tuple[tuple[str, ...], int]] = field(default_factory=list, init=False)
    reference: Target | None = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        texts = []
        self.n_drawn += n * len(prompts)
        self.sampled.append((tuple(prompts), seed))
        for position in range(len(prompts)):
            rngs = [random.Random(f"{seed}/{position}/{draw}") for draw in range(n)]
            drawn = ["".join(rng.choices(*zip(*self.chances.items(), strict=True), k=max_new_tokens)) for rng in rngs]
            texts.append([text.split(decoding.stop[0], 1)[0] for text in drawn])
        return texts

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        self.n_questions += 1
        self.n_pairs += len(prompts)
        self.pairs |= set(zip(prompts, continuations, strict=True))
        return [torch.tensor([math.log({**self.extra, **self.chances}[c]) for c in text]) for text in continuations]


@dataclass(frozen=True)
class Pair:
    """One phrase of three, a free piece, an end."""

    limit: int = 2

    def next(self, text: str) -> Choice | Free | None:
        body = text.rpartition(":")[2]
        if not body:
            return Choice(("a", "ba", "bb"))
        if body[-1] == "!":
            return None
        return Free(",", self.limit) if body in ("a", "ba", "bb") else Choice(("!",))


def counts(texts: Sequence[Guided]) -> dict[tuple[str, bool], int]:
    return {(text.text, text.is_complete): text.count for text in texts}


def test_phrase_law_is_proportional_to_the_probability_of_the_whole_phrase() -> None:
    scores = np.log([0.3, 0.1, 0.2])
    assert phrase_law(scores, 1.0) == pytest.approx([1 / 2, 1 / 6, 1 / 3])
    # At temperature 1/2 probabilities are squared: 9, 1 and 4 of 14.
    assert phrase_law(scores, 0.5) == pytest.approx([9 / 14, 1 / 14, 4 / 14])
    assert phrase_law(scores, 0).tolist() == [1, 0, 0]


def test_phrase_law_of_improbable_phrases_does_not_vanish() -> None:
    assert phrase_law(np.array([-2000.0, -2000.0 + math.log(3)]), 1.0) == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_phrase_law_of_a_score_that_is_not_finite_is_an_error(bad: float) -> None:
    with pytest.raises(AuditError, match="not finite"):
        phrase_law(np.array([0.0, bad]), 1.0)


def test_token_law_by_hand() -> None:
    # First tokens 1 (0.2) and 2 (0.3), so Z = 0.5; behind 1 come 3 (0.9) and 4 (0.1), so Z = 1; behind 2 comes 5
    # (0.1), so Z = 0.1 and 5 is certain.
    paths, scores = [[1, 3], [1, 4], [2, 5]], [np.log([0.2, 0.9]), np.log([0.2, 0.1]), np.log([0.3, 0.1])]
    token = token_law(paths, [values.tolist() for values in scores], 1.0)
    assert token == pytest.approx([0.4 * 0.9, 0.4 * 0.1, 0.6])
    phrase = phrase_law(np.array([values.sum() for values in scores]), 1.0)
    assert phrase == pytest.approx([0.18 / 0.23, 0.02 / 0.23, 0.03 / 0.23])
    # 0.36 - 0.783, 0.04 - 0.087, 0.6 - 0.130: the differences up are what the differences down are.
    assert abs(token - phrase).sum() / 2 == pytest.approx(0.6 - 0.03 / 0.23)


def test_token_law_has_its_temperature_at_every_token() -> None:
    paths, scores = (
        [[1, 3], [1, 4], [2, 5]],
        [[math.log(p) for p in path] for path in ((0.2, 0.9), (0.2, 0.1), (0.3, 0.1))],
    )
    # Squared: 0.04 and 0.09 first, then 0.81 and 0.01.
    assert token_law(paths, scores, 0.5) == pytest.approx([4 / 13 * 81 / 82, 4 / 13 / 82, 9 / 13])
    assert token_law(paths, scores, 0).tolist() == [0, 0, 1]
    assert phrase_law(np.array([sum(path) for path in scores]), 0).tolist() == [1, 0, 0]


@given(
    first=st.lists(st.floats(0.01, 1), min_size=2, max_size=4),
    second=st.lists(st.floats(0.01, 1), min_size=2, max_size=3),
)
def test_the_laws_agree_where_all_phrases_lose_the_same_mass(first: list[float], second: list[float]) -> None:
    # Every first token is followed by the same probabilities, so each phrase's Z are the same two.
    paths = list(product(range(len(first)), range(10, 10 + len(second))))
    scores = [[math.log(first[a]), math.log(second[b - 10])] for a, b in paths]
    assert token_law(paths, scores, 1.0) == pytest.approx(phrase_law(np.array([sum(s) for s in scores]), 1.0))


def test_draws_under_bounds_become_draws_under_the_law() -> None:
    scores = np.log([0.5, 0.3, 0.2])
    bounds = np.log([0.5, 0.9, 0.4])  # of two of the three more was feared than there is
    rng, together = np.random.default_rng(0), np.zeros(3)
    for _ in range(200):
        counts = accepted(split_count(phrase_law(bounds, 2.0), 100, rng), bounds, scores, 2.0, rng)
        assert sum(counts.values()) == 100
        assert 0 not in counts.values()
        for phrase, count in counts.items():
            together[phrase] += count
    # At temperature 2 the law goes with the roots.
    roots = np.sqrt([0.5, 0.3, 0.2])
    assert chisquare(together, 20_000 * roots / roots.sum()).pvalue > 1e-3


def test_draws_under_bounds_that_were_the_scores_stay() -> None:
    scores = np.log([0.5, 0.3, 0.2])
    assert accepted({0: 7, 2: 5}, scores, scores, 1.0, np.random.default_rng(0)) == {0: 7, 2: 5}
    # A score may be rounded to more than its bound.
    assert accepted({0: 7, 2: 5}, scores, scores + 1e-7, 1.0, np.random.default_rng(0)) == {0: 7, 2: 5}


def test_single_draws_fall_on_options_as_their_chances_say() -> None:
    lots = [Lot(0, 0, str(number).encode()) for number in range(10_000)]
    chances = np.tile([0.0, 0.5, 0.25, 0.0, 0.25, 0.0], (len(lots), 1))
    drawn = split_counts(chances, [1] * len(lots), lots)
    assert all(sum(counts.values()) == 1 for counts in drawn)
    shares = Counter(option for counts in drawn for option in counts)
    assert shares.keys() == {1, 2, 4}  # what has no chance is never drawn
    assert chisquare([shares[1], shares[2], shares[4]], [5000, 2500, 2500]).pvalue > 1e-3
    # A text's draws hang on its own lot, not on the texts beside it, nor on how many draws those have.
    beside = split_counts(chances[:3], [7, 1, 20], lots[:3])
    assert beside[1] == drawn[1]
    assert [sum(counts.values()) for counts in beside] == [7, 1, 20]
    assert beside[0] == split_counts(chances[:1], [7], lots[:1])[0]


def test_a_lot_is_uniform_and_its_purposes_share_no_numbers() -> None:
    uniforms = [Lot(3, 1, bytes([a, b])).uniform() for a in range(100) for b in range(100)]
    assert len(set(uniforms)) == len(uniforms)
    assert kstest(uniforms, "uniform").pvalue > 1e-3
    lot = Lot(0, 0, b"x")
    numbers = [lot.uniform(), lot.generator().random(), lot.generator("sifting").random()]
    assert len(set(numbers)) == 3
    assert lot.uniforms(1).tolist() == [lot.uniform()]
    assert lot.uniforms(2).tolist() == lot.generator().random(2).tolist()
    others = [Lot(1, 0, b"x"), Lot(0, 1, b"x"), Lot(0, 0, b"y")]
    assert len({one.uniform() for one in (lot, *others)}) == 4


def test_split_count_shares_out_all_draws() -> None:
    shares = split_count(np.array([0.5, 0.0, 0.25, 0.25]), 10_000, np.random.default_rng(0))
    assert sum(shares.values()) == 10_000
    assert shares.keys() == {0, 2, 3}
    assert shares[0] == pytest.approx(5000, abs=5 * 50)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("ab,c", 2),
        (",", 0),
        ("abc", None),
        ("a\\,b,c", 4),  # an escaped delimiter is text
        ("a\\\\,b", 3),  # the backslash is escaped, not the delimiter
        ("a\nb,", 1),
        ("a\\\nb,", 2),  # nothing escapes a line break
        ("a)b", None),  # no delimiter here
    ],
)
def test_a_free_piece_ends_at_its_first_delimiter(text: str, end: int | None) -> None:
    assert end_of_piece(text, ",") == end


def test_merged_nodes_add_their_draws() -> None:
    nodes = [Drawn(0, "a", 2), Drawn(1, "a", 5), Drawn(0, "a", 3)]
    assert merged(nodes) == [Drawn(0, "a", 5), Drawn(1, "a", 5)]


def exact_law() -> dict[tuple[str, bool], float]:
    """Work out what a `Typist` writes under `Pair` from its characters' chances."""
    head = {"a": 0.4, "ba": 0.08, "bb": 0.04}
    law: dict[tuple[str, bool], float] = {}
    for phrase, chance in head.items():
        for one, two in product(CHARACTERS, repeat=2):
            written = one + two
            share = chance / sum(head.values()) * CHARACTERS[one] * CHARACTERS[two]
            piece = written.split("\n")[0]
            at = piece.find(",") if piece != "\\," else -1
            key = (f"{phrase}{piece[:at]}!", True) if at > 0 else (phrase + (piece if at < 0 else ""), False)
            law[key] = law.get(key, 0.0) + share
    return law


def test_draws_follow_the_exact_law_and_add_up() -> None:
    n = 20_000
    found = ask_for_guided(Typist(), ["x:"], Pair(), n=n, decoding=PLAIN, seed=3, law="phrase").texts[0]
    law = exact_law()
    assert sum(law.values()) == pytest.approx(1)
    drawn = counts(found)
    assert drawn.keys() <= law.keys()
    assert sum(drawn.values()) == n
    assert [text.text for text in found] == sorted(text.text for text in found)
    assert chisquare([drawn.get(key, 0) for key in law], [n * p for p in law.values()]).pvalue > 1e-3


def test_mass_is_the_probability_of_all_phrases_of_each_choice() -> None:
    hot = Decoding(temperature=2)
    for text in ask_for_guided(Typist(), ["x:"], Pair(), n=200, decoding=hot, seed=0, law="phrase").texts[0]:
        # 0.4 + 0.2 * 0.4 + 0.2 * 0.2, whatever the temperature.
        assert text.mass == pytest.approx((0.52, 0.25) if text.is_complete else (0.52,))


def test_counts_of_draws_vary_as_those_of_independent_draws() -> None:
    totals = [
        sum(
            text.count
            for text in ask_for_guided(Typist(), ["x:"], Pair(), n=40, decoding=PLAIN, seed=seed, law="phrase").texts[0]
            if text.is_complete
        )
        for seed in range(300)
    ]
    p = sum(chance for (_, is_complete), chance in exact_law().items() if is_complete)
    assert np.mean(totals) == pytest.approx(40 * p, abs=5 * math.sqrt(40 * p * (1 - p) / 300))
    # The variance of a binomial, within five standard errors (a relative error of sqrt(2 / 299) each).
    assert np.var(totals, ddof=1) == pytest.approx(40 * p * (1 - p), rel=5 * math.sqrt(2 / 299))


def test_all_phrases_of_all_waiting_texts_are_one_question() -> None:
    typist = Typist()
    ask_for_guided(typist, ["x:", "y:"], Pair(), n=1000, decoding=PLAIN, seed=0, law="phrase")
    # The first choice of both prompts, and the choice that is left to all texts after their free piece.
    assert typist.n_questions == 2
    # Only `a,` and `b,` end in time, so at most two texts per phrase are left.
    assert typist.n_pairs <= 2 * 3 + 2 * 3 * 2


def test_a_phrase_is_counted_once_per_text_and_a_free_piece_once_per_draw() -> None:
    typist = Typist()
    found = ask_for_guided(typist, ["x:", "y:", "x:"], Pair(), n=1000, decoding=PLAIN, seed=0, law="phrase")
    # Equal prompts ask for equal phrases, which are scored once; their free pieces are draws of their own.
    assert found.n_phrases == typist.n_pairs
    assert found.n_pieces == typist.n_drawn == 3 * 1000
    assert found.n_queries == typist.n_pairs + 3000
    last = {
        prompt + text.text[:-1]
        for prompt, texts in zip("xyx", found.texts, strict=True)
        for text in texts
        if text.is_complete
    }
    assert found.n_phrases == 2 * 3 + len(last)


@dataclass(frozen=True)
class Detour:
    """Two ways to the same text: `b` and then `!`, or a free piece that holds both."""

    def next(self, text: str) -> Choice | Free | None:
        body = text.rpartition(":")[2]
        if body.endswith(","):
            return None
        return Choice((",", ";,")) if body.endswith("!") else Free(",!", 2) if not body else Choice(("!", "?,"))


def test_a_text_that_is_reached_twice_is_asked_about_once() -> None:
    typist = Typist({"b": 0.5, ",": 0.25, ")": 0.25}, extra={"!": 0.25, "?": 0.25, ";": 0.25})
    found = ask_for_guided(typist, ["x:"], Detour(), n=500, decoding=PLAIN, seed=0, law="phrase")
    assert found.n_phrases == typist.n_pairs == len(typist.pairs)


def test_draws_hang_on_seed_position_and_text_alone() -> None:
    def draw(prompts: Sequence[str]) -> list[list[Guided]]:
        return ask_for_guided(Typist(), prompts, Pair(4), n=200, decoding=PLAIN, seed=5, law="phrase").texts

    alone = draw(["x:"])[0]
    assert alone == draw(["x:", "y:", "x:", "long:"])[0]
    assert draw(["y:", "x:"])[1] == draw(["other:", "x:", "y:"])[1]
    assert counts(alone) != counts(draw(["y:", "x:"])[1])  # another position, other draws


def test_free_pieces_do_not_hang_on_the_texts_beside_in_the_same_round() -> None:
    """A text's pieces are those that the target gives under a seed of its own, whatever group it was asked in."""
    typist = Typist()
    ask_for_guided(typist, ["x:", "y:"], Pair(4), n=500, decoding=PLAIN, seed=5, law="phrase")
    assert all(len(prompts) == 1 for prompts, _ in typist.sampled)
    seeds = [seed for _, seed in typist.sampled]
    assert len(set(seeds)) == len(seeds) == 6


@dataclass
class Placed(Typist):
    """Can be asked for single draws; those of position 0 are its own, whatever the seed of a call."""

    n_calls: int = field(default=0, init=False)
    places: list[Place] = field(default_factory=list, init=False)

    def sample_places(
        self, places: Sequence[Place], *, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[str]:
        self.n_calls += 1
        self.places += places
        answers = [
            super(Placed, self).sample(
                [p.prompt], n=p.draw + 1, max_new_tokens=max_new_tokens, decoding=decoding, seed=p.position
            )
            for p in places
        ]
        return [texts[-1] for (texts,) in answers]


def test_a_target_that_can_be_asked_for_single_draws_is_asked_for_all_texts_at_once() -> None:
    def draw(target: Target) -> GuidedDraws:
        return ask_for_guided(target, ["x:", "y:", "z:"], Pair(4), n=5, decoding=PLAIN, seed=5, law="phrase")

    placed, plain = Placed(), Typist()
    # A text's number is its position here and its seed there, and this target draws alike from both.
    assert draw(placed) == draw(plain)
    assert placed.n_calls == 1
    assert len(set(placed.places)) == 15
    assert len(plain.sampled) == len({place.prompt for place in placed.places}) > 3


def test_single_draws_that_are_missing_are_a_failure() -> None:
    class Few(Placed):
        def sample_places(
            self, places: Sequence[Place], *, max_new_tokens: int, decoding: Decoding, seed: int
        ) -> list[str]:
            return super().sample_places(places, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)[1:]

    with pytest.raises(AuditError, match="returned 3 of 4 samples"):
        sample_guided(Few(), ["x:", "y:"], Pair(), n=2, decoding=PLAIN, seed=0)


def test_temperature_zero_takes_the_best_phrase() -> None:
    found = ask_for_guided(
        Typist(), ["x:"], Pair(), n=50, decoding=Decoding(temperature=0), seed=0, law="phrase"
    ).texts[0]
    assert {text.text[:1] for text in found} == {"a"}
    assert sum(text.count for text in found) == 50


def test_same_seed_same_texts_and_prompts_do_not_share_draws() -> None:
    def draw(seed: int) -> list[list[Guided]]:
        return ask_for_guided(Typist(), ["x:", "x:"], Pair(4), n=100, decoding=PLAIN, seed=seed, law="phrase").texts

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    one, other = draw(1)
    assert counts(one) != counts(other)


def test_a_target_that_samples_guided_texts_is_asked_itself() -> None:
    answer = GuidedDraws([[Guided("known", 1, True, ())]], 2, 1)

    class Expert(Typist):
        def sample_guided(
            self,
            prompts: Sequence[str],
            grammar: Grammar,
            *,
            n: int,
            decoding: Decoding,
            seed: int,
            law: Law = "phrase",
        ) -> GuidedDraws:
            assert (list(prompts), n, seed, law) == (["x:"], 1, 7, "token")
            return answer

    assert sample_guided(Expert(), ["x:"], Pair(), n=1, decoding=PLAIN, seed=7, law="token") is answer


@pytest.mark.parametrize(
    ("n", "decoding", "law", "message"),
    [
        (0, PLAIN, "phrase", "n=0"),
        (1, PLAIN, "word", "law='word'"),
        (1, PLAIN, "token", "shows its tokens"),
        (1, Decoding(num_beams=2), "phrase", "beams"),
        (1, Decoding(start_temperature=5.0, temperature_step=2.0), "phrase", "falling temperature"),
    ],
)
def test_settings_without_a_meaning_are_refused(n: int, decoding: Decoding, law: Law, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sample_guided(Typist(), ["x:"], Pair(), n=n, decoding=decoding, seed=0, law=law)


def test_a_target_that_fails_is_an_error(failing_target: Target, mute_target: Target) -> None:
    for target in (failing_target, mute_target):
        with pytest.raises(AuditError):
            sample_guided(target, ["x:"], Pair(), n=1, decoding=PLAIN, seed=0)


def test_an_answer_of_the_wrong_length_is_an_error() -> None:
    class Short(Typist):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
            return super().logprobs(prompts, continuations)[1:]

    class Few(Typist):
        def sample(
            self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
        ) -> list[list[str]]:
            return [
                texts[1:]
                for texts in super().sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)
            ]

    for target in (Short(), Few()):
        with pytest.raises(AuditError, match=r"answered 2 of 3|did not return the [12] samples"):
            sample_guided(target, ["x:"], Pair(), n=2, decoding=PLAIN, seed=0)
