"""Inputs that nobody meant to write: seeded mutations of good ones, byte by byte and structure by structure.

`HUSHBOT_FUZZ_SECONDS=600` gives every test so many seconds of processor time, `HUSHBOT_FUZZ_SEED=7` other inputs.

`hunt` feeds them to a reader and accepts two endings only: it reads, or it raises a `HushbotError` that names the
place. Anything else, and an input that takes longer than `LIMIT` seconds of processor time, is a finding; its bytes
are in the message. The same seed tries the same inputs; the time given decides only how many of them.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hushbot.errors import HushbotError

SEED = int(os.environ.get("HUSHBOT_FUZZ_SEED", "0"))
Tell = Callable[[str, Any], None]

_OURS = ("corpora", "targets", "training", "evaluation", "attacks", "recipes", "commands", "serving")
LIMIT = 10.0
"""Seconds of processor time that one input may take."""
ODD_TEXTS = (
    "",
    " ",
    "\0",
    "\ud800",
    "\ufffd",
    "é" * 40,
    "a" * 5000,
    "None",
    "nan",
    "1e999",
    "../../outside",
    "/absolute",
    "{}",
    "[x](y)",
    "${oops}",
    "restaurant-",
    "-",
    "|",
    "a|b",
    "\n",
    "\r\n\u2028",
    "<b>",
    "%s",
)
ODD_VALUES: tuple[Any, ...] = (
    *ODD_TEXTS,
    None,
    True,
    False,
    0,
    -1,
    1,
    2**63,
    10**400,
    0.5,
    -0.0,
    1e308,
    math.inf,
    -math.inf,
    math.nan,
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"a": {"b": [1, {"c": None}]}},
    ["x", 1],
)
ODD_BYTES = (
    b"\xef\xbb\xbf",
    b"\xff",
    b"\0",
    b"\xc3",
    b"\xed\xa0\x80",
    b'"',
    b"{",
    b"[" * 3000,
    b"}",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b"\\ud800",
    b"null",
    b"\n",
    b"&a [*a, *a]",
    b"!!python/object/apply:os.mkdir [x]",
    b"version https://git-lfs.github.com/spec/v1\n",
)


class Hunt(NamedTuple):
    """How many inputs were tried, and how they ended."""

    tried: int
    refused: int

    def __str__(self) -> str:
        return f"{self.tried} inputs, {self.tried - self.refused} read, {self.refused} refused"


class Finding(AssertionError):
    """An input that ended otherwise."""


class Endless(BaseException):
    """An input took too long; no `Exception`, so that nobody catches it."""


def hunt(
    read: Callable[[Any], object],
    inputs: Iterator[Any],
    *,
    seconds: float,
    place: str = "",
    most: int = 100_000,
) -> Hunt:
    """Read inputs for so many seconds of processor time.

    Args:
        read: What is tried.
        inputs: Never ends.
        seconds: Processor time for all of them.
        place: What every refusal must name, such as the folder of a file.
        most: Inputs, at most.

    Raises:
        Finding: An input was neither read nor refused as it should be.
    """
    tried = refused = 0
    found: dict[str, str] = {}
    ends = time.process_time() + seconds
    for given in inputs:
        if tried >= most or (tried and time.process_time() > ends):
            break
        tried += 1
        original = shown(given)  # before anybody changes it
        try:
            with limited():
                read(given)
        except HushbotError as error:
            refused += 1
            if place not in str(error):
                found.setdefault(_where(error), f"the message names no {place}: {error}\n{original}")
        except Endless as error:
            found.setdefault(_where(error), f"it takes more than {LIMIT:g} s of processor time\n{original}")
        except Exception as error:
            found.setdefault(_where(error), f"{type(error).__name__}: {error}\n{original}")
    if found:
        lines = [f"{where}: {what}" for where, what in found.items()]
        raise Finding(f"{len(found)} kinds of findings in {tried} inputs\n" + "\n\n".join(lines))
    return Hunt(tried, refused)


def _where(error: BaseException) -> str:
    """Return where in hushbot an error arose and from where that was called, so that each fault is told once."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    ours = [frame for frame in frames if "hushbot" in frame.filename or Path(frame.filename).parent.name in _OURS]
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in (ours or frames)[-3:]]
    return f"{type(error).__name__} at {' > '.join(places)}"


@contextmanager
def limited() -> Iterator[None]:
    """End what takes too much processor time, however busy the machine is."""

    def end(*_: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def shown(given: object) -> str:
    """Return an input as Python writes it, cut."""
    text = repr(given)
    return text if len(text) < 4000 else f"{text[:2000]} ... {text[-2000:]}"


def mutated_bytes(seeds: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Yield the seeds as they are, then for ever: one of them with up to six edits."""
    yield from seeds
    rng = random.Random(seed)
    while True:
        content = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 6)):
            _edit(content, rng, seeds)
        yield bytes(content)


def _edit(content: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(content) + 1)
    end = min(len(content), at + rng.choice((1, 1, 2, 8, 200)))
    match rng.randrange(7):
        case 0 if at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        case 1:
            del content[at:end]
        case 2:
            content[at:at] = content[at:end]
        case 3:
            content[at:at] = rng.choice(ODD_BYTES)
        case 4:
            content[at:end] = rng.randbytes(end - at)
        case 5:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            content[at:end] = other[start : start + 50]
        case 6 if rng.random() < 0.3:
            del content[at:]


def mutated_values(seeds: Sequence[Any], seed: int, *, is_gentle: bool = False) -> Iterator[Any]:
    """Yield JSON values as they are, then for ever: one of them with up to four parts exchanged, lost or doubled.

    Args:
        seeds: Good values.
        seed: The same seed yields the same values.
        is_gentle: Exchange a text for a text and a number for a number only, which a checked form lets through.
    """
    yield from copy.deepcopy(list(seeds))
    rng = random.Random(seed)
    while True:
        value = copy.deepcopy(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            value = (_gently_edited if is_gentle else _edited)(value, rng)
        yield value


def _gently_edited(value: Any, rng: random.Random) -> Any:
    *path, last = rng.choice(list(_places(value)))
    holder = value
    for key in path:
        holder = holder[key]
    alike = [odd for odd in ODD_VALUES if type(odd) is type(holder[last])]
    if isinstance(holder, dict) and rng.random() < 0.3:
        holder[rng.choice(ODD_TEXTS)] = holder.pop(last) if rng.random() < 0.5 else holder[last]
    elif isinstance(holder[last], list) and holder[last] and rng.random() < 0.5:
        holder[last].append(copy.deepcopy(holder[last][0]))
    else:
        holder[last] = copy.deepcopy(rng.choice(alike or [None]))
    return value


def _edited(value: Any, rng: random.Random) -> Any:
    places = list(_places(value))
    if not places:
        return rng.choice(ODD_VALUES)
    # Half of the time near the top, where a change does most.
    places = [p for p in places if len(p) <= 2] if rng.random() < 0.3 else places
    *path, last = rng.choice(places)
    holder = value
    for key in path:
        holder = holder[key]
    match rng.randrange(7):
        case 0 | 1 | 2:
            holder[last] = copy.deepcopy(rng.choice(ODD_VALUES))
        case 3:
            del holder[last]
        case 4:
            other = value
            for key in rng.choice(places):
                other = other[key]
            holder[last] = copy.deepcopy(other)
        case 5:
            inner = holder[last]
            holder[last] = rng.choice(([inner], {"x": inner}, str(inner)[:200], [inner, inner]))
        case 6 if isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        case _:
            holder[rng.choice(ODD_TEXTS)] = holder.pop(last)
    return value


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from _places(value[key], (*path, key))


def as_json(values: Iterator[Any]) -> Iterator[bytes]:
    """Yield values as JSON files have them; what only Python's own dialect can write is written in that."""
    for value in values:
        yield json.dumps(value).encode()


def taking_turns(*streams: Iterator[Any]) -> Iterator[Any]:
    """Yield from several streams, one after the other."""
    while True:
        for stream in streams:
            yield next(stream)


def named(name: str, stream: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a stream yields, each with a name."""
    for content in stream:
        yield name, content


def seconds(usual: float) -> float:
    """Return the processor time for one test."""
    return float(os.environ.get("HUSHBOT_FUZZ_SECONDS", usual))


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Return what prints how many inputs were tried, also where pytest shows no output."""

    def print_it(what: str, found: Hunt) -> None:
        with capsys.disabled():
            print(f"\nfuzzing {what}: {found}", end="")
        assert found.tried > 5, "so few inputs prove nothing"

    return print_it
