"""What a completions interface answers, read with suspicion: servers differ, drop what they do not know, and lie.

Guarantees: as many texts as were asked for, or an error; a score belongs to the token that stands at its place, or is
an error. Where a token stands is decided by the tokens themselves: their texts, put together, must be the text that was
scored, after at most one start token in front of it. `text_offset` is not relied on: servers count it in characters, in
bytes, or in what a cut character looks like. A score that is missing, null, not finite, above 0, or the -9999 that
stands for minus infinity is an error, never a number.

What voids it: scores that are right in form and wrong in place (`doctor` measures that). Of several characters outside
ASCII in a row, each of which was cut over several tokens, all their tokens count as holding all of them.

Source: the request and answer of `POST /completions`, as OpenAI's API reference describes them; servers' deviations as
vLLM, llama.cpp and transformers showed them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from hushbot.errors import AuditError

_LEAST = -9999.0
"""What vLLM and OpenAI write for minus infinity."""
_ROUNDING = 1e-3
"""How far above 0 a log-probability of a certain token may lie, by rounding."""
_MOST_NEW = 256
"""How many new tokens behind a text are told from its own."""
_CUT = "\ufffd"
_OUTSIDE = r"([^\x00-\x7f]+?)"
_AROUND = re.compile(f"({_CUT}+)")
_PIECE = re.compile(r"(?:bytes:)?(?:\\x[0-9a-f]{2})+|<0x[0-9A-F]{2}>")
"""How a token is written that holds a part of a character only, if not by U+FFFD."""
_UNFINISHED = frozenset({"content_filter", "error", "abort"})


class Echoed(NamedTuple):
    """The tokens of a text that a server has scored."""

    starts: list[int]
    """The first character of each token."""
    ends: list[int]
    """One past its last character."""
    logprobs: list[float | None]
    """None where the server gave none, as for the first token of a text without a start token."""
    n_new: int
    """How many tokens the server added behind the text."""


class NextTokens(NamedTuple):
    """The most probable next tokens after a text."""

    token: str
    """The one that was drawn."""
    logprob: float
    best: dict[str, float]
    """The most probable ones; the drawn one may be among them."""


def read_texts(answer: Any, n: int) -> list[str]:
    """Return the n texts of an answer, in their order.

    Raises:
        AuditError: There are more or fewer, or one is no text or was not finished.
    """
    choices = _choices(answer)
    if len(choices) != n:
        raise AuditError(f"the endpoint answered with {len(choices)} texts where {n} were asked for; a draw is missing")
    indices = [choice.get("index", position) for position, choice in enumerate(choices)]
    if not all(type(index) is int for index in indices) or sorted(indices) != list(range(n)):
        raise AuditError(f"the endpoint numbers its {n} texts in a way that is none; a draw may be missing")
    texts: list[str] = [""] * n
    for index, choice in zip(indices, choices, strict=True):
        text, reason = choice.get("text"), choice.get("finish_reason")
        if not isinstance(text, str):
            raise AuditError("the endpoint's answer holds no text; see that its address is that of a completions model")
        if isinstance(reason, str) and reason in _UNFINISHED:
            raise AuditError(f"the endpoint ended a text with finish_reason {reason!r}: it is not the bot's own")
        texts[index] = text
    return texts


def read_next(answer: Any) -> NextTokens:
    """Return how probable the first new token of an answer is, and the most probable ones.

    Raises:
        AuditError: The answer does not say.
    """
    logprobs = _logprobs(_choices(answer)[:1])
    if isinstance(content := logprobs.get("content"), list) and content:
        return _read_chat_token(content[0])
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not (isinstance(tokens, list) and isinstance(values, list) and tokens and values):
        raise AuditError("the endpoint's log-probabilities hold no token")
    top = logprobs.get("top_logprobs") or [{}]
    best = (top[0] or {}) if isinstance(top, list) else None
    if not isinstance(best, Mapping):
        raise AuditError("the endpoint's most probable tokens are no mapping")
    return NextTokens(
        str(tokens[0]), checked(values[0], "the next token"), {str(k): checked(v, "a token") for k, v in best.items()}
    )


def _read_chat_token(entry: Any) -> NextTokens:
    """Read the form of the chat interface, which llama.cpp's server uses in both."""
    try:
        best = {str(each["token"]): checked(each["logprob"], "a token") for each in entry["top_logprobs"]}
        return NextTokens(str(entry["token"]), checked(entry["logprob"], "the next token"), best)
    except (KeyError, TypeError) as error:
        raise AuditError(f"the endpoint's log-probabilities are in no form known ({type(error).__name__})") from error


def read_echo(answer: Any, text: str, max_tokens: int) -> Echoed:
    """Return the tokens of a text that was sent to be scored, each with its place and its score.

    Args:
        answer: The server's.
        text: What was sent.
        max_tokens: How many new tokens were asked for.

    Raises:
        AuditError: The answer does not hold them, or they are not those of the text.
    """
    logprobs = _logprobs(_choices(answer)[:1])
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not (isinstance(tokens, list) and isinstance(values, list)) or len(tokens) != len(values) or not tokens:
        raise AuditError("the endpoint's log-probabilities are not one for each token")
    if not all(value is None or _is_number(value) for value in values):
        raise AuditError("the endpoint's log-probabilities are not all numbers")
    usage = answer.get("usage")
    n_new = usage.get("completion_tokens") if isinstance(usage, dict) else None
    wanted = n_new if type(n_new) is int and n_new >= 0 else max_tokens
    spelled = [str(token) for token in tokens]
    # What the server says comes first: a token without characters may be the end of the text, or a new one.
    for n in dict.fromkeys((wanted, *range(min(len(tokens), _MOST_NEW + 1)))):
        spans = _spans(spelled[: len(spelled) - n], text) if n < len(spelled) else None
        if spans is not None:
            return Echoed([start for start, _ in spans], [end for _, end in spans], values[: len(spans)], n)
    raise AuditError("the endpoint's tokens are not those of the text that it was to score")


def scores_after(echoed: Echoed, n_characters: int, where: str) -> list[float]:
    """Return the scores of all tokens from the first one on that holds a character behind the first ones.

    Raises:
        AuditError: There is no such token, or one has no score.
    """
    first = next((i for i, end in enumerate(echoed.ends) if end > n_characters), None)
    if first is None:
        raise AuditError(f"{where}: the endpoint made no token of the continuation")
    if first == 0 and echoed.logprobs[0] is None:
        raise AuditError(
            f"{where}: the endpoint gives the first token of a text no log-probability; set start_text to what its "
            "model's texts start with, such as <|endoftext|>"
        )
    return [checked(value, f"{where}: a token") for value in echoed.logprobs[first:]]


def checked(value: Any, what: str) -> float:
    """Return a log-probability that is one.

    Raises:
        AuditError: It is missing, not finite, above 0, or stands for minus infinity.
    """
    if value is None:
        raise AuditError(f"{what} has no log-probability; the endpoint left it out")
    if not _is_number(value):
        raise AuditError(f"{what} has a log-probability that is no number")
    # Compared before it is made a float: JSON has whole numbers that no float holds.
    if not _LEAST < value <= _ROUNDING:
        raise AuditError(f"{what} has the log-probability {value}; it must be finite and at most 0")
    return min(float(value), 0.0)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _choices(answer: Any) -> list[dict[str, Any]]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        raise AuditError("the endpoint's answer is no completion; see that its address ends where /completions begins")
    return choices


def _logprobs(choices: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    found = choices[0].get("logprobs")
    if not isinstance(found, Mapping):
        raise AuditError("the endpoint returns no log-probabilities; use one that does")
    return found


def _spans(tokens: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    """Return the characters of the text that each token holds, or None where they are not its tokens."""
    if (spans := _laid_out(tokens, text)) is not None:
        return spans
    rest = _laid_out(tokens[1:], text)  # behind a start token that is spelled out
    return None if rest is None else [(0, 0), *rest]


def _laid_out(tokens: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    if "".join(tokens) == text:
        ends = list(accumulate(map(len, tokens)))
        return list(zip([0, *ends[:-1]], ends, strict=True))
    tokens = [_PIECE.sub(_CUT, token) for token in tokens]
    parts = [part for token in tokens for part in _AROUND.split(token) if part]
    if _CUT not in {part[0] for part in parts}:
        return None
    # A run of cut characters is one group: nothing says which of its tokens holds which.
    runs = [list(run) for _, run in groupby(parts, key=lambda part: part[0] == _CUT)]
    pattern = "".join(_OUTSIDE if run[0][0] == _CUT else f"({re.escape(''.join(run))})" for run in runs)
    match = re.fullmatch(pattern, text)
    return None if match is None else _places(tokens, [match.span(i + 1) for i in range(len(runs))])


def _places(tokens: Sequence[str], runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the span of each token, given where the runs of cut and of whole characters stand."""
    spans, run, at, was_cut = [], -1, 0, None
    for token in tokens:
        start = None
        for part in filter(None, _AROUND.split(token)):
            is_cut = part[0] == _CUT
            if is_cut != was_cut:
                run, was_cut = run + 1, is_cut
                at = runs[run][0]
            start = at if start is None else start
            end = runs[run][1] if is_cut else at + len(part)
            at = at if is_cut else end
        spans.append((at, at) if start is None else (start, end))
    return spans
