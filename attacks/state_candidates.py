"""From samples to ranked, distinct states: the collecting half of every extraction attack.

Guarantees: every sample is accounted for exactly once, as a state, an *empty* state (`None`) or a *parse
failure* (no state in it: a blank sample, too); the last two are no candidates and are counted by themselves, never
as misses. A *cut* state is
one that ended inside a domain: what was closed before stays a candidate, as an attacker would keep it, and
without a closed triplet it is a parse failure. The order of the samples changes nothing. A score with a
single value that is not finite is no score: it ranks nothing and is named in `failures`.

What voids it: nothing here knows whether a state is anybody's; that is `state_metrics`.

Source: Dialogue-state extraction paper, sections IV-A2 and V-B1 (deduplicate, rank, keep the best).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hushbot.attacks.state_metrics import normalise_state
from hushbot.attacks.token_scores import score
from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
from hushbot.prompts import STATE_MARKER, read_state, render_state
from hushbot.protocols import Target
from hushbot.types import DialogueState

RANKINGS = ("ppl", "ppl_zlib", "c_ppl", "dc_ppl")
"""The rankings of the paper; under each, lower is more likely to have been trained on."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One distinct state that was extracted."""

    state: DialogueState
    """Normalised."""
    text: str
    """As the bot wrote it most often, in canonical form: what is scored."""
    count: int
    """In how many samples it occurred."""


class Outcomes(NamedTuple):
    """What the samples turned out to be."""

    candidates: list[Candidate]
    """In alphabetical order of their texts."""
    counts: dict[str, int]
    """`samples`, `parse_failures`, `empty_states`, `cut_states`, and samples with `format_errors`."""


def read_candidates(samples: Sequence[str]) -> Outcomes:
    """Read a state from each continuation of the state marker and keep each distinct, non-empty one once."""
    spellings: dict[DialogueState, Counter[str]] = defaultdict(Counter)
    counts = dict.fromkeys(("parse_failures", "empty_states", "cut_states", "format_errors"), 0)
    for sample in samples:
        parsed = read_state(STATE_MARKER + sample)
        counts["format_errors"] += parsed.format_errors > 0
        if parsed.state:
            counts["cut_states"] += not parsed.is_complete
            spellings[normalise_state(parsed.state)][render_state(parsed.state)] += 1
        elif parsed.state is None or not parsed.is_complete or not sample.strip():
            counts["parse_failures"] += 1
        else:
            counts["empty_states"] += 1
    candidates = [
        Candidate(state, min(texts, key=lambda text: (-texts[text], text)), texts.total())
        for state, texts in spellings.items()
    ]
    candidates.sort(key=lambda candidate: candidate.text)
    return Outcomes(candidates, {"samples": len(samples), **counts})


@dataclass(frozen=True, slots=True)
class Harvest:
    """Everything one target gave: distinct states and how probable it finds them."""

    candidates: list[Candidate]
    counts: dict[str, int]
    """Of samples, as in `Outcomes`."""
    scores: dict[str, FloatArray] = field(default_factory=dict)
    """One value per candidate under each score that could be had."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a score could not be had."""

    @property
    def states(self) -> list[DialogueState]:
        """Return the normalised candidates."""
        return [candidate.state for candidate in self.candidates]

    def rankings(self, seed: int) -> dict[str, list[int]]:
        """Return the positions of the candidates, best first, under `none` (shuffled) and each score.

        Ties keep the shuffled order, so that the alphabet does not decide.
        """
        shuffled = [int(i) for i in np.random.default_rng(seed).permutation(len(self.candidates))]
        orders = {"none": shuffled}
        for name, values in self.scores.items():
            orders[name] = [shuffled[i] for i in np.argsort(values[shuffled], kind="stable")]
        return orders


def score_candidates(target: Target, outcomes: Outcomes) -> Harvest:
    """Ask a target how probable each candidate is after the state marker; a failure is kept, not raised."""
    texts = [candidate.text for candidate in outcomes.candidates]
    if not texts:
        return Harvest(outcomes.candidates, outcomes.counts)
    try:
        values = score(target, [STATE_MARKER] * len(texts), [f" {text}" for text in texts], names=RANKINGS)
    except AuditError as error:
        return Harvest(outcomes.candidates, outcomes.counts, {}, dict.fromkeys(RANKINGS, str(error)))
    scores, failures = {}, {}
    for name in RANKINGS:
        n_bad = int(np.count_nonzero(~np.isfinite(values[name])))
        if n_bad:
            failures[name] = f"{n_bad} of {len(texts)} values are not finite"
        else:
            scores[name] = np.asarray(values[name], dtype=np.float64)
    return Harvest(outcomes.candidates, outcomes.counts, scores, failures)
