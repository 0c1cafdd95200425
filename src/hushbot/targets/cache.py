"""A target that remembers: what was answered once is not asked again, also not after the audit was killed.

Guarantees: an answer is found again only by the very same question to the very same bot. The key is a hash of the bot's
identity (`hushbot.targets.identity`: weights, adapter, tokenizer, guards; of an endpoint its address, model and
fingerprint) and, for a text, of prompt, prompt position, draw number, decoding, longest length and seed, so that
repeated draws stay distinct; for scores, of prompt and continuation. Texts and scores come back bit for bit, numbers in
their own type. Only whole, finite answers are kept; a failed question is never answered from memory. An interrupted
audit that is started again puts its questions to the bot in the same portions, hence with the same results.

Portions: pairs to score are asked for and kept `PAIRS_AT_ONCE` at a time. Texts are kept `PLACES_AT_ONCE` at a time
where the bot can be asked for single draws (`SamplesPlaces`, as endpoints can), since draws depend on the position in
the call; otherwise one call is one portion.

Not remembered: guided sampling of a bot that does it by itself (a local model), since a grammar is code and has no
content to hash; it is computed again, with the same result. Of other bots its single questions are remembered.

What voids it: as for identity and store; an endpoint that answers the same question in two ways then has the first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hushbot.errors import AuditError
from hushbot.protocols import ShowsTokens, Target
from hushbot.targets.answer_store import AnswerStore
from hushbot.targets.guarded import GuardedTarget
from hushbot.targets.guided import Grammar, GuidedDraws, Law, SamplesGuided, ask_for_guided
from hushbot.targets.identity import identity_of
from hushbot.targets.places import Place, SamplesPlaces
from hushbot.types import Decoding, Tier

if TYPE_CHECKING:
    from torch import Tensor

PLACES_AT_ONCE = 64
PAIRS_AT_ONCE = 512
_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
_Item = TypeVar("_Item")
_Score: TypeAlias = "Callable[[Sequence[str], Sequence[str]], list[Tensor]]"


class CachedTarget(GuardedTarget):
    """A target whose answers are kept, call by call; `remember` makes one.

    Args:
        inner: The bot as deployed.
        store: Where answers are kept.
    """

    def __init__(self, inner: Target, store: AnswerStore) -> None:
        super().__init__(inner)
        self._store = store
        self._identity = identity_of(inner)

    def guarded(self, inner: Target) -> CachedTarget:
        """Return another bot whose answers are kept in the same place, under its own identity."""
        return remember(inner, self._store)

    @cached_property
    def _reference(self) -> Target | None:
        inner = self.inner.reference
        return None if inner is None else self.guarded(inner)

    @property
    def reference(self) -> Target | None:
        """The bot before fine-tuning, remembered as well; None when there is no such thing."""
        return self._reference

    @property
    def tier(self) -> Tier:
        """What the bot can be asked."""
        tier: Tier = getattr(self.inner, "tier", "full")
        return tier

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        """Return n continuations per prompt, from memory where all of them are known.

        Raises:
            AuditError: The bot failed, or gave another number of texts than it was asked for.
        """
        keys = self._keys(_places(prompts, n), max_new_tokens, decoding, seed)
        known = self._store.get(list(keys.values()))
        missing = [place for place, key in keys.items() if key not in known]
        if missing or not keys:  # without anything to do the bot still checks what it was given
            drawn = self.inner.sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)
            if [len(texts) for texts in drawn] != [max(n, 0)] * len(prompts):
                raise AuditError(f"the target did not give {n} draws for each of {len(prompts)} prompts; audit again")
            known |= self._kept({keys[p]: _from_text(drawn[p.position][p.draw]) for p in missing})
        answers = iter([_to_text(known[key]) for key in keys.values()])
        return [[next(answers) for _ in range(n)] for _ in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return the log-probability of each continuation token, those that are known from memory.

        Raises:
            AuditError: The bot failed, or gave something other than finite scores.
        """
        return self._scored("logprobs", self.inner.logprobs, prompts, continuations)

    def _scored(self, name: str, ask: _Score, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return what the bot says of pairs, one tensor each."""
        if len(prompts) != len(continuations):
            return ask(prompts, continuations)  # which says what is wrong
        pairs = list(zip(prompts, continuations, strict=True))
        keys = {pair: self._key(name, *pair) for pair in pairs}
        known = self._store.get(list(keys.values()))
        for some in _portions([pair for pair, key in keys.items() if key not in known], PAIRS_AT_ONCE):
            scores = ask([prompt for prompt, _ in some], [text for _, text in some])
            if len(scores) != len(some):
                raise AuditError(f"the target answered {len(scores)} of {len(some)} scoring queries; audit again")
            n_axes = 1 if name == "logprobs" else 2
            answers = {keys[pair]: _from_scores(score, n_axes) for pair, score in zip(some, scores, strict=True)}
            known |= self._kept(answers)
        return [_to_scores(known[keys[pair]]) for pair in pairs]

    def sample_guided(
        self, prompts: Sequence[str], grammar: Grammar, *, n: int, decoding: Decoding, seed: int, law: Law = "phrase"
    ) -> GuidedDraws:
        """Return what `guided.sample_guided` returns, computed anew where the bot does it by itself.

        Raises:
            AuditError: A query failed.
            ConfigError: The token law was asked of a bot that does not show its tokens.
        """
        if isinstance(self.inner, SamplesGuided):
            return self.inner.sample_guided(prompts, grammar, n=n, decoding=decoding, seed=seed, law=law)
        return ask_for_guided(self, prompts, grammar, n=n, decoding=decoding, seed=seed, law=law)

    def _keys(self, places: Sequence[Place], max_new_tokens: int, decoding: Decoding, seed: int) -> dict[Place, bytes]:
        call = json.dumps([max_new_tokens, asdict(decoding), seed], sort_keys=True)
        return {place: self._key("sample", call, *place) for place in places}

    def _key(self, *question: str | int) -> bytes:
        # ASCII only, so that half a surrogate pair, which no UTF-8 holds, is no error here.
        return hashlib.sha256(json.dumps([self._identity, *question]).encode()).digest()

    def _kept(self, answers: dict[bytes, bytes]) -> dict[bytes, bytes]:
        self._store.put(answers)
        return answers


class CachedEndpoint(CachedTarget):
    """A target whose answers are kept, draw by draw.

    Args:
        inner: The bot, which can be asked for single draws.
        store: Where answers are kept.
    """

    inner: SamplesPlaces  # type: ignore[assignment]

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        """Return n continuations per prompt, those that are known from memory.

        Raises:
            AuditError: The bot failed, or gave another number of texts than it was asked for.
        """
        places = _places(prompts, n)
        if not places:  # the bot still checks what it was given
            return super().sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)
        texts = iter(self.sample_places(places, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed))
        return [[next(texts) for _ in range(n)] for _ in prompts]

    def sample_places(
        self, places: Sequence[Place], *, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[str]:
        """Return one text per place, those that are known from memory.

        Raises:
            AuditError: The bot failed, or gave another number of texts than it was asked for.
        """
        keys = self._keys(places, max_new_tokens, decoding, seed)
        known = self._store.get(list(keys.values()))
        for some in _portions([place for place, key in keys.items() if key not in known], PLACES_AT_ONCE):
            texts = self.inner.sample_places(some, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)
            if len(texts) != len(some):
                raise AuditError(f"the target gave {len(texts)} of {len(some)} draws; audit again")
            known |= self._kept({keys[place]: _from_text(text) for place, text in zip(some, texts, strict=True)})
        return [_to_text(known[keys[place]]) for place in places]


class CachedModel(CachedTarget):
    """A target whose answers are kept, what it shows of its tokens as well.

    Args:
        inner: The bot, which shows its tokens' statistics.
        store: Where answers are kept.
    """

    inner: ShowsTokens  # type: ignore[assignment]

    def token_statistics(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return the statistics of each continuation token, those that are known from memory.

        Raises:
            AuditError: As for `logprobs`.
        """
        return self._scored("token_statistics", self.inner.token_statistics, prompts, continuations)


class _CachedAll(CachedEndpoint, CachedModel):
    """A target that can be asked for single draws and shows its tokens."""

    inner: Any


def remember(target: Target, store: AnswerStore) -> CachedTarget:
    """Return a target as it is, but that its answers are kept.

    Args:
        target: The bot as deployed: its guards are part of who it is.
        store: Where answers are kept; may be shared between bots.

    Raises:
        ConfigError: The bot does not show who it is.
    """
    # Several classes, since what a target can be asked shows in the methods that it has.
    if isinstance(target, SamplesPlaces):
        return (_CachedAll if isinstance(target, ShowsTokens) else CachedEndpoint)(target, store)
    return (CachedModel if isinstance(target, ShowsTokens) else CachedTarget)(target, store)


def _places(prompts: Sequence[str], n: int) -> list[Place]:
    return [Place(prompt, position, draw) for position, prompt in enumerate(prompts) for draw in range(n)]


def _portions(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _from_text(text: object) -> bytes:
    if not isinstance(text, str):
        raise AuditError(f"the target answered with a {type(text).__name__}, not a text; audit again")
    return text.encode("utf-8", errors="surrogatepass")


def _to_text(payload: bytes) -> str:
    return payload.decode("utf-8", errors="surrogatepass")


def _from_scores(scores: Tensor, n_axes: int) -> bytes:
    import torch

    name = str(scores.dtype).removeprefix("torch.")
    if scores.ndim != n_axes or name not in _DTYPES or not bool(torch.isfinite(scores).all()):
        raise AuditError("a score is not finite, or the scores have no form that scores have; doubt the target")
    width = scores.shape[1] if n_axes == 2 else 0
    values = scores.detach().cpu().contiguous().flatten().view(torch.uint8)
    return f"{name}:{width} ".encode() + values.numpy().tobytes()


def _to_scores(payload: bytes) -> Tensor:
    import torch

    form, _, values = payload.partition(b" ")
    name, _, width = form.decode().partition(":")
    dtype: torch.dtype = getattr(torch, name)
    scores = torch.frombuffer(bytearray(values), dtype=dtype) if values else torch.empty(0, dtype=dtype)
    return scores if width == "0" else scores.view(-1, int(width))
