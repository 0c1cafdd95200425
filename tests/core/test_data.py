"""Which dialogues a step sees, in which order, and where a resumed epoch goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.errors import DataError
from hushbot.protocols import Recipe
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training import data as data_file
from hushbot.training.data import DialogueData, DialogueLoader, Packer, ShuffledBatches
from hushbot.training.packing import PackedDialogue
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit, Dialogue, Turn


class RenameFirst(Recipe):
    """Rewrites what the first dialogue's user says, another way in every odd epoch."""

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        if epoch % 2 == 0:
            return dialogues
        first, *rest = dialogues
        turns = (replace(first.turns[0], user=f"epoch {epoch} seed {seed}"), *first.turns[1:])
        return (replace(first, turns=turns), *rest)


def make_data(split: AuditSplit, tokenizer: Any, *recipes: Recipe, seed: int = 0, batch_size: int = 4) -> DialogueData:
    return DialogueData(
        members=split.members,
        calibration=split.calibration,
        schema=Schema(()),
        packer=Packer(RecipeStack((TurnLevel(), *recipes)), tokenizer, 1024),
        batch_size=batch_size,
        seed=seed,
    )


def ids_of(batches: Any) -> list[list[str]]:
    return [[packed.dialogue_id for packed in batch] for batch in batches]


# --- order ---


@given(n=st.integers(1, 40), size=st.integers(1, 9), seed=st.integers(0, 5), epoch=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_an_epoch_holds_each_dialogue_once_in_full_batches(n: int, size: int, seed: int, epoch: int) -> None:
    batches = ShuffledBatches(n_dialogues=n, batch_size=size, seed=seed)
    drawn = batches.epoch(epoch)
    assert sorted(i for batch in drawn for i in batch) == list(range(n))
    assert len(drawn) == batches.n_steps
    assert all(len(batch) == size for batch in drawn[:-1])
    assert drawn == ShuffledBatches(n_dialogues=n, batch_size=size, seed=seed).epoch(epoch)


def test_the_order_differs_between_epochs_and_seeds_and_is_uniform() -> None:
    first = ShuffledBatches(n_dialogues=3, batch_size=3, seed=0)
    orders = Counter(tuple(first.epoch(epoch)[0]) for epoch in range(1200))
    # 200 of each of the 6 orders are expected; six standard deviations are 77.
    assert len(orders) == 6
    assert all(123 < count < 277 for count in orders.values())
    assert [first.epoch(e) for e in range(9)] != [replace(first, seed=1).epoch(e) for e in range(9)]


# --- the loader ---


def test_a_loader_goes_on_after_the_batch_it_handed_out_last(few_dialogues: AuditSplit, small_tokenizer: Any) -> None:
    data = make_data(few_dialogues, small_tokenizer, batch_size=1)
    whole = data.train_dataloader()
    whole.set_epoch(2)
    expected = ids_of(whole)
    first = data.train_dataloader()
    first.set_epoch(2)
    batches = iter(first)
    begun = ids_of([next(batches), next(batches)])
    state = first.state_dict()
    second = data.train_dataloader()
    second.load_state_dict(state)
    second.set_epoch(2)
    assert state == {"epoch": 2, "position": 2}
    assert begun + ids_of(second) == expected
    second.set_epoch(3)
    assert len(ids_of(second)) == len(expected) == len(second) == 6


def test_a_loader_saved_after_an_epochs_last_batch_starts_the_next_epoch_whole() -> None:
    loader = DialogueLoader(2, lambda epoch: [[], []])
    list(loader)
    resumed = DialogueLoader(2, lambda epoch: [[], []])
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(1)
    assert list(resumed) == [[], []]


def test_training_batches_are_the_members_in_the_order_of_the_epoch(
    few_dialogues: AuditSplit, small_tokenizer: Any
) -> None:
    data = make_data(few_dialogues, small_tokenizer, seed=3)
    members = [dialogue.id for dialogue in few_dialogues.members]
    order = ShuffledBatches(n_dialogues=6, batch_size=4, seed=3).epoch(0)
    assert ids_of(data.train_dataloader()) == [[members[i] for i in batch] for batch in order]


def test_calibration_batches_keep_the_given_order(few_dialogues: AuditSplit, small_tokenizer: Any) -> None:
    data = make_data(few_dialogues, small_tokenizer, batch_size=2)
    ids = [dialogue.id for dialogue in few_dialogues.calibration]
    assert ids_of(data.val_dataloader()) == [ids[:2], ids[2:]]
    without = make_data(replace(few_dialogues, calibration=()), small_tokenizer)
    assert (without.val_dataloader(), without.has_calibration) == ([], False)


# --- rewriting ---


def test_only_what_an_epoch_changed_is_packed_again(
    few_dialogues: AuditSplit, small_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_ids: list[str] = []
    original = data_file.pack

    def spy(examples: Any, tokenizer: Any, *, max_length: int) -> PackedDialogue:
        packed_ids.append(examples[0].dialogue_id)
        return original(examples, tokenizer, max_length=max_length)

    monkeypatch.setattr(data_file, "pack", spy)
    data = make_data(few_dialogues, small_tokenizer, RenameFirst(), seed=5)
    assert len(packed_ids) == 9
    first = few_dialogues.members[0].id
    for epoch, repacked in ((0, []), (1, [first]), (1, []), (3, [first]), (4, [first])):
        packed_ids.clear()
        packs = data.packs(epoch)
        assert packed_ids == repacked
        text = small_tokenizer.decode(packs[0].input_ids[0])
        assert (f"User: epoch {epoch} seed 5\n" in text) == (epoch % 2 == 1)
        assert [packed.dialogue_id for packed in packs] == [dialogue.id for dialogue in few_dialogues.members]


def test_each_epoch_trains_on_its_own_rewrite(few_dialogues: AuditSplit, small_tokenizer: Any) -> None:
    loader = make_data(few_dialogues, small_tokenizer, RenameFirst()).train_dataloader()
    loader.set_epoch(1)
    first = next(p for batch in loader for p in batch if p.dialogue_id == few_dialogues.members[0].id)
    assert "User: epoch 1 seed 0\n" in small_tokenizer.decode(first.input_ids[0])


# --- errors and identity ---


def test_dialogues_that_contribute_nothing_or_do_not_fit_are_all_named(
    few_dialogues: AuditSplit, small_tokenizer: Any
) -> None:
    silent = Dialogue("mute", (Turn("hello", None, response="hi"),))
    long = Dialogue("long", (Turn("hello", frozenset(), response="very " * 1100),))
    split = replace(few_dialogues, members=(silent, *few_dialogues.members, long))
    with pytest.raises(DataError) as caught:
        make_data(split, small_tokenizer)
    mute, too_long = str(caught.value).splitlines()
    assert mute.startswith("dialogue 'mute' contributes no supervised token")
    assert too_long.startswith("dialogue long: ")
    assert "backbone.max_length" in too_long


def test_no_members_is_an_error(small_tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"set split\.members"):
        make_data(AuditSplit((), ()), small_tokenizer)


def test_the_fingerprint_tells_data_and_recipes_apart(few_dialogues: AuditSplit, small_tokenizer: Any) -> None:
    fingerprint = make_data(few_dialogues, small_tokenizer).fingerprint
    assert fingerprint == make_data(few_dialogues, small_tokenizer).fingerprint
    others = [
        make_data(few_dialogues, small_tokenizer, RenameFirst()),
        make_data(replace(few_dialogues, members=few_dialogues.members[1:]), small_tokenizer),
        make_data(replace(few_dialogues, calibration=()), small_tokenizer),
    ]
    assert len({fingerprint, *(data.fingerprint for data in others)}) == 4


@dataclass(frozen=True, kw_only=True)
class Paced(Recipe):
    """Does nothing, at its own pace."""

    no_effect = ("pace",)

    pace: int = 1
    depth: int = 1


def test_settings_without_effect_are_not_in_the_fingerprint(few_dialogues: AuditSplit, small_tokenizer: Any) -> None:
    one, faster, deeper = (
        make_data(few_dialogues, small_tokenizer, recipe).fingerprint
        for recipe in (Paced(), Paced(pace=2), Paced(depth=2))
    )
    assert one == faster
    assert one != deeper


def test_an_id_stands_for_one_member(few_dialogues: AuditSplit, small_tokenizer: Any) -> None:
    first, second, *rest = few_dialogues.members
    twice = replace(few_dialogues, members=(first, replace(second, id=first.id), *rest))
    with pytest.raises(DataError, match=f"1 ids stand for several members, the first is {first.id!r}"):
        make_data(twice, small_tokenizer)


class Swell(Recipe):
    """Makes the first dialogue too long in odd epochs."""

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        first, *rest = dialogues
        if epoch % 2 == 0:
            return dialogues
        return (replace(first, turns=tuple(replace(turn, response="word " * 3000) for turn in first.turns)), *rest)


def test_a_rewrite_that_does_not_fit_leaves_the_dialogue_as_it_is(
    few_dialogues: AuditSplit, small_tokenizer: Any
) -> None:
    data = make_data(few_dialogues, small_tokenizer, Swell())
    as_it_is, swollen = data.packs(0), data.packs(1)
    assert swollen[0].input_ids.equal(as_it_is[0].input_ids)
    with pytest.raises(DataError, match=few_dialogues.members[0].id):  # whoever is too long from the start is told
        data._packer.pack(Swell().rewrite(few_dialogues.members, Schema(()), epoch=1, seed=0))
