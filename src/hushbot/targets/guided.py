"""Guided sampling: some pieces of a text are chosen among whole phrases, the others are free up to a delimiter.

Guarantees: a phrase is drawn in proportion to the probability of the *whole* phrase after the text so far, at a
temperature if asked for; a free piece follows the bot's own law and ends before the first delimiter that no backslash
escapes. The n draws from a prompt are made as counts: a multinomial splits the draws that share a text over the ways
it goes on, which is the joint law of n independent draws, while each distinct text is asked about once. The same
prompts, n and seed give the same texts, however a target batches; those of a prompt do not depend on the prompts after
or before it, only on its position. `GuidedDraws` says what was asked: each phrase once per distinct text that it was
scored behind, each free piece once per draw.

Choosing token by token among the tokens that lead to some phrase (`law="token"`) is a different law (`guided_law`). It
is here to be compared with, for targets that show their tokens; its steps begin where the spellings of text and phrase
part, which is before the end of the text if a token straddles it.

Voids it: a target whose draws depend on more than prompt position, draw number and seed; free pieces whose bot never
writes a delimiter (they are cut, and marked so). Another size of batch moves probabilities in their last bits, and with
them about one text in two thousand, where a random number lies at the edge between two phrases.

Source: Task-oriented dialogue state extraction, section IV-B2 (w = Sample(P(w' | prefix), w' in C)).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hushbot.errors import ConfigError
from hushbot.protocols import Target
from hushbot.targets.guided_law import Law, phrase_law, split_count, token_law
from hushbot.targets.guided_questions import ask_for_guided
from hushbot.targets.guided_texts import Choice, Free, Grammar, Guided, GuidedDraws, end_of_piece
from hushbot.types import Decoding

__all__ = [
    "Choice",
    "Free",
    "Grammar",
    "Guided",
    "GuidedDraws",
    "Law",
    "SamplesGuided",
    "ask_for_guided",
    "check_settings",
    "end_of_piece",
    "phrase_law",
    "sample_guided",
    "split_count",
    "token_law",
]


@runtime_checkable
class SamplesGuided(Protocol):
    """A target that samples guided texts itself, faster than through single questions."""

    def sample_guided(
        self, prompts: Sequence[str], grammar: Grammar, *, n: int, decoding: Decoding, seed: int, law: Law = "phrase"
    ) -> GuidedDraws:
        """Return what the function of this name returns."""
        ...


def sample_guided(
    target: Target,
    prompts: Sequence[str],
    grammar: Grammar,
    *,
    n: int,
    decoding: Decoding,
    seed: int,
    law: Law = "phrase",
) -> GuidedDraws:
    """Return the distinct texts of n draws per prompt, and how much was asked for them.

    Args:
        target: The bot; one that offers `sample_guided` itself is asked so.
        prompts: What the texts follow.
        grammar: What may come next.
        n: Draws per prompt.
        decoding: Its temperature holds for choices and free pieces, what filters tokens for free pieces only, where the
            repetition penalty looks at the tokens of the piece itself; its stop strings are not looked at.
        seed: Of the draws.
        law: `phrase`, or `token` for comparison.

    Raises:
        AuditError: A query failed.
        ConfigError: A setting has no meaning here, or the target does not show the tokens that the token law needs.
    """
    check_settings(n, decoding, law)
    if isinstance(target, SamplesGuided):
        return target.sample_guided(prompts, grammar, n=n, decoding=decoding, seed=seed, law=law)
    return ask_for_guided(target, prompts, grammar, n=n, decoding=decoding, seed=seed, law=law)


def check_settings(n: int, decoding: Decoding, law: str) -> None:
    """Check what does not depend on a target.

    Raises:
        ConfigError: A setting is out of range or has no meaning for guided sampling.
    """
    if n < 1:
        raise ConfigError(f"n={n} must be at least 1")
    if law not in ("phrase", "token"):
        raise ConfigError(f"law={law!r} must be 'phrase' or 'token'")
    if decoding.num_beams > 1 or decoding.start_temperature is not None:
        raise ConfigError(
            "guided sampling knows neither beams nor a falling temperature; use a temperature, or filters"
        )
