"""Pretraining the bundled backbone: made-up values, nothing private, examples that teach what they should."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from hushbot.corpora.bookings import load_bookings
from hushbot.corpora.bookings_generator import N_DIALOGUES, SCHEMA, make_half, make_tables
from hushbot.corpora.bookings_words import PRIVATE
from hushbot.prompts import history_lines
from hushbot.recipes.turn_level import TurnLevel
from hushbot.training import pretrain_tiny
from hushbot.training.packing import loss_sum, pack
from hushbot.types import Dialogue

VOCABULARY = 300
LARGE_VOCABULARY = 3000


@pytest.fixture(scope="module")
def dialogues() -> list[Dialogue]:
    """Return what a pretraining of two made-up pools sees: the public half comes first."""
    made_up = pretrain_tiny.made_up_dialogues(2 * pretrain_tiny.DIALOGUES_PER_POOL, seed=0)
    return pretrain_tiny.public_dialogues() + made_up


@pytest.fixture(scope="module")
def tokenizer(dialogues: list[Dialogue]) -> Any:
    return pretrain_tiny.train_tokenizer([TurnLevel().examples(dialogue)[-1].text for dialogue in dialogues[-30:]])


def open_values(dialogues: Iterable[Dialogue]) -> set[str]:
    """Return what is said of persons and places; times are left out, since all pools share the clock."""
    return {
        triplet.value
        for dialogue in dialogues
        for turn in dialogue.turns
        for triplet in turn.state or ()
        if not SCHEMA[triplet.domain][triplet.slot] and triplet.slot != "time" and triplet.value != "dontcare"
    }


# pools


@pytest.mark.parametrize("seed", range(40))
def test_made_up_pools_are_as_large_as_tables_need(seed: int) -> None:
    words = pretrain_tiny.made_up_words(random.Random(seed))
    tables = make_tables(words, random.Random(seed))
    assert {name: len(rows) for name, rows in tables.items()} == {
        "clinic": 24, "event": 30, "hotel": 36, "restaurant": 64,
    }  # fmt: skip
    for rows in tables.values():
        assert all(cell.strip() == cell and cell for row in rows for cell in row.values())
    for pool in (words.first_names, words.last_names, words.venue_heads, words.streets, words.areas):
        assert len(set(pool)) == len(pool)
    assert words.phone_prefix.replace(" ", "").isdigit()
    assert words.reference_first.isupper()
    assert len(words.phone_prefix.replace(" ", "")) in (6, 8)


@pytest.mark.parametrize("seed", range(5))
def test_dialogues_can_be_written_from_any_pool(seed: int) -> None:
    written, _ = make_half("made_up", pretrain_tiny.made_up_words(random.Random(seed)), 60)
    assert {service for dialogue in written for service in dialogue["services"]} == set(SCHEMA)


def test_pools_depend_on_their_seed_alone() -> None:
    first, again, other = (pretrain_tiny.made_up_words(random.Random(seed)) for seed in (1, 1, 2))
    assert first == again
    assert not set(first.last_names) & set(other.last_names)


# what it sees


def test_it_sees_the_public_half_and_as_many_others_as_asked_for(dialogues: list[Dialogue]) -> None:
    assert [dialogue.id for dialogue in dialogues[:N_DIALOGUES]] == [d.id for d in load_bookings("public").dialogues]
    assert len(dialogues) == N_DIALOGUES + 2 * pretrain_tiny.DIALOGUES_PER_POOL
    assert len({dialogue.id for dialogue in dialogues}) == len(dialogues)
    assert all(turn.database for turn in dialogues[-1].turns if {t.domain for t in turn.state or ()} - {"taxi"})


def test_it_sees_no_private_value(dialogues: list[Dialogue]) -> None:
    private = load_bookings("private").dialogues
    assert len(open_values(private)) > 500
    assert open_values(dialogues) & open_values(private) == set()
    references = {word.strip(".") for d in private for t in d.turns for word in (t.response or "").split()}
    references = {word for word in references if word.isupper() and any(c.isdigit() for c in word)}
    assert len(references) > 500
    seen = {word.strip(".") for d in dialogues for t in d.turns for word in (t.response or "").split()}
    assert seen & references == set()
    names = {*PRIVATE.first_names, *PRIVATE.last_names}
    assert not names & {word for d in dialogues for t in d.turns for word in t.user.replace(",", " ").split()}


def test_nobody_with_a_made_up_name_is_known_by_heart(dialogues: list[Dialogue]) -> None:
    first_turns = {dialogue.id: dialogue.turns[0] for dialogue in dialogues}
    unsaid = {
        name
        for name, turn in first_turns.items()
        for t in turn.state or ()
        if t.slot in {"guest", "patient"} and t.value not in turn.user
    }
    assert any(name.startswith("public") for name in unsaid)
    assert not any(name.startswith("made_up") for name in unsaid)


def test_made_up_pools_differ_from_each_other_and_from_the_public_half(dialogues: list[Dialogue]) -> None:
    n = pretrain_tiny.DIALOGUES_PER_POOL
    public, first, second = dialogues[:N_DIALOGUES], dialogues[N_DIALOGUES:-n], dialogues[-n:]
    assert not open_values(first) & open_values(second)
    assert not open_values(public) & open_values([*first, *second])


def test_examples_are_the_bots_own_then_shortened_then_plain_text(dialogues: list[Dialogue]) -> None:
    for seed, dialogue in enumerate(dialogues[:N_DIALOGUES:20]):
        ordinary = list(TurnLevel().examples(dialogue))
        found = pretrain_tiny.public_examples(dialogue, random.Random(seed))
        assert found[: len(ordinary)] == ordinary
        *shortened, plain = found[len(ordinary) :]
        assert len(shortened) == min(2, len(ordinary))
        for example in shortened:
            (whole,) = [other for other in ordinary if other.text.endswith(example.text)]
            assert [s for s in example.segments if s.supervised] == [s for s in whole.segments if s.supervised]
            dropped = whole.segments[: len(whole.segments) - len(example.segments)]
            assert all(s.text.startswith(("User:", "System:")) and not s.supervised for s in dropped)
            assert example.segments[0].text.startswith(("Belief State:", "User:"))
        assert tuple(segment.text for segment in plain.segments) == history_lines(dialogue, len(dialogue.turns) - 1)
        assert all(segment.supervised for segment in plain.segments)
        assert {example.dialogue_id for example in found} == {dialogue.id}


def test_some_examples_start_where_an_attacker_starts(dialogues: list[Dialogue]) -> None:
    starts = [
        example.segments[0].text
        for seed, dialogue in enumerate(dialogues[:30])
        for example in pretrain_tiny.public_examples(dialogue, random.Random(seed))
    ]
    assert 10 < starts.count("Belief State:") < 60


# tokens and losses


def test_tokenizer_cuts_numbers_into_digits_and_loses_nothing(tokenizer: Any) -> None:
    assert len(tokenizer) <= pretrain_tiny.VOCABULARY
    assert [token.strip("Ġ") for token in tokenizer.tokenize("0113 496")] == [*"0113", "", *"496"]
    for text in ("Belief State: Taxi(phone=0113 496 0123)\n", "zoë 🙂 KX29QQ a.b7@post.example"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == 0


def test_an_untrained_model_copies_as_well_as_it_guesses() -> None:
    model = pretrain_tiny.make_model(0, VOCABULARY)
    assert sum(weight.numel() for weight in model.parameters()) < 1_000_000
    with torch.no_grad():
        losses = [
            float(pretrain_tiny.copying_loss(model, VOCABULARY, torch.Generator().manual_seed(i))) for i in range(3)
        ]
    assert losses == pytest.approx([math.log(VOCABULARY)] * 3, abs=0.15)
    assert len(set(losses)) == 3


def test_copying_loss_is_low_for_who_copies() -> None:
    class Copier(torch.nn.Module):
        """Answers with the token that followed the last occurrence of this one."""

        def forward(self, input_ids: torch.Tensor) -> Any:
            hidden = torch.zeros(*input_ids.shape, LARGE_VOCABULARY)
            for row, ids in enumerate(input_ids.tolist()):
                following: dict[int, int] = {}
                for i, token in enumerate(ids):
                    if token in following:
                        hidden[row, i, following[token]] = 15.0
                    if i + 1 < len(ids):
                        following[token] = ids[i + 1]
            return type("Output", (), {"last_hidden_state": hidden})()

    fake = type("Model", (), {"model": Copier(), "lm_head": torch.nn.Identity()})()
    noises = [torch.Generator().manual_seed(i) for i in range(3)]
    losses = [float(pretrain_tiny.copying_loss(fake, LARGE_VOCABULARY, noise)) for noise in noises]
    # A token that occurs twice by chance misleads the copier now and then; a guess costs log 3000 = 8.0.
    assert max(losses) < 1.0


def test_a_few_steps_lower_the_loss_and_leave_a_folder_that_loads(
    dialogues: list[Dialogue], tokenizer: Any, tmp_path: Path
) -> None:
    few = dialogues[-2:]
    model = pretrain_tiny.make_model(0, len(tokenizer))
    packed = [pack(TurnLevel().examples(dialogue), tokenizer, max_length=pretrain_tiny.MAX_LENGTH) for dialogue in few]

    def loss() -> float:
        with torch.no_grad():
            return sum(float(loss_sum(model, one)) for one in packed) / sum(one.n_supervised for one in packed)

    before = loss()
    assert before == pytest.approx(math.log(len(tokenizer)), abs=0.3)
    pretrain_tiny.train(model, tokenizer, (few, few), str(tmp_path), (1, 8))
    assert loss() < before - 0.3
    saved = load_file(tmp_path / "model.safetensors")
    for name, weight in model.named_parameters():
        if name in saved:
            assert torch.equal(saved[name], weight), name
    assert "model.embed_tokens.weight" in saved
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded("to 0113")["input_ids"] == tokenizer("to 0113")["input_ids"]
