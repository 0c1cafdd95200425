"""Which domains and slots an extraction gets out: how many of the distinct extracted triplets somebody has.

The definition is that of the paper's value precision (section V-A3), for (domain, slot, value) triplets in the place of
values: distinct extracted triplets that occur in a state of the side, divided by all distinct ones that were extracted.

Guarantees: names of metrics are the schema's, never what a bot wrote; triplets of domains and slots that the schema
does not have are counted by themselves (`off_schema_triplets`) and among all (`triplet_precision`), where they are
found only if somebody has them; a domain or slot of which nothing was extracted is not there, for that is no precision
of 0.

What voids it: a slot with a handful of values is everybody's. A precision says something only beside the same one
against people whom the bot never saw; intervals resample triplets, and take the dialogues as given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hushbot.attacks.state_metrics import StateIndex, fold
from hushbot.schema import Schema, Slot
from hushbot.stats import clopper_pearson, unmeasured
from hushbot.types import Estimate, Metric, SlotValue

NAME = "triplet_precision"


def triplet_precisions(
    triplets: Iterable[SlotValue], truth: StateIndex, schema: Schema, *, suffix: str = ""
) -> dict[str, Metric]:
    """Measure extracted triplets against one side, all of them, by domain and by slot.

    Args:
        triplets: Normalised; repetitions count once.
        truth: The side to compare with.
        schema: Says which domains and slots there are.
        suffix: Appended to each metric's name, such as `@100`.

    Returns:
        `triplet_precision`, `off_schema_triplets`, and `domain=<domain>/triplet_precision` and
        `slot=<domain>-<slot>/triplet_precision` of those that were extracted.
    """
    known: dict[tuple[str, str], Slot] = {}
    for slot in schema.slots:
        known.setdefault((fold(slot.domain), fold(slot.name)), slot)
    extracted = set(triplets)
    parts: dict[str, list[SlotValue]] = defaultdict(list)
    off_schema = 0
    for triplet in extracted:
        found = known.get((triplet.domain, triplet.slot))
        if found is None:
            off_schema += 1
            continue
        parts[f"domain={found.domain}"].append(triplet)
        parts[f"slot={found.domain}-{found.name}"].append(triplet)
    metrics: dict[str, Metric] = {
        f"{NAME}{suffix}": _precision(extracted, truth),
        f"off_schema_triplets{suffix}": off_schema,
    }
    return metrics | {f"{part}/{NAME}{suffix}": _precision(parts[part], truth) for part in sorted(parts)}


def _precision(triplets: Iterable[SlotValue], truth: StateIndex) -> Estimate:
    if not truth.owners:  # nothing can be found on such a side, which is not the same as finding nothing
        return unmeasured("the side has no known dialogue state")
    hits = [triplet in truth.postings for triplet in triplets]
    if not hits:
        return unmeasured("nothing was extracted")
    found = clopper_pearson(sum(hits), len(hits))
    return found.model_copy(update={"method": f"{found.method} over triplets, dialogues taken as given"})
