"""A bot that learns changes, run over dialogues: its prompts are its training text, its states are whole ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from hushbot.corpora import load
from hushbot.errors import AuditError
from hushbot.evaluation.running import gold_log_likelihood, run_responses, run_states
from hushbot.evaluation.tracking import Asker, Limit, TrackedTurn
from hushbot.evaluation.utility import UtilitySettings, measure_utility
from hushbot.protocols import Database
from hushbot.recipes.dialogue_level import DialogueLevel
from hushbot.types import Decoding, Dialogue, DialogueState, SlotValue, Turn


def state(**slots: str) -> DialogueState:
    return frozenset(SlotValue("hotel", slot, value) for slot, value in slots.items())


STAY = Dialogue(
    "d1",
    (
        Turn("north, cheap", state(area="north", price="cheap"), "2 found", "request()", "How many stars?"),
        Turn("four, any price", state(area="north", stars="4"), "1 found", "inform()", "The Avalon.\nElse?"),
        Turn("east please", state(area="east", stars="4"), "0 found", "nooffer()", "None there."),
    ),
)
OTHER = Dialogue("d2", (Turn("hello", state(), "", "greet()", "Hi."),), opening="Welcome!")
LAST_WORD = Dialogue("d3", (Turn("bye", state(), response=None), Turn("", state(), "no db", "bye()", "Bye.")))


@dataclass
class Scripted:
    """A bot that answers as it is told and remembers what it was asked."""

    answer: Callable[[str], str]
    reference: None = None
    asked: list[list[str]] = field(default_factory=list)
    settings: list[tuple[int, int, Decoding, int]] = field(default_factory=list)
    scored: list[tuple[str, str]] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.asked.append(list(prompts))
        self.settings.append((n, max_new_tokens, decoding, seed))
        return [[self.answer(prompt)] * n for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        self.scored.extend(zip(prompts, continuations, strict=True))
        return [torch.full((len(text.split()),), -math.log(2)) for text in continuations]


def perfect(dialogues: Sequence[Dialogue]) -> Scripted:
    """Return a bot that continues the training texts, and fails where it is asked anything else."""
    texts = [example.text for dialogue in dialogues for example in DialogueLevel().examples(dialogue)]

    def answer(prompt: str) -> str:
        continuations = {text[len(prompt) :].split("\n", 1)[0] for text in texts if text.startswith(prompt)}
        assert continuations, f"not how a training text starts: {prompt!r}"
        return min(continuations)

    return Scripted(answer)


def saying(changes: str) -> Callable[[str], str]:
    """Answer every question for changes alike; actions and responses by a fixed text."""

    def answer(prompt: str) -> str:
        if prompt.endswith("Belief State:"):
            return changes
        return " act" if prompt.endswith("Actions:") else " said  so"

    return answer


def run(
    bot: Scripted, dialogues: Sequence[Dialogue], database: Database | None = None, limit: Limit | None = None
) -> tuple[TrackedTurn, ...]:
    asker = Asker(target=bot, max_new_tokens=7, seed=3, limit=limit)
    return run_responses(asker, run_states(asker, dialogues, database))


def test_a_bot_that_follows_its_training_text_is_asked_what_it_was_trained_on() -> None:
    dialogues = [STAY, OTHER, LAST_WORD]
    turns = run(perfect(dialogues), dialogues)
    gold = [turn for dialogue in dialogues for turn in dialogue.turns]
    assert [turn.state for turn in turns] == [turn.state for turn in gold]
    assert [turn.actions for turn in turns] == ["request()", "inform()", "nooffer()", "greet()", None, "bye()"]
    assert [turn.response for turn in turns] == [turn.reference for turn in turns]
    assert [turn.turn for turn in turns] == [0, 1, 2, 0, 0, 1]


def test_the_bundled_corpus_with_its_database_is_asked_as_it_was_trained() -> None:
    corpus = load("bookings", half="public")
    # Of people who start alike only the training text knows who is who.
    dialogues = list({dialogue.turns[0].user: dialogue for dialogue in corpus.dialogues}.values())[:25]
    turns = run(perfect(dialogues), dialogues, corpus.database)
    assert [turn.state for turn in turns] == [turn.state for dialogue in dialogues for turn in dialogue.turns]
    assert [turn.database for turn in turns] == [turn.database for dialogue in dialogues for turn in dialogue.turns]


def test_all_dialogues_advance_together_and_greedily() -> None:
    bot = Scripted(saying(" None"))
    run(bot, [STAY, OTHER, LAST_WORD])
    # Changes and actions per turn index, without the actions of a turn that nobody answers; then all responses.
    assert [len(prompts) for prompts in bot.asked] == [3, 2, 2, 2, 1, 1, 5]
    assert set(bot.settings) == {(1, 7, Decoding(temperature=0), 3)}


def test_later_turns_hold_what_the_bot_wrote_and_the_gold_utterances() -> None:
    said = iter([" Hotel(price=cheap,area=west) and more: x", "what?", " Hotel(area=, stars=5)"])

    def answer(prompt: str) -> str:
        return next(said) if prompt.endswith("Belief State:") else saying("")(prompt)

    bot = Scripted(answer)
    turns = run(bot, [STAY], Echo())
    assert bot.asked[-1][-1] == (
        "User: north, cheap\n"
        "Belief State: Hotel(area=west, price=cheap)\n"
        "Database: 2 slots, 0 before\n"
        "Actions: act\n"
        "Response: How many stars?\n"
        "User: four, any price\n"
        "Belief State: None\n"
        "Database: 2 slots, 2 before\n"
        "Actions: act\n"
        "Response: The Avalon. Else?\n"
        "User: east please\n"
        "Belief State: Hotel(area=, stars=5)\n"
        "Database: 2 slots, 2 before\n"
        "Actions: act\n"
        "Response:"
    )
    assert [turn.state for turn in turns] == [
        state(area="west", price="cheap"),
        None,
        state(price="cheap", stars="5"),
    ]
    assert [turn.in_use for turn in turns] == [turns[0].state, turns[0].state, turns[2].state]
    assert [turn.before for turn in turns] == [state(), turns[0].state, turns[0].state]
    assert [(turn.actions, turn.response) for turn in turns] == [("act", "said so")] * 3


class Echo:
    """A database that says what it was asked."""

    def lookup(self, state: DialogueState, previous: DialogueState) -> str:
        return f"{len(state)} slots, {len(previous)} before"


@pytest.mark.parametrize("text", ["", " the hotel", " Hotel(area=north, stars=", " Hotel(area=north", " None of these"])
def test_changes_that_are_cut_or_unreadable_are_none_and_change_nothing(text: str) -> None:
    turns = run(Scripted(saying(text)), [STAY])
    assert [(turn.state, turn.in_use, turn.text) for turn in turns] == [(None, state(), text)] * 3


def test_dropping_what_is_not_there_changes_nothing() -> None:
    turns = run(Scripted(saying(" Hotel(area=)")), [STAY])
    assert [turn.state for turn in turns] == [state()] * 3


def test_an_unknown_state_is_asked_for_like_any_other() -> None:
    dialogue = Dialogue("d", (Turn("hm", None, "", "", "Yes?"), Turn("north", state(area="north"), response="Ok.")))
    bot = Scripted(saying(" Hotel(area=north)"))
    turns = run(bot, [dialogue])
    assert [turn.state for turn in turns] == [state(area="north")] * 2
    asked = "User: hm\nBelief State: Hotel(area=north)\nDatabase: \nActions: act\nResponse: Yes?\n"
    assert bot.asked[2] == [f"{asked}User: north\nBelief State:"]


def test_a_response_of_no_words_is_part_of_the_text_and_not_asked_for() -> None:
    dialogue = Dialogue("d", (Turn("a", state(), "", "noop()", " "), Turn("b", state(), "", "inform()", "Yes.")))
    turns = run(perfect([dialogue]), [dialogue])
    assert [(turn.actions, turn.response) for turn in turns] == [("noop()", None), ("inform()", "Yes.")]


def test_neither_order_nor_company_matters() -> None:
    def answer(prompt: str) -> str:
        return f" Hotel(seen={len(prompt)})" if prompt.endswith("Belief State:") else f" {len(prompt)}"

    dialogues = [STAY, OTHER, LAST_WORD]
    together = run(Scripted(answer), dialogues)
    backwards = run(Scripted(answer), dialogues[::-1])
    alone = [turn for dialogue in dialogues for turn in run(Scripted(answer), [dialogue])]
    assert list(together) == alone
    assert sorted(backwards, key=lambda turn: (turn.dialogue.id, turn.turn)) == alone


@dataclass(frozen=True)
class LastTwo:
    """Lets a bot read two turns, that in progress included; once it answers, as many as told."""

    n_answering: int = 2
    n_asked: int = 2

    def shorten(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        return lines[-(self.n_answering if rest.endswith("Response:") else self.n_asked) :]

    def shorten_gold(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        assert rest.startswith("Belief State: ")
        assert rest.endswith("\n")
        return lines[-2:]

    def room(self, prompt: str) -> int | None:
        return None

    def protocol(self) -> dict[str, object]:
        return {}


def test_a_text_that_is_too_long_loses_whole_turns_at_every_question() -> None:
    bot = Scripted(saying(" Hotel(area=west)"))
    turns = run(bot, [STAY], limit=LastTwo())
    second = (
        "User: four, any price\nBelief State: Hotel(area=west)\n"
        "Database: 1 found\nActions: act\nResponse: The Avalon. Else?\n"
    )
    third = "User: east please\nBelief State:"
    assert bot.asked[4] == [second + third]
    assert bot.asked[5] == [second + third + " Hotel(area=west)\nDatabase: 0 found\nActions:"]
    assert bot.asked[6][2] == bot.asked[5][0] + " act\nResponse:"
    assert [turn.is_truncated for turn in turns] == [False, False, True]
    assert turns[2].history == (second, "User: east please\n")


def test_a_text_that_gets_too_long_within_a_turn_loses_turns_then() -> None:
    bot = Scripted(saying(" None"))
    turns = run(bot, [STAY], limit=LastTwo(n_answering=1, n_asked=9))
    assert all(prompts[0].startswith("User: north, cheap\n") for prompts in bot.asked)
    assert bot.asked[-1][2].startswith("User: east please\n")
    assert [turn.is_truncated for turn in turns] == [False, True, True]


def test_gold_changes_are_scored_after_the_training_text() -> None:
    dialogue = Dialogue(
        "d4",
        (
            Turn("north", state(area="north"), "2 found", "inform()", "Two."),
            Turn("hm", None, "", "", "Well?"),
            Turn("four stars, cheap", state(price="cheap", stars="4"), response=None),
        ),
        opening="Welcome!",
    )
    bot = Scripted(str)
    sums = gold_log_likelihood(bot, [dialogue, OTHER])
    (example,) = DialogueLevel().examples(dialogue)
    last = " Hotel(area=, price=cheap, stars=4)\n"
    assert bot.scored[1] == (example.text.removesuffix(last), last)
    assert bot.scored[0] == ("System: Welcome!\nUser: north\nBelief State:", " Hotel(area=north)\n")
    assert sums == [(pytest.approx(-4 * math.log(2)), 4), (pytest.approx(-math.log(2)), 1)]
    cut = Scripted(str)
    gold_log_likelihood(cut, [dialogue], LastTwo())
    assert cut.scored[1][0] == "User: hm\nSystem: Well?\nUser: four stars, cheap\nBelief State:"


def test_nothing_to_run_asks_nothing() -> None:
    bot = Scripted(str)
    assert run(bot, []) == ()
    assert run(bot, [Dialogue("empty", ())]) == ()
    assert gold_log_likelihood(bot, []) == []
    assert bot.asked == []


def test_a_target_that_answers_too_little_is_an_error_not_a_short_result() -> None:
    class Short(Scripted):
        def sample(self, prompts: Sequence[str], **settings: object) -> list[list[str]]:
            return [["None"]] * (len(prompts) - 1)

    with pytest.raises(AuditError, match="did not answer each of 2 prompts"):
        run(Short(str), [STAY, OTHER])


def test_utility_of_a_perfect_bot_is_perfect() -> None:
    result = measure_utility(perfect([STAY, OTHER]), [STAY, OTHER], None, seed=0, learns_changes=True)
    found = {name: estimate.value for name, estimate in result.estimates.items()}
    assert found["joint_goal_accuracy"] == found["state_f1"] == 1
    assert found["bleu"] == pytest.approx(100)
    assert found["perplexity"] == pytest.approx(2)
    assert "changes" in str(result.protocol["state"])
    assert "running text" in str(result.protocol["perplexity"])
    assert result.rows[1]["predicted_changes"] == " Hotel(price=, stars=4)"
    assert result.rows[1]["predicted_state"] == result.rows[1]["gold_state"] == "Hotel(area=north, stars=4)"


def test_utility_of_a_bot_that_says_none_is_what_a_hand_counts() -> None:
    """Of 6 turns the 3 without any slot are right; the 6 gold triplets of the others are all missed."""
    bot = Scripted(saying(" None"))
    settings = UtilitySettings(responses=False)
    result = measure_utility(bot, [STAY, OTHER, LAST_WORD], None, settings, seed=0, learns_changes=True)
    assert result.estimates["joint_goal_accuracy"].value == 0.5
    assert result.estimates["state_recall"].value == 0
    assert result.estimates["bleu"].value is None
    assert not any(prompt.endswith("Response:") for prompts in bot.asked for prompt in prompts)
    # Three actions stand in the text of no later turn; that of LAST_WORD's first turn does not exist.
    assert sum(prompt.endswith("Actions:") for prompts in bot.asked for prompt in prompts) == 2
    assert sum(prompt.endswith("Belief State:") for prompts in bot.asked for prompt in prompts) == 6


@pytest.mark.parametrize(
    ("marker", "missing"),
    [
        ("Belief State:", {"joint_goal_accuracy", "state_f1", "bleu"}),
        # Later states stand on earlier actions.
        ("Actions:", {"joint_goal_accuracy", "state_f1", "bleu"}),
        ("Response:", {"bleu"}),
    ],
)
def test_a_failing_stage_gives_no_number_and_never_a_low_one(marker: str, missing: set[str]) -> None:
    gold = perfect([STAY])

    def answer(prompt: str) -> str:
        if prompt.endswith(marker):
            raise AuditError("the endpoint went away")
        return gold.answer(prompt)

    result = measure_utility(Scripted(answer), [STAY], None, seed=0, learns_changes=True)
    keys = ("joint_goal_accuracy", "state_f1", "bleu", "perplexity")
    assert {key for key in keys if result.estimates[key].value is None} == missing
    assert all("went away" in result.estimates[key].method for key in missing)
