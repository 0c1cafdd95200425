"""Are a server's scores of an echoed text those of the tokens they stand beside?

Guarantees: scores are called aligned only if, at every place that was compared, the echoed log-probability is that of
the same token in an answer without echo to the text before it, and if no other reading explains the scores as well: the
neighbours' scores (a list that is shifted), or the probability of the token given the text up to and including itself
(llama-cpp-python where the model adds no BOS). Each place is chosen so that these readings differ: a token that the
model finds most probable, amid text that it does not.

Source: measured on the servers named in `doctor`; the tolerance covers half-precision and quantised activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hushbot.errors import AuditError
from hushbot.targets.http import HTTPTarget
from hushbot.targets.http_answers import Echoed, NextTokens, checked, read_next

TOLERANCE = 0.5
"""Nats by which servers' two ways of computing one number were seen to differ, quantised models included."""
_CLEARLY = 4.0
"""How many times worse each other reading must explain the scores."""
_LEAST_GAP = 0.01
"""Nats by which it must be worse at least."""
_TAIL = " Zebra quartz umbrella 7"
"""What hardly any bot goes on with."""


class Evidence(NamedTuple):
    """One place in an echoed text."""

    aligned: float
    """How far its score is from the next token's, asked without echo."""
    early: float
    """How far the score before it is from that."""
    late: float
    """How far the score behind it is."""
    itself: float | None
    """How far its score is, at least, from the token's probability after itself; None where nothing says."""


class Verdict(NamedTuple):
    """What the places say together."""

    is_fine: bool
    detail: str


def read_position(target: HTTPTarget, prompt: str, depth: int) -> Evidence | None:
    """Compare one place behind a prompt; None where the echoed text is not cut into tokens there.

    Raises:
        AuditError: A question had no usable answer.
    """
    before = ask_next(target, prompt, depth)
    token = next((token for token in _best_first(before) if _is_plain(token)), None)
    if token is None:
        return None
    echoed = target.echo(prompt + token + _TAIL)
    start = len(target.start_text) + len(prompt)
    index = _index_of(echoed, start, start + len(token))
    if index is None or not 0 < index < len(echoed.logprobs) - 1:
        return None
    score, expected = checked(echoed.logprobs[index], "a token"), before.best.get(token, before.logprob)
    early = echoed.logprobs[index - 1]
    return Evidence(
        abs(score - expected),
        float("inf") if early is None else abs(early - expected),
        abs(checked(echoed.logprobs[index + 1], "a token") - expected),
        _distance(score, token, ask_next(target, prompt + token, depth).best),
    )


def judge_alignment(evidence: Sequence[Evidence]) -> Verdict:
    """Say whether scores stand at their tokens, or where else.

    >>> judge_alignment([Evidence(0.0, 5.0, 4.0, 6.0)] * 3).is_fine
    True
    >>> judge_alignment([Evidence(3.0, 5.0, 0.0, 6.0)] * 3).is_fine
    False
    """
    n = len(evidence)
    aligned = _mean([each.aligned for each in evidence])
    worst = max(each.aligned for each in evidence)
    means = {name: _mean([getattr(each, name) for each in evidence]) for name in ("early", "late")}
    if known := [each.itself for each in evidence if each.itself is not None]:
        means["itself"] = _mean(known)
    other = min(means, key=lambda name: means[name])
    # Where nothing says how probable a token is after itself, numbers that agree so well are no chance.
    is_told = bool(known) or worst <= _LEAST_GAP
    if worst <= TOLERANCE and is_told and means[other] >= max(_CLEARLY * aligned, aligned + _LEAST_GAP):
        return Verdict(True, f"echoed scores agree with the next token's at {n} places, to {worst:.2g} nats")
    readings = {
        "early": "one token before their own (off by one)",
        "late": "one token behind their own (off by one)",
        "itself": "of each token given the text up to and including itself (off by one: the model adds no BOS)",
    }
    where = f"echoed scores are up to {worst:.2g} nats from the next token's at {n} places"
    if means[other] < aligned:
        return Verdict(False, f"misaligned: {where}; they look like those {readings[other]}; scores are refused")
    if worst > TOLERANCE:
        hint = "they may be off by one: a server whose model adds no BOS; set start_text to its start token"
        return Verdict(False, f"misaligned: {where}; {hint}; scores are refused")
    likely = readings[other if is_told else "itself"]
    return Verdict(False, f"not established: {where}, but scores {likely} may fit as well; scores are refused")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def ask_next(target: HTTPTarget, text: str, depth: int) -> NextTokens:
    """Return the most probable next tokens after a text.

    Raises:
        AuditError: The server does not say.
    """
    body = {"model": target.model, "prompt": target.start_text + text, "max_tokens": 1, "temperature": 1.0}
    found = read_next(target.connection.post("/completions", body | {"logprobs": depth}, is_patient=False))
    return found._replace(token=_as_text(found.token), best={_as_text(k): v for k, v in found.best.items()})


def _best_first(shown: NextTokens) -> list[str]:
    return sorted(shown.best, key=lambda token: -shown.best[token]) or [shown.token]


def _is_plain(token: str) -> bool:
    """Return whether a token is text that stands alone where it is put: no name of a token, no part of a character."""
    return token.isascii() and any(map(str.isalnum, token)) and not (token.startswith("<") and token.endswith(">"))


def _as_text(token: str) -> str:
    """Return a token's text, for servers that show the pieces of their vocabulary."""
    return " " + token[1:] if token[:1] in ("\u0120", "\u2581") else token


def _index_of(echoed: Echoed, start: int, end: int) -> int | None:
    spans = zip(echoed.starts, echoed.ends, strict=True)
    return next((index for index, span in enumerate(spans) if span == (start, end)), None)


def _distance(score: float, token: str, best: Mapping[str, float]) -> float | None:
    """Return how far a score is from a token's: at least so far, where the token is not among the best."""
    if not best:
        raise AuditError("the endpoint shows no most probable tokens")
    if token in best:
        return abs(score - best[token])
    return score - min(best.values()) if score > min(best.values()) else None
