"""What a differential privacy guarantee of one training is about, and what it is not about, in words for the report.

Guarantees: every sentence stands in each private report; `caveats` looks at the plan alone, never at the members.

Void for what nobody has thought of: the list of what is not covered is as complete as its authors could make it.
"""

from __future__ import annotations

from hushbot.training.mechanism import Mechanism

COVERS = (
    "the trained weights, all intermediate ones included: how much their distribution can depend on whether one "
    "dialogue, all its turns together, is among the members"
)
DOES_NOT_COVER = (
    "choosing hyper-parameters or arms by results on the same members",
    "other runs on the same members, whose epsilons add up to this one: abandoned or interrupted runs in other "
    "directories, copies of a run directory that were resumed separately, other seeds; an arm without a guarantee, "
    "once it is published, leaves nothing to add to",
    "changing what a dialogue says instead of adding or removing it, which moves a step up to twice as far: such a "
    "change costs more: 1.2 to 1.9 times epsilon at usual settings, and at most 2 epsilon at (1 + exp(epsilon)) delta",
    "several dialogues of one person, unless they were merged into one",
    "which dialogues were chosen: the split, de-duplication, dropping of unusable dialogues, the manifest",
    "counts of the corpus in the report and the time that training took",
    "hashes and fingerprints of the data in the report, the checkpoint and the ledger, by which a guess of all members "
    "can be checked",
    "the recipes' notes, which are computed on the members, and error messages, which name member dialogues",
    "calibration dialogues, which early stopping looks at",
    "the audit's own numbers and records, which are computed on the members themselves",
    "attacks on the floating-point representation of the noise, or on torch's random generator",
)
LARGEST_DELTA = 0.01
"""Above this a delta is worth a warning."""
USUAL_DELTA = 1e-5
"""The delta at which reports give a second epsilon, to be compared with what others publish."""


def caveats(mechanism: Mechanism) -> tuple[str, ...]:
    """Return what a reader of epsilon must know about delta and the number of members."""
    notes = []
    if mechanism.delta > LARGEST_DELTA:
        notes.append(
            f"dp_sgd: delta={mechanism.delta:.3g} is above {LARGEST_DELTA}: with that probability epsilon may fail, so "
            f"the guarantee says little; look at epsilon at delta {USUAL_DELTA:g}, or train on more members"
        )
    if mechanism.n_units * USUAL_DELTA >= 1:
        notes.append(
            f"dp_sgd: epsilon at delta {USUAL_DELTA:g} is for comparison only, since {USUAL_DELTA:g} is not below one "
            f"over the {mechanism.n_units} members"
        )
    return tuple(notes)
