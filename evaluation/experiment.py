"""What a run is made of: the corpus, the split, the attacks and trackers, built and checked before any is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hushbot.composition import decisive
from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport, manifest
from hushbot.evaluation.caching import CacheSettings
from hushbot.evaluation.sensitivity import Sensitivity
from hushbot.protocols import Attack, Tracker
from hushbot.run import config_sha256
from hushbot.types import AuditSplit, Dialogue

Say = Callable[[str], None]
"""Where progress goes, one line at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything a run is made of, built and checked before any of it is used."""

    config: Mapping[str, Any]
    """The whole resolved configuration, as it is kept in the run directory."""
    name: str
    """What the run is called: its recipe stack, or `base`."""
    corpus: Corpus
    drawn: SplitReport
    attacks: Mapping[str, Attack]
    trackers: Mapping[str, Tracker]
    seed: int
    reveal: bool
    sensitivity: Sensitivity = field(default_factory=Sensitivity)
    """Whether and how what attacks get out is assessed; by default it is not."""
    cache: CacheSettings = field(default_factory=CacheSettings)
    """Whether the bot's answers are kept until the audit is complete."""

    @property
    def split(self) -> AuditSplit:
        """Return who is a member and who is not."""
        return self.drawn.split

    @property
    def everybody(self) -> tuple[Dialogue, ...]:
        """Return every dialogue that is in memory, on whatever side or none: what nobody may be quoted from."""
        return (*self.corpus.dialogues, *(canary.dialogue for canary in self.split.canaries))

    @property
    def config_sha256(self) -> str:
        """Return the hash of what decides the results."""
        return config_sha256(decisive(self.config))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the loader repaired or skipped and what the split could not do."""
        return (*self.corpus.notes, *self.drawn.notes)

    @property
    def manifest(self) -> dict[str, Any]:
        """Return what is written before training."""
        return dict(manifest(self.drawn, self.corpus, self.seed))
