"""What a bot answers to a quiz: the letter it writes, or the option it finds most probable.

**Text.** The bot reads question, options and `Answer:`, and writes greedily; `read_letter` reads one letter from its
first line, or the only option whose words stand there. What names no option, or several, is unparsable: counted apart,
and not right.

**Score.** The bot never sees letters. For each option o, with S(y | c) the sum of the token log-probabilities of y
after c and L(y) their number:

    score(o) = S(o | before) / L(o) - S(o | bare) / L(o) + S(after | before + o)

`before` and `after` are what surrounds the option where it was learnt, `bare` is the place without the record. Dividing
by the number of tokens makes long and short options comparable; the middle term takes off what the option is worth to
the bot anyway; the last one is how well the rest of the record follows, the same text for every option and hence not
divided. An answer is right if the right option scores above every other. In the language of the record (`record`) that
is its state or its prose; in that of the quiz (`question`) its wording:

| | before | o | after | bare |
|---|---|---|---|---|
| `state` | `Belief State: Hotel(area=east, name=` | the option | `, stars=4)` etc. | `Belief State: Hotel(name=` |
| `prose` | the record's text up to the value | the option | the rest of the text | the slot's name and a colon |
| `question` | the question and `Answer:` | a blank and the option | nothing | `Answer:` |

Guarantees: members' and non-members' questions are asked together, in an order that depends on their content only; each
distinct query is asked once; a number that is not finite, or an answer that is missing, is an `AuditError`.

Source: Pop Quiz Attack, section 3.2 (letters); Holtzman et al., EMNLP 2021 (taking off an option's own likelihood).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hushbot.attacks.quiz_questions import LETTERS, Question
from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
from hushbot.prompts import RESPONSE_MARKER, STATE_MARKER, USER_MARKER, domain_opening, one_line, render_state
from hushbot.prompts import slot_opening as opening_of
from hushbot.protocols import Target
from hushbot.types import Decoding, SlotValue

_HOLE = "\ue000"
"""Stands for the option while a state is written; a private character, so that no value holds it."""
_AT_ONCE = 256
"""Questions that are scored together: bounds the memory, whatever their number."""
_ONE = rf"[{LETTERS}{LETTERS.lower()}]"
_ALONE = re.compile(rf"\W*({_ONE})\W*")
_NAMED = re.compile(
    rf"(?i:answer|option|choice|letter)(?i:\s+is|\s+would\s+be|\s+must\s+be)?\s*:?\s*[\"'(*\[]*({_ONE})(?!\w)(?<!a(?=\s+\w))"
    rf"|\(({_ONE})\)|(?:^|\s)\**({_ONE})[.):](?=\W|$)"
)
_FREE = re.compile(rf"(?<![\w'])([{LETTERS}])(?![\w'])")
_ARTICLE = re.compile(r"(?<![\w'])A(?=\s+(?!or\b|and\b)[a-z])")


class Answers(NamedTuple):
    """What a bot answered, question by question."""

    chosen: list[int | None]
    """Which option, counted from 0; None where the answer names none, or several."""
    n_queries: int


def read_letter(text: str, options: Sequence[str]) -> int | None:
    """Return the place of the only option that an answer names, None where it names none or several."""
    line = next((one_line(part) for part in text.splitlines() if part.strip()), "")
    if alone := _ALONE.fullmatch(line):
        return LETTERS.index(alone[1].upper())
    bare = line
    for option in sorted(options, key=len, reverse=True):
        if len(option) > 2:  # "C. platform B" names C alone
            bare = _pattern(option).sub("", bare)
    named = {letter.upper() for match in _NAMED.finditer(bare) for letter in match.groups() if letter}
    # "A table for two" begins with an article, "A or B" does not.
    named |= set(_FREE.findall(_ARTICLE.sub("", bare)))
    if named:
        return LETTERS.index(named.pop()) if len(named) == 1 else None
    said = [i for i, option in enumerate(options) if _pattern(option).search(line)]
    return said[0] if len(said) == 1 else None


def _pattern(option: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(one_line(option))}(?!\w)", flags=re.IGNORECASE)


def question_prompt(question: Question, layout: str) -> str:
    """Return what the bot reads: the question and its options, in plain lines or as a turn of a dialogue."""
    options = [f"{letter}. {one_line(option)}" for letter, option in zip(LETTERS, question.options, strict=True)]
    ask = "Answer with the letter of the right option only."
    if layout == "dialogue":
        return f"{USER_MARKER} {question.text} {' '.join(options)} {ask}\n{RESPONSE_MARKER}"
    return "\n".join([ask, f"Question: {question.text}", *options, "Answer:"])


def answer_in_text(
    target: Target, questions: Sequence[Question], *, layout: str, max_new_tokens: int, seed: int
) -> Answers:
    """Let the bot write a letter for each question.

    Raises:
        AuditError: A query failed.
    """
    prompts = [question_prompt(question, layout) for question in questions]
    unique = list(dict.fromkeys(prompts))
    drawn = target.sample(
        unique,
        n=1,
        max_new_tokens=max_new_tokens,
        decoding=Decoding(temperature=0, stop=("\nQuestion:", f"\n{USER_MARKER}")),
        seed=seed,
    )
    if [len(texts) for texts in drawn] != [1] * len(unique):
        raise AuditError(f"the target did not answer each of {len(unique)} questions with one text")
    known = {prompt: texts[0] for prompt, texts in zip(unique, drawn, strict=True)}
    chosen = [read_letter(known[p], q.options) for p, q in zip(prompts, questions, strict=True)]
    return Answers(chosen, len(unique))


class _Place(NamedTuple):
    """Where an option stands."""

    before: str
    option: str
    after: str
    bare: str

    @property
    def queries(self) -> list[tuple[str, str]]:
        """Return the queries behind the score: option in its place, option by itself, what follows."""
        rest = [(self.before + self.option, self.after)] if self.after else []
        return [(self.before, self.option), (self.bare, self.option), *rest]


def answer_by_score(target: Target, questions: Sequence[Question], *, language: str) -> Answers:
    """Find the option that the bot thinks most probable, for each question.

    Raises:
        AuditError: A query failed, or a log-probability is missing or not finite.
    """
    chosen: list[int | None] = []
    n_queries = 0
    for start in range(0, len(questions), _AT_ONCE):
        places = [
            [place_of(question, option, language) for option in question.options]
            for question in questions[start : start + _AT_ONCE]
        ]
        known = _scored(target, list(dict.fromkeys(q for four in places for place in four for q in place.queries)))
        n_queries += len(known)
        chosen += [_best([_score(place, known) for place in four]) for four in places]
    return Answers(chosen, n_queries)


class _Scored(NamedTuple):
    """The log-probability of a continuation."""

    total: float
    n_tokens: int

    @property
    def mean(self) -> float:
        return self.total / self.n_tokens


def _score(place: _Place, known: dict[tuple[str, str], _Scored]) -> float:
    own, bare, *rest = (known[query] for query in place.queries)
    return own.mean - bare.mean + sum(scored.total for scored in rest)


def _best(scores: Sequence[float]) -> int | None:
    """Return which score is the largest; None where several are, for then the bot prefers none."""
    best = max(scores)
    places = [i for i, score in enumerate(scores) if score == best]
    return places[0] if len(places) == 1 else None


def place_of(question: Question, option: str, language: str) -> _Place:
    """Return where an option stands, in the language of the record or of the quiz."""
    fact, record = question.fact, question.record
    if language == "question":
        return _Place(f"{question.text}\nAnswer:", f" {one_line(option)}", "", "Answer:")
    if fact.span is not None:
        before, after = record.text[: fact.span[0]], record.text[fact.span[1] :]
        blank = before[len(before.rstrip()) :]
        opening = f"{record.opening}{before}".rstrip()
        return _Place(opening, f"{blank or ' ' * bool(opening)}{one_line(option)}", after, f"{fact.slot}:")
    text = render_state(
        frozenset(SlotValue(f.domain, f.slot, _HOLE if f.key == fact.key else f.value) for f in record.facts)
    )
    before, _, after = text.partition(_HOLE)
    written = render_state(frozenset({SlotValue("a", "b", option)}))[len("A(b=") : -1]
    bare = f"{STATE_MARKER} {domain_opening(fact.domain)}{opening_of(fact.slot)}"
    return _Place(f"{STATE_MARKER} {before}", written, f"{after}\n", bare)


def _scored(target: Target, queries: Sequence[tuple[str, str]]) -> dict[tuple[str, str], _Scored]:
    """Return the log-probability of each continuation and the number of its tokens."""
    answers = target.logprobs([prompt for prompt, _ in queries], [continuation for _, continuation in queries])
    if len(answers) != len(queries):
        raise AuditError(f"the target answered {len(answers)} of {len(queries)} scoring queries; rerun the audit")
    arrays: list[FloatArray] = [answer.detach().cpu().numpy().astype(np.float64) for answer in answers]
    broken = sum(not array.size or not np.all(np.isfinite(array)) for array in arrays)
    if broken:
        raise AuditError(f"{broken} of {len(queries)} options have no token or no finite log-probability")
    return {query: _Scored(float(a.sum()), a.size) for query, a in zip(queries, arrays, strict=True)}
