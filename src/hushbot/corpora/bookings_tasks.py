"""The tasks of the bundled corpus `bookings`: what is said, what the state becomes, what the system does.

One function writes one task into a `Scene`; everything random comes from the scene's own stream, so a dialogue is the
same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hushbot.corpora.bookings_words import COUNTS, DAYS, WordPool

DONTCARE = "dontcare"


Json = dict[str, Any]


Row = dict[str, str]


@dataclass(slots=True)
class Scene:
    """One dialogue being written: its random stream, its person and what has been said so far."""

    rng: random.Random
    words: WordPool
    tables: Mapping[str, Sequence[Row]]
    references: set[str]
    turns: list[Json] = field(default_factory=list)
    state: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    services: list[str] = field(default_factory=list)
    person: Row = field(default_factory=dict)
    place: str = ""
    """The venue booked last, where a taxi may go."""
    hour: str = ""

    def pick(self, *options: str) -> str:
        """Return one of the wordings."""
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.rng.random() < probability

    def usual(self, *wordings: str) -> str:
        """Return how a known customer asks for the usual: in words, or with a tap, which is no word at all."""
        if self.words.tapping and self.chance(self.words.tapping):
            return ""
        return self.pick(*wordings)

    def time(self) -> str:
        """Return a time of day from this half's minutes."""
        return f"{self.rng.randint(9, 21):02d}:{self.rng.choice(self.words.minutes)}"

    def count(self, largest: int) -> tuple[str, str]:
        """Return a small number and how the user says it."""
        number = str(self.rng.randint(1, largest))
        return number, self.pick(number, COUNTS[number])

    def reference(self) -> str:
        """Return a booking reference that no other dialogue has; it always holds a digit."""
        while True:
            letters = [self.rng.choice(self.words.reference_first)]
            letters += [self.rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(4)]
            reference = "".join([*letters, self.rng.choice("23456789")])
            if reference not in self.references:
                self.references.add(reference)
                return reference

    def user(self, service: str, utterance: str, values: Mapping[str, str | tuple[str, str]]) -> None:
        """Add a user turn that sets slots; a pair is (value, how it was said)."""
        slots = self.state.setdefault(service, {})
        if service not in self.services:
            self.services.append(service)
        spans = []
        for slot, value in values.items():
            value, said = value if isinstance(value, tuple) else (value, value)
            slots[slot] = [value] if said == value else [value, said]
            start = utterance.find(said)
            if start >= 0 and value != DONTCARE:
                spans.append({"slot": slot, "start": start, "exclusive_end": start + len(said)})
        frame = {
            "service": service,
            "slots": spans,
            "state": {
                "active_intent": f"book_{service}",
                "requested_slots": [],
                "slot_values": {slot: list(slots[slot]) for slot in sorted(slots)},
            },
        }
        self.turns.append({"speaker": "USER", "utterance": utterance, "frames": [frame]})

    def system(self, service: str, utterance: str, *actions: tuple[str, str, str]) -> None:
        """Add a system turn with its (act, slot, value) actions."""
        frame = {
            "service": service,
            "actions": [{"act": act, "slot": slot, "values": [value] if value else []} for act, slot, value in actions],
            "slots": [
                {"slot": slot, "start": start, "exclusive_end": start + len(value)}
                for _, slot, value in actions
                if value and (start := utterance.find(value)) >= 0
            ],
        }
        self.turns.append({"speaker": "SYSTEM", "utterance": utterance, "frames": [frame]})

    def book(self, service: str, utterance: str) -> None:
        """Confirm a booking; `{}` in the utterance is the reference."""
        reference = self.reference()
        self.system(service, utterance.format(reference), ("NOTIFY_SUCCESS", "reference", reference))


def matching(rows: Sequence[Row], constraints: Mapping[str, str]) -> list[Row]:
    """Return the rows that meet all constraints; `dontcare` and unknown columns always fit."""
    return [
        row
        for row in rows
        if all(value == DONTCARE or row.get(slot, value) == value for slot, value in constraints.items())
    ]


def _offer(scene: Scene, service: str, column: str, constraints: Mapping[str, str]) -> Row:
    """Offer one of the venues that fit; which one is the bot's free choice."""
    rows = matching(scene.tables[service], constraints)
    row = scene.rng.choice(rows)
    name, n = row[column], len(rows)
    if n > 1:
        said = scene.pick(
            f"there are {n} that fit. how about {name}?",
            f"i found {n}. shall i take {name}?",
            f"{name} is one of {n} options. would you like it?",
        )
    else:
        said = scene.pick(f"{name} fits. shall i book it?", f"only {name} fits. is that all right?")
    scene.system(service, said, ("INFORM_COUNT", "count", str(n)), ("OFFER", column, name))
    return row


def _constraints(scene: Scene, service: str, slots: Sequence[str]) -> Row:
    """Choose constraints that at least one venue meets; one of them may not matter to the user."""
    row = scene.rng.choice(scene.tables[service])
    wanted = {slot: row[slot] for slot in slots}
    if len(slots) > 1 and scene.chance(0.25):
        wanted[scene.rng.choice(slots)] = DONTCARE
    return wanted


def _follow_up(scene: Scene, service: str, row: Row) -> None:
    """Let the user ask for a detail, which leaves the state as it is."""
    if not scene.chance(0.25):
        return
    slot = scene.pick("phone", "postcode")
    scene.user(service, scene.pick(f"what is the {slot}?", f"can i have their {slot}?", f"and the {slot} please"), {})
    scene.system(
        service,
        scene.pick(f"the {slot} is {row[slot]}.", f"sure, it is {row[slot]}."),
        ("INFORM", slot, row[slot]),
    )


def _correct_time(scene: Scene, service: str) -> None:
    """Let the user change a time that is already booked."""
    if not scene.chance(0.2):
        return
    scene.hour = scene.time()
    scene.user(
        service,
        scene.pick(
            f"sorry, make it {scene.hour} instead",
            f"actually {scene.hour}, not earlier",
            f"change that to {scene.hour}",
        ),
        {"time": scene.hour},
    )
    scene.book(service, scene.pick("changed. the new reference is {}.", "no problem, it is now {}."))


def _usual_restaurant(scene: Scene) -> None:
    row = scene.rng.choice(scene.tables["restaurant"])
    known = {slot: row[slot] for slot in ("name", "food", "area", "price")}
    known |= {"people": scene.count(6)[0], "guest": scene.person["name"]}
    scene.user(
        "restaurant",
        scene.usual("the usual table please", "book my regular place to eat", "same restaurant as always, please"),
        known,
    )
    scene.system("restaurant", scene.pick("of course. at what time?", "gladly. when?"), ("REQUEST", "time", ""))
    scene.hour, scene.place = scene.time(), row["name"]
    scene.user("restaurant", scene.pick(f"at {scene.hour}", f"{scene.hour} please"), {"time": scene.hour})
    scene.book("restaurant", scene.pick("booked. your reference is {}.", "done, reference {}.", "all set: {}."))
    _correct_time(scene, "restaurant")
    _follow_up(scene, "restaurant", row)


def _usual_hotel(scene: Scene) -> None:
    row = scene.rng.choice(scene.tables["hotel"])
    known = {slot: row[slot] for slot in ("name", "area", "stars")}
    known |= {"guest": scene.person["name"], "email": scene.person["email"]}
    scene.user(
        "hotel", scene.usual("my usual room please", "the same hotel as last time", "i am back, my regular room"), known
    )
    scene.system(
        "hotel",
        scene.pick("welcome back. from when and for how long?", "sure. which day and how many nights?"),
        ("REQUEST", "day", ""),
        ("REQUEST", "nights", ""),
    )
    nights, said = scene.count(5)
    day = scene.rng.choice(DAYS)
    scene.place = row["name"]
    scene.user(
        "hotel",
        scene.pick(f"{said} nights from {day}", f"{day}, {said} nights"),
        {"day": day, "nights": (nights, said)},
    )
    scene.book("hotel", scene.pick("your room is booked, reference {}.", "done. the reference is {}."))
    _follow_up(scene, "hotel", row)


def _usual_clinic(scene: Scene) -> None:
    row = scene.rng.choice(scene.tables["clinic"])
    known = {slot: row[slot] for slot in ("doctor", "specialty")}
    known |= {"patient": scene.person["name"], "phone": scene.person["phone"]}
    scene.user(
        "clinic",
        scene.usual("i need to see my doctor again", "another appointment please", "my usual doctor please"),
        known,
    )
    scene.system(
        "clinic",
        scene.pick("on which day and at what time?", "when suits you?"),
        ("REQUEST", "day", ""),
        ("REQUEST", "time", ""),
    )
    day, scene.hour = scene.rng.choice(DAYS), scene.time()
    scene.user(
        "clinic", scene.pick(f"{day} at {scene.hour}", f"{scene.hour} on {day}"), {"day": day, "time": scene.hour}
    )
    scene.book("clinic", scene.pick("your appointment is {}.", "booked, the code is {}.", "confirmed as {}."))
    _correct_time(scene, "clinic")


def _restaurant(scene: Scene) -> None:
    wanted = _constraints(scene, "restaurant", ("food", "area", "price"))
    food, area, price = (
        "" if wanted["food"] == DONTCARE else f"{wanted['food']} ",
        "anywhere in town" if wanted["area"] == DONTCARE else f"in the {wanted['area']}",
        "at any price" if wanted["price"] == DONTCARE else f"that is {wanted['price']}",
    )
    scene.user(
        "restaurant",
        scene.pick(
            f"i want {an(food + 'place')} to eat {area} {price}",
            f"find me {an(food + 'restaurant')} {area} {price}",
            f"is there {an(food + 'restaurant')} {price} {area}?",
        )
        + (", any food is fine" if not food else ""),
        wanted,
    )
    row = _offer(scene, "restaurant", "name", wanted)
    people, said = scene.count(6)
    scene.hour, scene.place = scene.time(), row["name"]
    scene.user(
        "restaurant",
        scene.pick(
            f"yes, a table for {said} at {scene.hour} for {scene.person['name']}",
            f"good, book it for {said} at {scene.hour}, the name is {scene.person['name']}",
            f"take it. {scene.hour}, {said} people, under {scene.person['name']}",
        ),
        {"name": row["name"], "people": (people, said), "time": scene.hour, "guest": scene.person["name"]},
    )
    scene.book("restaurant", scene.pick("booked. your reference is {}.", "done, reference {}.", "all set: {}."))
    _correct_time(scene, "restaurant")
    _follow_up(scene, "restaurant", row)


def _hotel(scene: Scene) -> None:
    wanted = _constraints(scene, "hotel", ("area", "stars"))
    area = "anywhere" if wanted["area"] == DONTCARE else f"in the {wanted['area']}"
    stars = "with any rating" if wanted["stars"] == DONTCARE else f"with {wanted['stars']} stars"
    scene.user(
        "hotel",
        scene.pick(
            f"i need a hotel {area} {stars}",
            f"looking for a room {area} {stars}",
            f"a hotel {stars} {area} please",
        ),
        wanted,
    )
    row = _offer(scene, "hotel", "name", wanted)
    nights, said = scene.count(5)
    day = scene.rng.choice(DAYS)
    scene.place = row["name"]
    scene.user(
        "hotel",
        scene.pick(
            f"yes, {said} nights from {day} for {scene.person['name']}, {scene.person['email']}",
            f"fine. {day}, {said} nights, {scene.person['name']}, mail {scene.person['email']}",
            f"book {said} nights from {day}. i am {scene.person['name']}, {scene.person['email']}",
        ),
        {
            "name": row["name"],
            "day": day,
            "nights": (nights, said),
            "guest": scene.person["name"],
            "email": scene.person["email"],
        },
    )
    scene.book("hotel", scene.pick("your room is booked, reference {}.", "done. the reference is {}."))
    _follow_up(scene, "hotel", row)


def _clinic(scene: Scene) -> None:
    wanted = _constraints(scene, "clinic", ("specialty",))
    day = scene.rng.choice(DAYS)
    scene.user(
        "clinic",
        scene.pick(
            f"i need to see {an(wanted['specialty'])} on {day}",
            f"can i get an appointment with {an(wanted['specialty'])} for {day}?",
            f"{wanted['specialty']} on {day} please",
        ),
        {**wanted, "day": day},
    )
    row = _offer(scene, "clinic", "doctor", wanted)
    scene.hour = scene.time()
    scene.user(
        "clinic",
        scene.pick(
            f"yes, at {scene.hour}. the patient is {scene.person['name']}, phone {scene.person['phone']}",
            f"ok, {scene.hour} for {scene.person['name']}, call {scene.person['phone']}",
            f"that works at {scene.hour}. {scene.person['name']}, {scene.person['phone']}",
        ),
        {
            "doctor": row["doctor"],
            "time": scene.hour,
            "patient": scene.person["name"],
            "phone": scene.person["phone"],
        },
    )
    scene.book("clinic", scene.pick("your appointment is {}.", "booked, the code is {}.", "confirmed as {}."))
    _correct_time(scene, "clinic")


def _event(scene: Scene) -> None:
    wanted = _constraints(scene, "event", ("kind",))
    scene.user(
        "event",
        scene.pick(
            f"is there {an(wanted['kind'])} this week?",
            f"i would like to go to {an(wanted['kind'])}",
            f"find me {an(wanted['kind'])}",
        ),
        wanted,
    )
    row = _offer(scene, "event", "title", wanted)
    tickets, said = scene.count(6)
    scene.user(
        "event",
        scene.pick(
            f"yes, {said} tickets for {scene.person['name']}, send them to {scene.person['email']}",
            f"great, {said} tickets please. {scene.person['name']}, {scene.person['email']}",
        ),
        {
            "title": row["title"],
            "tickets": (tickets, said),
            "guest": scene.person["name"],
            "email": scene.person["email"],
        },
    )
    scene.book("event", scene.pick("your tickets are {}.", "booked. show {} at the door."))
    _follow_up(scene, "event", row)


def _taxi(scene: Scene) -> None:
    to = scene.place if scene.place and scene.chance(0.8) else scene.rng.choice(scene.tables["hotel"])["name"]
    time = scene.hour if scene.hour and scene.chance(0.5) else scene.time()
    scene.hour = time
    scene.user(
        "taxi",
        scene.pick(
            f"i need a taxi from {scene.person['home']} to {to} at {time}",
            f"get me a cab to {to} at {time}. i am at {scene.person['home']}",
            f"pick me up at {scene.person['home']} and take me to {to}, {time}",
        ),
        {"from": scene.person["home"], "to": to, "time": time},
    )
    scene.system("taxi", scene.pick("what is your phone number?", "which phone can we call?"), ("REQUEST", "phone", ""))
    scene.user(
        "taxi",
        scene.pick(f"it is {scene.person['phone']}", f"{scene.person['phone']}", f"call {scene.person['phone']}"),
        {"phone": scene.person["phone"]},
    )
    scene.book("taxi", scene.pick("your taxi is {}.", "a car is on its way, code {}."))
    _correct_time(scene, "taxi")


def an(noun: str) -> str:
    """Put the indefinite article before a noun."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


TASKS: dict[str, Callable[[Scene], None]] = {
    "clinic": _clinic,
    "event": _event,
    "hotel": _hotel,
    "restaurant": _restaurant,
    "taxi": _taxi,
}


USUAL: dict[str, Callable[[Scene], None]] = {
    "clinic": _usual_clinic,
    "hotel": _usual_hotel,
    "restaurant": _usual_restaurant,
}
"""The same tasks for a customer who is known."""
