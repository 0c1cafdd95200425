"""The schema that guides a decoder: the true one, or what a probe of the same bot finds.

Guarantees: without a guided decoder nothing is probed; a probe's questions are counted, and a note says how much of the
true schema it found.

What voids it: as for `schema_probe`; results under the true schema are an upper bound.

Source: Task-oriented dialogue state extraction, sections IV-B2 and V-C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hushbot.attacks.decoding import Decoder
from hushbot.protocols import Target
from hushbot.schema import Schema


class Guide(NamedTuple):
    """The schema of guided decoders."""

    schema: Schema | None
    n_queries: int
    notes: list[str]


def find_schema(decoders: Sequence[Decoder], source: str, target: Target, gold: Schema, seed: int) -> Guide:
    """Return the schema of guided decoders, if there are any: the true one, or what a probe of the bot finds.

    Raises:
        AuditError: The probe failed, or found nothing.
    """
    if not any(decoder.is_guided for decoder in decoders):
        return Guide(None, 0, [])
    if source == "gold":
        return Guide(gold, 0, [f"guided by the true schema ({len(gold.slots)} slots): an upper bound"])
    from hushbot.attacks.schema_asking import ProbeSettings, probe

    found = probe(target, seed=seed, settings=ProbeSettings())
    true = {(slot.domain, slot.name) for slot in gold.slots}
    n_true = sum((slot.domain, slot.name) in true for slot in found.schema.slots)
    note = f"guided by a probed schema: {len(found.schema.slots)} slots, {n_true} of the true {len(true)} among them"
    return Guide(found.schema, found.n_queries, [note, *found.notes])
