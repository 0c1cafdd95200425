"""The grammar of a state text, step by step and by random walks, and the texts that are drawn under it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hushbot.attacks import schema_sampling
from hushbot.attacks.schema_sampling import Continuations, StateGrammar, guided_continuations
from hushbot.attacks.state_candidates import read_candidates
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import STATE_MARKER, read_state, render_state, render_state_prefix
from hushbot.protocols import Target
from hushbot.schema import Schema, Slot
from hushbot.targets.guided import Choice, Free, Grammar, Guided, GuidedDraws, sample_guided
from hushbot.types import Decoding, DialogueState, SlotValue

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = Schema.of([Slot("hotel", "area"), Slot("hotel", "book day"), Slot("Travel", "a=b"), Slot("Payment_1", "to")])
"""A capital that the layout adds, one that it marks, a name it leaves alone, and one that it escapes."""
GRAMMAR = StateGrammar(schema=SCHEMA)
OPENINGS = (" Payment_1(", " \\Travel(", " Hotel(")
AWKWARD = Schema.of(
    Slot(domain, slot)
    for domain in ("hotel", "Hotel", "none", " x ", "a:b", "belief state:", "line\nbreak", "x(y)")
    for slot in ("a", "aa", "a=", " a", "a,b", "a)", "a\\", "\n")
)
NAMES = [(slot.domain, slot.name) for slot in AWKWARD.slots]
TEXT = st.text(alphabet="ab \\(),=:\n\r'é", min_size=1, max_size=6)
STATES = st.dictionaries(st.sampled_from(NAMES), TEXT, max_size=8).map(
    lambda values: frozenset(SlotValue(domain, slot, value) for (domain, slot), value in values.items())
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", Choice(OPENINGS)),
        (" None\n", None),
        (" Hotel(", Choice(("area=", "book day="))),
        (" Hotel(area=", Free(",)", 32)),
        (" Hotel(area=north", Choice((", book day=", ")"))),
        # A comma that ends a prefix has its blank before it or not.
        (" Hotel(area=north,", Choice((" book day=",))),
        (" Hotel(area=north, ", Choice(("book day=",))),
        (" Hotel(book day=1, area=", Free(",)", 32)),
        (" Hotel(book day=1, area=x", Choice((")",))),
        (" Hotel(area=x, book day=1,", Choice((")",))),
        (" Hotel(area=north)", Choice((" Payment_1(", " \\Travel(", "\n"))),
        (" Hotel(area=north) \\Travel(", Choice(("a\\=b=",))),
        (" Hotel(area=x) \\Travel(a\\=b=y) Payment_1(to=z)", Choice(("\n",))),
        (" Hotel(area=x) \\Travel(a\\=b=y) Payment_1(to=z)\n", None),
        # What a backslash takes the meaning from ends nothing.
        (" Hotel(area=a\\,b\\)c\\\\", Choice((", book day=", ")"))),
        # Signs that mean something elsewhere are part of a value.
        (" Hotel(area=a=(b:c", Choice((", book day=", ")"))),
        # Domains and slots that the schema lacks can be closed only.
        (" Boat(", Choice((")",))),
        (" Boat(name=x", Choice((")",))),
        (" Boat(name=x)", Choice((*OPENINGS, "\n"))),
    ],
)
def test_each_step_by_hand(body: str, expected: Choice | Free | None) -> None:
    assert GRAMMAR.next(STATE_MARKER + body) == expected


def test_an_empty_state_is_offered_only_if_asked_for_and_only_at_the_beginning() -> None:
    either = StateGrammar(schema=SCHEMA, may_be_empty=True)
    assert either.next(STATE_MARKER) == Choice((*OPENINGS, " None\n"))
    for body in (" None\n", " Hotel(", " Hotel(area=x", " Hotel(area=x)", " Boat(name=x)"):
        assert either.next(STATE_MARKER + body) == GRAMMAR.next(STATE_MARKER + body)


@pytest.mark.parametrize("value", [STATE_MARKER, f"x {STATE_MARKER} Boat(", f"{STATE_MARKER} None"])
def test_a_marker_inside_a_value_is_a_value(value: str) -> None:
    assert GRAMMAR.next(f"{STATE_MARKER} Hotel(area={value}") == Choice((", book day=", ")"))


def test_what_was_said_before_the_state_does_not_matter() -> None:
    said = f"User: a (b=c, {STATE_MARKER} Hotel(area=x)\n{STATE_MARKER} Hotel(area=y)\nUser: and=(\n{STATE_MARKER}"
    assert GRAMMAR.next(said) == GRAMMAR.next(STATE_MARKER)
    assert GRAMMAR.next(f"{said} Hotel(") == Choice(("area=", "book day="))


def test_a_long_state_is_closed() -> None:
    two = StateGrammar(schema=SCHEMA, max_triplets=2)
    one = StateGrammar(schema=SCHEMA, max_triplets=1)
    assert two.next(f"{STATE_MARKER} Hotel(area=x") == Choice((", book day=", ")"))
    assert one.next(f"{STATE_MARKER} Hotel(area=x") == Choice((")",))
    assert one.next(f"{STATE_MARKER} Hotel(area=x)") == Choice(("\n",))
    assert one.next(STATE_MARKER) == GRAMMAR.next(STATE_MARKER)
    assert StateGrammar(schema=SCHEMA, max_value_tokens=7).next(f"{STATE_MARKER} Hotel(area=") == Free(",)", 7)


@pytest.mark.parametrize("setting", ["max_triplets", "max_value_tokens"])
def test_a_size_below_one_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting}=0 must be at least 1"):
        StateGrammar(schema=SCHEMA, **{setting: 0})
    with pytest.raises(ConfigError, match="the schema has no slot"):
        StateGrammar(schema=Schema(()))


def escaped(value: str) -> str:
    """Return a value as the layout writes it."""
    return render_state(frozenset({SlotValue("d", "s", value)}))[len("D(s=") : -1]


def walk(grammar: Grammar, prompt: str, rng: random.Random, value: st.DataObject) -> tuple[str, list[str]]:
    """Take a random way through a grammar to its end; return the text and the values that were written."""
    text, values = "", []
    while (rule := grammar.next(prompt + text)) is not None:
        if isinstance(rule, Choice):
            text += rng.choice(rule.phrases)
            assert all(rule.phrases)
            # In alphabetical order, a phrase that begins another one stands right before one that it begins.
            ordered = sorted(rule.phrases)
            assert not any(after.startswith(before) for before, after in pairwise(ordered))
        else:
            values.append(value.draw(TEXT))
            text += escaped(values[-1])
    return text, values


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.data())
def test_every_way_to_the_end_is_a_state_that_is_read_whole(
    rng: random.Random, max_triplets: int, data: st.DataObject
) -> None:
    text, values = walk(StateGrammar(schema=AWKWARD, max_triplets=max_triplets), STATE_MARKER, rng, data)
    parsed = read_state(STATE_MARKER + text)
    assert parsed.state is not None
    assert (parsed.is_complete, parsed.format_errors) == (True, 0)
    assert Counter(triplet.value for triplet in parsed.state) == Counter(values)
    assert len(parsed.state) == len(values) <= max_triplets
    assert {(triplet.domain, triplet.slot) for triplet in parsed.state} <= set(NAMES)
    assert parsed.state  # empty ones were not asked for


@settings(deadline=None, max_examples=60)
@given(STATES)
def test_every_state_of_the_schema_is_a_way_through_the_grammar(state: DialogueState) -> None:
    grammar, rest, done = StateGrammar(schema=AWKWARD, may_be_empty=True), f" {render_state(state)}\n", STATE_MARKER
    spelled = {escaped(triplet.value) for triplet in state}
    while (rule := grammar.next(done)) is not None:
        nexts = rule.phrases if isinstance(rule, Choice) else spelled
        # Of two values of which one begins the other, the one that a delimiter follows.
        (piece,) = [
            p for p in nexts if rest.startswith(p) and (isinstance(rule, Choice) or rest[len(p)] in rule.delimiters)
        ]
        done, rest = done + piece, rest[len(piece) :]
    assert rest == ""


@settings(deadline=None, max_examples=60)
@given(STATES.filter(bool), st.randoms(use_true_random=False), st.data())
def test_any_beginning_of_a_state_goes_on_without_losing_what_it_says(
    state: DialogueState, rng: random.Random, data: st.DataObject
) -> None:
    n = rng.randint(1, len(state))
    prompt = f"{STATE_MARKER} {render_state_prefix(state, n)}"
    text, values = walk(StateGrammar(schema=AWKWARD, max_triplets=len(state) + 2), prompt, rng, data)
    parsed = read_state(prompt + text)
    assert parsed.state is not None
    assert (parsed.is_complete, parsed.format_errors) == (True, 0)
    assert parsed.state >= frozenset(sorted(state)[:n])
    assert len(parsed.state) == n + len(values)


CHANCES = {" ": 0.25, "H": 0.3, "T": 0.1, "(": 0.2, ")": 0.05, "\n": 0.1}
"""Of each character, whatever stands before it."""


@dataclass
class Coin:
    """Finds characters probable by themselves; gives half of all values the name `x`, the other half none."""

    reference: Target | None = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        rngs = [random.Random(f"{seed}/{position}") for position in range(len(prompts))]
        return [[rng.choice(("x)", ")")) for _ in range(n)] for rng in rngs]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        return [torch.tensor([math.log(CHANCES.get(c, 0.5)) for c in text]) for text in continuations]


COIN_GRAMMAR = StateGrammar(schema=Schema.of([Slot("h", "s"), Slot("t", "s")]), max_triplets=1, may_be_empty=True)
# " H(" 0.25 * 0.3 * 0.2 = 0.015; " T(" 0.25 * 0.1 * 0.2 = 0.005; " None\n" 0.25 * 0.5^4 * 0.1 = 0.0015625. Half of all
# values are empty, which cuts their texts; what follows a value is certain.
MASSES = {" H(s=": 0.015 / 2, " H(s=x)": 0.015 / 2, " T(s=": 0.005 / 2, " T(s=x)": 0.005 / 2, " None": 0.0015625}


@pytest.mark.parametrize("may_be_empty", [True, False])
def test_states_are_as_frequent_as_their_phrases_are_probable(may_be_empty: bool) -> None:
    # Without the empty state the others keep their shares of each other: the law given that the state is not empty.
    masses = {text: mass for text, mass in MASSES.items() if may_be_empty or text != " None"}
    n, grammar = 4000, replace(COIN_GRAMMAR, may_be_empty=may_be_empty)
    texts, *_ = guided_continuations(Coin(), [STATE_MARKER], grammar, n=n, decoding=Decoding(), law="phrase", seed=1)
    counts = Counter(texts[0])
    assert counts.keys() == masses.keys()
    expected = [n * mass / sum(masses.values()) for mass in masses.values()]
    assert chisquare([counts[text] for text in masses], expected).pvalue > 0.01


@pytest.mark.parametrize(("may_be_empty", "first"), [(True, 0.0215625), (False, 0.02)])
def test_the_mass_of_the_first_choice_holds_an_empty_state_only_where_it_is_offered(
    may_be_empty: bool, first: float
) -> None:
    grammar = replace(COIN_GRAMMAR, may_be_empty=may_be_empty)
    found = sample_guided(Coin(), [STATE_MARKER], grammar, n=100, decoding=Decoding(), seed=0)
    assert [text.mass[0] for text in found.texts[0]] == pytest.approx([first] * len(found.texts[0]))


def test_phrases_are_counted_once_per_text_and_values_once_per_draw() -> None:
    found = guided_continuations(
        Coin(), [STATE_MARKER], COIN_GRAMMAR, n=1000, decoding=Decoding(), law="phrase", seed=2
    )
    n_values = 1000 - found.texts[0].count(" None")
    # Three openings; one slot behind each of two; behind each of two values `)`; behind each of two domains the end.
    assert found.n_queries == n_values + 3 + 2 + 2 + 2


def test_what_was_cut_is_counted_and_is_no_candidate() -> None:
    texts, *_ = guided_continuations(
        Coin(), [STATE_MARKER], COIN_GRAMMAR, n=1000, decoding=Decoding(), law="phrase", seed=2
    )
    drawn = Counter(texts[0])
    candidates, counts = read_candidates(texts[0])
    assert {candidate.text: candidate.count for candidate in candidates} == {
        "H(s=x)": drawn[" H(s=x)"],
        "T(s=x)": drawn[" T(s=x)"],
    }
    assert counts["parse_failures"] == drawn[" H(s="] + drawn[" T(s="] > 400
    assert counts["empty_states"] == drawn[" None"] > 0


def fake_sampling(monkeypatch: pytest.MonkeyPatch, found: Sequence[Sequence[Guided]]) -> None:
    draws = GuidedDraws([list(texts) for texts in found], 5, 3)
    monkeypatch.setattr(schema_sampling, "sample_guided", lambda *_, **__: draws)


def draw(n: int, n_prompts: int = 1, seed: int = 0) -> Continuations:
    prompts = [STATE_MARKER] * n_prompts
    return guided_continuations(Coin(), prompts, GRAMMAR, n=n, decoding=Decoding(), law="phrase", seed=seed)


def test_counts_become_texts_in_an_order_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sampling(monkeypatch, [[Guided(" a\n", 20, True, (1.0,)), Guided(" b", 12, False, (1.0,))]] * 2)
    texts, *_ = draw(32, n_prompts=2)
    assert [Counter(drawn) for drawn in texts] == [Counter({" a": 20, " b": 12})] * 2
    assert texts[0] not in (sorted(texts[0]), texts[1])
    assert draw(32, n_prompts=2).texts == texts
    assert draw(32, n_prompts=2, seed=1).texts != texts


def test_the_mass_is_a_mean_over_choices_and_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sampling(monkeypatch, [[Guided(" a\n", 3, True, (0.5, 1.0)), Guided(" b", 1, False, (0.2,))]])
    # Seven choices were made: three times 0.5, three times 1 and once 0.2.
    assert draw(4).mass == pytest.approx((3 * 1.5 + 0.2) / 7)
    fake_sampling(monkeypatch, [[Guided("", 4, False, ())]])
    assert draw(4).mass is None


def test_draws_that_are_missing_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sampling(monkeypatch, [[Guided(" a\n", 3, True, (1.0,))], [Guided(" a\n", 5, True, (1.0,))]])
    with pytest.raises(AuditError, match="did not return 4 guided texts for each of 2 prompts"):
        draw(4, n_prompts=2)
    fake_sampling(monkeypatch, [])
    with pytest.raises(AuditError, match="did not return 4 guided texts for each of 1 prompts"):
        draw(4)
