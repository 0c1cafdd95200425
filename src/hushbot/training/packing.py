"""All training examples of one dialogue as one sequence in which their shared history stands once.

Guarantees, for models with plain causal attention and no dropout (`prefix_attention` says which):

* `loss_sum(model, pack(...))` and its gradient equal the sum over the ordinary one-example-per-row form
  (`unpack_rows`), up to floating-point rounding (tested at 1e-5 relative).
* The tokens of an example are `[start_token] + encode(text)`: what the bot and the attacks will feed it.
* Every supervised token is counted exactly once, in float32, and logits are computed nowhere else.

How: of the examples that hold a supervised token, the one with the longest history is the trunk; every other one
shares the longest run of its leading unsupervised segments with the trunk, and the rest of it is a branch that sees
that part of the trunk only. Examples that share nothing, or one example alone, come out as what they are.

An example longer than `max_length` loses its oldest leading segments, whole ones; what is left no longer
shares a history and stands alone (only the start token is common), exactly as its ordinary row would.

An example that learns before its last turn (a running text) and is too long is cut before turns into several rows
instead: each goes on where the one before it ended, after as many whole earlier turns as fit in half of
`max_length`, which it reads again without a loss. A turn starts with its `User:` line, or with the state marker
where the user says nothing.

The unit is the dialogue: one packed sequence is one privacy unit. `losses` sends several through the model at once;
they stay apart, each with its own attention and its own loss, as if alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hushbot.errors import DataError
from hushbot.prompts import STATE_MARKER, USER_MARKER, pieces
from hushbot.tokens import encode_pieces, start_token
from hushbot.training.prefix_attention import Branch, Forest, PrefixLayout, prefix_logits
from hushbot.types import Example


@dataclass(frozen=True, slots=True, eq=False)
class PackedDialogue:
    """One dialogue, ready for `loss_sum`."""

    dialogue_id: str
    input_ids: Tensor
    """Token ids, (1, n_tokens): the trunk, then the branches."""
    position_ids: Tensor
    """The position each token has in its own example, (1, n_tokens)."""
    sources: Tensor
    """For each supervised token, where in the sequence it is predicted, (n_supervised,)."""
    targets: Tensor
    """The supervised tokens, example by example, (n_supervised,)."""
    layout: PrefixLayout
    """Who attends to whom."""
    n_truncated: int = 0
    """How many examples lost history, or were cut into several rows, to fit `max_length`."""

    @property
    def n_tokens(self) -> int:
        """Return how many tokens the model processes."""
        return self.input_ids.shape[1]

    @property
    def n_supervised(self) -> int:
        """Return how many tokens the loss is taken on."""
        return self.targets.shape[0]

    def to(self, device: torch.device | str) -> PackedDialogue:
        """Return the same dialogue with its tensors on a device."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            sources=self.sources.to(device),
            targets=self.targets.to(device),
        )


class Row(NamedTuple):
    """One example, or one window of it, as an ordinary training row."""

    dialogue_id: str
    input_ids: list[int]
    """The start token and the example's tokens."""
    supervised: list[bool]
    """Whether the loss is taken on each of them."""


class _Tokens(NamedTuple):
    """The tokens of one segment."""

    ids: tuple[int, ...]
    supervised: bool


class _Tokenised(NamedTuple):
    """One example or window of it, segment by segment, cut to its allowed length."""

    segments: list[_Tokens]
    n_leading: int
    """How many unsupervised segments come first."""
    is_truncated: bool
    """Whether it lacks anything of its example."""

    @property
    def has_loss(self) -> bool:
        """Return whether any token is supervised."""
        return any(segment.supervised and segment.ids for segment in self.segments)

    def n_tokens(self, n_segments: int) -> int:
        """Return the length of the first segments."""
        return sum(len(segment.ids) for segment in self.segments[:n_segments])


def pack(examples: Sequence[Example], tokenizer: Any, *, max_length: int) -> PackedDialogue:
    """Pack all examples of one dialogue.

    Args:
        examples: The examples of one dialogue, in any order.
        tokenizer: A fast transformers tokenizer.
        max_length: Tokens that one example may have, its start token included; the packed sequence may be
            longer.

    Raises:
        DataError: No examples, examples of several dialogues, nothing to learn from, or an example that is
            too long
            even without its history.
    """
    windows = _tokenise(examples, tokenizer, max_length)
    rows = [row for of_example in windows for row in of_example]
    # A row without a loss puts no token into the sequence, so nothing could branch off it.
    learnt = [row for row in rows if row.has_loss]
    trunk = max(learnt, key=lambda row: (not row.is_truncated, row.n_tokens(row.n_leading)))
    ids, positions, sources, targets = [start_token(tokenizer)], [0], list[int](), list[int]()
    branches: list[Branch] = []
    for row in [trunk, *(row for row in rows if row is not trunk)]:
        n_shared = 0 if row is trunk else _n_shared(row, trunk)
        own = row.segments[n_shared:]
        if not any(segment.supervised and segment.ids for segment in own):
            continue
        prefix, start = 1 + row.n_tokens(n_shared), len(ids)
        for segment in own:
            ids.extend(segment.ids)
            if segment.supervised:
                targets.extend(segment.ids)
                sources.extend(range(len(ids) - len(segment.ids) - 1, len(ids) - 1))
                if segment.ids and len(ids) - len(segment.ids) == start:
                    sources[-len(segment.ids)] = prefix - 1  # its predecessor stands in the trunk
        positions.extend(range(prefix, prefix + len(ids) - start))
        if row is not trunk:
            branches.append(Branch(len(ids) - start, prefix))
    n_branches = sum(branch.length for branch in branches)
    return PackedDialogue(
        dialogue_id=examples[0].dialogue_id,
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        sources=torch.tensor(sources),
        targets=torch.tensor(targets),
        layout=PrefixLayout(len(ids) - n_branches, tuple(branches)),
        n_truncated=sum(any(row.is_truncated for row in of_example) for of_example in windows),
    )


def unpack_rows(examples: Sequence[Example], tokenizer: Any, *, max_length: int) -> list[Row]:
    """Return the same examples one per row, as an ordinary trainer would have them; raises as `pack` does.

    An example that is cut into windows gives one row per window.
    """
    start = start_token(tokenizer)
    return [
        Row(
            example.dialogue_id,
            [start, *(token for segment in row.segments for token in segment.ids)],
            [False, *(segment.supervised for segment in row.segments for _ in segment.ids)],
        )
        for example, windows in zip(examples, _tokenise(examples, tokenizer, max_length), strict=True)
        for row in windows
    ]


def loss_sum(model: nn.Module, packed: PackedDialogue, *, dense: bool = False) -> Tensor:
    """Return the negative log-probability of all supervised tokens of a dialogue, summed, in float32.

    Args:
        model: A causal language model of transformers, with or without a peft adapter, on the dialogue's
            device. packed: The dialogue. dense: Use one dense attention mask instead of the structured
            attention: slower, for cross-checks.
    """
    logits = prefix_logits(model, packed.input_ids, packed.position_ids, packed.layout, packed.sources, dense=dense)
    return F.cross_entropy(logits.float(), packed.targets, reduction="sum")


def losses(model: nn.Module, packs: Sequence[PackedDialogue], *, dense: bool = False) -> Tensor:
    """Return `loss_sum` of each of several dialogues, (n_dialogues,), in one pass of the model.

    Args:
        model: A causal language model of transformers, with or without a peft adapter, on the dialogues' device.
        packs: At least one dialogue.
        dense: Use one dense attention mask instead of the structured attention: slower, for cross-checks.
    """
    starts = accumulate((packed.n_tokens for packed in packs[:-1]), initial=0)
    logits = prefix_logits(
        model,
        torch.cat([packed.input_ids for packed in packs], 1),
        torch.cat([packed.position_ids for packed in packs], 1),
        Forest(tuple(packed.layout for packed in packs)),
        torch.cat([packed.sources + start for packed, start in zip(packs, starts, strict=True)]),
        dense=dense,
    )
    each = F.cross_entropy(logits.float(), torch.cat([packed.targets for packed in packs]), reduction="none")
    return torch.stack([part.sum() for part in torch.split(each, [packed.n_supervised for packed in packs])])


def made_up(model: Any) -> PackedDialogue:
    """Return a packed dialogue of tokens that nobody said: a trunk of 5, a branch of 4."""
    n_tokens = model.get_input_embeddings().num_embeddings
    ids = torch.tensor([[(7 * i + 3) % n_tokens for i in range(9)]])
    positions = torch.tensor([[0, 1, 2, 3, 4, 2, 3, 4, 5]])
    layout = PrefixLayout(5, (Branch(4, 2),))
    return PackedDialogue("made-up", ids, positions, torch.tensor([3, 7]), ids[0, [4, 8]], layout)


def shorten_history(lines: Sequence[str], lengths: Sequence[int], max_length: int) -> tuple[str, ...]:
    """Drop the oldest lines of a history by the rule of training, so that a bot in use reads what it was trained on.

    Args:
        lines: One string per utterance, as `prompts.history_lines` has them; or per turn of a running text.
        lengths: How many tokens each has.
        max_length: Tokens that they may have together; the last line stays in any case.
    """
    return tuple(lines[_n_dropped(lengths[:-1], sum(lengths), max_length) :])


def _tokenise(examples: Sequence[Example], tokenizer: Any, max_length: int) -> list[list[_Tokenised]]:
    """Tokenise all segments of a dialogue at once, each distinct text once; return the rows of each example."""
    if not examples:
        raise DataError("no examples to pack; the recipe made none for this dialogue")
    ids = {example.dialogue_id for example in examples}
    if len(ids) > 1:
        raise DataError(f"examples of {len(ids)} dialogues ({sorted(ids)[:3]} ...) in one pack; pack each by itself")
    texts = {segment.text for example in examples for segment in example.segments}
    cut = {text: pieces(text) for text in texts}
    for number, example in enumerate(examples):
        if pieces(example.text) != [piece for segment in example.segments for piece in cut[segment.text]]:
            raise DataError(  # without the text, which is somebody's
                f"dialogue {example.dialogue_id}: a segment ends inside a line of example {number}; "
                "segments must end where prompts.pieces cuts, or training and scoring read different tokens"
            )
    unique = sorted({piece for text in texts for piece in cut[text]})
    known = dict(zip(unique, encode_pieces(tokenizer, unique), strict=True))
    tokens = {text: tuple(token for piece in cut[text] for token in known[piece]) for text in texts}
    rows = [_fit(example, tokens, max_length) for example in examples]
    if not any(row.has_loss for of_example in rows for row in of_example):
        raise DataError(f"dialogue {examples[0].dialogue_id}: no supervised token, so nothing to learn; drop it")
    return rows


def _fit(example: Example, tokens: dict[str, tuple[int, ...]], max_length: int) -> list[_Tokenised]:
    """Return the rows of an example: itself, or what fits of it."""
    segments = [_Tokens(tokens[segment.text], segment.supervised) for segment in example.segments]
    n_tokens = 1 + sum(len(segment.ids) for segment in segments)
    if n_tokens > max_length:
        turns = [segments[start:stop] for start, stop in pairwise([*_turn_starts(example), len(segments)])]
        if any(segment.supervised for turn in turns[:-1] for segment in turn):
            return list(_windows(example.dialogue_id, turns, n_tokens, max_length))
    return [_fit_one(example.dialogue_id, segments, n_tokens, max_length)]


def _fit_one(dialogue_id: str, segments: list[_Tokens], n_tokens: int, max_length: int) -> _Tokenised:
    """Drop an example's oldest leading segments until it fits; the last, which asks for the answer, stays."""
    n_leading = _n_leading(segments)
    lengths = [len(segment.ids) for segment in segments]
    n_dropped = _n_dropped(lengths[: max(n_leading - 1, 0)], n_tokens, max_length)
    n_left = n_tokens - sum(lengths[:n_dropped])
    if n_left > max_length:
        raise _too_long(dialogue_id, n_tokens, n_left, max_length)
    return _Tokenised(segments[n_dropped:], n_leading - n_dropped, n_dropped > 0)


def _windows(dialogue_id: str, turns: list[list[_Tokens]], n_tokens: int, max_length: int) -> Iterator[_Tokenised]:
    """Cut an example between turns into rows that learn each turn once; rows without a loss are left out."""
    lengths = [sum(len(segment.ids) for segment in turn) for turn in turns]
    first = 0
    while first < len(turns):
        room = max_length - 1 - lengths[first]
        start = first - _n_fitting(lengths[:first][::-1], min(max_length // 2, room))
        # A turn that is too long alone is taken alone: an error, unless it only has something to read.
        stop = max(start + _n_fitting(lengths[start:], max_length - 1), first + 1)
        learnt = [segment for turn in turns[first:stop] for segment in turn]
        if any(segment.supervised for segment in learnt):
            if room < 0:
                raise _too_long(dialogue_id, n_tokens, 1 + lengths[first], max_length)
            read = [segment._replace(supervised=False) for turn in turns[start:first] for segment in turn]
            yield _Tokenised([*read, *learnt], len(read) + _n_leading(learnt), True)
        first = stop


def _too_long(dialogue_id: str, n_tokens: int, n_left: int, max_length: int) -> DataError:
    return DataError(
        f"dialogue {dialogue_id}: an example of {n_tokens} tokens still has {n_left} without its "
        f"history, more than {max_length}; raise backbone.max_length or drop the dialogue"
    )


def _turn_starts(example: Example) -> list[int]:
    """Return where the turns of an example start; what stands before the first turn is one of its own."""
    texts = [segment.text for segment in example.segments]
    after_user = [False, *(text.startswith(USER_MARKER) for text in texts)]
    starts = [
        i
        for i, text in enumerate(texts)
        if text.startswith(USER_MARKER) or (text.startswith(STATE_MARKER) and not after_user[i])
    ]
    return starts if starts[:1] == [0] else [0, *starts]


def _n_leading(segments: Sequence[_Tokens]) -> int:
    """Return how many unsupervised segments come first."""
    return sum(1 for _ in takewhile(lambda segment: not segment.supervised, segments))


def _n_fitting(lengths: Sequence[int], room: int) -> int:
    """Return how many of the first texts, of these lengths, fit."""
    return sum(1 for _ in takewhile(lambda n_tokens: n_tokens <= room, accumulate(lengths)))


def _n_dropped(lengths: Sequence[int], n_tokens: int, max_length: int) -> int:
    """Return how many of the oldest segments, of these lengths, go until a text of so many tokens fits."""
    n_dropped = 0
    while n_tokens > max_length and n_dropped < len(lengths):
        n_tokens -= lengths[n_dropped]
        n_dropped += 1
    return n_dropped


def _n_shared(row: _Tokenised, trunk: _Tokenised) -> int:
    """Return how many leading unsupervised segments a row has in common with the trunk."""
    pairs = zip(row.segments[: row.n_leading], trunk.segments[: trunk.n_leading], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
