"""A bot behind an OpenAI-compatible server, asked through its completions interface.

Guarantees: as many texts per prompt as asked for, each cut at the first stop string here as well, or an `AuditError`;
each draw is a request of its own, with a seed that depends on (seed, prompt position, draw number) only, so neither
`n` nor the order of requests changes what is asked. A token counts to a continuation by the rule of `LocalTarget`: it
holds at least one of its characters. Scores are given only where `doctor` has found that the server's are in their
place (`tier`); until then, and below tier `full`, `logprobs` is an `AuditError`. A decoder that the interface does not
know (beams, typical sampling, a falling temperature, a penalty) is an `UnsupportedError`, never another decoder.
A server that is gone, or busy for too long, is an `OutageError`, which no attack takes for an answer. For keys,
patience and politeness see `connection`.

What voids it: a server keeps what it is asked, and may answer by another model than it says. Draws are repeatable only
where the server honours seeds. A server whose tokenizer adds no start token, as `start_text` does, sees a text's
beginning in another light than the bot's training did.

Source: the score-based black box of the paper, section III-B2; `POST /completions` of OpenAI's API reference.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hushbot.errors import AuditError, ConfigError, OutageError, UnsupportedError
from hushbot.targets.connection import Connection, EndpointError, Pace, address_problems
from hushbot.targets.http_answers import Echoed, read_echo, read_texts, scores_after
from hushbot.types import TIERS, Decoding, Tier

if TYPE_CHECKING:
    from torch import Tensor

    from hushbot.targets.places import Place

_OUTAGES = frozenset({"unreached", "busy", "slow"})
"""Failures that say nothing of the bot: an attack that met one was not measured, and is to be run again."""
_AGAIN = "what is finished is kept: once it is back, the same command goes on (pace.n_tries decides how long it waits)"
_MOST_STOPS = 4
"""As many as OpenAI's interface takes; the others are looked for here alone."""
Job = TypeVar("Job")
Done = TypeVar("Done")


@dataclass(frozen=True)
class HTTPTarget:
    """A served bot, as a `Target`."""

    url: str
    """Where the interface begins, such as `http://localhost:8000/v1`; `/completions` is added."""
    model: str
    """The model's name, as the server knows it."""
    _: KW_ONLY
    key_variable: str | None = None
    """Name of the environment variable that holds the key; None sends no key. Never the key itself."""
    reference_model: str | None = None
    """Name under which the same server serves the bot before fine-tuning, the base control; None has none."""
    start_text: str = ""
    """What every text starts with, such as `<|endoftext|>`, for servers that put no start token in front themselves."""
    pace: Pace = field(default_factory=Pace)
    """How hard the server is asked."""
    tier: Tier = "text"
    """What the server tells, by the doctor's verdict."""
    echo_tokens: Literal[0, 1] = 1
    """New tokens that a request to score must ask for: some servers take 0 as no limit."""
    has_top_k: bool = False
    """Whether the server knows `top_k`, which is no part of OpenAI's interface."""
    is_random: bool = True
    """Whether its draws differ: a server that ignores the temperature answers greedily, whatever it is asked."""
    neutral: tuple[tuple[str, float], ...] = ()
    """Settings beyond OpenAI's that the server takes, each with the value that switches it off: its own defaults, such
    as a `top_k` of the model's generation config, would otherwise decide in silence."""
    fingerprint: str | None = None
    """What the doctor knows the served model again by; None where it cannot."""
    connection: Connection = field(default=None, repr=False, compare=False)  # type: ignore[assignment]
    """What all requests go through; None opens one, which copies of this target share."""

    def __post_init__(self) -> None:
        rules = (
            ("model", bool(self.model.strip()), "the name of a model"),
            ("reference_model", self.reference_model is None or bool(self.reference_model.strip()), "a name or null"),
            ("tier", self.tier in TIERS, f"one of {', '.join(TIERS)}"),
            ("echo_tokens", self.echo_tokens in (0, 1), "0 or 1"),
        )
        problems = [f"{name} must be {rule}; it is {getattr(self, name)!r}" for name, ok, rule in rules if not ok]
        problems += address_problems(self.url, self.key_variable)
        if problems:
            raise ConfigError(*problems)
        shared, mine = self.connection, (self.url, self.key_variable, self.pace)
        if shared is None or (shared.url, shared.key_variable, shared.pace) != mine:
            object.__setattr__(self, "connection", Connection(self.url, key_variable=self.key_variable, pace=self.pace))

    @cached_property
    def reference(self) -> HTTPTarget | None:
        """The same bot before fine-tuning; None where the server has no such thing."""
        if self.reference_model is None:
            return None
        return replace(self, model=self.reference_model, reference_model=None, fingerprint=None)

    @property
    def identity(self) -> str:
        """What tells it from other bots, for whoever keeps its answers."""
        return json.dumps([self.url, self.model, self.start_text, self.fingerprint])

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        """Return n continuations per prompt; each ends before the first stop string.

        Raises:
            AuditError: The server did not give as many texts as it was asked for.
            ConfigError: `n` or `max_new_tokens` is below 1, or a stop string is empty.
            UnsupportedError: The server does not know the decoder.
        """
        for name, value in (("n", n), ("max_new_tokens", max_new_tokens)):
            if value < 1:
                raise ConfigError(f"{name}={value} must be at least 1")
        places = [(prompt, position, draw) for position, prompt in enumerate(prompts) for draw in range(n)]
        texts = self._drawn(places, max_new_tokens, decoding, seed)
        return [texts[position * n : (position + 1) * n] for position in range(len(prompts))]

    def sample_places(
        self, places: Sequence[Place], *, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[str]:
        """Return one text per place: the one that `sample` draws there.

        Raises:
            AuditError: As for `sample`.
            ConfigError: As for `sample`.
        """
        return self._drawn([(p.prompt, p.position, p.draw) for p in places], max_new_tokens, decoding, seed)

    def _drawn(
        self, places: Sequence[tuple[str, int, int]], max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[str]:
        """Return the text of each (prompt, position, draw)."""
        body = self._law(decoding) | {"model": self.model, "max_tokens": max_new_tokens, "n": 1}
        if decoding.is_deterministic:  # one question for all draws of a prompt
            places = [(prompt, 0, 0) for prompt, _, _ in places]
        jobs = list(dict.fromkeys(places))
        texts = self._each(lambda job: self._draw(body, *job, seed), jobs)
        known = {job: _ended(text, decoding.stop) for job, text in zip(jobs, texts, strict=True)}
        return [known[place] for place in places]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return the natural log-probability of each continuation token, one fp32 tensor per pair.

        Raises:
            AuditError: The server's scores were not examined or are of no use, or one could not be had.
        """
        import torch

        if self.tier != "full":
            raise AuditError(
                f"the endpoint's tier is {self.tier!r}: it was not found to score texts as it should; `hushbot doctor` "
                "examines it (in Python: `hushbot.targets.doctor.examine(target).applied_to(target)`)"
            )
        if len(prompts) != len(continuations):
            raise AuditError(f"{len(prompts)} prompts for {len(continuations)} continuations; give as many of each")
        if empty := [index for index, text in enumerate(continuations) if not text]:
            raise AuditError(f"pair {empty[0]}: the continuation is empty, so it has no probability; leave it out")
        by_text: dict[str, list[int]] = defaultdict(list)
        for index, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
            by_text[prompt + continuation].append(index)
        scores: dict[int, Tensor] = {}
        for indices, echoed in zip(by_text.values(), self._each(self.echo, list(by_text)), strict=True):
            for index in indices:
                n_before = len(self.start_text) + len(prompts[index])
                scores[index] = torch.tensor(scores_after(echoed, n_before, f"pair {index}"), dtype=torch.float32)
        return [scores[index] for index in range(len(prompts))]

    def echo(self, text: str) -> Echoed:
        """Return what the server says of each token of a text, `start_text` before it included; trusted or not.

        Raises:
            AuditError: It says nothing that could be a score.
        """
        text = self.start_text + text
        body = {"model": self.model, "prompt": text, "max_tokens": self.echo_tokens, "echo": True, "logprobs": 1}
        return read_echo(self.connection.post("/completions", body), text, self.echo_tokens)

    def _law(self, decoding: Decoding) -> dict[str, Any]:
        """Return the request's words for a decoder."""
        unknown = {
            "num_beams": decoding.num_beams > 1,
            "typical_p": decoding.typical_p < 1,
            "start_temperature": decoding.start_temperature not in (None, decoding.temperature),
            "repetition_penalty": decoding.repetition_penalty != 1,
            "top_k": decoding.top_k > 0 and not self.has_top_k,
        }
        if problems := [f"{name}={getattr(decoding, name)!r}" for name, is_set in unknown.items() if is_set]:
            raise UnsupportedError(
                f"the endpoint knows no decoder with {', '.join(problems)}; choose one with temperature and top_p "
                "alone, such as vanilla or greedy, or audit the model itself with target=hf"
            )
        if not (self.is_random or decoding.is_deterministic):
            raise UnsupportedError(
                "the endpoint gives the same text at every temperature: it draws nothing; choose the greedy decoder"
            )
        if "" in decoding.stop:
            raise ConfigError(f"stop={decoding.stop!r} holds an empty string; remove it from decoding.stop")
        law: dict[str, Any] = {"temperature": decoding.temperature, "top_p": decoding.top_p, **dict(self.neutral)}
        law |= {"top_k": decoding.top_k} if decoding.top_k else {}
        return law | ({"stop": list(decoding.stop[:_MOST_STOPS])} if decoding.stop else {})

    def _draw(self, body: Mapping[str, Any], prompt: str, position: int, draw: int, seed: int) -> str:
        """Ask for one text."""
        asked = {**body, "prompt": self.start_text + prompt, "seed": derived_seed(seed, position, draw)}
        return read_texts(self.connection.post("/completions", asked), 1)[0]

    def _each(self, ask: Callable[[Job], Done], jobs: Sequence[Job]) -> list[Done]:
        """Return what every job gives, in order, `n_workers` at a time; the first failure ends all."""
        if not jobs:
            return []
        with ThreadPoolExecutor(min(self.pace.n_workers, len(jobs))) as pool:
            try:
                return list(pool.map(ask, jobs))
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                if isinstance(error, EndpointError) and error.failure in _OUTAGES:
                    raise OutageError(f"{error}; {_AGAIN}") from None
                raise


def derived_seed(seed: int, position: int, number: int) -> int:
    """Return the seed of one request: 31 bits, which every server takes."""
    digest = hashlib.blake2b(f"http/{seed}/{position}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def _ended(text: str, stops: Sequence[str]) -> str:
    """Return a text up to its first stop string: not every server honours them."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
