"""Canaries: what is drawn, that the coins are fair and repeatable, and where the chosen ones go."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from hushbot.attacks.canaries import Canaries
from hushbot.attacks.canary_guesses import audit
from hushbot.attacks.canary_scores import question, score_canaries
from hushbot.composition import decisive, free_keys
from hushbot.corpora.canaries import KINDS, CanarySettings, draw_canaries, draw_identifier, with_canaries
from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport, check_manifest, manifest
from hushbot.errors import ConfigError, DataError
from hushbot.recipes.dialogue_level import DialogueLevel
from hushbot.recipes.turn_level import TurnLevel
from hushbot.run import RunDirectory
from hushbot.schema import Schema, Slot
from hushbot.targets.local import LocalTarget
from hushbot.types import AuditSplit, Dialogue

SCHEMA = Schema.of(
    [
        Slot("hotel", "area", True, ("north", "south")),
        Slot("hotel", "name", False, ("the gandhi",), collected=True),
        Slot("train", "day", True, ("monday", "dontcare")),
        Slot("taxi", "destination"),
    ]
)
SHAPES = {
    "reference": r"[A-Z0-9]{8}",
    "phone": r"07\d{9}",
    "email": r"[a-z]{8}\d{2}@example\.com",
    "postcode": r"[a-z]{2}\d \d[a-z]{2}",
}
ALL_KINDS = CanarySettings(m=40, kinds=KINDS)


def test_each_identifier_has_the_shape_of_its_kind_and_stands_where_the_bot_speaks() -> None:
    canaries = draw_canaries(SCHEMA, ALL_KINDS, 3)
    assert set(SHAPES) == set(KINDS)
    assert [canary.kind for canary in canaries[:5]] == [*KINDS, KINDS[0]]
    for canary in canaries:
        assert re.fullmatch(SHAPES[canary.kind], canary.identifier)
        (turn,) = canary.dialogue.turns
        assert canary.identifier in turn.actions
        assert canary.identifier in (turn.response or "")
        assert canary.identifier not in turn.user + turn.database + str(turn.state)
        assert turn.state
    assert len({canary.identifier for canary in canaries}) == len({canary.dialogue.id for canary in canaries}) == 40
    assert len({canary.dialogue.turns[0].user for canary in canaries}) == 40  # each has a prompt of its own


def test_values_are_published_or_made_up_and_never_somebodys() -> None:
    states = [canary.dialogue.turns[0].state or frozenset() for canary in draw_canaries(SCHEMA, ALL_KINDS, 0)]
    triplets = {(t.domain, t.slot, t.value) for state in states for t in state}
    assert triplets == {("hotel", "area", "north"), ("hotel", "area", "south"), ("train", "day", "monday")}
    unpublished = Schema.of([Slot("hotel", "name", False, ("the gandhi",), collected=True)])
    made_up = {t.value for c in draw_canaries(unpublished, ALL_KINDS, 0) for t in c.dialogue.turns[0].state or ()}
    assert "the gandhi" not in made_up
    assert len(made_up) > 20


def test_the_same_seed_draws_the_same_and_a_larger_number_only_adds() -> None:
    assert draw_canaries(SCHEMA, ALL_KINDS, 3) == draw_canaries(SCHEMA, ALL_KINDS, 3)
    assert draw_canaries(SCHEMA, replace(ALL_KINDS, m=10), 3) == draw_canaries(SCHEMA, ALL_KINDS, 3)[:10]
    other = draw_canaries(SCHEMA, ALL_KINDS, 4)
    assert {c.identifier for c in other}.isdisjoint(c.identifier for c in draw_canaries(SCHEMA, ALL_KINDS, 3))
    assert draw_canaries(SCHEMA, CanarySettings(), 3) == ()


def test_coins_are_fair_and_independent() -> None:
    """Heads, and heads after heads, each within four standard deviations of what a fair coin gives."""
    settings = CanarySettings(m=20)
    coins = [[c.is_inserted for c in draw_canaries(SCHEMA, settings, seed)] for seed in range(100)]
    flat = [coin for row in coins for coin in row]
    assert abs(sum(flat) - 1000) < 4 * math.sqrt(2000 / 4)
    same = sum(a == b for row in coins for a, b in pairwise(row))
    assert abs(same - 950) < 4 * math.sqrt(1900 / 4)
    across = sum(a == b for one, other in pairwise(coins) for a, b in zip(one, other, strict=True))
    assert abs(across - 990) < 4 * math.sqrt(1980 / 4)
    for number in range(20):
        assert 25 < sum(row[number] for row in coins) < 75


def test_identifiers_are_uniform() -> None:
    import random

    rng = random.Random(0)
    letters = "".join(draw_identifier("reference", rng) for _ in range(2000))
    counts = [letters.count(letter) for letter in sorted(set(letters))]
    expected = 16000 / 36
    assert len(counts) == 36
    assert sum((n - expected) ** 2 / expected for n in counts) < 35 + 4 * math.sqrt(70)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"m": -1}, "canaries.m"),
        ({"kinds": []}, "canaries.kinds"),
        ({"kinds": ["iban"]}, "iban"),
        ({"repetitions": 0}, "canaries.repetitions"),
    ],
)
def test_settings_without_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CanarySettings(**wrong)


def test_a_corpus_without_slots_has_nothing_to_make_canaries_of() -> None:
    with pytest.raises(ConfigError, match=r"canaries\.m=0"):
        draw_canaries(Schema(()), ALL_KINDS, 0)
    assert draw_canaries(Schema(()), CanarySettings(), 0) == ()


# --- beside the sides


@pytest.fixture
def drawn(synthetic_split: AuditSplit) -> SplitReport:
    return SplitReport(synthetic_split, notes=("a note",))


def test_chosen_canaries_are_trained_on_and_no_side_knows_them(drawn: SplitReport, synthetic_schema: Schema) -> None:
    found = with_canaries(drawn, synthetic_schema, ALL_KINDS, 1)
    chosen = [canary.dialogue for canary in found.split.canaries if canary.is_inserted]
    assert 0 < len(chosen) < 40
    assert found.split.trained == (*drawn.split.members, *chosen)
    assert replace(found.split, canaries=()) == drawn.split
    assert found.notes[0] == "a note"
    assert f"{len(chosen)} of 40" in found.notes[1]
    assert with_canaries(drawn, synthetic_schema, CanarySettings(), 1) is drawn
    assert drawn.split.trained == drawn.split.members


def test_repetitions_are_copies_under_other_ids(drawn: SplitReport, synthetic_schema: Schema) -> None:
    split = with_canaries(drawn, synthetic_schema, CanarySettings(m=8, repetitions=3), 1).split
    once = with_canaries(drawn, synthetic_schema, CanarySettings(m=8), 1).split
    trained = split.trained[len(split.members) :]
    assert len(trained) == 3 * (len(once.trained) - len(once.members))
    assert len({dialogue.id for dialogue in trained}) == len(trained)
    assert {dialogue.turns for dialogue in trained} == {
        dialogue.turns for dialogue in once.trained[len(once.members) :]
    }


def test_an_id_that_is_taken_is_an_error(drawn: SplitReport, synthetic_schema: Schema) -> None:
    taken: Dialogue = replace(drawn.split.nonmembers[0], id="canary-00001")
    split = replace(drawn.split, nonmembers=(taken, *drawn.split.nonmembers[1:]))
    with pytest.raises(DataError, match="canary-00001"):
        with_canaries(replace(drawn, split=split), synthetic_schema, CanarySettings(m=2), 0)


# --- on disk


def test_the_manifest_holds_every_coin_and_without_canaries_it_is_as_it_was(
    drawn: SplitReport, synthetic_schema: Schema, tmp_path: Path
) -> None:
    corpus = Corpus((*drawn.split.members, *drawn.split.nonmembers), synthetic_schema, "synthetic")
    plain = manifest(drawn, corpus, 1)
    assert not [key for key in plain if "canar" in key]
    found = with_canaries(drawn, synthetic_schema, CanarySettings(m=8), 1)
    kept = manifest(found, corpus, 1)
    assert kept["canary_coins"] == {c.dialogue.id: c.is_inserted for c in found.split.canaries}
    assert {key: value for key, value in kept.items() if "canar" not in key and key != "notes"} == {
        key: value for key, value in plain.items() if key != "notes"
    }
    for canary in found.split.canaries:
        assert canary.identifier not in str(kept)
    with RunDirectory(tmp_path).create({}, kept) as run:
        check_manifest(run.manifest, kept)
        flipped = replace(found.split.canaries[0], is_inserted=not found.split.canaries[0].is_inserted)
        other = replace(found, split=replace(found.split, canaries=(flipped, *found.split.canaries[1:])))
        with pytest.raises(DataError, match="canary_coins: 1 of its 8 entries"):
            check_manifest(run.manifest, manifest(other, corpus, 1))
        again = with_canaries(drawn, synthetic_schema, CanarySettings(m=8, kinds=["postcode"]), 1)
        with pytest.raises(DataError, match="canaries_sha256"):
            check_manifest(run.manifest, manifest(again, corpus, 1))
    with pytest.raises(DataError, match="canary_coins"):
        check_manifest(plain, kept)


def test_a_run_from_before_there_were_canaries_has_the_same_hash_and_resumes(tmp_path: Path) -> None:
    old = {"seed": 0, "fit": True}
    off = {**old, "canaries": {"_target_": "x", "m": 0, "repetitions": 1}}
    on = {**old, "canaries": {"_target_": "x", "m": 8, "repetitions": 1}}
    assert decisive(off) == decisive(old)
    assert decisive(on) != decisive(old)
    RunDirectory(tmp_path).create(old, {"version": 1}).close()
    RunDirectory(tmp_path).create(off, {"version": 1}, free_keys=free_keys(off)).close()
    with pytest.raises(DataError, match="canaries"):
        RunDirectory(tmp_path).create(on, {"version": 1}, free_keys=free_keys(on))


# --- as training text


@pytest.mark.parametrize("recipe", [TurnLevel(), DialogueLevel()], ids=["turns", "changes"])
def test_what_is_asked_about_a_canary_is_its_training_text(recipe: Any) -> None:
    for canary in draw_canaries(SCHEMA, ALL_KINDS, 2):
        (example,) = recipe.examples(canary.dialogue)
        prompt, line = question(canary)
        assert example.text.startswith(prompt + line)
        (learnt,) = [segment for segment in example.segments if segment.text == line]
        assert learnt.supervised
        assert line.count(canary.identifier) == 1


# --- with a real model


def test_an_untrained_model_tells_coins_at_most_as_often_as_promised(
    make_small_model: Any, small_tokenizer: Any
) -> None:
    """Scored once, then judged under many other coins: nothing that it was fed could know them."""
    canaries = draw_canaries(SCHEMA, CanarySettings(m=40), 0)
    scores = score_canaries(LocalTarget(make_small_model(), small_tokenizer), canaries, n_alternatives=3, seed=0)
    rng = np.random.default_rng(1)
    n = 400
    bounds = [
        audit(scores.contrast, (rng.random(40) < 0.5).tolist(), (0.25, 0.75), delta=0.0, level=0.95, seed=i).epsilon
        for i in range(n)
    ]
    assert sum((bound.value or 0) > 0 for bound in bounds) <= binom.ppf(0.999, n, 0.05)


def test_an_overtrained_model_is_found_out(make_small_model: Any, small_tokenizer: Any) -> None:
    canaries = draw_canaries(SCHEMA, CanarySettings(m=40, kinds=["reference"]), 0)
    model = make_small_model()
    packs = [
        small_tokenizer(question(canary)[0] + question(canary)[1])["input_ids"]
        for canary in canaries
        if canary.is_inserted
    ]
    longest = max(map(len, packs))
    ids = torch.tensor([[0, *pack, *[0] * (longest - len(pack))] for pack in packs])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(120):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids.masked_fill(ids == 0, -100)).loss.backward()
        optimizer.step()
    split = AuditSplit((), (), canaries=canaries)
    attack = Canaries(n_alternatives=7, n_draws=100)
    result = attack.run(LocalTarget(model, small_tokenizer), split, SCHEMA, seed=0)
    assert result.verdict == "leak"
    assert result.metrics["correct"] == result.metrics["guesses"]
    again = attack.run(LocalTarget(model, small_tokenizer, batch_rows=1, batch_tokens=64), split, SCHEMA, seed=0)
    assert again.metrics["correct"] == result.metrics["correct"]
    assert again.headline == result.headline
