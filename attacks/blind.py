"""How well texts alone tell members from non-members: a measurement of the split, not of the bot.

Threat model: none. The bot is not asked anything. Whatever is found here is no leak: it is what any attack that looks
at texts would find as well, and call membership.

The classifier, its cross-validation and its null stand in `hushbot.attacks.blind_baseline`.

Guarantees: the verdict is never `leak`. `no_leak_detected` says that these features do not tell the sides apart;
`inconclusive` that they do, so that every membership number on this split is confounded; `not_measured` that there are
too few dialogues to train a classifier.

What voids it: see `hushbot.attacks.blind_baseline`. Differences that these features do not see remain possible.

Source: Das et al., Blind baselines beat membership inference attacks (2024); Duan et al., COLM 2024.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from hushbot.attacks.blind_baseline import N_PERMUTATIONS, BlindBaseline, BlindText, blind_baseline, related
from hushbot.errors import ConfigError
from hushbot.intervals import Bootstrap
from hushbot.prompts import render_state
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import tpr_at_fpr
from hushbot.types import AttackResult, AuditSplit, Dialogue, Headline, Metric, Tier, Verdict

FPR = 0.01


@dataclass(frozen=True, kw_only=True)
class Blind:
    """Train a classifier to tell members' dialogues from non-members' without any bot."""

    needs: ClassVar[Tier] = "text"

    reads: Literal["dialogue", "state"] = "dialogue"
    """Read whole dialogues with their last known state, or that state alone."""
    level: float = 0.95
    """Coverage of the three intervals together."""
    n_draws: int = 2000
    """Bootstrap draws per interval, at least 100."""
    n_permutations: int = N_PERMUTATIONS
    """Splits dealt anew to calibrate the classifier's interval, at least 99."""

    def __post_init__(self) -> None:
        checks = (
            ("reads", self.reads in ("dialogue", "state"), "'dialogue' or 'state'"),
            ("level", 0 < self.level < 1, "in (0, 1)"),
            ("n_draws", self.n_draws >= 100, "at least 100"),
            ("n_permutations", self.n_permutations >= 99, "at least 99"),
        )
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set attack.blind.{name}"
            for name, is_right, rule in checks
            if not is_right
        ]
        if problems:
            raise ConfigError(*problems)

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Measure the split; the target is not asked."""
        started = time.perf_counter()
        bootstrap = Bootstrap(level=self.level, n_draws=self.n_draws, seed=seed)
        order = sorted([*split.members, *split.nonmembers], key=lambda dialogue: dialogue.id)
        dialogues = [dialogue for dialogue in order if self.reads == "dialogue" or dialogue.final_state]
        texts = self._texts(dialogues, split)
        found = blind_baseline(texts, bootstrap=bootstrap, n_permutations=self.n_permutations)
        without = [text._replace(domains=()) for text in texts]
        words = blind_baseline(without, bootstrap=bootstrap, n_permutations=self.n_permutations)
        verdict, reasons = _judge(found)
        return AttackResult(
            verdict=verdict,
            headline=Headline(metric="auc", estimate=found.auc, key="auc"),
            metrics={
                **found.shown(),
                "auc_without_domains": words.auc,
                **_operating_point(texts, found, bootstrap),
                "members": sum(text.is_member for text in texts),
                "nonmembers": sum(not text.is_member for text in texts),
            },
            threat_model="text",
            seconds=time.perf_counter() - started,
            notes=["the bot was not asked: this measures the split", *reasons],
            rows=[
                {
                    "dialogue_id": dialogue.id,
                    "is_member": text.is_member,
                    "length": len(text.text),
                    "score": float(found.scores[i]) if len(found.scores) else None,
                }
                for i, (dialogue, text) in enumerate(zip(dialogues, texts, strict=True))
            ],
        )

    def _texts(self, dialogues: Sequence[Dialogue], split: AuditSplit) -> list[BlindText]:
        clusters, members = related(split), {dialogue.id for dialogue in split.members}
        return [
            BlindText(
                text=_said(dialogue) if self.reads == "dialogue" else _stated(dialogue),
                is_member=dialogue.id in members,
                cluster=clusters[dialogue.id],
                domains=tuple(dialogue.domains),
            )
            for dialogue in dialogues
        ]


def _said(dialogue: Dialogue) -> str:
    """Return what is said in a dialogue, a line each, and its last known state."""
    lines = [dialogue.opening, *(line for turn in dialogue.turns for line in (turn.user, turn.response or ""))]
    return "\n".join([*lines, _stated(dialogue)])


def _stated(dialogue: Dialogue) -> str:
    return render_state(dialogue.final_state or frozenset())


def _operating_point(texts: Sequence[BlindText], found: BlindBaseline, bootstrap: Bootstrap) -> dict[str, Metric]:
    """Return what a threshold on the classifier's score catches, as membership is measured."""
    if not len(found.scores):
        return {}
    sides = [[i for i, text in enumerate(texts) if text.is_member is side] for side in (True, False)]
    members, nonmembers = ([texts[i].cluster for i in side] for side in sides)
    point = tpr_at_fpr(
        found.scores[sides[0]],
        found.scores[sides[1]],
        fpr=FPR,
        clusters=(members, nonmembers, nonmembers),
        bootstrap=bootstrap,
    )
    return {"tpr_at_1pct_fpr": point.tpr, "realised_fpr": point.realised_fpr, "threshold": point.threshold}


def _judge(found: BlindBaseline) -> tuple[Verdict, list[str]]:
    if found.auc.value is None:
        return "not_measured", [found.auc.method]
    if found.confounds:
        return "inconclusive", [*found.confounds, "no membership number on this split can be told from this difference"]
    return "no_leak_detected", [
        f"words, lengths and domains do not tell the sides apart: blind auc = {found.auc.value:.3f} "
        f"[{found.auc.low:.3f}, {found.auc.high:.3f}]; up to {found.auc.high:.3f} remains possible"
    ]
