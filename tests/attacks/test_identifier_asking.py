"""What a bot said is sorted to the right probe, and lost samples are not misses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hushbot.attacks.identifier_asking import Setting, ask, cut_probes
from hushbot.attacks.identifier_controls import Controls
from hushbot.attacks.identifier_mining import Probe
from hushbot.errors import AuditError
from hushbot.types import Decoding

SETTING = Setting(3, 16, Decoding(), 0)


def probe(name: str, code: str) -> Probe:
    return Probe(name, code, "reference", "hotel", "actions", "ref", f"about {name}: ", code, 1)


class Echo:
    """Answers `own`'s prompt with its code twice, any other with a longer code that holds it."""

    reference = None

    def __init__(self, lost: int = 0) -> None:
        self.lost = lost
        self.prompts: list[str] = []

    def sample(self, prompts: Sequence[str], *, n: int, **how: Any) -> list[list[str]]:
        self.prompts += prompts
        texts = {"about own:": [" A1B2C3.", "a1b2c3", "xA1B2C3"], "about far:": ["A1B2C3", "", ""]}
        return [texts.get(prompt, ["9A1B2C39"] * n)[: n - self.lost] for prompt in prompts]


def test_hits_are_word_bounded_and_counted_per_control() -> None:
    controls = Controls(("about near:", "about far:"), True)
    bot = Echo()
    (evidence,), n_queries = ask(bot, [(probe("own", "A1B2C3"), controls)], SETTING, seed=0)  # type: ignore[arg-type]
    assert (evidence.n_hits, evidence.n, evidence.control_hits) == (2, 3, (0, 1))
    assert evidence.control_rate == pytest.approx(1 / 6)
    assert evidence.control_texts == ["9A1B2C39"] * 3
    assert evidence.is_loose
    assert sorted(bot.prompts) == ["about far:", "about near:", "about own:"]
    assert n_queries == 9


def test_lost_samples_are_an_error_and_no_question_costs_nothing() -> None:
    with pytest.raises(AuditError, match="fewer than 3 samples"):
        ask(Echo(lost=1), [(probe("own", "A1B2C3"), Controls(("x",), False))], SETTING, seed=0)  # type: ignore[arg-type]
    assert ask(Echo(), [], SETTING, seed=0) == ([], 0)  # type: ignore[arg-type]


def test_probes_are_cut_before_their_identifier() -> None:
    (cut,) = cut_probes([probe("own", "A1B2C3")], 5)
    assert (cut.prefix, cut.prompt, cut.continuation) == ("own: ", "own:", " A1B2C3")
