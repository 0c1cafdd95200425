"""The recipe: its settings, its note, and that it guards the deployed bot without touching training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from hushbot.errors import ConfigError
from hushbot.prompts import STATE_MARKER, read_state
from hushbot.protocols import Recipe
from hushbot.recipes.turn_level import TurnLevel
from hushbot.recipes.value_copy import ValueCopy
from hushbot.schema import Schema, Slot
from hushbot.training.stack import RecipeStack
from hushbot.types import Decoding, Dialogue, SlotValue, Turn

SCHEMA = Schema.of([Slot("restaurant", "name"), Slot("restaurant", "area", True, ("north",))])


def test_the_file_spells_out_every_default() -> None:
    path = Path(__file__).resolve().parents[2] / "configs" / "recipe" / "value_copy.yaml"
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    settings = content["value_copy"]
    assert settings.pop("_target_") == "hushbot.recipes.value_copy.ValueCopy"
    assert settings == vars(ValueCopy())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_candidates": 0}, "max_candidates=0 must be at least 1; set recipe.value_copy.max_candidates"),
        ({"max_words": 0}, "max_words=0 must be at least 1"),
        ({"min_probability": 1.0}, r"min_probability=1.0 must be in \[0, 1\)"),
        ({"min_probability": float("nan")}, "min_probability=nan"),
        ({"max_copies": -1}, "max_copies=-1 must be at least 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ValueCopy(**settings)


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ValueCopy(max_candidates=0, max_words=0)
    assert len(caught.value.problems) == 2


def test_only_the_deployed_bot_changes(memoriser: Any, synthetic_schema: Schema, synthetic_split: Any) -> None:
    plain, hardened = RecipeStack((TurnLevel(),)), RecipeStack((TurnLevel(), ValueCopy()))
    dialogue = synthetic_split.members[0]
    assert hardened.examples(dialogue) == plain.examples(dialogue)
    assert hardened.privacy_unit is None
    assert type(ValueCopy()).privatize is Recipe.privatize
    target = hardened.guard(memoriser, synthetic_schema)
    texts = target.sample([STATE_MARKER], n=20, max_new_tokens=60, decoding=Decoding(), seed=0)[0]
    # Nobody has said anything and no slot of this schema has a list: nothing is left to say.
    assert [read_state(STATE_MARKER + text).state or frozenset() for text in texts] == [frozenset()] * 20


def test_the_settings_reach_the_target(memoriser: Any) -> None:
    target: Any = ValueCopy(max_candidates=3, max_words=2, min_probability=0.5, max_copies=4).guard(memoriser, SCHEMA)
    assert (target.law.max_candidates, target.law.max_words) == (3, 2)
    assert (target.min_probability, target.max_copies) == (0.5, 4)


def test_the_note_says_how_many_values_can_be_written_at_all() -> None:
    def said(*values: tuple[str, str]) -> frozenset[SlotValue]:
        return frozenset(SlotValue("restaurant", slot, value) for slot, value in values)

    dialogues = [
        Dialogue("d0", (Turn("the golden wok", said(("name", "golden wok"), ("area", "north"))),)),
        Dialogue("d1", (Turn("golden", said(("name", "pizza hut"))), Turn("bye", None))),
        Dialogue("d2", (Turn("the hut", said()), Turn("any", frozenset([_either("pizza hut", "the hut")])))),
        Dialogue("d3", (Turn("hello", None),)),
    ]
    # Four values: said, listed, not said, and said in its other spelling.
    note, limits = ValueCopy().notes(dialogues, SCHEMA, seed=0)
    assert note.startswith("3 of the 4 values in the members' final states (75.0%) were said")
    assert note.endswith("the guarded bot can write no others in its dialogue states")
    assert "pizza" not in note
    # What it does not stop stands there in any case.
    assert "an attacker who states a guess in the history is not hindered" in limits
    assert ValueCopy().notes(dialogues[3:], SCHEMA, seed=0) == (limits,)


def _either(value: str, other: str) -> SlotValue:
    return SlotValue("restaurant", "name", value, alternatives=(other,))


def test_a_configuration_is_checked_without_torch() -> None:
    code = "import sys; from hushbot.recipes.value_copy import ValueCopy; ValueCopy(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
