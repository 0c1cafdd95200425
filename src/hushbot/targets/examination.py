"""The questions that `doctor` puts to a served model, and what their answers show.

Guarantees: a question is asked once (again only where the server is busy); an answer that is no answer is a finding,
never an exception; what could not be found out is not fine. No text that is asked is anybody's, and no text that was
answered is in a finding.

What voids it: a server that treats these texts otherwise than others.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hushbot.errors import AuditError
from hushbot.targets.alignment import Evidence, judge_alignment, read_position
from hushbot.targets.connection import EndpointError
from hushbot.targets.http import HTTPTarget
from hushbot.targets.http_answers import read_next, read_texts

PROMPTS = (
    "User: I am looking for a cheap hotel in the north, please.\nBelief State:",
    "The weather in London was",
    "User: hello\nSystem: Hello, how can I help you?\nUser: I need a train to Ely on Sunday",
    "One, two, three, four,",
    "A table for two people at",
    "Once upon a time there was a",
)
"""What is asked; the alignment is looked at behind each."""
MIN_POSITIONS = 3
"""Places that must have been compared before scores are believed."""
_DEPTHS = (20, 5, 1)
_NEUTRAL: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("top_k", (0, -1)),
    ("min_p", (0.0,)),
    ("typical_p", (1.0,)),
    ("repetition_penalty", (1.0,)),
)
"""What servers set by themselves, with the values that switch it off."""
_N_DRAWS = 6
_N_TOKENS = 12
_WIDE = "Caf\u00e9 Zo\u00eb \u2013 5 \u20ac, \u732b?"
"""Characters that are two, three and more bytes long."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    is_fine: bool
    detail: str


@dataclass
class Examination:
    """One examination; each method adds a finding."""

    target: HTTPTarget
    findings: list[Finding] = field(default_factory=list)
    greedy: list[str] = field(default_factory=list)
    depth: int = 0
    """How many of the most probable next tokens the server shows."""
    drawn: list[str] = field(default_factory=list)
    temperature: float = 1.0
    """At which draws were seen to vary."""

    def _find(self, name: str, is_fine: bool, detail: str) -> bool:
        self.findings.append(Finding(name, is_fine, detail))
        return is_fine

    def _ask(self, prompt: str | list[str], **settings: Any) -> Any:
        """Ask once; only a server that is busy is asked again."""
        start = self.target.start_text
        text: str | list[str] = start + prompt if isinstance(prompt, str) else [start + each for each in prompt]
        body: Mapping[str, Any] = {"model": self.target.model, "prompt": text, "max_tokens": _N_TOKENS, **settings}
        return self.target.connection.post("/completions", body, is_patient=False)

    def _text(self, prompt: str, **settings: Any) -> str:
        return read_texts(self._ask(prompt, **settings), 1)[0]

    def is_alive(self) -> bool:
        """Find out whether it continues a text at all, and how soon."""
        started = time.perf_counter()
        try:
            self._text(PROMPTS[0], temperature=0, max_tokens=4)
        except EndpointError as error:
            return self._find("liveness", False, f"{error}{_advice(error)}")
        except AuditError as error:
            return self._find("liveness", False, str(error))
        return self._find("liveness", True, f"continued a text in {time.perf_counter() - started:.1f} s")

    def is_deterministic(self) -> bool:
        """Find out whether it gives the same text twice at temperature 0."""
        try:
            twice = [[self._text(prompt, temperature=0) for prompt in PROMPTS] for _ in range(2)]
        except AuditError as error:
            return self._find("determinism", False, f"not found out: {error}")
        self.greedy = twice[0]
        n_same = sum(first == second for first, second in zip(*twice, strict=True))
        detail = f"{n_same} of {len(PROMPTS)} texts were the same twice at temperature 0"
        return self._find("determinism", n_same == len(PROMPTS), detail)

    def varies(self) -> bool:
        """Find out whether requests with seeds of their own get texts of their own."""
        for self.temperature in (1.0, 2.0):  # a bot may be so sure that it never varies at 1, but hardly at 2
            try:
                self.drawn = self._draws()
            except AuditError as error:
                return self._find("sampling", False, f"not found out: {error}")
            n = len(set(self.drawn))
            if n > 1:
                break
        detail = f"{n} different texts in {_N_DRAWS} draws at temperature {self.temperature:g}"
        return self._find("sampling", n > 1, detail if n > 1 else f"{detail}: it draws nothing")

    def _draws(self, **settings: Any) -> list[str]:
        return [self._text(PROMPTS[1], temperature=self.temperature, seed=i, **settings) for i in range(_N_DRAWS)]

    def neutral(self) -> tuple[tuple[str, float], ...]:
        """Find out which settings of its own it lets us switch off."""
        taken = []
        for name, values in _NEUTRAL:
            for value in values:
                try:
                    self._text(PROMPTS[1], temperature=1.0, max_tokens=1, **{name: value})
                except AuditError:
                    continue
                taken.append((name, value))
                break
        names = ", ".join(name for name, _ in taken)
        detail = (
            f"switched off: {names}" if taken else "what the server sets by itself cannot be switched off from here"
        )
        self._find("own_settings", bool(taken), detail)
        return tuple(taken)

    def check_seed(self, varies: bool) -> None:
        """Find out whether a draw can be had again."""
        try:
            again = self._draws()
        except AuditError as error:
            self._find("seed", False, f"not found out: {error}")
            return
        is_same = varies and again == self.drawn
        detail = (
            "the same seeds gave the same texts" if is_same else "not seen to be honoured: draws may not be repeatable"
        )
        self._find("seed", is_same, detail)

    def check_draws(self) -> None:
        """Find out whether it gives several draws for one request."""
        try:
            texts = read_texts(self._ask(PROMPTS[1], temperature=self.temperature, n=_N_DRAWS, seed=0), _N_DRAWS)
        except AuditError as error:
            detail = f"n={_N_DRAWS} draws at once: {error}; hushbot asks for one a request"
            self._find("draws", False, detail)
            return
        n = len(set(texts))
        self._find("draws", n > 1, f"{n} different texts in {_N_DRAWS} draws of one request")

    def check_stop(self) -> None:
        """Find out whether it ends a text before a stop string."""
        where = max(range(len(self.greedy)), key=lambda i: len(set(self.greedy[i])), default=None)
        if where is None or not self.greedy[where].strip("\ufffd"):
            self._find("stop", False, "not found out: its greedy texts are empty")
            return
        text = self.greedy[where]
        stop = max(text, key=lambda character: (character.isalnum(), character != text[0]))
        try:
            ended = self._text(PROMPTS[where], temperature=0, stop=[stop])
        except AuditError as error:
            self._find("stop", False, f"not found out: {error}")
            return
        is_fine = ended == text[: text.find(stop)]
        detail = "honoured" if is_fine else "not honoured: texts run on and are cut here, which costs time only"
        self._find("stop", is_fine, f"stop strings are {detail}")

    def check_batch(self) -> None:
        """Find out whether it takes a list of prompts."""
        try:
            texts = read_texts(self._ask(list(PROMPTS[:2]), temperature=0), 2)
        except AuditError as error:
            self._find("batch", False, f"a list of prompts: {error}; hushbot sends one prompt a request")
            return
        is_same = texts == self.greedy[:2]
        detail = "gives" if is_same else "does not give"
        self._find("batch", is_same, f"a list of prompts {detail} what each prompt gives alone")

    def knows_top_k(self, varies: bool) -> bool:
        """Find out whether `top_k=1` makes draws greedy where they vary without it."""
        try:
            texts = set(self._draws(top_k=1))
        except AuditError as error:
            return self._find("top_k", False, f"is not known: {error}")
        is_known = varies and texts == set(self.greedy[1:2])
        return self._find("top_k", is_known, "is honoured" if is_known else "is not seen to be honoured")

    def tells_next(self) -> bool:
        """Find out how many of the most probable next tokens it shows."""
        problem = ""
        for depth in _DEPTHS:
            try:
                shown = read_next(self._ask(PROMPTS[1], max_tokens=1, temperature=1.0, logprobs=depth))
            except AuditError as error:
                problem = problem or str(error)
                continue
            self.depth = depth
            detail = f"the {len(shown.best)} most probable next tokens are shown"
            return self._find("next_token", bool(shown.best), detail)
        return self._find("next_token", False, f"probabilities of the next token: {problem}")

    def echoes(self) -> bool:
        """Find out whether it scores a text, and how many new tokens it must be asked for with it."""
        text, problems, n_run = PROMPTS[0], [], 0
        for echo_tokens in (0, 1):
            self.target = replace(self.target, echo_tokens=echo_tokens)
            try:
                found = self.target.echo(text)
            except AuditError as error:
                problems.append(str(error))
                continue
            if found.n_new > echo_tokens:
                n_run = n_run or found.n_new
            if found.n_new <= echo_tokens or echo_tokens:
                self._say_zero_tokens(echo_tokens, n_run, problems)
                detail = f"{len(found.starts)} tokens of a text of {len(text)} characters were scored"
                return self._find("echo", True, detail)
        return self._find("echo", False, f"texts cannot be scored: {problems[-1]}")

    def _say_zero_tokens(self, echo_tokens: int, n_run: int, problems: list[str]) -> None:
        if echo_tokens == 0:
            self._find("zero_tokens", True, "max_tokens=0 scores a text and adds nothing")
            return
        how = f"runs on for {n_run} tokens or more" if n_run else f"is refused: {problems[0]}"
        self._find("zero_tokens", False, f"max_tokens=0 {how}; hushbot asks for one new token")

    def is_aligned(self) -> bool:
        """Compare the scores of echoed texts with the next token's, and with what a shift would give."""
        evidence: list[Evidence] = []
        problem = ""
        for prompt in PROMPTS:
            try:
                found = read_position(self.target, prompt, self.depth)
            except AuditError as error:
                problem = problem or str(error)
                continue
            evidence += [] if found is None else [found]
        if len(evidence) < MIN_POSITIONS:
            why = f": {problem}" if problem else ""
            detail = f"not established: {len(evidence)} of {MIN_POSITIONS} places could be compared{why}"
            return self._find("alignment", False, detail)
        verdict = judge_alignment(evidence)
        return self._find("alignment", verdict.is_fine, verdict.detail)

    def check_first_token(self) -> None:
        """Find out whether the first token of a text has a score."""
        try:
            found = self.target.echo(PROMPTS[1])
        except AuditError as error:
            self._find("first_token", False, f"not found out: {error}")
            return
        n_start = len(self.target.start_text)
        first = next(i for i, end in enumerate(found.ends) if end > n_start)
        is_scored = found.logprobs[first] is not None
        remedy = "has none: set start_text to what its model's texts start with, such as <|endoftext|>"
        detail = "has a log-probability" if is_scored else remedy
        self._find("first_token", is_scored, f"the first token of a text {detail}")

    def check_wide_characters(self) -> None:
        """Find out whether tokens of characters outside ASCII can be told apart."""
        try:
            self.target.echo(_WIDE)
        except AuditError as error:
            self._find("wide_characters", False, f"texts outside ASCII cannot be scored: {error}")
            return
        self._find("wide_characters", True, "texts outside ASCII are scored")

    def check_score_noise(self) -> None:
        """Find out how much the scores of one text differ from one time to the next."""
        try:
            pairs = zip(*(self.target.echo(PROMPTS[2]).logprobs for _ in range(2)), strict=True)
            noise = max(abs(a - b) for a, b in pairs if a is not None and b is not None)
        except (AuditError, ValueError) as error:
            self._find("score_noise", False, f"not found out: {error}")
            return
        self._find("score_noise", noise < 1e-3, f"scores of one text differed by up to {noise:.2g} when asked twice")

    def check_waits(self) -> None:
        """Say how often the server asked to wait."""
        n, seconds = self.target.connection.waits
        slower = "; it was obeyed; set pace.requests_per_second to be asked less often"
        detail = f"it said {n} times that it is busy and asked to wait {seconds:.1f} s in all{slower}" if n else "none"
        self._find("rate_limit", n == 0, detail)

    def fingerprint(self) -> str:
        """Return a hash of what it says at temperature 0."""
        return hashlib.sha256(json.dumps([self.target.model, *self.greedy]).encode()).hexdigest()


def _advice(error: EndpointError) -> str:
    if error.failure == "slow":
        return "; its bytes drip in, or it is overloaded: raise pace.timeout"
    if error.status == 404:
        return "; it has no such model, or no /completions, which hushbot needs (/chat/completions is not enough)"
    if error.status in (401, 403):
        return "; it wants a key: set key_variable to the environment variable that holds it"
    return ""
