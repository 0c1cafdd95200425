"""What a server needs of a bot, and the bot that is a `Target` on this machine.

Guarantees: scores are those of `LocalTarget.logprobs` to 1e-5, and one request with a seed gets the draws of
`LocalTarget.sample` for its prompts in their order. Log-probabilities are the model's own at temperature 1, whatever
the decoding. Texts are tokenised as in training, so that the first token of a text follows the model's start token:
where a prompt is echoed, that start token stands first, with an empty text and no score, and the first token of the
text has its score. A character cut over several tokens belongs to the first of them; the others have an empty text
behind it. So a token holds a character of a continuation exactly if its offset plus its length exceeds the prompt's
length, which is the rule of `LocalTarget`.

A bot behind guards answers with text only: its probabilities would show the bot without them.

A text that ends before its first token has no tokens; where log-probabilities are asked for and the prompt is not
echoed, its first drawn token is named all the same, so that the law after a prompt can always be read.

Voids it: a tokenizer whose last token ends before its text does (the texts of the tokens are then a part of the text).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from hushbot.errors import ConfigError
from hushbot.protocols import Target
from hushbot.serving.answers import Choice, TokenScore
from hushbot.serving.drawing import Drawn, draw_tokens
from hushbot.serving.reading import Asked, Read, read_tokens
from hushbot.serving.requests import CompletionRequest, Message, Prompt, RequestError
from hushbot.targets.guarded import guard_names, prompt_overhead, unguarded
from hushbot.targets.local import LocalTarget
from hushbot.targets.sampler import decode_after
from hushbot.tokens import decode, encode, encode_with_spans, start_token

PromptOf = Callable[[Sequence[Message]], str]
"""Lays a chat out as the text after which the bot writes its response."""


class Bot(Protocol):
    """Continues texts; what a server serves."""

    def complete(self, request: CompletionRequest) -> list[Choice]:
        """Return n choices per prompt, prompt by prompt.

        Raises:
            RequestError: It cannot.
        """
        ...

    def room(self, prompt: Prompt) -> int | None:
        """Return how many new tokens fit after a prompt; None where there is no limit."""
        ...

    def prompt_of(self, messages: Sequence[Message]) -> str:
        """Return the text after which the answer to a chat is written.

        Raises:
            RequestError: It cannot chat.
        """
        ...


class LocalBot:
    """A target in this process.

    Args:
        target: A local target, with or without guards around it.
        prompt_of: How a chat is laid out; None cannot chat.

    Raises:
        ConfigError: There is no local target behind the guards.
    """

    echo_shift = 0
    """How many places too late the scores of an echoed prompt are read; a fault for tests."""

    def __init__(self, target: Target, *, prompt_of: PromptOf | None = None) -> None:
        local = unguarded(target)
        if not isinstance(local, LocalTarget):
            raise ConfigError(f"{type(local).__name__} is no local model; only a bot on this machine can be served")
        self.target = target
        self.local = local
        self.guards = guard_names(target)
        self.layout = prompt_of
        self._start = start_token(local.tokenizer)
        self._n_added = len(encode(local.tokenizer, prompt_overhead(target)))
        self._anchor = encode(local.tokenizer, "a")[-1:]
        self._names: dict[int, str] = {}

    def prompt_of(self, messages: Sequence[Message]) -> str:
        """Return the text after which the answer to a chat is written.

        Raises:
            RequestError: It cannot chat.
        """
        if self.layout is None:
            raise RequestError("this server completes texts and does not chat; use /v1/completions", status=404)
        return self.layout(messages)

    def room(self, prompt: Prompt) -> int | None:
        """Return how many new tokens fit after a prompt; None where there is no limit."""
        limit = self.local.causal_lm.context_length
        # The last new token is never read back, so it needs no place.
        return None if limit is None else max(0, limit - self._n_added - len(self._ids(self._text_of(prompt))) + 1)

    def complete(self, request: CompletionRequest) -> list[Choice]:
        """Return n choices per prompt, prompt by prompt.

        Raises:
            RequestError: A prompt is too long, or log-probabilities are asked of a guarded bot.
            AuditError: The model failed.
        """
        if request.n_top is not None and self.guards:
            raise RequestError(
                f"this bot is served behind {', '.join(self.guards)}, and its log-probabilities would show it without; "
                "ask for text only",
                param="logprobs",
                code="logprobs_unavailable",
            )
        prompts = [self._text_of(prompt) for prompt in request.prompts]
        ids = [self._ids(prompt) for prompt in prompts]
        self._check_length(ids, request.max_tokens)
        drawn = [draw for row in self._draw(prompts, ids, request) for draw in row]
        owners = [i for i in range(len(prompts)) for _ in range(request.n)]
        scores = self._scores(request, prompts, ids, list(zip(owners, drawn, strict=True)))
        return [
            Choice(
                text=(prompts[owner] if request.echo else "") + draw.text,
                finish_reason="stop" if draw.is_ended else "length",
                n_prompt_tokens=len(ids[owner]) - 1,
                n_tokens=len(draw.tokens),
                scores=score,
            )
            for owner, draw, score in zip(owners, drawn, scores, strict=True)
        ]

    def _ids(self, text: str) -> list[int]:
        """Return what the model reads of a text, start token first."""
        return [self._start, *encode(self.local.tokenizer, text)]

    def _text_of(self, prompt: Prompt) -> str:
        """Return a prompt as text; token ids must be those that the bot reads."""
        if isinstance(prompt, str):
            return prompt
        tokens = list(prompt[1:] if prompt[:1] == (self._start,) else prompt)
        if any(not 0 <= token < len(self.local.tokenizer) for token in tokens):
            raise RequestError("prompt holds a token id that the vocabulary has not", param="prompt")
        text = decode(self.local.tokenizer, tokens)
        if encode(self.local.tokenizer, text) != tokens:
            raise RequestError(
                "prompt holds token ids that are not how this bot reads their text; send the text instead",
                param="prompt",
            )
        return text

    def _check_length(self, ids: Sequence[Sequence[int]], n_new: int) -> None:
        limit = self.local.causal_lm.context_length
        longest = max(map(len, ids)) + self._n_added + max(0, n_new - 1)
        if limit is not None and longest > limit:
            raise RequestError(
                f"prompt and new tokens come to {longest} tokens, start token included, and the model reads {limit}; "
                "shorten the prompt or lower max_tokens",
                param="prompt",
                code="context_length_exceeded",
            )

    def _draw(self, prompts: Sequence[str], ids: Sequence[list[int]], request: CompletionRequest) -> list[list[Drawn]]:
        if request.max_tokens == 0:
            return [[Drawn("", [], False, self._start)] * request.n for _ in prompts]
        if not self.guards:
            return draw_tokens(self.local, ids, request)
        texts = self.target.sample(
            prompts, n=request.n, max_new_tokens=request.max_tokens, decoding=request.decoding, seed=request.seed
        )
        return [[self._counted(text, request.max_tokens) for text in row] for row in texts]

    def _counted(self, text: str, most: int) -> Drawn:
        """Return a guarded text as the tokens that it would be read as; the guard has hidden those that were drawn."""
        tokens = encode(self.local.tokenizer, text)
        return Drawn(text, tokens, len(tokens) < most, self._start)

    def _scores(
        self,
        request: CompletionRequest,
        prompts: Sequence[str],
        ids: Sequence[list[int]],
        drawn: Sequence[tuple[int, Drawn]],
    ) -> list[tuple[TokenScore, ...] | None]:
        """Return the token scores of each choice, given the prompt that it continues."""
        if request.n_top is None:
            return [None] * len(drawn)
        parts = [self._parts(request, prompts[owner], draw) for owner, draw in drawn]
        asked = [
            self._asked(ids[owner], len(ids[owner]) if request.echo else 0, [token for token, _ in part])
            for (owner, _), part in zip(drawn, parts, strict=True)
        ]
        with self.local.causal_lm.reading():
            found = read_tokens(self.local.causal_lm, asked, request.n_top, batch_tokens=self.local.batch_tokens)
        return [
            self._scored(request, prompts[owner], part, reads)
            for (owner, _), part, reads in zip(drawn, parts, found, strict=True)
        ]

    def _asked(self, prompt: list[int], n_echoed: int, new: Sequence[int]) -> Asked:
        """Ask for the scores of a prompt's tokens after the start token, if it is echoed, and of the new ones."""
        whole = [*prompt, *new]
        places = [i - 1 + self.echo_shift for i in range(1, n_echoed)]
        places += range(len(prompt) - 1, len(whole) - 1)
        return Asked(whole, places, whole[1:n_echoed] + whole[len(prompt) :])

    def _parts(self, request: CompletionRequest, prompt: str, draw: Drawn) -> list[tuple[int, str]]:
        """Return the new tokens that show, each with its part of the text."""
        if draw.text or request.echo:
            return list(self._new_parts(prompt, draw))
        # Nothing shows, so the token that was drawn is named, lest nothing be known of the law there.
        return [((draw.tokens or [draw.last])[0], "")] if request.max_tokens else []

    def _new_parts(self, prompt: str, draw: Drawn) -> Iterator[tuple[int, str]]:
        """Yield the tokens of a continuation with their parts of its text, up to where it was cut."""
        head = decode(self.local.tokenizer, encode(self.local.tokenizer, prompt))
        before, at = encode(self.local.tokenizer, prompt), 0
        said = [
            decode_after(self.local.tokenizer, head, [*before, *draw.tokens[: i + 1]], where="prompt")
            for i in range(len(draw.tokens))
        ]
        for token, so_far in zip(draw.tokens, said, strict=True):
            if at == len(draw.text) < len(said[-1]):
                return
            end = max(at, _end_in(draw.text, so_far))
            yield token, draw.text[at:end]
            at = end

    def _scored(
        self, request: CompletionRequest, prompt: str, part: Sequence[tuple[int, str]], reads: Sequence[Read]
    ) -> tuple[TokenScore, ...]:
        shown = self._echoed_parts(prompt) if request.echo else []
        shown += [text for _, text in part]
        # Only an empty text, not echoed, has a token that shows nothing of it.
        spelled = self._name(part[0][0]) if not request.echo and shown == [""] else None
        scores = []
        for text, read in zip(shown, reads, strict=True):
            top = tuple((self._name(token), value) for token, value in read.top)
            scores.append(TokenScore(text, read.logprob, top, spelled))
        return (TokenScore("", None), *scores) if request.echo else tuple(scores)

    def _echoed_parts(self, prompt: str) -> list[str]:
        """Return the text of each token of a prompt: what it adds to the text before it."""
        parts, at = [], 0
        for _, end in encode_with_spans(self.local.tokenizer, prompt).spans:
            parts.append(prompt[at:end])
            at = max(at, end)
        return parts

    def _name(self, token: int) -> str:
        """Return what a token says behind another one; some tokenizers drop a text's first blank."""
        if token not in self._names:
            head = decode(self.local.tokenizer, self._anchor)
            whole = decode(self.local.tokenizer, [*self._anchor, token])
            self._names[token] = whole[len(head) :] if whole.startswith(head) else decode(self.local.tokenizer, [token])
        return self._names[token]


class OffByOneBot(LocalBot):
    """Reads the scores of an echoed prompt one place too late and hides the start token.

    What it returns for token i is the probability of token i after itself: a plausible number that means nothing.
    """

    echo_shift = 1

    def complete(self, request: CompletionRequest) -> list[Choice]:
        """Return choices whose echoed scores are shifted and begin with the first token of the text, unscored."""
        choices = super().complete(request)
        if not request.echo or request.n_top is None:
            return choices
        return [_without_start(choice) for choice in choices]


def _end_in(text: str, so_far: str) -> int:
    """Return how much of a text some of its tokens say; of a character that they begin, all."""
    n = next((i for i, (a, b) in enumerate(zip(text, so_far, strict=False)) if a != b), min(len(text), len(so_far)))
    return n if n == len(so_far) else min(n + 1, len(text))


def _without_start(choice: Choice) -> Choice:
    scores = (choice.scores or ())[1:]
    first = tuple(TokenScore(score.text, None) for score in scores[:1])
    return Choice(choice.text, choice.finish_reason, choice.n_prompt_tokens, choice.n_tokens, first + scores[1:])
