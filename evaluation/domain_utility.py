"""How useful a bot is domain by domain.

Guarantees: a domain's numbers are over the turns whose gold state holds something of it, and compare only that
domain's slots; BLEU is over the answers of those turns. On MultiWOZ, Inform and Success are over the dialogues whose
goal names the domain, by the change of state; as in published rates by domain, Success needs the offers of all domains
and all that was asked for in this one.
Every number has an interval over dialogues; what could not be measured has value None and says why.

What voids them: what a bot invents of a domain in turns that are not about it is seen by the overall numbers alone. A
state accumulates, so a domain counts until the end of its dialogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hushbot.evaluation.bot import Played
from hushbot.evaluation.response_scoring import bleu
from hushbot.evaluation.state_rates import state_estimate
from hushbot.evaluation.state_scoring import ScoringRules, States, TurnScore, normalised, score_turns
from hushbot.evaluation.task_completion import Completion
from hushbot.stats import Bootstrap, cluster_bootstrap, unmeasured
from hushbot.types import Dialogue, DialogueState, Estimate

_METRICS = ("joint_goal_accuracy", "state_f1")


def utility_by_domain(
    played: Played,
    dialogues: Sequence[Dialogue],
    completions: Mapping[str, Completion] | None,
    *,
    rules: ScoringRules,
    seed: int,
) -> dict[str, dict[str, Estimate]]:
    """Return domain -> metric -> number.

    Args:
        played: What the bot did.
        dialogues: The gold.
        completions: What came of each dialogue that has a goal; None where that is not measured.
        rules: What counts as right.
        seed: Of the intervals.
    """
    gold: States = {dialogue.id: [turn.state for turn in dialogue.turns] for dialogue in dialogues}
    found: dict[str, dict[str, Estimate]] = {}
    for domain in _domains(gold):
        if "states" in played.failures:
            found[domain] = dict.fromkeys((*_METRICS, "bleu"), unmeasured(played.failures["states"]))
        else:
            found[domain] = _of_turns(played, domain, domain_scores(played.states, gold, domain, rules), seed)
    for domain, numbers in _of_goals(completions or {}, seed=seed).items():
        spelled = next((name for name in found if normalised(name) == domain), domain)
        found[spelled] = found.get(spelled, {}) | numbers
    return dict(sorted(found.items()))


def domain_scores(predicted: States, gold: States, domain: str, rules: ScoringRules) -> list[TurnScore]:
    """Return the turns whose gold state holds something of the domain, scored on that domain's slots alone."""
    # A turn that is not about the domain becomes one whose gold is unknown, which is not scored.
    scores = score_turns(
        {name: [_only(state, domain) for state in states] for name, states in predicted.items()},
        {name: [_only(state, domain) or None for state in states] for name, states in gold.items()},
        rules,
    )
    return [score for score in scores if score.counts and not score.is_empty]


def _of_turns(played: Played, domain: str, scores: Sequence[TurnScore], seed: int) -> dict[str, Estimate]:
    nothing = "under the rules of scoring no turn's gold state holds anything of the domain"
    found = {name: state_estimate(scores, name, seed=seed, nothing=nothing) for name in _METRICS}
    if "responses" in played.failures:
        return found | {"bleu": unmeasured(played.failures["responses"])}
    about = {(score.dialogue_id, score.turn) for score in scores}
    return found | {"bleu": bleu([t for t in played.turns if (t.dialogue.id, t.turn) in about], seed=seed)}


def _of_goals(completions: Mapping[str, Completion], *, seed: int) -> dict[str, dict[str, Estimate]]:
    """Return Inform and Success of each domain that a goal names."""
    marks: dict[str, list[tuple[bool, bool]]] = {}
    for result in completions.values():
        for domain, is_informed in result.informed.items():
            marks.setdefault(domain, []).append((is_informed, result.success_in(domain)))
    return {
        domain: {
            name: cluster_bootstrap(np.array(values, dtype=np.float64), None, bootstrap=Bootstrap(seed=seed))
            for name, values in zip(("inform", "success"), zip(*pairs, strict=True), strict=True)
        }
        for domain, pairs in sorted(marks.items())
    }


def _domains(gold: States) -> list[str]:
    """Return every domain of the gold states once, in the spelling met first."""
    found: dict[str, str] = {}
    for states in gold.values():
        for state in states:
            for triplet in sorted(state or ()):
                found.setdefault(normalised(triplet.domain), triplet.domain)
    return sorted(found.values())


def _only(state: DialogueState | None, domain: str) -> DialogueState | None:
    if state is None:
        return None
    name = normalised(domain)
    return frozenset(triplet for triplet in state if normalised(triplet.domain) == name)
