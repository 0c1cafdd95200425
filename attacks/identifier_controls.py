"""Mismatched prefixes: what else could make a bot say somebody's identifier.

For each probe, prefixes of *other* dialogues, none of which the bot was trained on, that lead up to an identifier of
the same kind, in the same line of the layout, after the same cue (the slot's name, or the last word), and that are
nearest in length. If the identifier comes out after those as well, it is common knowledge and no memory of its
dialogue.

Guarantees: a control is never of the probe's own dialogue, no prompt is taken twice, and mining has seen to it that no
control's dialogue holds the identifier. Many probes share their controls, so that many of them cost little, and the
more there are, the fewer hits after the true prefix are needed. Where fewer prefixes than are needed share the cue,
those of the same kind and line fill up, and the probe is marked as loosely matched; where those are too few as well,
there are no controls, and the probe is not judged. The choice depends on no order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from hushbot.attacks.identifier_mining import Probe


class Controls(NamedTuple):
    """The mismatched prompts of one probe."""

    prompts: tuple[str, ...]
    """From the nearest in length on."""
    is_loose: bool
    """Whether some of them follow another cue."""


class ControlPool:
    """Prompts that may serve as controls, by what they lead up to."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        self._by_cue: dict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
        self._by_line: dict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
        for probe in probes:
            entry = (probe.prompt, probe.dialogue_id)
            self._by_cue[probe.kind, probe.line, probe.cue].add(entry)
            self._by_line[probe.kind, probe.line].add(entry)

    def choose(self, probe: Probe, least: int, most: int) -> Controls | None:
        """Return the nearest mismatched prompts for a probe, `least` or more; None where there are fewer."""
        close = _nearest(self._by_cue.get((probe.kind, probe.line, probe.cue), set()), probe)
        if len(close) >= least:
            return Controls(tuple(close[:most]), False)
        far = _nearest(self._by_line.get((probe.kind, probe.line), set()), probe)
        both = list(dict.fromkeys([*close, *far]))
        return Controls(tuple(both[:least]), True) if len(both) >= least else None


def _nearest(entries: Iterable[tuple[str, str]], probe: Probe) -> list[str]:
    """Return the distinct prompts of other dialogues, nearest in length first."""
    n = len(probe.prompt)
    prompts = {prompt for prompt, dialogue_id in entries if dialogue_id != probe.dialogue_id}
    return sorted(prompts, key=lambda prompt: (abs(len(prompt) - n), prompt))
