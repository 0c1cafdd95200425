"""Which prefixes of other dialogues are compared with a true one?"""

from __future__ import annotations

from typing import Any

from hushbot.attacks.identifier_controls import ControlPool, Controls
from hushbot.attacks.identifier_mining import Probe


def probe(name: str, prefix: str, **changes: Any) -> Probe:
    fields = {"value": "FZGZI0PT", "kind": "reference", "domain": "hotel", "line": "actions", "cue": "ref"}
    return Probe(dialogue_id=name, prefix=prefix, gold="FZGZI0PT)", repetitions=1, **(fields | changes))


OWN = probe("own", "x" * 10)


def test_controls_are_the_nearest_in_length_of_other_dialogues() -> None:
    pool = [probe("own", "x" * 9), *(probe(f"d{n}", "x" * n) for n in (3, 8, 11, 30))]
    assert ControlPool(pool).choose(OWN, 3, 3) == Controls(("x" * 11, "x" * 8, "x" * 3), False)
    assert ControlPool(pool[::-1]).choose(OWN, 3, 3) == ControlPool(pool).choose(OWN, 3, 3)


def test_they_lead_up_to_the_same_kind_after_the_same_cue() -> None:
    right = [probe(f"d{n}", f"{n}" * 10) for n in range(2)]
    wrong = [
        probe("k", "k" * 10, kind="phone"),
        probe("l", "l" * 10, line="response"),
        probe("c", "c" * 10, cue="id"),
    ]
    pool = ControlPool([*wrong, *right])
    assert pool.choose(OWN, 2, 9) == Controls(("0" * 10, "1" * 10), False)
    # Too few with the cue: one of the same kind and line fills up, behind the close ones, and it is said.
    assert pool.choose(OWN, 3, 9) == Controls(("0" * 10, "1" * 10, "c" * 10), True)
    assert pool.choose(OWN, 4, 9) is None


def test_a_prompt_counts_once_however_many_dialogues_share_it() -> None:
    assert ControlPool([probe("a", "same"), probe("b", "same")]).choose(OWN, 2, 2) is None
