from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from hushbot.errors import AuditError
from hushbot.evaluation.tracking import Asker, gold_log_likelihood, track, track_states
from hushbot.recipes.turn_level import TurnLevel
from hushbot.types import Decoding, Dialogue, DialogueState, SlotValue, Turn


@dataclass
class Scripted:
    """A bot that answers as it is told and remembers what it was asked."""

    answer: Callable[[str], str]
    reference: None = None
    asked: list[list[str]] = field(default_factory=list)
    settings: list[tuple[int, int, Decoding, int]] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.asked.append(list(prompts))
        self.settings.append((n, max_new_tokens, decoding, seed))
        return [[self.answer(prompt)] * n for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        return [torch.full((len(text.split()),), -0.5) for text in continuations]


@dataclass
class Echo:
    """A database that says what it was asked."""

    calls: list[tuple[DialogueState, DialogueState]] = field(default_factory=list)

    def lookup(self, state: DialogueState, previous: DialogueState) -> str:
        self.calls.append((state, previous))
        return f"{len(state)} slots, {len(previous)} before"


def state(**slots: str) -> DialogueState:
    return frozenset(SlotValue("hotel", slot, value) for slot, value in slots.items())


STAY = Dialogue(
    "d1",
    (
        Turn("somewhere north", state(area="north"), "gold db", "hotel-request()", "How many stars?"),
        Turn("four", state(area="north", stars="4"), "gold db", "hotel-inform()", "The Avalon.\nAnything else?"),
        Turn("bye", None, response=None),
    ),
)
OTHER = Dialogue("d2", (Turn("hello", frozenset(), "", "general-greet()", "Hi."),))


def by_marker(states: Sequence[str]) -> Callable[[str], str]:
    """Answer state prompts in turn; actions and responses by a fixed text."""
    left = iter(states)

    def answer(prompt: str) -> str:
        if prompt.endswith("Belief State:"):
            return next(left)
        return " act" if prompt.endswith("Actions:") else " said  so"

    return answer


def test_all_turns_of_all_dialogues_are_asked_at_once_and_greedily() -> None:
    bot = Scripted(by_marker([" Hotel(area=north)", " None", " None", " None"]))
    turns = track_states(Asker(target=bot, max_new_tokens=7, seed=3), [STAY, OTHER])
    assert len(bot.asked) == 1
    assert bot.asked[0][1] == ("User: somewhere north\nSystem: How many stars?\nUser: four\nBelief State:")
    assert bot.settings == [(1, 7, Decoding(temperature=0), 3)]
    assert [(t.dialogue.id, t.turn) for t in turns] == [("d1", 0), ("d1", 1), ("d1", 2), ("d2", 0)]
    assert [t.state for t in turns] == [state(area="north"), frozenset(), frozenset(), frozenset()]


@pytest.mark.parametrize("text", ["", " the hotel", " Hotel(area=north, stars=", " Hotel(area=north", " None of these"])
def test_a_cut_or_unreadable_state_is_none_and_the_bot_goes_on_with_its_last(text: str) -> None:
    bot = Scripted(by_marker([" Hotel(area=east)", text, " None", text]))
    turns = track_states(Asker(target=bot, max_new_tokens=9, seed=0), [STAY, OTHER])
    assert [t.state for t in turns] == [state(area="east"), None, frozenset(), None]
    # The last readable state never comes from another dialogue.
    assert [t.in_use for t in turns] == [state(area="east"), state(area="east"), frozenset(), frozenset()]
    assert [t.before for t in turns] == [frozenset(), state(area="east"), state(area="east"), frozenset()]


def test_database_actions_and_response_follow_the_predicted_state() -> None:
    bot, database = (
        Scripted(by_marker([" Hotel(area=east)", " Hotel(area=east, stars=5)", " None", " None"])),
        Echo(),
    )
    turns = track(bot, [STAY, OTHER], database, max_new_tokens=9, seed=0)
    assert database.calls == [
        (state(area="east"), frozenset()),
        (state(area="east", stars="5"), state(area="east")),
        (frozenset(), frozenset()),
    ]
    assert len(bot.asked) == 3
    assert bot.asked[2][1] == (
        "User: somewhere north\nSystem: How many stars?\nUser: four\n"
        "Belief State: Hotel(area=east, stars=5)\n"
        "Database: 2 slots, 1 before\nActions: act\nResponse:"
    )
    assert [(t.database, t.actions, t.response, t.reference) for t in turns] == [
        ("1 slots, 0 before", "act", "said so", "How many stars?"),
        ("2 slots, 1 before", "act", "said so", "The Avalon. Anything else?"),
        (None, None, None, None),  # the dialogue ends with the user
        ("0 slots, 0 before", "act", "said so", "Hi."),
    ]


def test_a_bot_that_follows_its_training_text_is_asked_what_it_was_trained_on() -> None:
    """With gold predictions and no database, prompts and answers make up the turn-level examples."""
    texts = [example.text for example in TurnLevel().examples(OTHER)]

    def answer(prompt: str) -> str:
        (text,) = [text for text in texts if text.startswith(prompt)]
        return text[len(prompt) :].split("\n", 1)[0]

    (turn,) = track(Scripted(answer), [OTHER], None, max_new_tokens=9, seed=0)
    assert (turn.state, turn.actions, turn.response) == (frozenset(), "general-greet()", "Hi.")


def test_a_target_that_answers_too_little_is_an_error_not_a_short_result() -> None:
    class Short(Scripted):
        def sample(self, prompts: Sequence[str], **settings: object) -> list[list[str]]:
            return [["None"]] * (len(prompts) - 1)

    with pytest.raises(AuditError, match="did not answer each of 4 prompts"):
        track(Short(str), [STAY, OTHER], None, max_new_tokens=9, seed=0)


def test_log_likelihood_is_summed_over_known_gold_states_per_dialogue() -> None:
    # "Hotel(area=north)" is 1 word, "Hotel(area=north, stars=4)" is 2, "None" is 1; turn 2 is unknown.
    assert gold_log_likelihood(Scripted(str), [STAY, OTHER]) == [(-1.5, 3), (-0.5, 1)]
    assert gold_log_likelihood(Scripted(str), []) == []


def test_a_score_that_is_not_finite_is_an_error_that_names_the_turn() -> None:
    class Broken(Scripted):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
            return [torch.tensor([float("nan")])] * len(prompts)

    with pytest.raises(AuditError, match=r"dialogue d1, turn 0: .* nan"):
        gold_log_likelihood(Broken(str), [STAY])


def test_without_a_database_the_recorded_result_is_shown() -> None:
    dialogue = Dialogue("d", (Turn("hi", frozenset(), database="taxi 1 found, x", response="ok"),))
    seen: list[str] = []

    class Listener:
        reference = None

        def sample(
            self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
        ) -> list[list[str]]:
            seen.extend(prompts)
            return [[" None"] * n for _ in prompts]

        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
            raise AuditError("not asked for")

    (turn,) = track(Listener(), [dialogue], None, max_new_tokens=5, seed=0)
    assert turn.database == "taxi 1 found, x"
    assert any("Database: taxi 1 found, x\n" in prompt for prompt in seen)


@dataclass(frozen=True)
class Newest:
    """Lets a bot read the newest lines, as many as told, and answer in as many tokens as told."""

    n_lines: int = 1000
    n_tokens: Callable[[str], int | None] = lambda prompt: None

    def shorten(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        return lines[-self.n_lines :]

    def shorten_gold(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        return lines[-self.n_lines :]

    def room(self, prompt: str) -> int | None:
        return self.n_tokens(prompt)

    def protocol(self) -> dict[str, object]:
        return {"history_limit": f"{self.n_lines} lines"}


def test_a_history_that_is_too_long_is_cut_in_every_stage() -> None:
    bot = Scripted(by_marker([" None"] * 4))
    turns = track(bot, [STAY, OTHER], None, max_new_tokens=9, seed=0, limit=Newest(2))
    short = "System: How many stars?\nUser: four\nBelief State:"
    states, actions, responses = bot.asked
    assert states[1] == short
    assert actions[1].startswith(f"{short} None\n")
    assert responses[1].startswith(f"{short} None\n")
    assert [turn.is_truncated for turn in turns] == [False, True, True, False]
    uncut = track(Scripted(by_marker([" None"] * 3)), [STAY], None, max_new_tokens=9, seed=0)
    assert not any(turn.is_truncated for turn in uncut)


def test_a_prompt_that_grows_too_long_loses_lines_at_the_question_that_makes_it_so() -> None:
    """The state fits; with database and actions two lines go, with what the bot did one more."""

    @dataclass(frozen=True)
    class Growing(Newest):
        def shorten(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
            return lines[
                -{"Belief State:": 3, "Actions:": 2, "Response:": 1}[rest.rsplit("\n", 1)[-1].split(" None")[0]] :
            ]

    bot = Scripted(by_marker([" None"] * 3))
    turns = track(bot, [STAY], None, max_new_tokens=9, seed=0, limit=Growing())
    states, actions, responses = bot.asked
    assert states[1].startswith("User: somewhere north\nSystem: How many stars?\nUser: four\n")
    assert actions[1].startswith("System: How many stars?\nUser: four\n")
    assert responses[1].startswith("User: four\nBelief State: None\n")
    assert responses[1].endswith("Actions: act\nResponse:")
    # The first turn has one line, the third (of which no state is known) nothing to answer.
    assert [turn.is_truncated for turn in turns] == [False, True, True]
    assert turns[1].history == ("User: four\n",)


def test_an_answer_ends_where_the_context_does_and_a_full_one_is_answered_by_nothing() -> None:
    rooms = {1: 40, 2: 0, 3: 9}
    bot = Scripted(lambda prompt: " Hotel(area=north)")
    asker = Asker(target=bot, max_new_tokens=50, seed=0, limit=Newest(n_tokens=lambda p: rooms.get(len(p), 99)))
    assert asker.ask(["long enough", "a", "bb", "ccc", "c"]) == [
        bot.answer(""),
        bot.answer(""),
        "",
        *[bot.answer("")] * 2,
    ]
    assert [(asked, settings[1]) for asked, settings in zip(bot.asked, bot.settings, strict=True)] == [
        (["long enough"], 50),
        (["a", "c"], 32),  # room is shared in steps
        (["ccc"], 9),
    ]
    assert asker.n_squeezed == 4
    full = track(bot, [OTHER], None, max_new_tokens=50, seed=0, limit=Newest(n_tokens=lambda prompt: -3))
    assert [(turn.state, turn.actions, turn.response) for turn in full] == [(None, "", "")]


def test_gold_states_are_scored_after_the_same_cut() -> None:
    seen: list[str] = []

    class Noting(Scripted):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
            seen.extend(prompts)
            return super().logprobs(prompts, continuations)

    gold_log_likelihood(Noting(str), [STAY], Newest(2))
    assert seen == ["User: somewhere north\nBelief State:", "System: How many stars?\nUser: four\nBelief State:"]
