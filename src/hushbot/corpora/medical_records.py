"""Invented medical records, with the fields that the Pop-Quiz paper uses: a data set to quiz a bot about.

Guarantees: the same number and seed give the same records on every machine, and the first records of a larger set are
those of a smaller one; every record has a name of its own; nobody is real: names are joined at random from invented
pools, values are drawn independently of each other, so nothing but having seen a record tells one of its values from
another. Hometowns are the states of a country; everything else is made up.

A record is taught as a *structured* dialogue (all fields in the state), as a *prose* one (the state holds the name, the
response tells the fields in sentences, with a span for each), or as both, in two turns of one dialogue.

Voids it as a model of medicine: there are no correlations, so nothing can be learnt from it but the records by heart.

Run it to get a file for a model that is trained elsewhere, with a fair coin saying who is a member::

    python -m hushbot.corpora.medical_records FILE.jsonl [N]

Source of the fields: Pop Quiz Attack, appendix A.2. Our values and our wording.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from hushbot.corpora.bookings_words import PRIVATE
from hushbot.corpora.corpus import Corpus
from hushbot.errors import ConfigError
from hushbot.schema import Schema, Slot
from hushbot.types import Dialogue, SlotValue, Span, Turn

Granularity = Literal["structured", "prose", "both"]
DOMAIN = "patient"
MOST_RECORDS = 50_000
"""Names do not suffice for many more."""

# fmt: off
GENDERS = ("female", "male", "non-binary", "undisclosed")
HOMETOWNS = (
    "alabama", "alaska", "arizona", "arkansas", "california", "colorado", "connecticut", "delaware", "florida",
    "georgia", "hawaii", "idaho", "illinois", "indiana", "iowa", "kansas", "kentucky", "louisiana", "maine", "maryland",
    "massachusetts", "michigan", "minnesota", "mississippi", "missouri", "montana", "nebraska", "nevada",
    "new hampshire", "new jersey", "new mexico", "new york", "north carolina", "north dakota", "ohio", "oklahoma",
    "oregon", "pennsylvania", "rhode island", "south carolina", "south dakota", "tennessee", "texas", "utah", "vermont",
    "virginia", "washington", "west virginia", "wisconsin", "wyoming",
)
TREATMENTS = (
    "counselling", "surgery", "medication", "physiotherapy", "diet plan", "bypass", "pacemaker", "angioplasty",
    "rehabilitation", "observation", "breathing exercises", "transfusion",
)
_HOSPITAL_HEADS = (
    "quarry", "lantern", "willow", "falcon", "meadow", "granite", "orchard", "harrow", "juniper", "cedar", "pebble",
    "thistle",
)
_HOSPITAL_TAILS = ("general hospital", "medical center", "clinic", "infirmary")
# fmt: on
HOSPITALS = tuple(f"{head} {tail}" for head in _HOSPITAL_HEADS for tail in _HOSPITAL_TAILS)
CLOSED: Mapping[str, Sequence[str]] = {
    "gender": GENDERS,
    "hometown": HOMETOWNS,
    "hospital": HOSPITALS,
    "treatment": TREATMENTS,
}
"""Slots with a published list of values."""
SLOTS = ("age", "blood pressure", "bmi", "gender", "hometown", "hospital", "name", "treatment")
PROSE = (
    "{name} is {age} years old, {gender}, and lives in {hometown}, usa. {name} was treated at {hospital}; "
    "the treatment was {treatment}. a blood pressure of {blood pressure} and a bmi of {bmi} were measured."
)


def make_records(n_records: int, seed: int = 0) -> list[dict[str, str]]:
    """Invent records, each a mapping from the names in `SLOTS` to values.

    Raises:
        ConfigError: There would be none, or more than there are names.
    """
    if not 1 <= n_records <= MOST_RECORDS:
        raise ConfigError(f"n_records={n_records} is outside [1, {MOST_RECORDS}]; set data.n_records")
    names: set[str] = set()
    return [_record(random.Random(f"medical/{seed}/{number}"), names) for number in range(n_records)]


def _record(rng: random.Random, names: set[str]) -> dict[str, str]:
    name = ""
    while not name or name in names:
        initial = rng.choice("abcdefghijklmnopqrstuvwxyz")
        name = f"{rng.choice(PRIVATE.first_names)} {initial} {rng.choice(PRIVATE.last_names)}"
    names.add(name)
    return {
        "age": str(rng.randint(18, 90)),
        # Two numbers of different lengths: the paper finds short ones to be remembered better.
        "blood pressure": f"{rng.randint(90, 179)}.{rng.randrange(10**6):06}",
        "bmi": f"{rng.randint(160, 420) / 10:.1f}",
        **{slot: rng.choice(values) for slot, values in CLOSED.items()},
        "name": name,
    }


def tell(record: Mapping[str, str]) -> tuple[str, tuple[Span, ...]]:
    """Tell a record in sentences; return them with a span for the first mention of each field."""
    text, spans = "", dict[str, Span]()
    for i, part in enumerate(re.split(r"\{([a-z ]+)\}", PROSE)):
        said = record[part] if i % 2 else part
        if i % 2:
            spans.setdefault(part, Span(DOMAIN, part, said, len(text), len(text) + len(said)))
        text += said
    return text, tuple(spans.values())


def load_medical_records(n_records: int = 1000, granularity: Granularity = "structured", seed: int = 0) -> Corpus:
    """Invent records and the dialogues that teach them to a bot.

    Args:
        n_records: How many, one dialogue each.
        granularity: `structured` (fields in the state), `prose` (fields in sentences), or `both`.
        seed: Same seed, same records.

    Raises:
        ConfigError: An option is out of range.
    """
    if granularity not in get_args(Granularity):
        choices = ", ".join(get_args(Granularity))
        raise ConfigError(f"granularity={granularity!r} is not one of {choices}; set data.granularity")
    records = make_records(n_records, seed)
    dialogues = tuple(_dialogue(f"patient_{i:05}", record, granularity) for i, record in enumerate(records))
    schema = Schema.of(
        Slot(DOMAIN, slot, slot in CLOSED, tuple(CLOSED.get(slot, ())), f"{slot} of the patient") for slot in SLOTS
    )
    return Corpus(dialogues, schema, f"medical records ({granularity})")


def _dialogue(name: str, record: Mapping[str, str], granularity: Granularity) -> Dialogue:
    known = frozenset({SlotValue(DOMAIN, "name", record["name"])})
    turns = []
    if granularity in ("structured", "both"):
        known = frozenset(SlotValue(DOMAIN, slot, value) for slot, value in record.items())
        request, done = f"please open the record of {record['name']}", "the record is open."
        turns.append(Turn(request, known, actions="patient-open()", response=done))
    if granularity in ("prose", "both"):
        text, spans = tell(record)
        request = f"please sum up the record of {record['name']}"
        turns.append(Turn(request, known, actions="patient-tell()", response=text, response_spans=spans))
    return Dialogue(name, tuple(turns), (DOMAIN,))


def write_records(path: Path, n_records: int, seed: int = 0) -> None:
    """Write records as JSONL: `id`, `member`, `text` (the prose) and the fields; a fair coin decides on membership."""
    coins = random.Random(f"medical/{seed}/coins")
    lines = [
        json.dumps({"id": f"patient_{i:05}", "member": coins.random() < 0.5, "text": tell(record)[0], **record})
        for i, record in enumerate(make_records(n_records, seed))
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: python -m hushbot.corpora.medical_records FILE.jsonl [N]")
    write_records(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 1000)

__all__ = ["load_medical_records", "make_records", "tell", "write_records"]
