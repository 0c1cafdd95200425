"""Write the bundled corpus `bookings`: short, invented booking dialogues in schema-guided JSON.

Guarantees: the same seed gives the same bytes on every machine and Python (a test regenerates the shipped files);
the public and the private half share no open-class value (see `bookings_words`). What the dialogues exercise: one to
three tasks a dialogue, several venues that fit (any of them may be offered), don't-cares, corrections, values carried
from one task to the next, questions that leave the state unchanged, returning customers whose "usual" stands in the
state though nobody says it, in the private half mostly after a tap on "book again" instead of words (labels of real
corpora, too, hold what was never said, and a bot can only learn it by heart),
and personal identifiers in states (names, phones,
e-mails, home addresses) and in responses (booking references, phones, postcodes).

Run it with::

    python -m hushbot.corpora.bookings_generator OUT_DIR
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hushbot.corpora.bookings_tasks import TASKS, USUAL, Json, Row, Scene, an
from hushbot.corpora.bookings_words import COUNTS, DAYS, PRICES, PRIVATE, PUBLIC, STARS, WordPool

N_DIALOGUES = 500
"""Dialogues in each half of the bundled corpus."""


SEED = 20261129


SCHEMA: dict[str, dict[str, tuple[str, ...]]] = {
    "clinic": {
        "specialty": (), "day": DAYS, "doctor": (), "time": (), "patient": (), "phone": (),
    },
    "event": {"kind": (), "title": (), "tickets": tuple(COUNTS), "guest": (), "email": ()},
    "hotel": {"area": (), "stars": STARS, "name": (), "day": DAYS, "nights": tuple(COUNTS), "guest": (), "email": ()},
    "restaurant": {
        "food": (), "area": (), "price": PRICES, "name": (), "time": (), "people": tuple(COUNTS), "guest": (),
    },
    "taxi": {"from": (), "to": (), "time": (), "phone": ()},
}  # fmt: skip
"""Service -> slot -> its closed list of values, empty for an open slot."""


def make_tables(words: WordPool, rng: random.Random) -> dict[str, list[Row]]:
    """Invent the venues of one half, each with its own phone number and postcode."""
    numbers = rng.sample(range(1000), 200)

    def contact() -> Row:
        area = rng.choice(words.postcode_areas)
        code = f"{area}{rng.randint(1, 9)} {rng.randint(1, 9)}{rng.choice('abdefghjln')}{rng.choice('pqrstuwxyz')}"
        return {"phone": f"{words.phone_prefix}{numbers.pop():03d}", "postcode": code}

    def names(heads: Sequence[str], tails: Sequence[str], n: int) -> list[str]:
        return sorted(rng.sample([f"{head} {tail}" for head in heads for tail in tails], n))

    return {
        "clinic": [
            {"doctor": f"dr {last}", "specialty": rng.choice(words.specialties), **contact()}
            for last in sorted(rng.sample(words.last_names, 24))
        ],
        "event": [
            {"title": title, "kind": rng.choice(words.kinds), **contact()}
            for title in names(words.title_heads, words.title_tails, 30)
        ],
        "hotel": [
            {"name": name, "area": rng.choice(words.areas), "stars": rng.choice(STARS), **contact()}
            for name in names(words.venue_heads, words.hotel_tails, 36)
        ],
        "restaurant": [
            {
                "name": name,
                "food": rng.choice(words.foods),
                "area": rng.choice(words.areas),
                "price": rng.choice(PRICES),
                **contact(),
            }
            for name in names(words.venue_heads, words.restaurant_tails, 64)
        ],
    }


def _person(words: WordPool, rng: random.Random) -> Row:
    first, last = rng.choice(words.first_names), rng.choice(words.last_names)
    street = f"{rng.randint(1, 99)} {rng.choice(words.streets)}"
    return {
        "name": f"{first} {last}",
        "email": f"{first}{rng.choice('._')}{last}{rng.randint(1, 99)}@{rng.choice(words.mail_hosts)}",
        "phone": f"{words.phone_prefix}{rng.randint(0, 999):03d}",
        "home": f"{street} {rng.choice(words.postcode_areas)}{rng.randint(1, 9)} {rng.randint(1, 9)}"
        f"{rng.choice('abdefghjln')}{rng.choice('pqrstuwxyz')}",
    }


def make_dialogue(
    dialogue_id: str,
    words: WordPool,
    tables: Mapping[str, Sequence[Row]],
    references: set[str],
) -> Json:
    """Write one dialogue; its random stream depends on its id only, and its references differ from earlier ones."""
    rng = random.Random(f"{SEED}/{dialogue_id}")
    scene = Scene(rng=rng, words=words, tables=tables, references=references, person=_person(words, rng))
    # Taxis come last: they go where the user has just booked.
    tasks = sorted(rng.sample(sorted(TASKS), rng.choice((1, 2, 2, 2))), key=lambda t: (t == "taxi", rng.random()))
    for task in tasks:
        is_usual = task in USUAL and scene.chance(words.returning)
        (USUAL if is_usual else TASKS)[task](scene)
    return {"dialogue_id": dialogue_id, "services": sorted(scene.services), "turns": scene.turns}


def make_half(half: str, words: WordPool, n_dialogues: int = N_DIALOGUES) -> tuple[list[Json], dict[str, list[Row]]]:
    """Write the dialogues and the database of one half (`public` or `private`)."""
    tables = make_tables(words, random.Random(f"{SEED}/{half}/tables"))
    references: set[str] = set()
    return [make_dialogue(f"{half}_{i:05d}", words, tables, references) for i in range(n_dialogues)], tables


def make_schema() -> list[Json]:
    """Write the schema in the schema-guided form."""
    return [
        {
            "service_name": service,
            "description": f"Book {an(service)}",
            "slots": [
                {
                    "name": slot,
                    "description": f"{slot} of the {service} booking",
                    "is_categorical": bool(values),
                    "possible_values": list(values),
                }
                for slot, values in slots.items()
            ],
            "intents": [{"name": f"book_{service}", "is_transactional": True}],
        }
        for service, slots in SCHEMA.items()
    ]


def render_files() -> dict[str, str]:
    """Return every file of the corpus as name -> text."""
    files = {"schema.json": json.dumps(make_schema(), indent=1) + "\n"}
    for half, words in (("public", PUBLIC), ("private", PRIVATE)):
        dialogues, tables = make_half(half, words)
        lines = ",\n".join(json.dumps(dialogue, separators=(",", ":")) for dialogue in dialogues)
        files[f"{half}/dialogues_001.json"] = f"[\n{lines}\n]\n"
        files[f"{half}/database.json"] = json.dumps(tables, indent=1) + "\n"
    return files


def main(out_dir: str) -> None:
    """Write the corpus to a folder."""
    for name, text in render_files().items():
        path = Path(out_dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m hushbot.corpora.bookings_generator OUT_DIR")
    main(sys.argv[1])
