"""A bot on this machine: a transformers causal language model, with or without a LoRA-type adapter.

Guarantees: `logprobs` is the chain rule over the tokens of prompt and continuation taken as one text that
begins with the start token; the number of scores of a pair, and each score to 1e-4 in fp32, is the same
whatever else is scored with it; a token that straddles prompt and continuation counts to the continuation;
a pair that cannot be scored is an `AuditError` that names it, never a NaN or an empty answer. `sample`
takes every setting from `Decoding` and none from the model's generation config (see `sampler`). Where it
saves work, what texts to score have in common at their beginnings is read once (see `scorer`). Only safetensors
weights are loaded, and no code that comes with a model.

Voids it: changing the model's weights between two calls that are compared; number types below fp32 (scores
then agree to their rounding only).

Source: the score-based black box of the paper, section III-B2.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hushbot.errors import AuditError, ConfigError
from hushbot.protocols import Target
from hushbot.targets.beams import BeamSearcher
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.guided import Grammar, GuidedDraws, Law, ask_for_guided, check_settings
from hushbot.targets.guided_local import GuidedSampler
from hushbot.targets.sampler import Sampler, Until
from hushbot.targets.scorer import Scored, score
from hushbot.tokens import encode, encode_all_pieces, n_tokens_within, start_token
from hushbot.types import Decoding

_GUIDED_ROWS = 4
"""How many times `batch_rows` guided sampling reads at once: its rows hold a short text each, and many of them wait."""
_TEXTS_AT_ONCE = 4096
"""How many texts are tokenised and scored together: bounds the memory, whatever their number."""


class LocalTarget:
    """A model in this process, as a `Target`.

    Args:
        model: A transformers causal language model, a peft model around one, or a `CausalLM`.
        tokenizer: Its fast tokenizer.
        name: What reports call it.
        batch_tokens: Most tokens, padding included, of one scoring pass and of one decoding cache.
        batch_rows: Most continuations decoded at once; guided texts, which are short, are four times as many.
        device: Where to move the model; None leaves it where it is.
        reference: The bot before fine-tuning; None means the model without its adapter, if it has one.

    Raises:
        ConfigError: Tokenizer and model do not fit together, or a batch size is below 1.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "",
        batch_tokens: int = 16384,
        batch_rows: int = 64,
        device: str | torch.device | None = None,
        reference: Target | None = None,
    ) -> None:
        for key, size in (("batch_tokens", batch_tokens), ("batch_rows", batch_rows)):
            if size < 1:
                raise ConfigError(f"{key}={size} must be at least 1; set target.{key}")
        self.causal_lm = model if isinstance(model, CausalLM) else CausalLM(model)
        if device is not None:
            self.causal_lm.outer.to(device)
        _check_tokenizer(tokenizer, self.causal_lm)
        self.tokenizer = tokenizer
        self.name = name
        self.batch_tokens = batch_tokens
        self.batch_rows = batch_rows
        if reference is None and self.causal_lm.has_adapter and not self.causal_lm.without_adapter:
            reference = LocalTarget(
                CausalLM(self.causal_lm.outer, without_adapter=True),
                tokenizer,
                name=f"{name} without adapter".strip(),
                batch_tokens=batch_tokens,
                batch_rows=batch_rows,
            )
        self._reference = reference

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        adapter: str | Path | None = None,
        reference: Target | str | Path | None = None,
        *,
        device: str | torch.device | None = None,
        batch_tokens: int = 16384,
        batch_rows: int = 64,
    ) -> LocalTarget:
        """Load a model folder, an adapter folder, or a model with an adapter beside it.

        Args:
            path: What transformers loads, or a folder that holds `adapter_config.json`.
            adapter: A peft adapter folder to put on top of `path`.
            reference: The bot before fine-tuning, or where it lies; without it, a model with an adapter is
                its own reference, with the adapter switched off.
            device: Where to run; None is a GPU if there is one.
            batch_tokens: As for the class.
            batch_rows: As for the class.

        Raises:
            ConfigError: Something cannot be loaded, or only from a format that can run code.
        """
        if isinstance(reference, (str, Path)):
            reference = cls.from_pretrained(reference, device=device, batch_tokens=batch_tokens, batch_rows=batch_rows)
        model, tokenizer = _load(path, adapter)
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cpu":
            model = model.float()  # half precision is many times slower on CPUs without instructions for it
        return cls(
            model,
            tokenizer,
            name=Path(path).name,
            batch_tokens=batch_tokens,
            batch_rows=batch_rows,
            device=device,
            reference=reference,
        )

    @property
    def reference(self) -> Target | None:
        """The same bot before fine-tuning; None when there is no such thing."""
        return self._reference

    @property
    def device(self) -> str:
        """The kind of device the model runs on: `cpu`, `cuda`, `mps`."""
        return self.causal_lm.device.type

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

        Raises:
            AuditError: Prompt and continuation exceed the model's context, or its logits are not finite.
            ConfigError: `n` or `max_new_tokens` is below 1, or a stop string is empty.
        """
        if decoding.num_beams > 1:
            return self._search(prompts, n, max_new_tokens, decoding, seed)
        sampler = Sampler(self.causal_lm, self.tokenizer, decoding=decoding, max_new_tokens=max_new_tokens, seed=seed)
        return self._run(sampler, prompts, n, [max_new_tokens] * len(prompts))

    def sample_until(
        self,
        prompts: Sequence[str],
        until: Until,
        *,
        n: int,
        max_new_tokens: int,
        decoding: Decoding,
        seed: int,
    ) -> list[list[str]]:
        """Return what `sample` returns, each draw ended where `until` has enough of it: cheaper for who needs no more.

        Raises:
            AuditError: As for `sample`.
            ConfigError: As for `sample`.
        """
        if decoding.num_beams > 1:
            raise ConfigError(f"num_beams={decoding.num_beams}: a search cannot end early; use a decoder without beams")
        sampler = Sampler(
            self.causal_lm, self.tokenizer, decoding=decoding, max_new_tokens=max_new_tokens, seed=seed, until=until
        )
        limits = [max_new_tokens] * len(prompts) if until.limits is None else until.limits
        return self._run(sampler, prompts, n, [min(limit, max_new_tokens) for limit in limits])

    def sample_guided(
        self, prompts: Sequence[str], grammar: Grammar, *, n: int, decoding: Decoding, seed: int, law: Law = "phrase"
    ) -> GuidedDraws:
        """Return what `guided.sample_guided` returns, with what texts share read once where the model allows it.

        Raises:
            AuditError: A text exceeds the model's context, or a score is not finite.
            ConfigError: A setting is out of range, or the token law was asked of a model that cannot show it.
        """
        check_settings(n, decoding, law)
        with self.causal_lm.reading():
            can_branch = self.causal_lm.supports_branches(self.causal_lm.context_length or sys.maxsize)
        if not can_branch:
            return ask_for_guided(self, prompts, grammar, n=n, decoding=decoding, seed=seed, law=law)
        sampler = GuidedSampler(
            self.causal_lm,
            self.tokenizer,
            grammar,
            decoding=decoding,
            seed=seed,
            law=law,
            batch_rows=_GUIDED_ROWS * self.batch_rows,
            batch_tokens=self.batch_tokens,
        )
        with self.causal_lm.reading():
            return sampler.run(prompts, n)

    def _search(
        self, prompts: Sequence[str], n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        """Return the hypotheses of beam searches."""
        encoded = self._encoded(prompts, n, [max_new_tokens] * len(prompts))
        searcher = BeamSearcher(
            self.causal_lm,
            self.tokenizer,
            decoding=decoding,
            max_new_tokens=max_new_tokens,
            seed=seed,
            batch_rows=self.batch_rows,
            batch_tokens=self.batch_tokens,
        )
        with self.causal_lm.reading():
            if not self.causal_lm.supports_branches(max(map(len, encoded), default=0) + max_new_tokens):
                raise ConfigError(
                    f"num_beams={decoding.num_beams}: {type(self.causal_lm.core).__name__} cannot be searched "
                    "with beams here; choose another decoder"
                )
            return searcher.run(encoded, n)

    def _run(self, sampler: Sampler, prompts: Sequence[str], n: int, limits: Sequence[int]) -> list[list[str]]:
        encoded = self._encoded(prompts, n, limits)
        with self.causal_lm.reading():
            return sampler.run(encoded, n=n, batch_rows=self.batch_rows, batch_tokens=self.batch_tokens)

    def _encoded(self, prompts: Sequence[str], n: int, limits: Sequence[int]) -> list[list[int]]:
        """Return each prompt's tokens, start token first, once it is sure that what follows fits the context."""
        if n < 1:
            raise ConfigError(f"n={n} must be at least 1")
        start = start_token(self.tokenizer)
        known = {prompt: [start, *encode(self.tokenizer, prompt)] for prompt in dict.fromkeys(prompts)}
        for index, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            _check_length(f"prompt {index}", len(known[prompt]), self.causal_lm.context_length, limit)
        return [known[prompt] for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return the natural log-probability of each continuation token, one fp32 CPU tensor per pair.

        A token belongs to the continuation if it holds at least one of its characters.

        Raises:
            AuditError: A continuation is empty, a text exceeds the model's context, or a score is not finite.
        """
        return self._answers(prompts, continuations, with_moments=False)

    def token_statistics(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return more of each continuation token than `logprobs`: one fp32 CPU tensor per pair, a row per token.

        A row holds the token's log-probability, and the mean and standard deviation of the log-probability over the
        vocabulary, each entry weighted by its probability.

        Raises:
            AuditError: As for `logprobs`.
        """
        return self._answers(prompts, continuations, with_moments=True)

    def _answers(self, prompts: Sequence[str], continuations: Sequence[str], *, with_moments: bool) -> list[Tensor]:
        """Return what is asked of each pair, each distinct one read once."""
        if len(prompts) != len(continuations):
            raise AuditError(f"{len(prompts)} prompts for {len(continuations)} continuations; give as many of each")
        pairs = list(zip(prompts, continuations, strict=True))
        first_index: dict[tuple[str, str], int] = {}
        by_text: dict[str, list[int]] = {}
        for index, pair in enumerate(pairs):
            if not pair[1]:
                raise AuditError(
                    f"pair {index}: the continuation is empty, so it has no probability; leave the pair out"
                )
            if first_index.setdefault(pair, index) == index:
                by_text.setdefault(pair[0] + pair[1], []).append(index)
        # Neighbours in the alphabet begin alike, and what texts share is read once only where they are read together.
        texts = sorted(by_text) if len(by_text) > _TEXTS_AT_ONCE else list(by_text)
        answers: dict[int, Tensor] = {}
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            window = {text: by_text[text] for text in texts[start : start + _TEXTS_AT_ONCE]}
            answers |= self._score(pairs, window, with_moments=with_moments)
        return [
            answers[index] if first_index[pair] == index else answers[first_index[pair]].clone()
            for index, pair in enumerate(pairs)
        ]

    def _score(
        self, pairs: Sequence[tuple[str, str]], by_text: Mapping[str, Sequence[int]], *, with_moments: bool
    ) -> dict[int, Tensor]:
        """Return the scores of pairs by index, reading each text once for all pairs that it is the text of."""
        start, limit, scored = start_token(self.tokenizer), self.causal_lm.context_length, list[Scored]()
        firsts: dict[int, int] = {}
        for indices, cut in zip(by_text.values(), encode_all_pieces(self.tokenizer, list(by_text)), strict=True):
            ids = [start, *chain.from_iterable(piece.ids for piece in cut)]
            _check_length(f"pair {indices[0]}", len(ids), limit)
            for index in indices:
                firsts[index] = 1 + n_tokens_within(cut, len(pairs[index][0]))
                if firsts[index] == len(ids):
                    raise AuditError(
                        f"pair {index}: the tokenizer makes no token of a continuation of {len(pairs[index][1])} "
                        "characters; leave the pair out"
                    )
            scored.append(Scored(indices[0], ids, min(firsts[index] for index in indices)))
        with self.causal_lm.reading():
            values = score(self.causal_lm, scored, batch_tokens=self.batch_tokens, with_moments=with_moments)
        # Copies, as everywhere: a caller that changes one answer must not change another.
        return {
            index: value[firsts[index] - sequence.first :].clone()
            for indices, sequence, value in zip(by_text.values(), scored, values, strict=True)
            for index in indices
        }


def _check_length(where: str, n_tokens: int, limit: int | None, n_new: int = 0) -> None:
    # The last new token is never read back, so it needs no position.
    if limit is not None and n_tokens + max(0, n_new - 1) > limit:
        more = f" and {n_new} new ones" if n_new else ""
        raise AuditError(
            f"{where}: {n_tokens} tokens with start token{more} exceed the model's context of {limit};"
            f" shorten the text{' or lower max_new_tokens' if n_new else ''}"
        )


def _check_tokenizer(tokenizer: Any, model: CausalLM) -> None:
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(f"{type(tokenizer).__name__} is not a fast tokenizer and gives no spans; load the fast one")
    start_token(tokenizer)
    if len(tokenizer) > model.n_tokens:
        raise ConfigError(
            f"the tokenizer has {len(tokenizer)} tokens but the model reads {model.n_tokens}; load its own"
        )


def _load(path: str | Path, adapter: str | Path | None) -> tuple[Any, Any]:
    """Return a model, with its adapter if it has one, and its tokenizer."""
    # Imported here: peft takes seconds that a target around a model in memory need not spend.
    from hushbot.training.model_folder import ModelSource, load_causal_lm, load_model, load_tokenizer, put_adapter

    folder = Path(path)
    if folder.is_dir() and (adapter is None or (folder / "adapter_config.json").is_file()):
        if adapter is not None:
            raise ConfigError(f"target.model={folder} is an adapter itself; give its base, or no target.adapter")
        loaded = load_model(folder)
        return loaded.model, loaded.tokenizer
    source = ModelSource(str(path), str(path), local_files_only=folder.is_dir())
    model, tokenizer = load_causal_lm(source, "auto"), load_tokenizer(source, None)
    if adapter is None:
        return model, tokenizer
    if not (Path(adapter) / "adapter_model.safetensors").is_file():
        raise ConfigError(f"target.adapter={adapter} holds no adapter_model.safetensors; save it in that format")
    return put_adapter(model, Path(adapter)), tokenizer
