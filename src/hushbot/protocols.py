"""The whole architecture on one page: what a recipe, a target, an attack and a tracker promise each other.

A **recipe** hardens training: any of its hooks, each the identity unless overridden. Recipes stack in the order in
which they are named; exactly one in a stack makes the examples.

A **target** is a score-based black box (the paper's threat model, section III-B2): it continues prompts and says how
probable a continuation is. Attacks know nothing else, so each runs unchanged on a model, an adapter or an endpoint.

An **attack** runs against a target with a split that says who was a member, and answers with a verdict beside its
control. A **tracker** is told the report each time it grows. A **database** answers for the venues a state matches.

Recipes and attacks are `@dataclass(frozen=True, kw_only=True)`: fields are hyperparameters, `__post_init__` checks
their ranges, data enters only through the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditReport, AuditSplit, Decoding, Dialogue, DialogueState, Example, PrivacyInfo

if TYPE_CHECKING:
    from torch import Tensor


class Recipe:
    """Base of all recipes: every hook is the identity.

    Deterministic: the same inputs and seed give the same output, on every machine.
    """

    makes_examples: bool = False
    """Whether `examples` is this recipe's; exactly one recipe of a stack says True."""
    learns_changes: bool = False
    """Whether examples hold what each turn changed of the state, in one running text per dialogue, instead of whole
    states after histories of utterances: decides how the bot is prompted when its utility is measured."""
    privacy_unit: str | None = None
    """What one unit of a differential privacy guarantee is (`dialogue`); mandatory wherever epsilon is claimed."""

    reads_other_dialogues: bool = False
    """Whether the rewrite of one dialogue looks at another, which voids a guarantee per dialogue."""
    no_effect: tuple[str, ...] = ()
    """Settings that decide how fast or in how much memory something is computed, never the result: a run may be resumed
    with others."""

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        """Return the dialogues to train on in one epoch; ids and their order are kept."""
        return dialogues

    def examples(self, dialogue: Dialogue) -> Sequence[Example]:
        """Return the training examples of one dialogue.

        Raises:
            NotImplementedError: This recipe does not segment dialogues (`makes_examples` is False).
        """
        raise NotImplementedError(f"{type(self).__name__} makes no examples")

    def privatize(self, module: Any) -> Any:
        """Return the Lightning module that trains, such as one whose gradient step is differentially private."""
        return module

    def guard(self, target: Target, schema: Schema) -> Target:
        """Return the target as deployed, such as one that filters what it says."""
        return target

    def notes(self, dialogues: Sequence[Dialogue], schema: Schema, *, seed: int) -> Sequence[str]:
        """Return what the report should say of this recipe's work on the members, such as how much it changed.

        Counts and shares only: a note is not masked.
        """
        return ()


@runtime_checkable
class Target(Protocol):
    """A bot seen from outside: it continues prompts and scores continuations."""

    @property
    def reference(self) -> Target | None:
        """The same bot before fine-tuning, the "base" control; None when there is no such thing."""
        ...

    def sample(
        self,
        prompts: Sequence[str],
        *,
        n: int,
        max_new_tokens: int,
        decoding: Decoding,
        seed: int,
    ) -> list[list[str]]:
        """Return n continuations per prompt; each ends before the first stop string.

        Draws depend on (prompt position, draw number, seed) only, not on how prompts are batched.
        """
        ...

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return the natural log-probability of each continuation token, one 1-D float tensor per pair.

        A token belongs to the continuation if it holds at least one of its characters.

        Raises:
            AuditError: A score could not be had or is not finite.
        """
        ...


@runtime_checkable
class ShowsTokens(Protocol):
    """A target that shows more of each token than its probability; an endpoint does not."""

    def token_statistics(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return a row per continuation token, one tensor per pair.

        A row holds the token's log-probability, and the mean and standard deviation of the log-probability over the
        vocabulary, each entry weighted by its probability.

        Raises:
            AuditError: As for `Target.logprobs`.
        """
        ...


@runtime_checkable
class Attack(Protocol):
    """One measurement of leakage."""

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Attack the target; a failing query gives an inconclusive result, never a clean one."""
        ...


@runtime_checkable
class InformedAttack(Attack, Protocol):
    """An attack that the audit tells what it knows of the corpus and the recipe, before it runs."""

    def informed(self, published: Sequence[str], *, learns_changes: bool) -> Attack:
        """Return the attack with what the corpus's database publishes, and how the bot's training text is laid out."""
        ...


@runtime_checkable
class ClaimTest(Attack, Protocol):
    """An attack that puts a differential privacy guarantee to the test."""

    def confronted(self, privacy: PrivacyInfo) -> Attack:
        """Return the attack with what the bot's training claims."""
        ...


@runtime_checkable
class Tracker(Protocol):
    """A dashboard or a file that follows a run."""

    def log(self, report: AuditReport) -> None:
        """Take in the report as it stands; called again each time it grows."""
        ...


@runtime_checkable
class RunTracker(Tracker, Protocol):
    """A tracker that keeps something open while it follows a run."""

    def check(self) -> None:
        """Raise a ConfigError where something is missing that it needs; called before anything is trained."""
        ...

    def follow(self, folder: Path, config: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """Open what it keeps, for the run in this directory and under this configuration; `say` tells the user."""
        ...

    def close(self) -> None:
        """Close what it keeps, whether or not the run is complete."""
        ...


@runtime_checkable
class Database(Protocol):
    """What the bot may look up: venues, trains, people."""

    def lookup(self, state: DialogueState, previous: DialogueState) -> str:
        """Return the result for the domains that a turn changed, in the form of the layout's database line."""
        ...


@runtime_checkable
class Published(Protocol):
    """A database that can say all that it holds: what it publishes is nobody's secret."""

    def entries(self) -> frozenset[str]:
        """Return every value of every table."""
        ...
