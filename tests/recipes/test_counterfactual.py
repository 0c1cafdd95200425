"""Counterfactual values: exact outcomes, consistency, what is left, and what must not be looked at."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot import corpora
from hushbot.corpora.multiwoz import load_multiwoz
from hushbot.corpora.multiwoz_metadata import ontology_slots
from hushbot.corpora.schema_guided import load_schema_guided
from hushbot.errors import ConfigError
from hushbot.protocols import Recipe
from hushbot.recipes.counterfactual import Counterfactual
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema, Slot
from hushbot.training.stack import RecipeStack
from hushbot.types import Dialogue, SlotValue, Span, Turn
from hushbot.values.clock import minutes_of
from hushbot.values.dates import day_of
from hushbot.values.exchange_plan import AS_SET, NO_ALTERNATIVE, STILL_THERE
from hushbot.values.reading import FREE_TEXT, IN_OTHER_WORDS, OTHER_COUNT, OTHER_FORM, YES_OR_NO
from hushbot.values.shapes import number_of, shape_of
from hushbot.values.value import action_values, is_void

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SCHEMA = Schema.of(
    [
        Slot("inn", "area", categorical=True, possible_values=("north", "south")),
        Slot("inn", "nights", categorical=True, possible_values=("2", "3")),
        Slot("inn", "parking", categorical=True, possible_values=("yes", "no")),
        Slot("inn", "day", categorical=True, possible_values=DAYS),
        Slot("inn", "name", possible_values=("Golden Wok", "Pizza Hut")),
        Slot("taxi", "to", possible_values=("golden wok", "pizza hut")),
    ]
)
AREA, NIGHTS = SlotValue("inn", "area", "north"), SlotValue("inn", "nights", "2", alternatives=("two",))
NAME, TO = SlotValue("inn", "name", "golden wok"), SlotValue("taxi", "to", "golden wok")
DIALOGUE = Dialogue(
    "d",
    (
        Turn(
            "an inn in the north",
            frozenset({AREA}),
            "inn 2 found, golden wok",
            "inn-INFORM_COUNT(count=2) inn-OFFER(name=golden wok)",
            "I found 2. How about the Golden Wok?",
            user_spans=(Span("inn", "area", "north", 14, 19),),
            response_spans=(Span("inn", "name", "Golden Wok", 25, 35),),
        ),
        Turn(
            "yes, two nights",
            frozenset({AREA, NAME, NIGHTS}),
            "inn 1 found, golden wok",
            "inn-CONFIRM(nights=2, area=north)",
            "2 nights in the north.",
        ),
        Turn("a taxi to golden wok", frozenset({AREA, NAME, NIGHTS, TO}), response=None),
    ),
    goal={"inn": "golden wok"},
)


def rewritten(dialogue: Dialogue, schema: Schema = SCHEMA, **options: object) -> Dialogue:
    return recipe(**options).rewrite([dialogue], schema, epoch=0, seed=1)[0]


def recipe(**options: object) -> Counterfactual:
    return dataclasses.replace(Counterfactual(rate=1.0, removal=0.0), **options)  # type: ignore[arg-type]


def single(user: str, *triplets: tuple[str, str, str], response: str = "ok") -> Dialogue:
    held = [(domain, slot, *value.split("|")) for domain, slot, value in triplets]
    state = frozenset(SlotValue(domain, slot, value, tuple(more)) for domain, slot, value, *more in held)
    return Dialogue("d", (Turn(user, state, response=response),))


def values(dialogue: Dialogue) -> list[tuple[str, str, str]]:
    return [(t.domain, t.slot, t.value) for turn in dialogue.turns for t in sorted(turn.state or ())]


def left(dialogue: Dialogue, schema: Schema = SCHEMA, **options: object) -> dict[str, int]:
    return dict(recipe(**options).measure([dialogue], schema, seed=1).left)


def test_every_value_is_replaced_everywhere() -> None:
    new = rewritten(DIALOGUE)
    south, three = SlotValue("inn", "area", "south"), SlotValue("inn", "nights", "3")
    hut, to = SlotValue("inn", "name", "pizza hut"), SlotValue("taxi", "to", "pizza hut")
    first, second, third = new.turns
    assert first == Turn(
        "an inn in the south",
        frozenset({south}),
        "inn 2 found, pizza hut",
        "inn-INFORM_COUNT(count=2) inn-OFFER(name=pizza hut)",
        "I found 2. How about the Pizza Hut?",
        user_spans=(Span("inn", "area", "south", 14, 19),),
        response_spans=(Span("inn", "name", "Pizza Hut", 25, 34),),
    )
    assert (second.user, second.actions) == ("yes, three nights", "inn-CONFIRM(nights=3, area=south)")
    assert (second.database, second.response) == ("inn 1 found, pizza hut", "3 nights in the south.")
    assert [triplet.values for triplet in sorted(second.state or ())] == [("south",), ("pizza hut",), ("3", "three")]
    assert (third.user, third.state) == ("a taxi to pizza hut", frozenset({south, three, hut, to}))
    assert (third.response, new.goal, new.id) == (None, None, "d")


def test_what_is_removed_leaves_nothing_and_numbers_are_replaced() -> None:
    first, second, third = rewritten(DIALOGUE, removal=1.0).turns
    hut, to = SlotValue("inn", "name", "pizza hut"), SlotValue("taxi", "to", "pizza hut")
    assert (first.user, first.state, first.user_spans) == ("an inn", frozenset(), ())
    assert (second.user, second.actions, second.response) == ("yes, three nights", "inn-CONFIRM(nights=3)", "3 nights.")
    # What the system was the first to name is replaced, or it would offer nothing.
    assert first.actions == "inn-INFORM_COUNT(count=2) inn-OFFER(name=pizza hut)"
    assert first.response == "I found 2. How about the Pizza Hut?"
    assert (third.user, third.state) == ("a taxi to pizza hut", frozenset({SlotValue("inn", "nights", "3"), hut, to}))


def test_one_of_several_that_or_joins_is_not_taken_out() -> None:
    dialogue = single("ann or bob? ann, at the mill", ("inn", "guest", "ann"), ("inn", "place", "mill"))
    (turn,) = rewritten(dialogue, removal=1.0).turns
    assert re.fullmatch(r"(\w+) or bob\? \1", turn.user)
    assert "ann" not in turn.user
    assert {triplet.slot for triplet in turn.state or ()} == {"guest"}


def test_what_only_the_system_says_is_never_removed() -> None:
    turn = Turn("book it", frozenset(), actions="inn-BOOK(ref=KB4FW9)", response="It is KB4FW9.")
    (new,) = rewritten(Dialogue("d", (turn,)), removal=1.0).turns
    match = re.fullmatch(r"inn-BOOK\(ref=([A-Z]{2}\d[A-Z]{2}\d)\)", new.actions)
    assert match
    assert match[1] != "KB4FW9"
    assert new.response == f"It is {match[1]}."


def test_values_that_nobody_said_are_replaced() -> None:
    tapped = single("", ("inn", "area", "north"), ("inn", "guest", "ann archer"), ("inn", "nights", "2"))
    new = {slot: value for _, slot, value in values(rewritten(tapped))}
    assert (new["area"], new["nights"]) == ("south", "3")
    assert "ann" not in new["guest"]
    assert "archer" not in new["guest"]
    in_words = single("the usual", ("inn", "guest", "ann archer"))
    assert values(rewritten(in_words)) != values(in_words)


@pytest.mark.parametrize(
    ("dialogue", "reason"),
    [
        (single("yes, with parking", ("inn", "parking", "yes")), YES_OR_NO),
        (single("i have a car", ("inn", "parking", "yes"), response="yes"), YES_OR_NO),
        (single("up there", ("inn", "area", "north")), IN_OTHER_WORDS),
        (single("a couple of nights, i found 13", ("inn", "nights", "2")), IN_OTHER_WORDS),
        (single("north", ("inn", "area", "north"), ("taxi", "area", "south")), NO_ALTERNATIVE),
        (single("northern", ("inn", "area", "north"), response="north"), OTHER_FORM),
        (single("for 2 nights", ("inn", "nights", "2"), response="there are 2"), OTHER_COUNT),
        (single("2 nights, 1 couple", ("inn", "nights", "2|1 couple")), IN_OTHER_WORDS),
        (single("found", ("inn", "name", "found"), response="found!"), FREE_TEXT),
        (single("my screen broke when i sat on it", ("inn", "issue", "my screen broke when i sat")), FREE_TEXT),
        (
            single(
                "i am sofia marlow",
                ("inn", "guest", "sofia marlow"),
                ("inn", "issue", "tell sofia my red lamp broke"),
                response="hi sofia",
            ),
            STILL_THERE,
        ),
    ],
)
def test_what_cannot_be_replaced_safely_is_left_and_counted(dialogue: Dialogue, reason: str) -> None:
    assert left(dialogue)[reason] == 1
    kept = [triplet for triplet in values(dialogue) if triplet[0] == "inn"]
    assert [triplet for triplet in values(rewritten(dialogue)) if triplet[0] == "inn"] == kept


def test_a_yes_that_was_tapped_is_exchanged() -> None:
    assert values(rewritten(single("", ("inn", "parking", "yes")))) == [("inn", "parking", "no")]
    assert left(single("", ("inn", "parking", "yes"), response="yes, parking")) == {YES_OR_NO: 1}


def test_categorical_values_can_be_kept() -> None:
    assert values(rewritten(DIALOGUE, categorical=False))[0] == ("inn", "area", "north")
    assert left(DIALOGUE, categorical=False) == {AS_SET: 2}


def test_voids_are_never_touched() -> None:
    dialogue = single("any inn", ("inn", "area", "dontcare"), ("inn", "guest", "?"))
    assert rewritten(dialogue) is dialogue


def test_a_name_takes_the_address_that_is_made_of_it_along() -> None:
    mail = "tariq.lombardi12@post.example"
    dialogue = single(f"tariq lombardi, {mail}", ("inn", "guest", "tariq lombardi"), ("inn", "email", mail))
    seen = set()
    for seed in range(30):
        (new,) = Counterfactual(rate=0.5, removal=0.0).rewrite([dialogue], SCHEMA, epoch=0, seed=seed)
        (turn,) = new.turns
        is_renamed = "tariq lombardi" not in turn.user
        assert not (is_renamed and re.search("tariq|lombardi", f"{turn.user} {values(new)}"))
        seen.add(is_renamed)
    assert seen == {True, False}


def test_a_value_takes_those_along_that_hold_it() -> None:
    dialogue = single("to ely, to the ely arms", ("taxi", "from", "ely"), ("inn", "name", "ely arms"))
    for seed in range(30):
        (new,) = Counterfactual(rate=0.5, removal=0.0).rewrite([dialogue], Schema(()), epoch=0, seed=seed)
        text = f"{new.turns[0].user} {values(new)}"
        assert "ely" not in text or ("taxi", "from", "ely") in values(new)


def test_at_rate_zero_nothing_is_new() -> None:
    dialogues = corpora.load("bookings").dialogues[:5]
    new = Counterfactual(rate=0.0).rewrite(dialogues, SCHEMA, epoch=0, seed=1)
    assert all(one is other for one, other in zip(new, dialogues, strict=True))


def test_draws_follow_rate_removal_seed_and_epoch() -> None:
    corpus = corpora.load("bookings")
    some = Counterfactual(rate=0.3, removal=0.5)
    first, again, other_epoch, other_seed = (
        some.rewrite(corpus.dialogues[:60], corpus.schema, epoch=epoch, seed=seed)
        for epoch, seed in ((0, 1), (0, 1), (1, 1), (0, 2))
    )
    assert first == again
    assert first != other_epoch
    assert first != other_seed
    seen = Counterfactual(rate=0.3, removal=0.0).measure(corpus.dialogues[:120], corpus.schema, seed=1)
    drawn = (seen.replaced + seen.removed + sum(seen.left.values())) / seen.values
    assert 0.27 < drawn < 0.4, "the rate, and what holds a drawn value comes along"
    assert seen.removed == 0
    assert some.measure(corpus.dialogues[:60], corpus.schema, seed=1).removed > 0


def test_publicly_drawn_a_dialogue_depends_on_itself_alone() -> None:
    corpus = corpora.load("bookings")
    some = corpus.dialogues[:30]
    new = Counterfactual().rewrite(some, corpus.schema, epoch=2, seed=5)
    assert Counterfactual().rewrite(some[::-1], corpus.schema, epoch=2, seed=5) == new[::-1]
    assert Counterfactual().rewrite(corpus.dialogues[10:60], corpus.schema, epoch=2, seed=5)[:20] == new[10:]
    # A schema that was read off dialogues holds no values, so it adds nothing.
    assert recipe().rewrite(some, Schema.from_dialogues(some), epoch=0, seed=5) == recipe().rewrite(
        some, Schema(()), epoch=0, seed=5
    )


def test_the_members_pool_takes_values_of_other_members_states() -> None:
    names = ("ann archer", "bob baker", "eve ellis")
    dialogues = [
        dataclasses.replace(single(f"i am {name}", ("inn", "guest", name)), id=f"d{i}") for i, name in enumerate(names)
    ]
    pooled = recipe(pool="members")
    assert (pooled.reads_other_dialogues, recipe().reads_other_dialogues) == (True, False)
    for seed in range(5):
        for old, new in zip(names, pooled.rewrite(dialogues, SCHEMA, epoch=0, seed=seed), strict=True):
            ((_, _, value),) = values(new)
            assert value in set(names) - {old}
            assert new.turns[0].user == f"i am {value}"


def test_the_members_pool_is_refused_where_a_guarantee_is_claimed() -> None:
    class Private(Recipe):
        privacy_unit = "dialogue"

    RecipeStack((TurnLevel(), Counterfactual(), Private()))
    with pytest.raises(ConfigError, match=r"recipe\.counterfactual\.pool=public"):
        RecipeStack((TurnLevel(), Counterfactual(pool="members"), Private()))


@pytest.mark.parametrize(
    ("options", "key"),
    [({"rate": 1.5}, "rate"), ({"removal": float("nan")}, "removal"), ({"pool": "world"}, "pool")],
)
def test_wrong_settings_are_refused(options: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=rf"set recipe\.counterfactual\.{key}"):
        Counterfactual(**options)  # type: ignore[arg-type]


def test_notes_count_and_name_nothing() -> None:
    notes = recipe().notes([DIALOGUE, single("yes", ("inn", "parking", "yes"))], SCHEMA, seed=1)
    assert notes[0] == (
        "of 4 distinct values in 2 dialogues, epoch 0 replaces 3 and removes 0; drawn but left: 1 (1 yes or no)"
    )
    # Of `Inn(area=north)` and so on, without database lines: see the dialogue above.
    assert "golden" not in " ".join(notes).casefold()
    assert re.search(r"share of supervised text .*: \d+\.\d%", notes[1])
    assert "not measured" in recipe().notes([], SCHEMA, seed=1)[1]


def test_the_share_of_changed_text_is_counted_by_characters() -> None:
    seen = recipe().measure([single("i am ann", ("inn", "guest", "ann"), response="hi ann")], SCHEMA, seed=1)
    # `Inn(guest=ann)` and `hi ann`: 14 + 6 characters, 3 + 3 of them the name.
    assert (seen.characters, seen.changed) == (20, 6)
    assert (seen.values, seen.replaced, seen.open_values, seen.open_left) == (1, 1, 1, 0)


def test_a_first_name_and_a_last_name_follow_the_full_name() -> None:
    dialogue = single(
        *("i am Sofia Marlow", ("inn", "guest", "Sofia Marlow"), ("inn", "email", "sofia.marlow@post.example")),
        response="Thanks Sofia. Ms. Marlow is booked.",
    )
    (turn,) = rewritten(dialogue).turns
    first, last = turn.user.removeprefix("i am ").split()
    assert turn.response == f"Thanks {first}. Ms. {last} is booked."
    assert f"{first}.{last}@".lower() in " ".join(value for _, _, value in values(rewritten(dialogue)))
    assert not {"Sofia", "Marlow"} & {first, last}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("university arms hotel", "The University Arms Hotel"),
        ("the kohinoor", "Kohinoor"),
        ("christ college", "Christ 's College"),
        ("caffe uno", "Caffè Uno"),
        ("caffe\u0300 uno", "Caffè Uno"),
        ("rosa 's bed and breakfast", "Rosa 's"),
    ],
)
def test_one_place_under_two_names_stays_one_place(held: str, said: str) -> None:
    new = rewritten(single(f"to {said} please", ("inn", "name", held), ("taxi", "to", said), response=f"{said}?"))
    (name, to) = (value for _, _, value in values(new))
    assert new.turns[0].user == f"to {to} please"
    assert new.turns[0].response == f"{to}?"
    bare = re.sub(r"^the | 's", "", to.casefold())
    assert bare in re.sub(r"^the | 's", "", name.casefold())
    assert not re.search("university|kohinoor|christ|uno|rosa", f"{name} {to}".casefold())


def test_options_of_one_list_stay_different() -> None:
    turns = (
        Turn("a ride", frozenset(), actions="ride-OFFER(type=Luxury|Regular)", response="Luxury or Regular?"),
        Turn("luxury", frozenset({SlotValue("ride", "type", "Luxury")}), response="Luxury it is."),
    )
    schema = Schema.of([Slot("ride", "type", categorical=True, possible_values=("Luxury", "Regular"))])
    first, second = rewritten(Dialogue("d", turns), schema).turns
    assert (first.actions, first.response) == ("ride-OFFER(type=Regular|Luxury)", "Regular or Luxury?")
    assert (second.user, second.response) == ("regular", "Regular it is.")


def test_what_the_user_picks_from_several_options_in_other_words_is_left() -> None:
    north = frozenset({SlotValue("inn", "area", "north")})
    both, one = (
        Dialogue("d", (Turn("an inn", frozenset(), response=text), Turn("the second", north, response="ok")))
        for text in ("south or north?", "in the north?")
    )
    assert left(both) == {IN_OTHER_WORDS: 1}
    assert left(one) == {}


def test_times_and_days_keep_their_order() -> None:
    times = [("leave", "09:10"), ("arrive", "11:00"), ("back", "11:05"), ("by", "18:15")]
    days = [("check in", "March 3rd"), ("check out", "March 5th"), ("review", "June 1st")]
    dialogue = single("", *(("inn", slot, value) for slot, value in times + days))
    for seed in range(20):
        (new,) = recipe().rewrite([dialogue], SCHEMA, epoch=0, seed=seed)
        now = {slot: value for _, slot, value in values(new)}
        new_times = [minutes_of(now[slot]) or 0 for slot, _ in times]
        new_days = [day_of(now[slot]) or (0, 0) for slot, _ in days]
        assert new_times == sorted(set(new_times))
        assert new_days == sorted(set(new_days))
        assert not set(now.values()) & {value for _, value in times + days}


def test_values_of_other_dialogues_in_an_ontology_change_nothing() -> None:
    dialogue = single("korean in the north", ("restaurant", "food", "korean"), ("restaurant", "area", "north"))
    mine = {"restaurant-semi-food": ["korean"], "restaurant-semi-area": ["north", "west"]}
    all_of_us = {"restaurant-semi-food": ["korean", "basque"], "restaurant-semi-area": ["north", "ann's house"]}
    for seed in range(20):
        one, other = (
            recipe().rewrite([dialogue], Schema.of(ontology_slots(ontology)), epoch=0, seed=seed)
            for ontology in (mine, all_of_us)
        )
        assert one == other
        assert one != (dialogue,)


def supervised(dialogue: Dialogue) -> Iterator[str]:
    """Yield states' values, actions' values, responses and what is booked."""
    for turn in dialogue.turns:
        yield turn.response or ""
        yield from (value for _, value in action_values(turn.actions))
        yield from (value for triplet in (*(turn.state or ()), *turn.booked) for value in triplet.values)


def open_values(dialogue: Dialogue, schema: Schema) -> set[str]:
    """Return non-categorical values of states, what is booked, and identifiers and names in actions."""
    closed = {(slot.domain, slot.name) for slot in schema.slots if slot.categorical}
    held = {t for turn in dialogue.turns for t in turn.state or () if (t.domain, t.slot) not in closed}
    texts = {triplet.value for triplet in held} | {t.value for turn in dialogue.turns for t in turn.booked}
    for turn in dialogue.turns:
        for slot, value in action_values(turn.actions):
            if shape_of(value, slot) in ("phone", "email", "postcode", "code", "name", "time", "price"):
                texts.add(value)
    return {text for text in texts if not is_void(text) and number_of(text) is None}


def says(texts: Iterator[str], value: str) -> bool:
    pattern = re.compile(rf"(?<![^\W_]){re.escape(value.casefold())}(?![^\W_])")
    return any(pattern.search(text.casefold()) for text in texts)


def check_nothing_remains(dialogues: Sequence[Dialogue], schema: Schema, most_left: float) -> None:
    every = recipe()
    n_values = n_remaining = 0
    for old, new in zip(dialogues, every.rewrite(dialogues, schema, epoch=0, seed=1), strict=True):
        known = open_values(old, schema)
        outcome = every._outcome(old, every._lists([old], schema), "1/0")
        stays = {text for key in outcome.left for text in outcome.reading.values[key].texts}
        put_in = {exchange.new for exchange in outcome.substitution.exchanges.values()}
        remaining = {value for value in known - put_in if says(supervised(new), value)}
        n_values, n_remaining = n_values + len(known), n_remaining + len(remaining)
        assert not {value for value in remaining if not any(says(iter([text]), value) for text in stays)}, old.id
        check_agreement(old, new, stays)
        for turn in new.turns:
            for text, spans in ((turn.user, turn.user_spans), (turn.response or "", turn.response_spans)):
                assert all(text[s.start : s.end].casefold() == s.value.casefold() for s in spans)
        check_types(old, new, schema)
    assert n_values > len(dialogues)
    assert n_remaining / n_values <= most_left
    seen = every.measure(dialogues, schema, seed=1)
    assert seen.open_left / seen.open_values <= most_left


def check_agreement(old: Dialogue, new: Dialogue, stays: set[str]) -> None:
    """Hold texts, states and actions of a rewritten dialogue against each other, knowing the state's change only."""
    said_before = said_after = ""
    known = set(supervised(old))
    for before, after in zip(old.turns, new.turns, strict=True):
        said_before, said_after = f"{said_before} | {before.user}", f"{said_after} | {after.user}"
        now = {(t.domain, t.slot): t.value for t in after.state or ()}
        for triplet in before.state or ():
            if number_of(triplet.value) is None and not is_void(triplet.value) and triplet.value not in stays:
                was_said = says(iter([said_before]), triplet.value)
                is_said = says(iter([said_after]), now[triplet.domain, triplet.slot])
                assert is_said or not was_said, f"{old.id}: {triplet.slot} is held and not said any more"
        pairs = zip(action_values(before.actions), action_values(after.actions), strict=True)
        for (slot, value), (_, new_value) in pairs:
            is_part = any(value.casefold() in other.casefold() and value != other for other in known)
            if value != new_value and not is_part and says(iter([before.response or ""]), value):
                said = [after.response or ""]
                assert says(iter(said), new_value) or says(iter(said), f"{new_value}s"), f"{old.id}: {slot}"


def check_types(old: Dialogue, new: Dialogue, schema: Schema) -> None:
    closed = {(s.domain, s.name): s.possible_values for s in schema.slots if s.categorical and s.possible_values}
    for before, after in zip(old.turns, new.turns, strict=True):
        was = {(t.domain, t.slot): t.value for t in before.state or ()}
        for triplet in after.state or ():
            possible = closed.get((triplet.domain, triplet.slot))
            value = was[triplet.domain, triplet.slot]
            assert possible is None or triplet.value == value or triplet.value in possible


def test_no_open_value_of_the_bundled_corpus_remains() -> None:
    corpus = corpora.load("bookings")
    check_nothing_remains(corpus.dialogues[:60], corpus.schema, most_left=0.0)


def test_what_is_removed_from_the_bundled_corpus_is_gone_from_every_text() -> None:
    corpus = corpora.load("bookings")
    some = corpus.dialogues[:60]
    new = recipe(removal=1.0).rewrite(some, corpus.schema, epoch=0, seed=1)
    for old, after in zip(some, new, strict=True):
        held = {t.value for turn in old.turns for t in turn.state or ()} & open_values(old, corpus.schema)
        read = [text for turn in after.turns for text in (turn.user, turn.database)]
        assert not [value for value in held if says(iter([*supervised(after), *read]), value)]
        assert all(text == " ".join(text.split()) and ",," not in text for text in read)


def test_no_open_value_of_multiwoz_remains(shared_dir: Path) -> None:
    corpus = load_multiwoz(shared_dir / "data" / "multiwoz21", parts=["val"])
    check_nothing_remains(corpus.dialogues[:80], corpus.schema, most_left=0.01)


def test_no_open_value_of_sgd_remains(shared_dir: Path) -> None:
    corpus = load_schema_guided(shared_dir / "data" / "sgd", splits=["test"])
    check_nothing_remains(corpus.dialogues[:50], corpus.schema, most_left=0.02)


NAMES = (
    *(
        "ann archer",
        "ann",
        "Sofia Mörk",
        "sofia mork",
        "the ely arms",
        "ely arms",
        "ely",
        "st. john's inn",
        "st john inn",
    ),
    *("Old-Town Hall", "Café Uno", "cafe uno", "KB4FW9", "9:00", "17:45", "3"),
)


@st.composite
def made_dialogues(draw: st.DrawFn) -> Dialogue:
    """Draw a dialogue whose users say some of what the state then holds."""
    held: dict[tuple[str, str], SlotValue] = {}
    turns = []
    for _ in range(draw(st.integers(1, 3))):
        new = {
            (domain, slot): SlotValue(domain, slot, draw(st.sampled_from(DAYS if slot == "day" else NAMES)))
            for domain, slot in draw(st.sets(st.sampled_from([("inn", "guest"), ("taxi", "to"), ("inn", "day")])))
        }
        held |= new
        said = [triplet.value for triplet in sorted(new.values()) if draw(st.booleans())]
        user = draw(st.sampled_from(["", "please book "])) + " and ".join(said)
        heard = draw(st.sampled_from(sorted(triplet.value for triplet in held.values()) or ["nothing"]))
        spans = [Span("inn", "guest", value, user.index(value), user.index(value) + len(value)) for value in said]
        response = draw(st.sampled_from([f"I found 3. {heard}?", f"An {heard.upper()}, for 3 people."]))
        turns.append(
            Turn(
                user,
                frozenset(held.values()),
                f"inn 3 found, {heard}",
                f"inn-OFFER(name={heard}, count=3)",
                response,
                user_spans=tuple(sorted(spans, key=lambda span: span.start)),
            )
        )
    return Dialogue(draw(st.sampled_from(["a", "b"])), tuple(turns))


@settings(max_examples=60, deadline=None)
@given(made_dialogues(), st.sampled_from([0.4, 1.0]), st.integers(0, 3))
def test_text_and_state_agree_after_as_they_did_before(dialogue: Dialogue, rate: float, epoch: int) -> None:
    (new,) = recipe(rate=rate).rewrite([dialogue], SCHEMA, epoch=epoch, seed=0)
    becomes: dict[str, str] = {}
    for before, after in zip(dialogue.turns, new.turns, strict=True):
        now = {(t.domain, t.slot): t.value for t in after.state or ()}
        assert now.keys() == {(t.domain, t.slot) for t in before.state or ()}
        for triplet in before.state or ():
            value = now[triplet.domain, triplet.slot]
            assert becomes.setdefault(triplet.value, value) == value, "one value became two"
            if triplet.slot == "day":
                assert value in DAYS
    for before, after in zip(dialogue.turns, new.turns, strict=True):
        for triplet in before.state or ():
            # `ann` is not said by who says `ann archer`, where that is a value as well.
            is_part = any(says(iter([other]), triplet.value) for other in becomes if other != triplet.value)
            if not is_part and says(iter([before.user]), triplet.value):
                assert says(iter([after.user]), becomes[triplet.value]), "the state holds what nobody says any more"
        for span in after.user_spans:
            assert after.user[span.start : span.end].casefold() == span.value.casefold()
        assert "found 3." not in (before.response or "") or "found 3." in (after.response or "")
    gone = {old for old, value in becomes.items() if old.casefold() != value.casefold() and number_of(old) is None}
    texts = [text for turn in new.turns for text in (turn.user, turn.database)]
    # A day that was put in for another day is no trace of it.
    assert not [value for value in gone - set(becomes.values()) if says(iter([*supervised(new), *texts]), value)]


@settings(max_examples=60, deadline=None)
@given(made_dialogues(), st.sampled_from([0.5, 1.0]), st.integers(0, 3))
def test_what_is_taken_out_leaves_spans_that_fit_and_no_trace(dialogue: Dialogue, removal: float, epoch: int) -> None:
    (new,) = recipe(removal=removal).rewrite([dialogue], Schema(()), epoch=epoch, seed=0)
    for before, after in zip(dialogue.turns, new.turns, strict=True):
        for text, spans in ((after.user, after.user_spans), (after.response or "", after.response_spans)):
            assert all(text[span.start : span.end].casefold() == span.value.casefold() for span in spans)
        held = {(t.domain, t.slot): t.value for t in after.state or ()}
        for triplet in before.state or ():
            if (triplet.domain, triplet.slot) not in held:
                assert not says(iter([after.user, *supervised(new)]), triplet.value)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["Ann", "Zoë", "Sofia", "Søren"]),
    st.sampled_from(["Archer", "Mörk", "Marlow"]),
    st.sampled_from(["Thanks {}.", "Ms. {}!", "{} 's room", "is {} or the {} coming?"]),
    st.integers(0, 20),
)
def test_no_part_of_a_name_is_said_any_more(first: str, last: str, said: str, seed: int) -> None:
    name = f"{first} {last}"
    dialogue = single(f"for {name}", ("inn", "guest", name), response=said.format(first, last))
    (new,) = recipe().rewrite([dialogue], Schema(()), epoch=0, seed=seed)
    ((_, _, value),) = values(new)
    new_first, new_last = value.split()
    assert (new.turns[0].user, new.turns[0].response) == (f"for {value}", said.format(new_first, new_last))
    assert not {first, last} & {new_first, new_last}
