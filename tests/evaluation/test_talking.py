"""Talks with a bot: it answers as measured, and what its guards held back is told, masked."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from hushbot.errors import AuditError
from hushbot.evaluation.chatting import Chat, common_opening
from hushbot.evaluation.running import run_responses, run_states
from hushbot.evaluation.talk_lines import HELP, converse, printable, printer, reply_lines, state_text
from hushbot.evaluation.talking import Talk
from hushbot.evaluation.tracking import Asker, track
from hushbot.evaluation.withheld import Part, Withheld, withheld
from hushbot.prompts import ACTIONS_MARKER, RESPONSE_MARKER, STATE_MARKER
from hushbot.protocols import Target
from hushbot.schema import Schema, Slot
from hushbot.targets.filter_guard import FilterGuardTarget
from hushbot.targets.guarded import GuardedTarget
from hushbot.targets.mask_identifiers import MaskIdentifiers
from hushbot.types import Dialogue, DialogueState, SlotValue, Turn

SCHEMA = Schema.of(
    [
        *(Slot("restaurant", name) for name in ("name", "phone", "book time", "email")),
        Slot("restaurant", "area", categorical=True, possible_values=("centre", "north")),
    ]
)


class Lookup:
    """A database that knows one venue and says how many triplets it was asked for."""

    def lookup(self, state: DialogueState, previous: DialogueState) -> str:
        return f"{len(state)} {len(previous)} found, golden wok"

    def entries(self) -> frozenset[str]:
        return frozenset({"golden wok", "meze bar"})


@dataclass
class Scripted:
    """Answers each kind of question in the same words, and counts how often it was asked."""

    state: str = " None"
    actions: str = ""
    response: str = "Yes."
    reference: Target | None = None
    prompts: list[str] = field(default_factory=list)
    error: Exception | None = None

    def sample(self, prompts: Sequence[str], **settings: object) -> list[list[str]]:
        self.prompts += prompts
        if self.error is not None:
            raise self.error
        return [[self.say(prompt)] for prompt in prompts]

    def say(self, prompt: str) -> str:
        texts = {STATE_MARKER: self.state, ACTIONS_MARKER: self.actions, RESPONSE_MARKER: self.response}
        return next(text for marker, text in texts.items() if prompt.endswith(marker))

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[object]:
        raise NotImplementedError


class Changing(Scripted):
    """Answers in a way that depends on all that it reads."""

    def say(self, prompt: str) -> str:
        number = random.Random(prompt).randrange(1000)
        return f" Restaurant(area={number})" if prompt.endswith(STATE_MARKER) else f" number {number}"


def chat_of(target: object, *, learns_changes: bool = False, is_known: bool = True) -> Chat:
    database = Lookup() if is_known else None
    return Chat(
        target=target,  # type: ignore[arg-type]
        database=database,
        limit=None,
        learns_changes=learns_changes,
        max_new_tokens=64,
        schema=SCHEMA,
    )


@pytest.mark.parametrize("learns_changes", [False, True])
def test_every_turn_is_the_one_that_utility_measures(learns_changes: bool) -> None:
    bot, said = Changing(), ["a table", "in the north", "for two", "thanks"]
    talk = Talk(chat_of(bot, learns_changes=learns_changes), opening="Hello.")
    turns = [talk.say(text).turn for text in said]
    assert len(bot.prompts) == 3 * len(said), "three questions a turn"
    dialogue = Dialogue("d", tuple(Turn(turn.dialogue.turns[-1].user, None, response=turn.response) for turn in turns))
    dialogue = replace(dialogue, opening="Hello.")
    asker = Asker(target=Changing(), max_new_tokens=64, seed=0)  # type: ignore[arg-type]
    if learns_changes:
        expected = run_responses(asker, run_states(asker, [dialogue], Lookup()))
    else:
        expected = track(asker.target, [dialogue], Lookup(), max_new_tokens=64, seed=0)
    assert [(t.state, t.database, t.actions, t.response) for t in turns] == [
        (t.state, t.database, t.actions, t.response) for t in expected
    ]
    assert len({turn.response for turn in turns}) == len(said)
    assert talk.state == expected[-1].in_use


def test_a_talk_can_be_begun_anew() -> None:
    talk = Talk(chat_of(Changing(), learns_changes=True), opening="Hello.")
    first = talk.say("a table").turn
    second = talk.say("a table").turn
    talk.restart()
    assert talk.state == frozenset()
    again = talk.say("a table").turn
    assert (again.response, again.history) == (first.response, first.history)
    assert second.response != first.response


def test_a_bot_that_fails_leaves_the_talk_as_it_was() -> None:
    bot = Changing()
    talk = Talk(chat_of(bot))
    before = talk.say("a table").turn
    bot.error = AuditError("out of order")
    with pytest.raises(AuditError, match="out of order"):
        talk.say("in the north")
    bot.error = None
    assert talk.say("in the south").turn.history == (
        *before.history,
        f"System: {before.response}\n",
        "User: in the south\n",
    )


def test_what_a_guard_held_back_is_told_and_masked() -> None:
    bot = Scripted(
        state=" Restaurant(area=north, phone=01223 351880)",
        actions=" restaurant-inform(phone=01223 351880)",
        response=" Call 01223 351880 now.",
    )
    guarded = FilterGuardTarget(bot, rewriter=MaskIdentifiers())  # type: ignore[arg-type]
    reply = Talk(chat_of(guarded)).say("a table in the north")
    assert reply.turn.response == "Call [phone] now."
    assert reply.withheld == (
        Withheld("state", ("restaurant phone=***(12)",)),
        Withheld("actions", ("restaurant phone=***(12)",)),
        Withheld("response", ("***(5) ***(6)",)),
    )
    assert reply.unfounded == ()
    shown = "\n".join(text for _, text in reply_lines(reply, ("filter_guard",)))
    assert "351880" not in shown
    assert "filter_guard held back in the response: ***(5) ***(6)" in shown
    revealed = Talk(chat_of(guarded), reveal=True).say("a table in the north")
    assert [gone.pieces for gone in revealed.withheld] == [
        ("restaurant phone=01223 351880",),
        ("restaurant phone=01223 351880",),
        ("01223 351880",),
    ]


def test_what_the_user_said_is_not_held_back() -> None:
    bot = Scripted(response=" Call 01223 351880 now.")
    guarded = FilterGuardTarget(bot, rewriter=MaskIdentifiers())  # type: ignore[arg-type]
    talk = Talk(chat_of(guarded))
    assert talk.guards == ("filter_guard",)
    assert talk.say("is 01223 351880 yours?").withheld == ()
    assert len(bot.prompts) == 6, "each question once with the guard and once without"


def test_the_same_words_in_a_later_turn_are_compared_again() -> None:
    bot = Scripted(response=" Call 01223 351880 now.")
    talk = Talk(chat_of(FilterGuardTarget(bot, rewriter=MaskIdentifiers())))  # type: ignore[arg-type]
    assert talk.say("hello").withheld == talk.say("hello").withheld == (Withheld("response", ("***(5) ***(6)",)),)


class Shouting(GuardedTarget):
    """A guard that changes words and takes none away."""

    def sample(self, *args: object, **settings: object) -> list[list[str]]:
        return [[f"{text} Thanks." for text in row] for row in self.inner.sample(*args, **settings)]  # type: ignore[arg-type]


def test_a_guard_that_takes_nothing_away_is_told() -> None:
    reply = Talk(chat_of(Shouting(Scripted()))).say("hello")  # type: ignore[arg-type]
    response = next(gone for gone in reply.withheld if gone.part == "response")
    assert response.pieces == ()
    assert ("Guard", "shouting changed the words, and held nothing back, in the response") in list(
        reply_lines(reply, ("shouting",))
    )


@pytest.mark.parametrize(
    ("part", "said", "unguarded", "pieces"),
    [
        ("state", "None", "Restaurant(name=kowloon garden)", ("restaurant name=k***n(14)",)),
        ("state", "Restaurant(name=north)", "Restaurant(name=kowloon garden)", ("restaurant name=k***n(14)",)),
        ("state", "Restaurant(area=north)", "Restaurant(kowloon=garden,area=north)", ("restaurant k***n(7)=g***n(6)",)),
        ("state", "None", "kowloon", ("k***n(7)",)),
        ("actions", "restaurant-inform(name=)", "restaurant-kowloon(name=cotto)", ("restaurant name=***(5)",)),
        ("response", "see you", "see kowloon you at 17:15", ("k***n(7)", "***(2) ***(5)")),
    ],
)
def test_nothing_is_shown_but_names_of_the_schema(
    part: Part, said: str, unguarded: str, pieces: tuple[str, ...]
) -> None:
    assert withheld(part, said, unguarded, SCHEMA, reveal=False) == Withheld(part, pieces)


@pytest.mark.parametrize("part", ["state", "actions", "response"])
def test_blanks_are_no_difference(part: Part) -> None:
    assert withheld(part, " Restaurant(name=cotto)", "Restaurant(name=cotto) ", SCHEMA, reveal=False) is None


def said_by_the_bot(user: str, *, state: str = " None", actions: str = "", response: str = "Yes.") -> tuple[str, ...]:
    return Talk(chat_of(Scripted(state, actions, response))).say(user).unfounded


@pytest.mark.parametrize(
    ("user", "value"),
    [
        ("is cotto open?", "cotto"),
        ("book the guest house", "guesthouse"),
        ("at Rosa's, please", "rosas"),
        ("at a quarter past five, or 5:15 pm", "17:15"),
        ("anywhere", "golden wok"),
        ("anywhere", "meze bar"),
        ("anywhere", "dontcare"),
        ("for two people", "2"),
    ],
)
def test_values_with_a_source_are_not_noted(user: str, value: str) -> None:
    assert said_by_the_bot(user, state=f" Restaurant(name={value})", actions=f"restaurant-offer(name={value})") == ()


def test_values_without_a_source_are_noted_once() -> None:
    found = said_by_the_bot(
        "at cotton street",
        state=" Restaurant(area=centre, book time=17:15, name=cotto)",
        actions="restaurant-book(name=cotto, reference=7GAWK763)",
        response="Booked at cotto, your reference is 7GAWK763, or write to rosa@mail.example.",
    )
    assert found == (
        "restaurant book time=17:15",
        "restaurant name=cotto",
        "restaurant-book reference=7GAWK763",
        "rosa@mail.example",
    )


def test_what_only_the_bot_said_stays_unfounded() -> None:
    talk = Talk(chat_of(Scripted(state=" Restaurant(name=cotto)", response="Cotto is nice.")))
    assert talk.say("hello").unfounded == talk.say("yes please").unfounded == ("restaurant name=cotto",)
    assert talk.say("cotto, then").unfounded == ()


def test_without_a_database_a_venue_is_unfounded() -> None:
    talk = Talk(chat_of(Scripted(state=" Restaurant(name=golden wok)"), is_known=False))
    assert talk.say("hello").unfounded == ("restaurant name=golden wok",)


def dialogue_with(opening: str, number: int) -> Dialogue:
    return Dialogue(f"d{number}", (Turn("hello", None),), opening=opening)


@pytest.mark.parametrize(
    ("openings", "expected"),
    [
        (["Hi", "Hi ", "Welcome", ""], "Hi"),
        (["Hi", "Hi", "", ""], ""),
        (["Hi Rosa", "Hi Wei", "Hi Ana"], ""),
        ([], ""),
    ],
)
def test_the_opening_is_one_that_several_dialogues_have(openings: list[str], expected: str) -> None:
    assert common_opening(dialogue_with(opening, i) for i, opening in enumerate(openings)) == expected


def test_a_state_shows_what_changed() -> None:
    area, cheap, name = SlotValue("hotel", "area", "north"), SlotValue("hotel", "price", "cheap"), "train"
    before = frozenset({area, cheap, SlotValue(name, "day", "monday")})
    state = frozenset({area, SlotValue("hotel", "price", "dear"), SlotValue("hotel", "stars", "4")})
    assert state_text(state, before) == (
        "hotel: area=north, price=dear (was cheap), stars=4 (new)\ntrain: day=monday (dropped)"
    )
    assert state_text(frozenset(), frozenset()) == "(nothing)"


Transcript = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def transcript() -> Transcript:
    def run(lines: Sequence[str], bot: Scripted, opening: str = "") -> list[tuple[str, str]]:
        shown: list[tuple[str, str]] = []
        converse(Talk(chat_of(bot), opening=opening), lines, lambda label, text: shown.append((label, text)))
        return shown

    return run


def test_a_talk_reads_line_by_line(transcript: Transcript) -> None:
    bot = Scripted(" Restaurant(area=north)", " restaurant-offer(name=golden wok)", " Golden Wok?")
    assert transcript(["north\n", "  \n", "/quit\n", "never said\n"], bot) == [
        ("State", "restaurant: area=north (new)"),
        ("Database", "1 0 found, golden wok"),
        ("Actions", "restaurant-offer(name=golden wok)"),
        ("Bot", "Golden Wok?"),
    ]


def test_commands_are_no_part_of_the_talk(transcript: Transcript) -> None:
    bot = Scripted(" Restaurant(area=north)")
    shown = transcript(["/state", "north", "/state", "/restart", "/state", "/help", "/quiet"], bot, "Hello.")
    assert [text for label, text in shown if label == "State"] == [
        "(nothing)",
        "restaurant: area=north (new)",
        "restaurant: area=north",
        "(nothing)",
    ]
    assert [text for label, text in shown if label == "Bot"] == ["Hello.", "Yes.", "Hello."]
    assert shown[-2:] == [("Help", HELP), ("Help", f"there is no such command; {HELP}")]
    assert not any("/" in prompt for prompt in bot.prompts)


def test_a_state_that_cannot_be_read_is_told(transcript: Transcript) -> None:
    shown = dict(transcript(["north"], Scripted(" gibberish", "", "")))
    assert shown["State"] == "(nothing)\n(could not be read this time, so it stays as it was)"
    assert (shown["Actions"], shown["Bot"]) == ("(nothing)", "(nothing)")


def test_no_character_steers_the_terminal(transcript: Transcript) -> None:
    assert printable("a\x1b[2Jb\nc\u202ed") == "a\ufffd[2Jb\nc\ufffdd"
    assert ("Bot", "a\ufffd[2J") in transcript(["hello"], Scripted(response="a\x1b[2J"))


def test_piped_lines_are_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    printer()("State", f"hotel: {'a' * 200}\ntrain: [b]day[/b]")
    assert capsys.readouterr().out == f"State     hotel: {'a' * 200}\n          train: [b]day[/b]\n"
