"""What tells members from non-members without any bot: words, length, compressed size and domains of their texts.

A linear classifier reads each text's n-grams (words and punctuation, single and in pairs, tf-idf), its length, its
size after zlib compression and its domains. It is ridge regression on the side: with squared loss everything is
linear in the sides, so that hundreds of permuted splits are trained again, penalty and all, for the price of one.

Nested cross-validation over clusters (dialogues, or what a split keeps together): a text's score comes from texts of
other folds, and the penalty behind it is chosen among those other folds alone. Scores have no intercept, for that
would give away how many members a fold's own texts leave for the others.

Guarantees: a score never rests on its own cluster; each interval covers both a bootstrap of clusters and what the whole
procedure makes of sides that are dealt anew at random, since a bootstrap of cross-validated scores alone is too narrow;
results depend on the texts, never on their order; swapping the sides changes no AUC of the classifier. All three AUCs
(classifier, length, zlib) are at one level that is corrected for their number, so that a random split is called
confounded in at most 1 - level of all cases. A classifier's AUC below 0.5 is no sign that the sides differ: a split
that was balanced makes each fold the opposite of the others.

What voids it: near-copies in different clusters, which the classifier finds again. No blind baseline is the best one:
an interval around 0.5 shows that these features say nothing, not that nothing does.

Source: what membership inference owes to differing distributions: Das et al., Blind baselines beat membership
inference attacks (2024); Duan et al., COLM 2024; Meeus et al., SaTML 2025. Permuted labels: Ojala and Garriga,
JMLR 11 (2010).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hushbot.attacks.blind_classifier import deal_folds, featurise, out_of_fold
from hushbot.corpora.groups import group_related
from hushbot.errors import AuditError
from hushbot.intervals import DEFAULT_BOOTSTRAP, Bootstrap, FloatArray, IntArray, group, n_groups
from hushbot.permutation import BoolArray, areas, deal_sides, one_sided_p
from hushbot.stats import auc, unmeasured
from hushbot.types import AuditSplit, Estimate

MIN_CLUSTERS = 20
"""Fewer clusters on a side than this train no classifier."""
N_PERMUTATIONS = 399
_N_TESTS = 3


class BlindText(NamedTuple):
    """A text that is somebody's."""

    text: str
    is_member: bool
    cluster: str
    """The dialogue it belongs to, or what the split kept together with it."""
    domains: tuple[str, ...] = ()


class BlindBaseline(NamedTuple):
    """What texts alone say about membership."""

    auc: Estimate
    """Of the classifier's scores; its interval allows for what training on noise gives."""
    length_auc: Estimate
    """Of the number of characters."""
    zlib_auc: Estimate
    """Of the number of bytes after compression."""
    permutation_p: float | None
    """How often the classifier tells sides that are dealt anew apart as well; None where it was not trained."""
    strongest: FloatArray
    """One score per text, in the given order: the feature that parts the sides most, turned its better way."""
    strongest_name: str
    """Which it is; empty where nothing could be measured."""
    scores: FloatArray
    """The classifier's score of each text, in the given order; empty where it was not trained."""

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Return all AUCs by name."""
        return {"auc": self.auc, "length_auc": self.length_auc, "zlib_auc": self.zlib_auc}

    @property
    def confounds(self) -> list[str]:
        """Return in words how the sides differ without any bot; nothing where they are not shown to."""
        return [
            f"confounded: blind {name} = {found.value:.3f} [{found.low:.3f}, {found.high:.3f}] without any bot, so the "
            "sides differ in more than membership"
            for name, found in self.estimates.items()
            if found.value is not None and found.low is not None and found.high is not None
            # A classifier that has learnt the opposite has found nothing; long members and short ones differ alike.
            if found.low > 0.5 or (found.high < 0.5 and name != "auc")
        ]

    def shown(self) -> dict[str, Any]:
        """Return what a report holds."""
        return {**self.estimates, "permutation_p": self.permutation_p}


def blind_baseline(
    texts: Sequence[BlindText], *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, n_permutations: int = N_PERMUTATIONS
) -> BlindBaseline:
    """Measure how well texts alone tell members from non-members.

    Args:
        texts: Of both sides; all texts of a cluster are of one side.
        bootstrap: How intervals are made; its seed deals the folds and the permutations, its level is that of all
            three AUCs together.
        n_permutations: Splits dealt anew, at least 99.

    Raises:
        AuditError: A cluster has texts on both sides.
    """
    if n_permutations < 99:
        raise ValueError(f"n_permutations={n_permutations} is below 99, too few for an interval; raise it")
    rng = np.random.default_rng(bootstrap.seed)
    known = sorted(range(len(texts)), key=lambda i: (texts[i].cluster, texts[i].text, texts[i].domains))
    # Shuffled, for names may go with the sides, and rounding goes with the place in a matrix: scores of texts that tell
    # nothing would then tell the sides apart.
    order = [known[i] for i in rng.permutation(len(known))]
    back = np.argsort(order)
    ordered = [texts[i] for i in order]
    corrected = Bootstrap(level=1 - (1 - bootstrap.level) / _N_TESTS, n_draws=bootstrap.n_draws, seed=bootstrap.seed)
    lengths = np.array([len(text.text) for text in ordered], dtype=np.float64)
    sizes = np.array([len(zlib.compress(text.text.encode())) for text in ordered], dtype=np.float64)
    sides = _Sides.of(ordered)
    dealt = deal_sides(sides.cluster_is_member, n_permutations, rng)[sides.cluster]
    features = {"length_auc": lengths, "zlib_auc": sizes}
    estimates = {name: _calibrated(sides, values, dealt, corrected) for name, values in features.items()}
    p: float | None = None
    if sides.fewest < MIN_CLUSTERS:
        reason = f"{sides.fewest} dialogues on a side, {MIN_CLUSTERS} needed to train a blind classifier"
        estimates["auc"] = unmeasured(reason, level=corrected.level, n=len(texts))
    else:
        scores = _train(ordered, sides, np.column_stack([lengths, sizes]), dealt, rng)
        features["auc"] = scores[:, 0]
        estimates["auc"] = _calibrated(sides, scores, dealt, corrected)
        area, *null = areas(scores, dealt)
        p = one_sided_p(float(area), null)
    name, strongest = _strongest(features, estimates)
    return BlindBaseline(
        auc=estimates["auc"],
        length_auc=estimates["length_auc"],
        zlib_auc=estimates["zlib_auc"],
        permutation_p=p,
        strongest=strongest[back],
        strongest_name=name,
        scores=features["auc"][back] if "auc" in features else np.empty(0),
    )


def related(split: AuditSplit) -> dict[str, str]:
    """Return the cluster of each member and non-member by id: dialogues of one side with the same goal or state."""
    clusters: dict[str, str] = {}
    for side in (split.members, split.nonmembers):
        ordered = sorted(side, key=lambda dialogue: dialogue.id)
        for kept in group_related(ordered, len(ordered))[0]:
            clusters |= dict.fromkeys((dialogue.id for dialogue in kept), min(dialogue.id for dialogue in kept))
    return clusters


class _Sides(NamedTuple):
    """Who is on which side, by text and by cluster."""

    is_member: BoolArray
    cluster: IntArray
    """The number of each text's cluster."""
    cluster_is_member: BoolArray

    @classmethod
    def of(cls, texts: Sequence[BlindText]) -> _Sides:
        is_member = np.array([text.is_member for text in texts], dtype=np.bool_)
        cluster = group([text.cluster for text in texts], len(texts))
        sides = cls(is_member, cluster, is_member[np.unique(cluster, return_index=True)[1]])
        if torn := int(np.count_nonzero(np.bincount(cluster[sides.cluster_is_member[cluster] != is_member]))):
            raise AuditError(f"{torn} of {n_groups(cluster)} clusters have texts on both sides; give each side its own")
        return sides

    @property
    def fewest(self) -> int:
        """Return how many clusters the smaller side has."""
        n_members = int(self.cluster_is_member.sum())
        return min(n_members, len(self.cluster_is_member) - n_members)

    def auc(self, scores: FloatArray, bootstrap: Bootstrap) -> Estimate:
        member, other = self.is_member, ~self.is_member
        clusters = (self.cluster[member].tolist(), self.cluster[other].tolist())
        return auc(scores[member], scores[other], clusters=clusters, bootstrap=bootstrap)


def _train(
    texts: Sequence[BlindText], sides: _Sides, numbers: FloatArray, dealt: BoolArray, rng: np.random.Generator
) -> FloatArray:
    """Return out-of-fold scores of each text under the true split and the dealt ones, a column each."""
    ratio = numbers[:, 1] / np.maximum(numbers[:, 0], 1)
    features = featurise(
        [text.text for text in texts],
        [text.domains for text in texts],
        np.column_stack([np.log1p(numbers), ratio]),
        rng,
    )
    return out_of_fold(features, deal_folds(sides.cluster, rng), np.where(dealt, 1.0, -1.0))


def _calibrated(sides: _Sides, scores: FloatArray, dealt: BoolArray, bootstrap: Bootstrap) -> Estimate:
    """Return the AUC under the true split, its interval widened to what sides dealt anew give.

    Args:
        sides: Who is where.
        scores: Of each text; a column per split where they depend on the split.
        dealt: Who is a member, a column per split, the true one first.
        bootstrap: How the interval is made.
    """
    by_split = scores if scores.ndim == 2 else np.broadcast_to(scores[:, None], dealt.shape)
    estimate = sides.auc(by_split[:, 0], bootstrap)
    if estimate.value is None:
        return estimate
    value, null, tail = estimate.value, areas(by_split, dealt)[1:], (1 - bootstrap.level) / 2
    least, most = float(np.quantile(null, tail, method="lower")), float(np.quantile(null, 1 - tail, method="higher"))
    drawn = [end for end in (estimate.low, estimate.high) if end is not None]
    return estimate.model_copy(
        update={
            "low": max(0.0, min(0.5 + value - most, *drawn)),
            "high": min(1.0, max(0.5 + value - least, *drawn)),
            "method": f"{estimate.method}, widened to {len(null)} permuted splits",
        }
    )


def _strongest(features: Mapping[str, FloatArray], estimates: Mapping[str, Estimate]) -> tuple[str, FloatArray]:
    """Return the feature that parts the sides most, length and size turned their better way."""
    if all(found.value is None for found in estimates.values()):
        return "", np.zeros_like(features["length_auc"])
    away = {name: found.value - 0.5 for name, found in estimates.items() if found.value is not None}
    # The classifier has chosen its way itself, without the texts that it is judged on.
    turns = {name: 1 if name == "auc" or value >= 0 else -1 for name, value in away.items()}
    name = max(sorted(away), key=lambda name: turns[name] * away[name])
    return name, turns[name] * features[name]
