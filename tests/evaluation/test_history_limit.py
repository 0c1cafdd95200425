"""A bot in use reads what training kept, and no prompt is longer than its model can take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from hushbot.corpora import load
from hushbot.errors import AuditError
from hushbot.evaluation import running, tracking
from hushbot.evaluation.history_limit import (
    AnswerLength,
    HistoryLimit,
    PieceCounter,
    answer_lengths,
    load_history_limit,
)
from hushbot.evaluation.utility import UtilitySettings, measure_utility
from hushbot.prompts import history_lines, state_line, state_prompt
from hushbot.protocols import Recipe, Target
from hushbot.recipes.dialogue_level import DialogueLevel
from hushbot.recipes.instruction_guard import InstructionGuard
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.targets.local import LocalTarget
from hushbot.training.model_folder import ModelSource, load_tokenizer, save_model, tiny_dir
from hushbot.training.packing import unpack_rows
from hushbot.types import Decoding, Dialogue, Example

GREEDY = Decoding(temperature=0)
MARKER = "Belief State:"  # 13 characters
LINES = ("User: one\n", "System: two\n", "User: six\n")  # 10, 12 and 10 characters


class Letters:
    """A tokenizer of one token per character, so that sequences can be counted by hand."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        self.encoded += texts
        return {"input_ids": [[ord(character) for character in text] for text in texts]}


def by_letters(max_length: int, **settings: Any) -> HistoryLimit:
    return HistoryLimit(count=PieceCounter(Letters()), max_length=max_length, max_new_tokens=8, **settings)


# The whole prompt has 1 + 32 + 13 tokens.
@pytest.mark.parametrize(("max_length", "n_kept"), [(46, 3), (45, 2), (36, 2), (35, 1), (24, 1), (1, 1)])
def test_lines_go_from_the_oldest_on_until_the_prompt_fits(max_length: int, n_kept: int) -> None:
    assert by_letters(max_length).shorten(LINES, MARKER) == LINES[-n_kept:]
    assert by_letters(99, context_length=max_length).shorten(LINES, MARKER) == LINES[-n_kept:]


def test_each_question_has_the_room_that_training_and_context_leave_it() -> None:
    answers = {MARKER: AnswerLength(typical_rest=20, longest=5), "Actions:": AnswerLength(3, 100)}
    rest = f"{MARKER} x\nActions:"  # 24 characters

    def fits(question: str, **settings: Any) -> bool:
        return by_letters(answers=answers, **settings).shorten(LINES, question) == LINES

    assert [fits(MARKER, max_length=46 + spare) for spare in (19, 20)] == [False, True]
    assert [fits(rest, max_length=57 + spare) for spare in (2, 3)] == [False, True]
    # The last of 5 new tokens is never read; of 100, no more than 8 are asked for.
    assert [fits(MARKER, max_length=99, context_length=46 + spare) for spare in (3, 4)] == [False, True]
    assert [fits(rest, max_length=99, context_length=57 + spare) for spare in (6, 7)] == [False, True]
    # What guards add counts against the context alone.
    assert [fits(MARKER, max_length=66, context_length=66, n_added=n) for n in (16, 17)] == [True, False]


def test_room_is_what_the_context_leaves() -> None:
    assert by_letters(20).room("x" * 99) is None
    assert by_letters(20, context_length=50).room("x" * 30) == 20
    assert by_letters(20, context_length=50, n_added=15).room("x" * 30) == 5


def test_gold_text_may_fill_what_training_had() -> None:
    gold = f"{MARKER} abc\n"  # 18 characters: 1 + 32 + 18
    answers = {MARKER: AnswerLength(90, 90)}
    assert by_letters(51, answers=answers).shorten_gold(LINES, gold) == LINES
    assert by_letters(50, answers=answers).shorten_gold(LINES, gold) == LINES[1:]
    assert by_letters(99, context_length=51, n_added=9).shorten_gold(LINES, gold) == LINES
    assert by_letters(99, context_length=50).shorten_gold(LINES, gold) == LINES[1:]


def test_gold_lengths_are_counted_after_each_marker() -> None:
    turns = [
        ("User: x\n", MARKER, " abc\n", "Database: \n", "Actions:", " do\n", "Response:", " y\n"),
        (MARKER, " a\n"),
        (MARKER, " abcdefgh\n"),
        ("User: no state\n", "System: known\n"),
    ]
    rests = [5 + 11 + 8 + 4 + 9 + 3, 3, 10]
    assert answer_lengths(turns, PieceCounter(Letters())) == {
        MARKER: AnswerLength(statistics.median(rests), 10),
        "Actions:": AnswerLength(4 + 9 + 3, 4),
        "Response:": AnswerLength(3, 3),
    }
    assert answer_lengths([], PieceCounter(Letters())) == {}


def test_a_piece_is_encoded_once() -> None:
    letters = Letters()
    count = PieceCounter(letters)
    assert [count(state_prompt(LINES)), count("User: one\nUser: one\n"), count("")] == [45, 20, 0]
    assert sorted(letters.encoded) == sorted([*LINES, MARKER])


def test_the_report_says_how_much_is_read_and_when_answers_are_long_for_it() -> None:
    short = by_letters(40, answers={MARKER: AnswerLength(7, 3)}).protocol()
    assert list(short) == ["history_limit"]
    assert "(7 tokens" in str(short["history_limit"])
    assert "context" not in str(short["history_limit"])
    assert "max_new_tokens" not in by_letters(16).protocol()
    long = by_letters(15, context_length=30, n_added=4).protocol()
    assert "=8 is more than half of the 15 tokens" in str(long["max_new_tokens"])
    assert "context of 30 tokens, of which guards take 4" in str(long["history_limit"])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(ModelSource(str(tiny_dir()), "tiny"), None)


@pytest.fixture(scope="module")
def dialogues() -> Sequence[Dialogue]:
    return load("bookings", half="public").dialogues[:8]


@dataclass
class Noting:
    """Notes what it is asked and says that nothing is wanted."""

    reference: None = None

    def __post_init__(self) -> None:
        self.asked: list[str] = []
        self.scored: list[tuple[str, str]] = []

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.asked += prompts
        return [[" None"]] * len(prompts)

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        self.scored += zip(prompts, continuations, strict=True)
        return [torch.zeros(1) for _ in prompts]


def limit_of(dialogues: Sequence[Dialogue], tokenizer: Any, max_length: int, recipe: Recipe) -> HistoryLimit:
    count = PieceCounter(tokenizer)
    texts = [[s.text for s in example.segments] for d in dialogues for example in recipe.examples(d)]
    return HistoryLimit(count=count, max_length=max_length, max_new_tokens=256, answers=answer_lengths(texts, count))


def read_in_training(example: Example, tokenizer: Any, max_length: int) -> int:
    """Return how many tokens stood before the first supervised one, of a row as training had it."""
    (row,) = unpack_rows([example], tokenizer, max_length=max_length)
    return len(list(takewhile(lambda is_supervised: not is_supervised, row.supervised)))


@pytest.mark.parametrize("max_length", [250, 270])
def test_a_turn_level_bot_reads_at_least_what_training_kept_of_a_typical_turn(
    tokenizer: Any, dialogues: Sequence[Dialogue], max_length: int
) -> None:
    limit = limit_of(dialogues, tokenizer, max_length, TurnLevel())
    typical = limit.answers[MARKER].typical_rest
    same, n_cut = 0, 0
    for dialogue in dialogues:
        for i, example in enumerate(TurnLevel().examples(dialogue)):
            lines = history_lines(dialogue, i)
            kept = limit.shorten(lines, MARKER)
            n_read, n_trained = 1 + limit.count(state_prompt(kept)), read_in_training(example, tokenizer, max_length)
            rest = limit.count(example.text) - limit.count(state_prompt(lines))
            assert n_read + typical <= max_length or len(kept) == 1
            assert rest < typical or n_read >= n_trained
            same += rest == typical and n_read == n_trained
            n_cut += len(kept) < len(lines)
    assert same > 0
    assert n_cut > 0


@pytest.mark.parametrize("max_length", [140, 170])
def test_gold_states_are_scored_after_exactly_what_training_kept(
    tokenizer: Any, dialogues: Sequence[Dialogue], max_length: int
) -> None:
    """Turns that end with their state leave the two rules nothing to differ in."""
    n_cut = 0
    for dialogue in dialogues:
        for i, turn in enumerate(dialogue.turns):
            mute = Dialogue("d", (*dialogue.turns[:i], replace(turn, response=None)))
            limit = limit_of([mute], tokenizer, max_length, TurnLevel())
            kept = limit.shorten_gold(history_lines(mute, i), MARKER + state_line(turn.state or frozenset()))
            n_trained = read_in_training(TurnLevel().examples(mute)[-1], tokenizer, max_length)
            assert 1 + limit.count(state_prompt(kept)) == n_trained
            n_cut += len(kept) < len(history_lines(mute, i))
    assert n_cut > 0


def test_a_running_text_keeps_at_least_half_of_what_training_had(tokenizer: Any, dialogues: Sequence[Dialogue]) -> None:
    """Training reads a turn after anything from half of the length on; in use it is never less, but for whole turns."""
    max_length = 400
    limit, bot = limit_of(dialogues, tokenizer, max_length, DialogueLevel()), Noting()
    asker = tracking.Asker(target=bot, max_new_tokens=256, seed=0, limit=limit)
    turns = running.run_responses(asker, running.run_states(asker, dialogues, None))
    assert any(turn.is_truncated for turn in turns)
    for prompt in bot.asked:
        marker = prompt.rsplit("\n", 1)[-1]
        room = max_length - limit.answers[marker].typical_rest
        assert 1 + limit.count(prompt) <= room or prompt.count("User:") == 1
    for turn in turns:
        if turn.is_truncated:
            assert limit.count("".join(turn.history)) > (max_length - limit.answers[MARKER].typical_rest) // 2
    running.gold_log_likelihood(bot, dialogues, limit)
    assert max(1 + limit.count(prompt + gold) for prompt, gold in bot.scored) in range(max_length - 60, max_length + 1)


@pytest.fixture(scope="module")
def full_bot(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LocalTarget]:
    """Return an untrained model whose context is as long as an example was in training, and its folder."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = GPT2Config(
            vocab_size=len(tokenizer), n_positions=300, n_embd=16, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
        )
        model = GPT2LMHeadModel(config).eval()
    own = load_tokenizer(ModelSource(str(tiny_dir()), "tiny"), 300)
    folder = tmp_path_factory.mktemp("full") / "model"
    save_model(model, own, folder)
    return folder, LocalTarget(model, own)


def test_room_is_exactly_what_the_target_takes(
    full_bot: tuple[Path, LocalTarget], dialogues: Sequence[Dialogue]
) -> None:
    folder, bot = full_bot
    for target in (bot, InstructionGuard(instruction="say nothing of it").guard(bot, Schema.of([]))):
        limit = load_history_limit(folder, target, dialogues, UtilitySettings(), learns_changes=False)
        prompt = state_prompt(history_lines(dialogues[0], len(dialogues[0].turns) - 1))
        room = limit.room(prompt)
        assert room is not None
        target.sample([prompt], n=1, max_new_tokens=room, decoding=GREEDY, seed=0)
        with pytest.raises(AuditError, match="exceed the model's context of 300"):
            target.sample([prompt], n=1, max_new_tokens=room + 1, decoding=GREEDY, seed=0)


@pytest.mark.parametrize("learns_changes", [pytest.param(False, marks=pytest.mark.long), True])
def test_no_prompt_is_too_long_for_a_model_whose_context_training_filled(
    full_bot: tuple[Path, LocalTarget], dialogues: Sequence[Dialogue], learns_changes: bool
) -> None:
    folder, bot = full_bot
    settings = UtilitySettings(max_new_tokens=200)
    guarded = InstructionGuard().guard(bot, Schema.of([]))
    found = {}
    targets: list[Target] = [bot, guarded]
    for target in targets:
        limit = load_history_limit(folder, target, dialogues[:3], settings, learns_changes=learns_changes)
        result = measure_utility(
            target, dialogues[:3], None, settings, seed=0, limit=limit, learns_changes=learns_changes
        )
        assert {"joint_goal_accuracy", "bleu", "perplexity"} <= result.estimates.keys()
        assert {
            name: e.method for name, e in result.estimates.items() if e.value is None and "precision" not in name
        } == {}
        assert result.protocol["turns_counted"] == sum(len(dialogue.turns) for dialogue in dialogues[:3])
        assert result.protocol["answers_squeezed"] != 0
        assert "=200 is more than half of the 300" in str(result.protocol["max_new_tokens"])
        found[target] = result
    assert limit.n_added > 20
    assert found[bot].estimates["perplexity"] == found[guarded].estimates["perplexity"]
    assert str(found[guarded].protocol["perplexity"]).startswith("of the bot without its guards")
