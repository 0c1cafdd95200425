"""The ways to get texts out of a bot, by name: the decoders of the paper, with its settings.

Guarantees: a decoder's name says all its settings; nothing is taken from a model's generation config, and `resolved`
lists every setting, those of hushbot included. A specification is a name, or a name and options that deviate from it:
`vanilla`, `vanilla:top_k=40`, `temperature:temperature=3:top_p=0.9`. An option that is given twice, or that
would change nothing, is an error.

Voids it: a target that does not follow `Decoding` (endpoints know neither beams nor a falling temperature).

Source: Task-oriented dialogue state extraction, sections IV-A1, IV-B2 and V-B1 (its settings), V-D3 (the options).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import NamedTuple

from hushbot.attacks.schema_sampling import MAX_TRIPLETS, MAX_VALUE_TOKENS, StateGrammar, guided_continuations
from hushbot.errors import AuditError, ConfigError
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.targets.guided import Law
from hushbot.types import Decoding, Tier

DECODERS: Mapping[str, Decoding] = MappingProxyType(
    {
        "greedy": Decoding(temperature=0),
        "vanilla": Decoding(),
        "temperature": Decoding(temperature=2),
        "decaying_temperature": Decoding(temperature=1, start_temperature=5, temperature_step=2),
        "beam_search": Decoding(num_beams=50),
        "group_beam_search": Decoding(num_beams=50, beam_groups=50, diversity_penalty=1),
        "beam_sampling": Decoding(num_beams=5, samples_beams=True, temperature=2),
    }
)
"""The paper's decoders; greedy is its baseline of targeted extraction."""
GUIDED: Mapping[str, Law] = MappingProxyType({"schema_guided": "phrase", "schema_masked": "token"})
"""Decoders that need a schema, and how they choose; the second is there to be compared with."""
_OPTIONS = {field.name: field.type for field in fields(Decoding) if field.name != "stop"}
_NEEDED = {"length_penalty": "num_beams", "diversity_penalty": "beam_groups", "temperature_step": "start_temperature"}
"""Options that change nothing while another one is off."""


class Texts(NamedTuple):
    """What a decoder gave."""

    continuations: list[list[str]]
    """As many per prompt as were asked for, each without its line break."""
    mass: float | None
    """The bot's mean probability of what a schema allowed; None for decoders without one."""
    n_queries: int
    """Texts that were drawn; of guided ones the values that were drawn and the phrases that were scored."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """One way to get texts out of a bot."""

    name: str
    """The specification it was made of."""
    decoding: Decoding
    law: Law | None = None
    """How a schema guides it; None without one."""

    @property
    def is_guided(self) -> bool:
        """Whether it needs a schema."""
        return self.law is not None

    def n_useful(self, n: int) -> int:
        """Return how many of n texts after one prompt can differ: a decoder that draws nothing repeats itself."""
        return min(n, self.decoding.num_beams) if self.decoding.is_deterministic else n

    def write(
        self,
        target: Target,
        prompts: Sequence[str],
        *,
        n: int,
        max_new_tokens: int,
        schema: Schema | None,
        seed: int,
    ) -> Texts:
        """Return n continuations per prompt.

        Args:
            target: The bot.
            prompts: Beginnings of a state, `Belief State:` included.
            n: Texts per prompt.
            max_new_tokens: Where a text is cut; a guided decoder bounds its values instead.
            schema: What guides; needed by guided decoders alone.
            seed: Of the draws.

        Raises:
            AuditError: A query failed, or the target did not return as many texts as it was asked for.
            ConfigError: A guided decoder has no schema, or the target cannot decode so.
        """
        if self.law is not None:
            if schema is None:
                raise ConfigError(f"decoder {self.name} is guided by a schema and was given none")
            grammar = StateGrammar(schema=schema)
            return Texts(
                *guided_continuations(target, prompts, grammar, n=n, decoding=self.decoding, law=self.law, seed=seed)
            )
        drawn = target.sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=self.decoding, seed=seed)
        if [len(texts) for texts in drawn] != [n] * len(prompts):
            n_drawn = sum(map(len, drawn))
            raise AuditError(f"the target returned {n_drawn} of {n * len(prompts)} samples")
        return Texts(drawn, None, n * len(prompts))


class Usable(NamedTuple):
    """Which decoders of an attack a target can be asked with."""

    specs: list[str]
    lost: list[str]
    """What is not measured, and why."""


def usable(target: Target, specs: Sequence[str], registered: str) -> Usable:
    """Leave out guided decoders where a target does not tell how probable texts are, but for the registered one."""
    tier: Tier = getattr(target, "tier", "full")
    lost = [spec for spec in specs if tier != "full" and spec != registered and parse_decoder(spec).is_guided]
    reason = f"it chooses by probabilities, and the target's tier is {tier!r}"
    return Usable([spec for spec in specs if spec not in lost], [f"{spec} not measured: {reason}" for spec in lost])


def needs_of(registered: str) -> Tier:
    """Return what a target must tell for the decoder behind a headline; guided ones choose by probabilities."""
    return "full" if parse_decoder(registered).is_guided else "text"


def resolved(decoder: Decoder) -> str:
    """Return all settings of a decoder, those that are off included."""
    settings = asdict(decoder.decoding)
    stop = settings.pop("stop")
    shown = [f"{name}={value}" for name, value in settings.items()]
    if decoder.law is None:
        shown.append(f"stop={stop!r}")
    else:  # its texts end where the grammar says
        shown += [f"law={decoder.law}", f"max_triplets={MAX_TRIPLETS}", f"max_value_tokens={MAX_VALUE_TOKENS}"]
        shown.append("may_be_empty=False")
    return f"decoder {decoder.name}: {', '.join(shown)}"


def parse_decoder(spec: str) -> Decoder:
    """Return the decoder of a specification.

    Raises:
        ConfigError: A name or an option is unknown, or a value does not fit.
    """
    name, *options = spec.split(":")
    if name not in DECODERS and name not in GUIDED:
        raise ConfigError(f"decoder {name!r} is unknown; choose one of {', '.join([*DECODERS, *GUIDED])}")
    changes: dict[str, object] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or key not in _OPTIONS:
            raise ConfigError(f"decoder {spec!r}: {option!r} is no option=value; options are {', '.join(_OPTIONS)}")
        if key in changes:
            raise ConfigError(f"decoder {spec!r}: {key} is given twice; give it once")
        changes[key] = _read(spec, key, text)
    try:
        decoding = replace(DECODERS.get(name, Decoding()), **changes)  # type: ignore[arg-type]  # checked by _read
    except ValueError as error:
        raise ConfigError(f"decoder {spec!r}: {error}") from error
    if name in GUIDED and (decoding.num_beams > 1 or decoding.start_temperature is not None):
        raise ConfigError(f"decoder {spec!r}: guided sampling knows neither beams nor a falling temperature")
    for key in changes:
        other = _NEEDED.get(key)
        if other is not None and getattr(decoding, other) == getattr(Decoding(), other):
            raise ConfigError(f"decoder {spec!r}: {key} changes nothing without {other}; set {other}, or leave it out")
    return Decoder(spec, decoding, GUIDED.get(name))


def decoder_problems(attack: str, decoders: Sequence[str], chosen: str) -> list[str]:
    """Return what is wrong with the decoders of an attack and the one that was registered beforehand."""
    if isinstance(decoders, str):
        return [f"decoders={decoders!r} must be a list of names; set attack.{attack}.decoders=[{decoders}]"]
    problems = []
    for spec in decoders:
        try:
            parse_decoder(spec)
        except ConfigError as error:
            problems += [f"{problem}; set attack.{attack}.decoders" for problem in error.problems]
    if len(set(decoders)) != len(decoders):
        problems.append(f"decoders={list(decoders)} names one twice; set attack.{attack}.decoders")
    if chosen not in decoders:
        problems.append(f"decoder={chosen!r} is not in decoders={list(decoders)}; set attack.{attack}.decoder")
    return problems


def _read(spec: str, key: str, text: str) -> object:
    kind = str(_OPTIONS[key])
    try:
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        value = int(text) if kind == "int" else float(text)
        if not math.isfinite(value):
            raise ValueError(f"{key} must be finite")
        return value
    except (KeyError, ValueError) as error:
        raise ConfigError(f"decoder {spec!r}: {key}={text!r} is not a finite value of type {kind}") from error
