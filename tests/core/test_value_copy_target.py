"""A bot behind the value-copy guard: scripted answers with outcomes worked out by hand, then what always holds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import STATE_MARKER, read_changes, read_state
from hushbot.schema import Schema, Slot
from hushbot.targets.guarded import before_stop
from hushbot.targets.sampler import Until
from hushbot.targets.state_values import written_values
from hushbot.targets.value_copy import ValueCopyTarget
from hushbot.targets.value_law import ValueLaw, read_history
from hushbot.tokens import encode
from hushbot.types import Decoding

if TYPE_CHECKING:
    from torch import Tensor

    from hushbot.protocols import Target

GREEDY = Decoding(temperature=0)
SCHEMA = Schema.of(
    [
        Slot("restaurant", "name"),
        Slot("restaurant", "area", True, ("north", "south", "centre")),
        Slot("restaurant", "book time"),
        Slot("train", "day", True, ("monday", "tuesday")),
        Slot("train", "destination"),
    ]
)
ASK = "User: a table at the Golden Wok please\nBelief State:"


@dataclass
class Script:
    """Says what is written down for a prompt, and finds a continuation as probable as is written down."""

    answers: Mapping[str, str] | Callable[[str], str]
    odds: Mapping[str, float] = field(default_factory=dict)
    reference: Target | None = None
    sampled: list[list[str]] = field(default_factory=list)
    scored: list[list[tuple[str, str]]] = field(default_factory=list)
    allowances: list[int] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.sampled.append(list(prompts))
        self.allowances.append(max_new_tokens)
        answer = self.answers if callable(self.answers) else lambda prompt: self.answers.get(prompt, "")  # type: ignore[union-attr]
        return [[answer(prompt)] * n for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        self.scored.append(list(zip(prompts, continuations, strict=True)))
        scores = []
        for text in continuations:
            tokens = torch.zeros(max(1, len(re.findall(r"\s*\S+", text))))  # a token is a word
            tokens[0] = math.log(self.odds.get(text, 1e-6))
            scores.append(tokens)
        return scores


class Interruptible(Script):
    """A script that stops where it is told to; a token is a character."""

    def sample_until(
        self,
        prompts: Sequence[str],
        until: Until,
        *,
        n: int,
        max_new_tokens: int,
        decoding: Decoding,
        seed: int,
    ) -> list[list[str]]:
        drawn = self.sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)
        return [[_cut(text, position, until) for text in texts] for position, texts in enumerate(drawn)]


def _cut(text: str, position: int, until: Until) -> str:
    ends = (i + 1 for i, character in enumerate(text) if character in until.characters)
    return next((text[:end] for end in ends if until.is_enough(position, text[:end])), text)


def guard(inner: Any, *, min_probability: float = 0.01, max_copies: int = 16) -> ValueCopyTarget:
    law = ValueLaw(schema=SCHEMA, max_candidates=24, max_words=6)
    return ValueCopyTarget(inner, law, min_probability=min_probability, max_copies=max_copies)


def say(target: Target, prompt: str, *, decoding: Decoding = GREEDY, max_new_tokens: int = 64, seed: int = 0) -> str:
    ((text,),) = target.sample([prompt], n=1, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)
    return text


def test_a_lawful_text_is_the_bots_own_from_one_call() -> None:
    text = " Restaurant(name=golden wok, area=south, book time=dontcare) Train(day=Monday"
    bot = Script({ASK: text})
    assert say(guard(bot), ASK) == text
    assert (bot.sampled, bot.scored) == ([[ASK]], [])


def test_a_remembered_value_gives_way_to_the_most_probable_span() -> None:
    fixed = ASK + " Restaurant(name=Golden Wok,"
    bot = Script(
        {ASK: " Restaurant(name=pizza hut, area=north)", fixed: " area=south)"},
        {"Golden Wok,": 0.6, "the Golden Wok,": 0.3},
    )
    # The area of the remembered restaurant goes with it: what follows is said anew.
    assert say(guard(bot), ASK) == " Restaurant(name=Golden Wok, area=south)"
    assert bot.sampled == [[ASK], [fixed]]
    (pairs,) = bot.scored
    assert pairs[0] == (ASK, " Restaurant(name=")
    assert {prompt for prompt, _ in pairs[1:]} == {ASK + " Restaurant(name="}
    assert {"Golden Wok,", "table,", "at the Golden Wok please,"} <= {text for _, text in pairs}
    assert not any("pizza" in text for _, text in pairs)


def test_an_improbable_span_gives_way_to_a_blank() -> None:
    fixed = ASK + " Restaurant(name=,"
    answers = {ASK: " Restaurant(name=pizza hut, area=north)", fixed: " area=north)"}
    bot = Script(answers, {"Golden Wok,": 0.0099})
    assert say(guard(bot), ASK) == " Restaurant(area=north)"
    assert bot.sampled == [[ASK], [fixed]]  # the bot goes on after the blank, which is left out of what leaves
    assert say(guard(Script(answers, {"Golden Wok,": 0.0101})), ASK) == " Restaurant(name=Golden Wok,"


def test_a_slot_that_stayed_blank_stays_so() -> None:
    blank = ASK + " Restaurant(name=,"
    answers = {ASK: " Restaurant(name=pizza hut, area=north)", blank: " name=hut, book time=12:15)"}
    bot = Script(answers, {"Golden Wok)": 0.5})
    assert say(guard(bot), ASK) == " Restaurant("
    assert bot.sampled[-1] == [blank + " name=,"]
    assert [len(pairs) > 1 for pairs in bot.scored] == [True, False]  # the second time, tokens are counted only
    # Another slot has its own chance.
    bot = Script(answers | {blank: " destination=hut)"}, {"Golden Wok)": 0.5})
    assert say(guard(bot), ASK) == " Restaurant(destination=Golden Wok)"


def test_a_bot_that_can_be_interrupted_says_no_more_than_is_needed() -> None:
    looked: list[str] = []

    class Watched(Interruptible):
        def sample_until(self, prompts: Sequence[str], until: Until, **settings: Any) -> list[list[str]]:
            texts = super().sample_until(prompts, until, **settings)
            looked.extend(text for drawn in texts for text in drawn)
            return texts

    bot = Watched(
        {ASK: " Restaurant(name=pizza hut, area=north)", ASK + " Restaurant(name=Golden Wok,": " area=south)"},
        {"Golden Wok,": 0.6},
    )
    assert say(guard(bot), ASK) == " Restaurant(name=Golden Wok, area=south)"
    assert looked == [" Restaurant(name=pizza hut,", " area=south)"]
    # What is not replaced any more is said to its end.
    looked.clear()
    assert say(guard(bot, max_copies=0), ASK) == " Restaurant(area=north)"
    assert looked == [" Restaurant(name=pizza hut, area=north)"]


def test_texts_of_unlike_length_share_a_call_where_each_may_have_its_limit() -> None:
    prompts = [ASK, "User: the golden wok\nBelief State:"]
    answers = {
        prompts[0]: " Restaurant(name=pizza hut, area=north)",
        prompts[1]: " Restaurant(area=north, book time=dontcare, name=pizza hut, area=north)",
    }
    asked: list[tuple[int, Sequence[int] | None]] = []

    class Limited(Interruptible):
        def sample_until(self, prompts: Sequence[str], until: Until, **settings: Any) -> list[list[str]]:
            asked.append((len(prompts), until.limits))
            return super().sample_until(prompts, until, **settings)

    bot = Limited(answers)
    guard(bot).sample(prompts, n=1, max_new_tokens=12, decoding=GREEDY, seed=0)
    # `Restaurant(name=` and a delimiter are two words; `Restaurant(area=north, book time=dontcare, name=,` are five.
    assert asked == [(2, None), (2, [10, 7])]
    plain = Script(answers)
    guard(plain).sample(prompts, n=1, max_new_tokens=12, decoding=GREEDY, seed=0)
    assert plain.allowances == [12, 10, 7]


def test_a_value_outside_its_slots_list_gives_way_to_one_inside() -> None:
    bot = Script({ASK: " Restaurant(area=center)"}, {"centre)": 0.5, "Golden Wok)": 0.2})
    assert say(guard(bot), ASK) == " Restaurant(area=centre)"


def test_without_a_dialogue_free_values_are_blank_and_listed_ones_stay() -> None:
    answers = {
        "Belief State:": " Restaurant(area=north, book time=12:15, name=pizza hut) Train(destination=ely)",
        "Belief State: Restaurant(area=north, book time=,": " name=pizza hut) Train(destination=ely, day=monday)",
        "Belief State: Restaurant(area=north, book time=, name=)": " Train(destination=ely, day=monday)",
        "Belief State: Restaurant(area=north, book time=, name=) Train(destination=,": " day=monday)",
    }
    bot = Script(answers)
    assert say(guard(bot), "Belief State:") == " Restaurant(area=north) Train(day=monday)"
    assert all(len(pairs) == 1 for pairs in bot.scored)  # only to count tokens: there is nothing to copy


def test_an_empty_user_line_is_no_dialogue() -> None:
    assert say(guard(Script({"User: \nBelief State:": " Train(day=x)"})), "User: \nBelief State:") == " None"


def test_the_askers_values_stay() -> None:
    prompt = "Belief State: Restaurant(name=pizza hut,"
    bot = Script({prompt: " book time=12:15, area=pizza hut)"})
    assert say(guard(bot), prompt) == ""
    # The asker's name was not said in a dialogue, so it cannot be copied either.
    assert bot.sampled[1] == [prompt + " book time=,"]


def test_a_value_that_the_asker_began_is_not_completed() -> None:
    prompt = "Belief State: Restaurant(name=piz"
    assert say(guard(Script({prompt: "za hut, area=north)"})), prompt) == ","
    assert say(guard(Script({prompt: "za hut"})), prompt) == ""
    said = "User: pizza hut\n" + prompt
    assert say(guard(Script({said: "za hut, area=north)"})), said) == "za hut, area=north)"


@pytest.mark.parametrize(
    ("written", "shown", "said", "dropped"),
    [
        # What the guard hides is no change; what the bot drops is dropped.
        (" Restaurant(name=hut, area=north)", " Restaurant(area=north)", {"north"}, set()),
        (" Restaurant(area=north, name=hut)", " Restaurant(area=north)", {"north"}, set()),
        (" Restaurant(area=, name=hut)", " Restaurant(area=)", set(), {"area"}),
        (" Restaurant(name=, area=north)", " Restaurant(name=, area=north)", {"north"}, {"name"}),
        (" Restaurant(name=hut) Train(day=monday)", " Train(day=monday)", {"monday"}, set()),
        (" Restaurant(area=, food=x, name=hut) Train(destination=y)", " Restaurant(area=)", set(), {"area"}),
        (" Restaurant(name=a\\,b, area=x\\)) Train(destination=c\\=)", " None", set(), set()),
    ],
)
@pytest.mark.parametrize("max_copies", [0, 1, 16])
def test_a_hidden_value_does_not_drop_what_was_asked_before(
    written: str, shown: str, said: set[str], dropped: set[str], max_copies: int
) -> None:
    prompt = "User: golden wok\nBelief State: Restaurant(name=golden wok)\nUser: hello\nBelief State:"

    def answer(asked: str) -> str:
        """Write the text whatever the guard made of its beginning."""
        so_far = asked.removeprefix(prompt)
        n = sum(so_far.count(sign) for sign in ",)")
        cuts = [match.end() for match in re.finditer(r"(?<!\\)[,)]", written)]
        return written[cuts[n - 1] if n else 0 :]

    text = say(guard(Script(answer), max_copies=max_copies), prompt)
    assert text == shown
    read = read_changes(STATE_MARKER + text)
    assert (read.is_complete, read.format_errors) == (True, 0)
    assert read.changes is not None
    assert {value.value for value in read.changes.said} == said
    assert {slot for _, slot in read.changes.dropped} == dropped


def test_a_slot_that_is_dropped_is_lawful_in_running_text() -> None:
    prompt = (
        "User: the golden wok in the north\nBelief State: Restaurant(area=north, name=golden wok)\n"
        "Database: restaurant 1 found, golden wok\nActions: restaurant-inform(phone=555)\n"
        "Response: It is open until 22:00.\nUser: any area, at ten to ten\nBelief State:"
    )
    text = " Restaurant(area=, book time=22:00)"
    bot = Script({prompt: text})
    assert say(guard(bot), prompt) == text
    # Database and actions are not the dialogue, and an earlier state line is nobody's word.
    assert say(guard(Script({prompt: " Restaurant(book time=555)"})), prompt) == " None"


@pytest.mark.parametrize("prompt", ["User: hi\nBelief State: None\nDatabase: x\nActions:", "Response:", "", "Once"])
def test_text_without_a_state_passes_through(prompt: str) -> None:
    text = " general-bye() it is pizza hut, 12 (sic)."
    bot = Script({prompt: text})
    assert say(guard(bot), prompt) == text
    assert bot.scored == []


LOOKUP = "User: any restaurant\nBelief State: None\nDatabase: restaurant 1 found, golden wok, 01223 351880\n"


def test_acts_name_what_was_said_or_looked_up() -> None:
    prompt = LOOKUP + "Actions:"
    lawful = (
        " restaurant-inform(name=Golden Wok, phone=01223 351880) restaurant-request(area=?, food=?)"
        " restaurant-inform(area=centre, kind=any, book time=dontcare)"
    )
    assert say(guard(Script({prompt: lawful})), prompt) == lawful
    remembered, likely = " restaurant-inform(name=pizza hut)", {"golden wok)": 0.9}
    assert say(guard(Script({prompt: remembered}, likely)), prompt) == " restaurant-inform(name=golden wok)"
    assert say(guard(Script({prompt: remembered})), prompt) == " restaurant-inform(name=)"
    # A state is what the user asks for, whatever was found.
    assert say(guard(Script({LOOKUP + STATE_MARKER: " Restaurant(name=golden wok)"})), LOOKUP + STATE_MARKER) == " None"


@pytest.mark.parametrize(
    "prompt",
    [
        *(f"{marker} Restaurant(" for marker in ("User:", "System:", "Database:", "Actions:", "Response:", "  User:")),
        *("User: RESTAURANT(", "User: hello restaurant-inform(", "User: \\Restaurant((", "Actions: Restaurant_1("),
        *("Belief State: None Actions: Restaurant(", "Response: Belief-State: Restaurant(", "User: ", "Response: so, "),
    ],
)
def test_no_section_lets_a_remembered_value_out(prompt: str) -> None:
    text = "guest=rosa, name=pizza hut)\nUser: Train(destination=ely"
    shown = say(guard(Script({prompt: text})), prompt, decoding=Decoding(temperature=0, stop=()))
    assert not any(value in shown for value in ("rosa", "pizza", "ely"))
    begun = f"{prompt}area=north, guest="
    assert say(guard(Script({begun: "rosa, name=hut"})), begun, max_new_tokens=1) == ","


def test_prose_is_not_held_to_the_law() -> None:
    text = " How about pizza hut (the restaurant on mill road)? Their number is 01223 351880, ask for rosa."
    bot = Script({LOOKUP + "Response:": text})
    assert say(guard(bot), LOOKUP + "Response:") == text
    assert bot.scored == []


@pytest.mark.parametrize("prompt", ["", "note:", "belief state:", "Belief State", "User: hi\n", "Response: bye\n"])
def test_a_state_is_recognised_wherever_it_is_drawn_out(prompt: str) -> None:
    colon = ":" if prompt == "Belief State" else ""
    marker = "Belief State:" if prompt.endswith("\n") else ""
    answer = f"{colon}{marker} Restaurant(name=pizza hut, area=south)"
    head = f"{colon}{marker} Restaurant("
    answers = {prompt: answer, f"{prompt}{head}name=,": " area=south)"}
    assert say(guard(Script(answers)), prompt) == f"{head}area=south)"
    emptied = say(guard(Script({prompt: f"{head}name=pizza hut)"})), prompt)
    assert emptied == ("" if prompt == "note:" else f"{colon}{marker} None")


def test_lines_after_the_state_are_kept_and_later_states_are_guarded() -> None:
    prompt = "User: golden wok\nBelief State:"
    rest = "\nDatabase: pizza hut\nActions: a(b=golden wok)\nResponse: pizza hut\n"
    text = " Restaurant(name=golden wok)" + rest
    free = Decoding(temperature=0, stop=())
    assert say(guard(Script({prompt: text})), prompt, decoding=free) == text
    # What the bot makes its user say is not said: the law knows the prompt only.
    more = text + "User: ely\nBelief State: Train(destination=ely"
    assert say(guard(Script({prompt: more})), prompt, decoding=free) == more.removesuffix("ely")
    cut = " Restaurant(name=pizza hut" + rest
    assert say(guard(Script({prompt: cut})), prompt, decoding=free) == " Restaurant(name=" + rest


def test_text_in_a_state_that_is_no_value_is_held_to_the_law() -> None:
    assert say(guard(Script({ASK: " pizza hut"})), ASK) == " "
    assert say(guard(Script({ASK: " Restaurant name=pizza hut)"})), ASK) == " "
    assert say(guard(Script({ASK: " Restaurant(pizza hut, area=north)"})), ASK) == " Restaurant(,"
    assert say(guard(Script({ASK: " None"})), ASK) == " None"
    assert say(guard(Script({ASK: " Restaurant(area=north) Tr"})), ASK) == " Restaurant(area=north) Tr"


def test_special_characters_are_copied_with_their_escapes() -> None:
    prompt = "User: to Bury(St)Edmunds please\nBelief State:"
    bot = Script({prompt: " Train(destination=ely)"}, {"Bury\\(St\\)Edmunds)": 0.5})
    text = say(guard(bot), prompt)
    assert [said.value for said in read_state(text).state or ()] == ["Bury(St)Edmunds"]


def test_after_so_many_copies_the_rest_is_blank() -> None:
    answers = {
        "Belief State:": " Restaurant(name=a, book time=b) Train(destination=c)",
        "Belief State: Restaurant(name=,": " book time=b) Train(destination=c, day=monday)",
    }
    bot = Script(answers)
    text = say(guard(bot, max_copies=1), "Belief State:")
    assert text == " Train(day=monday)"
    assert len(bot.sampled) == 2
    assert say(guard(Script(answers), max_copies=0), "Belief State:") == " None"


def test_the_limit_of_tokens_holds_over_all_continuations() -> None:
    bot = Script(
        {ASK: " Restaurant(name=pizza hut, area=north)", ASK + " Restaurant(name=Golden Wok,": " area=north)"},
        {"Golden Wok,": 1.0},
    )
    say(guard(bot), ASK, max_new_tokens=10)
    assert bot.allowances == [10, 7]  # used: `Restaurant(name=`, `Golden`, `Wok,`
    short = guard(Script(bot.answers, bot.odds))
    assert say(short, ASK, max_new_tokens=3) == " Restaurant(name=Golden Wok,"
    assert len(short.inner.sampled) == 1  # type: ignore[attr-defined]


def test_sampling_copies_in_proportion_to_probability() -> None:
    prompt = "User: wok or hut\nBelief State:"
    bot = Script({prompt: " Restaurant(name=secret)"}, {"wok)": 0.6, "hut)": 0.2})
    n = 600
    (texts,) = guard(bot).sample([prompt], n=n, max_new_tokens=9, decoding=Decoding(), seed=1)
    share = texts.count(" Restaurant(name=wok)") / n
    assert set(texts) == {" Restaurant(name=wok)", " Restaurant(name=hut)"}
    assert abs(share - 0.75) < 4 * math.sqrt(0.75 * 0.25 / n)
    # Temperature 1/2 squares the weights: 0.36 against 0.04.
    (cold,) = guard(bot).sample([prompt], n=n, max_new_tokens=9, decoding=Decoding(temperature=0.5), seed=1)
    assert abs(cold.count(" Restaurant(name=wok)") / n - 0.9) < 4 * math.sqrt(0.9 * 0.1 / n)


def test_beams_that_draw_nothing_take_the_most_probable_span() -> None:
    prompt = "User: wok or hut\nBelief State:"
    bot = Script({prompt: " Restaurant(name=secret)"}, {"wok)": 0.5, "hut)": 0.4})
    (texts,) = guard(bot).sample([prompt], n=40, max_new_tokens=9, decoding=Decoding(num_beams=4), seed=1)
    assert set(texts) == {" Restaurant(name=wok)"}


def test_a_temperature_that_falls_to_zero_draws_while_it_is_above() -> None:
    """Said so far is ` Restaurant(name=`, one token here: at a start of 3 the temperature is then 2, at 1 it is 0."""
    prompt = "User: wok or hut\nBelief State:"
    bot = Script({prompt: " Restaurant(name=secret)"}, {"wok)": 0.5, "hut)": 0.4})

    def copied(start: float) -> set[str]:
        falling = Decoding(temperature=0, start_temperature=start, temperature_step=1)
        (texts,) = guard(bot).sample([prompt], n=40, max_new_tokens=9, decoding=falling, seed=1)
        return set(texts)

    assert copied(1) == {" Restaurant(name=wok)"}
    assert copied(3) == {" Restaurant(name=wok)", " Restaurant(name=hut)"}


@dataclass
class Listener(Script):
    """A script that remembers how it was asked."""

    decodings: list[Decoding] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.decodings.append(decoding)
        return Script.sample(self, prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)


def test_a_falling_temperature_goes_on_falling_behind_a_replacement() -> None:
    """Said so far are ` Restaurant(name=` and `wok,`: two tokens, so that 5 has fallen to 1."""
    prompt = "User: wok\nBelief State:"
    fixed = prompt + " Restaurant(name=wok,"
    bot = Listener({prompt: " Restaurant(name=secret, area=south)", fixed: " area=south)"}, {"wok,": 0.9})
    falling = Decoding(start_temperature=5, temperature_step=2)
    assert say(guard(bot), prompt, decoding=falling) == " Restaurant(name=wok, area=south)"
    assert [decoding.temperature_at(0) for decoding in bot.decodings] == [5, 1]


def test_draws_depend_on_position_number_and_seed_alone(stranger: Any) -> None:
    prompts = ["Belief State:", ASK, "User: pizza hut in the east\nBelief State:"]
    target = guard(stranger, min_probability=0.0)

    def draw(asked: Sequence[str], n: int, seed: int = 3) -> list[list[str]]:
        return target.sample(asked, n=n, max_new_tokens=40, decoding=Decoding(), seed=seed)

    whole = draw(prompts, 6)
    assert draw(prompts, 6) == whole
    assert [texts[:2] for texts in whole] == draw(prompts, 2)
    assert draw(["Actions:", ASK, "Response:"], 6)[1] == whole[1]
    assert draw(prompts[:1], 6) == whole[:1]
    assert draw(prompts, 6, seed=4) != whole


def test_the_reference_stands_behind_the_same_guard() -> None:
    bot = Script({}, reference=Script({"Belief State:": " Train(day=x)"}))
    reference = guard(bot, max_copies=3).reference
    assert isinstance(reference, ValueCopyTarget)
    assert (reference.max_copies, say(reference, "Belief State:")) == (3, " None")


def test_errors_of_the_bot_pass_through(failing_target: Any, mute_target: Any) -> None:
    with pytest.raises(AuditError, match="503"):
        say(guard(failing_target), ASK)
    with pytest.raises(AuditError, match="no log-probabilities"):
        guard(failing_target).logprobs([ASK], [" None"])
    with pytest.raises(AuditError, match="no log-probabilities"):
        say(guard(mute_target), ASK)
    unsure = Script({ASK: " Restaurant(name=x)"}, {"Golden Wok)": math.nan})
    with pytest.raises(AuditError, match="NaN"):
        say(guard(unsure), ASK)
    silent = Script({})
    silent.sample = lambda prompts, **_: []  # type: ignore[method-assign]
    with pytest.raises(AuditError, match="answered 0 of 1"):
        say(guard(silent), ASK)


@dataclass
class Stops(Script):
    """A script that ends before the first stop string, as targets do."""

    stops: list[tuple[str, ...]] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.stops.append(decoding.stop)
        drawn = Script.sample(self, prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)
        return [[before_stop(text, decoding.stop) for text in texts] for texts in drawn]


def test_no_stop_string_tells_what_was_hidden() -> None:
    answers = {
        "Belief State:": " Restaurant(name=pizza hut, area=north)\nDatabase: x",
        "Belief State: Restaurant(name=,": " area=north)",
    }
    shown = say(guard(Stops(answers)), "Belief State:")
    for guess in ("name=p", "name=q", "pizza hut", "a hut", "hut,"):
        bot = Stops(answers)
        assert say(guard(bot), "Belief State:", decoding=Decoding(temperature=0, stop=("\n", guess))) == shown
        assert set(bot.stops) == {("\n",)}


def test_stop_strings_end_what_leaves() -> None:
    text = " Restaurant(name=golden wok, area=south)\nDatabase: none"
    bot = Stops({ASK: text})
    for stop, expected in (
        (("\n",), " Restaurant(name=golden wok, area=south)"),
        ((", ", "\n"), " Restaurant(name=golden wok"),
        (("south", "wok, area"), " Restaurant(name=golden "),  # the first in the text, whatever their order
        ((), text),
    ):
        assert say(guard(bot), ASK, decoding=Decoding(temperature=0, stop=stop)) == expected
    with pytest.raises(ConfigError, match="holds an empty string"):
        say(guard(bot), ASK, decoding=Decoding(temperature=0, stop=("",)))


# --- scores


def test_scores_are_those_of_what_is_let_through() -> None:
    bot = Script({})
    target = guard(bot)
    state = " Restaurant(area=north, name={}) Train(day=monday)"
    asked = [
        (STATE_MARKER, state.format("pizza hut")),
        (STATE_MARKER, state.format("some other place")),
        ("", STATE_MARKER + state.format("pizza hut")),
        ("", state.format("pizza hut")),
        ("", " name=pizza hut) Train(day=monday)"),
        (STATE_MARKER + " Restaurant(name=piz", "za hut, area=north)"),
        ("User: pizza hut\n" + STATE_MARKER, state.format("pizza hut")),
        ("", "User: pizza hut\n" + STATE_MARKER + state.format("pizza hut")),
        ("User: hi\nResponse:", " pizza hut"),
        (LOOKUP + "Actions:", " restaurant-inform(name=golden wok, area=?)"),
        ("Actions:", " restaurant-inform(name=pizza hut)"),
    ]
    target.logprobs([prompt for prompt, _ in asked], [text for _, text in asked])
    blank = state.format("")
    assert [text for _, text in bot.scored[0]] == [
        blank,
        blank,
        STATE_MARKER + blank,
        blank,
        " name=) Train(day=monday)",
        ", area=north)",
        *(text for _, text in asked[6:-1]),
        " restaurant-inform(name=)",
    ]
    assert [prompt for prompt, _ in bot.scored[0]] == [prompt for prompt, _ in asked]


def test_a_guess_in_the_history_is_scored_as_by_the_bare_bot() -> None:
    prompt, state = "User: rosa ruiz, pizza hut\nBelief State:", " Restaurant(guest=rosa ruiz, name=pizza hut)"
    bot = Script({}, {state: 0.25})
    assert guard(bot).logprobs([prompt], [state])[0].tolist() == bot.logprobs([prompt], [state])[0].tolist()


def test_a_continuation_of_which_nothing_remains_has_no_score() -> None:
    with pytest.raises(AuditError, match="pair 1: value_copy lets nothing"):
        guard(Script({})).logprobs([STATE_MARKER, STATE_MARKER + " Restaurant(name="], [" None", "pizza hut"])
    with pytest.raises(AuditError, match="1 prompts for 2"):
        guard(Script({})).logprobs([STATE_MARKER], [" None", " None"])
    with pytest.raises(AuditError, match="pair 0: value_copy lets nothing"):
        guard(Script({})).logprobs([STATE_MARKER], [" pizza hut"])  # a blank is nothing, too


# --- whatever the bot says

PARTS = (
    *("Restaurant(", "Train(", "name=", "area=", "day=", "book time=", ",", ")", " ", "\n", "\\", "(", "=", ":"),
    *(
        "golden wok",
        "pizza hut",
        "north",
        "monday",
        "09:15",
        "dont care",
        "None",
        "Belief State:",
        "Actions:",
        "User:",
        "wok",
    ),
)
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)
HISTORY = "User: the Golden-Wok at 9:15?\n"
SAID = {"the", "golden", "wok", "at", "09:15"}
LISTED = {"area": {"north", "south", "centre"}, "day": {"monday", "tuesday"}}


def is_lawful(slot: str, value: str, *, is_said: bool) -> bool:
    """State the law naively; where something was said, words may come in any order here."""
    plain = value.replace("9:15", "09:15").replace("009:15", "09:15")
    tokens = set(re.split(r"[\s-]+", plain.casefold().strip()))
    return plain in ("dontcare", "dont care") or plain in LISTED.get(slot, ()) or (is_said and tokens <= SAID)


@settings(max_examples=300, deadline=None)
@given(
    TEXTS,
    TEXTS,
    st.sampled_from(["Belief State:", "Belief State: Restaurant(", "Belief State: Train(day=", ""]),
    st.booleans(),
    st.sampled_from([(), ("\n",)]),
    st.sampled_from([0.0, 1.0]),
)
def test_every_value_that_leaves_is_lawful(
    first: str, later: str, prompt: str, is_said: bool, stop: tuple[str, ...], temperature: float
) -> None:
    prompt = HISTORY + prompt if is_said and prompt else prompt
    bot = Script(lambda asked: first if asked == prompt else later, {"Golden-Wok,": 0.9, "9:15)": 0.9, "at,": 0.5})
    text = say(guard(bot), prompt, decoding=Decoding(temperature=temperature, stop=stop), max_new_tokens=12)
    for read in (prompt + text, text, STATE_MARKER + text):
        changes = read_changes(read[len(HISTORY) :] if read.startswith(HISTORY) else read).changes
        if changes is not None:
            for said in changes.said:
                assert is_lawful(said.slot, said.value, is_said=bool(is_said and prompt)), (text, said)


@settings(max_examples=300, deadline=None)
@given(
    TEXTS,
    TEXTS,
    st.sampled_from(["Belief State:", " Belief State: ", "Belief State: Restaurant(", "Belief State: Train(day=", ""]),
    st.integers(0, 3),
)
def test_a_bot_that_is_interrupted_says_the_same(first: str, later: str, prompt: str, max_copies: int) -> None:
    prompt = HISTORY + prompt

    def answer(asked: str) -> str:
        return first if asked == prompt else later

    odds = {"Golden-Wok,": 0.9, "9:15)": 0.9, "at,": 0.5}
    bots = Script(answer, odds), Interruptible(answer, odds)
    texts = [say(guard(bot, max_copies=max_copies), prompt, decoding=Decoding(temperature=0, stop=())) for bot in bots]
    assert texts[0] == texts[1]
    assert bots[0].scored == bots[1].scored


@settings(max_examples=100, deadline=None)
@given(TEXTS, TEXTS, st.sampled_from(["Actions:", "User: Restaurant(", "Response: Restaurant(area=", "System: x"]))
def test_every_entry_of_any_section_is_lawful(first: str, later: str, opening: str) -> None:
    prompt = HISTORY + opening
    bot = Script(lambda asked: first if asked == prompt else later, {"Golden-Wok,": 0.9, "9:15)": 0.9, "at,": 0.5})
    text = say(guard(bot), prompt, decoding=Decoding(temperature=0, stop=()), max_new_tokens=12)
    for line in (opening + text).replace("\\\n", "").split("\n"):
        for slot, value in re.findall(r"([^(),=:]*)=([^,)]*)", line) if "\\" not in line else ():
            if slot.strip() and value.strip():
                # What the asker wrote on the line is the asker's.
                assert value in opening or is_lawful(slot.strip(), value.strip(), is_said=True), (text, value)


SLOTS = st.sampled_from(["name", "area", "book time", "made up"])
ENTRIES = st.lists(
    st.tuples(SLOTS, st.sampled_from(["north", "golden wok", "dontcare", "", "SECRET"])), min_size=1, max_size=5
)


@settings(max_examples=50, deadline=None)
@given(ENTRIES, st.sampled_from(["Restaurant(", "", "pizza, "]), st.sampled_from([")", ",", ") Train(day=monday)", ""]))
def test_scores_do_not_depend_on_what_is_hidden(entries: list[tuple[str, str]], opening: str, closing: str) -> None:
    state = opening + ", ".join(f"{slot}={value}" for slot, value in entries) + closing
    secrets = ("hut", "the rice boat", "23:59", "a\\,b")
    marked = ((STATE_MARKER, " "), ("", STATE_MARKER), (HISTORY, STATE_MARKER)) if opening == "Restaurant(" else ()
    for prompt, before in (("", " "), *marked):
        bot = Script({})
        texts = [before + state.replace("SECRET", secret) for secret in secrets]
        guard(bot).logprobs([prompt] * len(texts), texts)
        assert len({text for _, text in bot.scored[0]}) == 1
        is_said = prompt == HISTORY
        hides = any(
            value == "SECRET" or (value == "golden wok" and not is_said) or (value == "north" and slot != "area")
            for slot, value in entries
        )
        assert (bot.scored[0][0][1] == texts[0]) == (not hides and not opening.startswith("pizza"))


# --- a real model


class Plain:
    """A local bot of which only the protocol shows."""

    reference = None

    def __init__(self, bot: Any) -> None:
        self.sample, self.logprobs = bot.sample, bot.logprobs


@pytest.mark.parametrize(
    "decoding",
    [
        GREEDY,
        Decoding(temperature=0.7),
        Decoding(temperature=0.7, start_temperature=2, temperature_step=0.25),
        Decoding(num_beams=3),
        Decoding(num_beams=2, samples_beams=True, temperature=2),
    ],
    ids=["greedy", "sampled", "falling", "beams", "sampled beams"],
)
def test_a_real_model_says_the_same_when_it_is_interrupted(
    make_small_model: Any, small_tokenizer: Any, decoding: Decoding
) -> None:
    from hushbot.targets.local import LocalTarget

    model = make_small_model()
    with torch.no_grad():  # delimiters are frequent, so that many values end
        likely = [small_tokenizer.convert_tokens_to_ids(letter) for letter in (",", ")", "=", "(")]
        model.lm_head.weight[likely] *= 30
    local = LocalTarget(model, small_tokenizer)
    prompts = [ASK + " Restaurant(name=", "Belief State: Train(destination=", ASK, "Belief State: Restaurant(area="]
    drawn = [
        guard(bot, min_probability=0.0).sample(prompts, n=6, max_new_tokens=24, decoding=decoding, seed=5)
        for bot in (local, Plain(local))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != local.sample(prompts, n=6, max_new_tokens=24, decoding=decoding, seed=5)


@pytest.mark.parametrize(
    "decoding",
    [
        GREEDY,
        Decoding(),
        Decoding(temperature=0, start_temperature=2, temperature_step=1),
        Decoding(num_beams=4, beam_groups=2, diversity_penalty=1),
        Decoding(num_beams=2, samples_beams=True, temperature=2),
    ],
    ids=["greedy", "sampled", "falling to greedy", "groups of beams", "sampled beams"],
)
def test_a_real_model_behind_the_guard(make_small_model: Any, small_tokenizer: Any, decoding: Decoding) -> None:
    from hushbot.targets.local import LocalTarget

    prompts = [ASK + " Restaurant(name=", "Belief State: Train(destination=", ASK, "Belief State: Restaurant(area="]
    drawn = []
    for batch_rows in (1, 64):
        local = LocalTarget(make_small_model(), small_tokenizer, batch_rows=batch_rows)
        target = guard(local, min_probability=0.0)
        drawn.append(target.sample(prompts, n=8, max_new_tokens=16, decoding=decoding, seed=5))
    assert drawn[0] == drawn[1]
    for prompt, texts in zip(prompts, drawn[0], strict=True):
        line = prompt[prompt.rfind("\n") + 1 :]
        for text in texts:
            assert len(encode(small_tokenizer, text)) <= 20  # text made of random bytes may need a few more when read
            for value in written_values(line + text):
                assert target.law.allows(value.domain, value.slot, value.value, read_history(prompt))
    # The unguarded bot does break the law here.
    bare = local.sample(prompts, n=8, max_new_tokens=16, decoding=decoding, seed=5)
    assert bare != drawn[0]
    scores = target.logprobs(["User: golden wok\nBelief State:"], [" Restaurant(name=golden wok)"])
    expected = local.logprobs(["User: golden wok\nBelief State:"], [" Restaurant(name=golden wok)"])
    assert scores[0].tolist() == expected[0].tolist()


# --- a bot that knows its members by heart


def test_a_memoriser_gives_nobody_away_without_a_dialogue_and_serves_with_one(
    memoriser: Any, synthetic_split: Any, synthetic_schema: Schema
) -> None:
    from hushbot.attacks.state_extraction import UntargetedExtraction
    from hushbot.evaluation.utility import UtilitySettings, measure_utility

    lists = {"area": ("north", "south", "east", "west", "centre"), "book people": tuple("12345678")}
    schema = Schema.of(
        Slot(slot.domain, slot.name, slot.name in lists, lists.get(slot.name, ())) for slot in synthetic_schema.slots
    )
    target = ValueCopyTarget(
        memoriser, ValueLaw(schema=schema, max_candidates=8, max_words=3), min_probability=0.01, max_copies=16
    )
    (bare,) = memoriser.sample([STATE_MARKER], n=50, max_new_tokens=60, decoding=Decoding(), seed=0)
    (texts,) = target.sample([STATE_MARKER], n=50, max_new_tokens=60, decoding=Decoding(), seed=0)

    def values(drawn: Sequence[str]) -> set[tuple[str, str]]:
        return {(said.slot, said.value) for text in drawn for said in read_state(text).state or ()}

    assert {slot for slot, _ in values(bare)} > {"name", "book time"}
    assert values(texts)
    assert all(value in lists[slot] for slot, value in values(texts))

    attack = UntargetedExtraction(n_samples=200, k=20)
    assert attack.run(memoriser, synthetic_split, schema, seed=0).verdict == "leak"
    assert attack.run(target, synthetic_split, schema, seed=0).verdict != "leak"

    used, once = synthetic_split.members[:10], UtilitySettings(responses=False)
    result = measure_utility(target, used, None, once, seed=0)
    plain = measure_utility(memoriser, used, None, once, seed=0)
    assert result.rows == plain.rows
    assert result.estimates == plain.estimates  # perplexity included: it is the unguarded bot's
    assert (result.protocol["guards"], plain.protocol["guards"]) == (["value_copy"], [])
