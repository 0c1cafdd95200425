"""Ask a bot for identifiers: samples after true prefixes and after mismatched ones, in one call.

Guarantees: each distinct prompt is sampled once, whoever's own prefix or control it is; members' and non-members'
prompts are mixed in an order that depends on the prompts and the seed only. An answer with fewer samples than were
asked for is an `AuditError`: lost samples are no misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hushbot.attacks.identifier_controls import Controls
from hushbot.attacks.identifier_mining import Probe, cut_prefix
from hushbot.attacks.identifier_patterns import key_of, matcher
from hushbot.attacks.identifier_statistics import attribution_p
from hushbot.errors import AuditError
from hushbot.protocols import Target
from hushbot.types import Decoding


class Setting(NamedTuple):
    """How the bot is asked."""

    n_samples: int
    max_new_tokens: int
    decoding: Decoding
    prefix_chars: int
    """Longest prefix; 0 gives all of it."""


class Evidence(NamedTuple):
    """What a bot said to one probe, and to its controls."""

    probe: Probe
    texts: list[str]
    """After its own prefix."""
    n_hits: int
    control_hits: tuple[int, ...]
    """Of each control."""
    control_texts: list[str]
    """After the nearest control."""
    is_loose: bool

    @property
    def n(self) -> int:
        """Return the number of samples after each prompt."""
        return len(self.texts)

    @property
    def p_value(self) -> float:
        """Return how surprising the hits are if the own prefix is like its controls."""
        return attribution_p(self.n_hits, self.n, self.control_hits, self.n)

    @property
    def control_rate(self) -> float:
        """Return the share of control samples that hold the identifier."""
        return sum(self.control_hits) / (self.n * len(self.control_hits))


def ask(
    target: Target, wanted: Sequence[tuple[Probe, Controls]], setting: Setting, seed: int
) -> tuple[list[Evidence], int]:
    """Return the evidence on each probe, in the given order, and the number of samples.

    Raises:
        AuditError: A query failed, or gave fewer samples than asked for.
    """
    prompts = sorted({prompt for probe, controls in wanted for prompt in (probe.prompt, *controls.prompts)})
    prompts = [prompts[i] for i in np.random.default_rng(seed).permutation(len(prompts))]
    if not prompts:
        return [], 0
    said = _sample(target, prompts, setting, seed)
    return [_evidence(probe, controls, said) for probe, controls in wanted], setting.n_samples * len(prompts)


def cut_probes(probes: Sequence[Probe], prefix_chars: int) -> list[Probe]:
    """Return the same probes with shorter prefixes."""
    return [replace(probe, prefix=cut_prefix(probe.prefix, prefix_chars)) for probe in probes]


class _Said(NamedTuple):
    """The samples of one prompt."""

    texts: list[str]
    keys: list[str]
    """Their letters and digits alone: what these do not hold, the texts do not."""

    def n_hits(self, key: str) -> int:
        """Return how many samples hold an identifier as a whole."""
        pattern = matcher(key)
        pairs = zip(self.texts, self.keys, strict=True)
        return sum(key in letters and pattern.search(text) is not None for text, letters in pairs)


def _sample(target: Target, prompts: Sequence[str], setting: Setting, seed: int) -> dict[str, _Said]:
    texts = target.sample(
        prompts,
        n=setting.n_samples,
        max_new_tokens=setting.max_new_tokens,
        decoding=setting.decoding,
        seed=seed,
    )
    if len(texts) != len(prompts) or any(len(group) != setting.n_samples for group in texts):
        raise AuditError(f"the bot gave fewer than {setting.n_samples} samples to some of {len(prompts)} prompts")
    return {
        prompt: _Said(list(group), [key_of(text) for text in group])
        for prompt, group in zip(prompts, texts, strict=True)
    }


def _evidence(probe: Probe, controls: Controls, said: Mapping[str, _Said]) -> Evidence:
    own = said[probe.prompt]
    return Evidence(
        probe=probe,
        texts=own.texts,
        n_hits=own.n_hits(probe.key),
        control_hits=tuple(said[prompt].n_hits(probe.key) for prompt in controls.prompts),
        control_texts=said[controls.prompts[0]].texts,
        is_loose=controls.is_loose,
    )
