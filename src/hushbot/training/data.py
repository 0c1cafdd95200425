"""Dialogues in, logical batches out: what one optimiser step sees, and in which order.

Guarantees:

* One Lightning batch is one logical batch: a list of packed dialogues. A dialogue is never cut between
  batches.
* The order of an epoch is a pure function of (seed, epoch), the same on every machine; an epoch visits each
  member exactly once. A killed run continues at the batch after the last one its checkpoint knows.
* Each epoch trains on the recipe stack's rewrite for that epoch; only what it changed is packed anew. A dialogue
  whose rewrite does not fit the length limit is trained on as it is.
* A dialogue that contributes no supervised token is an error that names it: it would be called a member
  without ever having been trained on (huggingface/trl #6668 shows a run that "succeeds" that way).
* Non-members and controls are never handed in, so they cannot be looked at.
* Where several processes train together, each has its part of every logical batch, perhaps none of a small one; the
  parts of one batch are disjoint and together the batch.

The calibration part is never rewritten: it measures the loss on the dialogues as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Protocol

import pytorch_lightning as pl

from hushbot.errors import DataError
from hushbot.schema import Schema
from hushbot.training.packing import PackedDialogue, pack
from hushbot.training.share import ALONE, Share
from hushbot.training.stack import RecipeStack
from hushbot.types import Dialogue


class Batches(Protocol):
    """Which dialogues form the logical batches of an epoch."""

    @property
    def n_steps(self) -> int:
        """Return how many logical batches an epoch has."""
        ...

    def epoch(self, epoch: int) -> Sequence[Sequence[int]]:
        """Return the positions of the dialogues in each batch of one epoch."""
        ...


@dataclass(frozen=True, kw_only=True)
class ShuffledBatches:
    """Each dialogue once an epoch, in an order that depends on (seed, epoch) only."""

    n_dialogues: int
    batch_size: int
    """Dialogues per logical batch; the last batch of an epoch may hold fewer."""
    seed: int

    @property
    def n_steps(self) -> int:
        """Return how many logical batches an epoch has."""
        return -(-self.n_dialogues // self.batch_size)

    def epoch(self, epoch: int) -> list[list[int]]:
        """Return the positions of the dialogues in each batch of one epoch."""
        # Sorting by a hash is a uniform permutation that no library version can change.
        order = sorted(
            range(self.n_dialogues),
            key=lambda i: hashlib.sha256(f"{self.seed}/{epoch}/{i}".encode()).digest(),
        )
        return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]


@dataclass(frozen=True)
class Packer:
    """How a dialogue becomes tensors."""

    stack: RecipeStack
    tokenizer: Any
    max_length: int
    """Longest example in tokens."""

    def pack(self, dialogues: Sequence[Dialogue], originals: Sequence[Dialogue] | None = None) -> list[PackedDialogue]:
        """Return each dialogue packed.

        Args:
            dialogues: What to pack, as a recipe may have rewritten it.
            originals: The same dialogues as they are: packed instead of a rewrite that has become too long, so
                that a run does not stop in the middle because of what one epoch drew.

        Raises:
            DataError: Dialogues contribute no supervised token or do not fit; all of them are named.
        """
        packs, problems = [], []
        for dialogue, original in zip(dialogues, originals or dialogues, strict=True):
            try:
                packs.append(self._pack_either(dialogue, original))
            except DataError as error:
                problems.append(str(error))
        if problems:
            raise DataError("\n".join(problems))
        return packs

    def _pack_either(self, dialogue: Dialogue, original: Dialogue) -> PackedDialogue:
        try:
            return self._pack_one(dialogue)
        except DataError:
            if original is dialogue:
                raise
        return self._pack_one(original)

    def _pack_one(self, dialogue: Dialogue) -> PackedDialogue:
        examples = self.stack.examples(dialogue)
        packed = pack(examples, self.tokenizer, max_length=self.max_length) if examples else None
        if packed is None or packed.n_supervised == 0:
            raise DataError(
                f"dialogue {dialogue.id!r} contributes no supervised token, so it would be a member in name "
                "only; leave out dialogues without a known state"
            )
        return packed


class DialogueLoader:
    """An endless supply of epochs that can be left and re-entered at any batch."""

    def __init__(self, n_batches: int, epoch_batches: Callable[[int], Sequence[list[PackedDialogue]]]) -> None:
        self._n_batches = n_batches
        self._epoch_batches = epoch_batches
        self._epoch = 0
        self._position = 0
        self._resumed: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self._n_batches

    @property
    def sampler(self) -> DialogueLoader:
        """Return the object that Lightning tells the epoch to."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Take in which epoch comes next; Lightning calls this before each."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[PackedDialogue]]:
        # A generator: nothing below runs before the first batch is asked for, when the epoch is known.
        epoch, start = self._epoch, 0
        if self._resumed is not None and self._resumed[0] == epoch:
            start = self._resumed[1]
        self._resumed = None
        batches = self._epoch_batches(epoch)
        for self._position in range(start + 1, len(batches) + 1):
            yield batches[self._position - 1]

    def state_dict(self) -> dict[str, int]:
        """Return where the loader stands: the epoch, and how many of its batches were handed out."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the batch that was handed out last."""
        self._epoch, self._position = state["epoch"], state["position"]
        self._resumed = (self._epoch, self._position)


class CalibrationLoader:
    """The same batches every time; a class of its own because Lightning takes a list apart."""

    def __init__(self, packs: Sequence[PackedDialogue], batch_size: int, share: Share = ALONE) -> None:
        # As many in each process, also where some have no dialogue: Lightning wants loaders of one length.
        self._batches = [share.of(packs[i : i + batch_size]) for i in range(0, len(packs), batch_size)]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[PackedDialogue]]:
        return iter(self._batches)


class DialogueData(pl.LightningDataModule):
    """The members to train on and the calibration part to stop by.

    Args:
        members: Dialogues to train on.
        calibration: Held-out dialogues for the calibration loss; may be empty.
        schema: Handed to recipes that rewrite.
        packer: The recipe stack with tokenizer and length limit.
        batch_size: Dialogues per logical batch.
        seed: Decides order and rewriting.

    Raises:
        DataError: There is no member, two have one id, or dialogues of a part cannot be trained on; all of those are
            named.
    """

    def __init__(
        self,
        *,
        members: Sequence[Dialogue],
        calibration: Sequence[Dialogue],
        schema: Schema,
        packer: Packer,
        batch_size: int,
        seed: int,
    ) -> None:
        super().__init__()
        if not members:
            raise DataError("there is no member dialogue to train on; set split.members to at least 1")
        if repeated := sorted(name for name, n in Counter(dialogue.id for dialogue in members).items() if n > 1):
            raise DataError(
                f"{len(repeated)} ids stand for several members, the first is {repeated[0]!r}; give "
                "dialogues distinct ids"
            )
        self.members = tuple(members)
        self.batch_size = batch_size
        self.seed = seed
        self.share = ALONE
        """Which part of each batch this process has; whoever joins others puts its own here."""
        self.batches: Batches = ShuffledBatches(
            n_dialogues=len(self.members), batch_size=min(batch_size, len(self.members)), seed=seed
        )
        """What an epoch consists of; a private recipe puts its own sampling here."""
        self._schema = schema
        self._packer = packer
        self._packed: dict[str, tuple[Dialogue, PackedDialogue]] = {}
        self._calibration = packer.pack(calibration)
        first = self.packs(0)
        self.n_supervised = sum(pack.n_supervised for pack in first)
        """Supervised tokens in one pass over the members, as the first epoch has them."""
        self.fingerprint = _fingerprint(self._packer, [*first, *self._calibration])
        """Changes with the data, the tokenizer, the recipes' settings that have an effect, and the length limit."""

    @property
    def has_calibration(self) -> bool:
        """Return whether there is anything to stop by."""
        return bool(self._calibration)

    def packs(self, epoch: int) -> list[PackedDialogue]:
        """Return the members as an epoch trains on them; what the rewrite left alone is not packed again."""
        rewritten = self._packer.stack.rewrite(self.members, self._schema, epoch=epoch, seed=self.seed)
        pairs = zip(rewritten, self.members, strict=True)
        changed = [(dialogue, original) for dialogue, original in pairs if not self._is_packed(dialogue)]
        packs = self._packer.pack([new for new, _ in changed], [original for _, original in changed])
        for (dialogue, _), packed in zip(changed, packs, strict=True):
            self._packed[dialogue.id] = (dialogue, packed)
        return [self._packed[dialogue.id][1] for dialogue in rewritten]

    def train_dataloader(self) -> DialogueLoader:
        """Return the logical batches of the members."""
        return DialogueLoader(self.batches.n_steps, self._member_batches)

    def val_dataloader(self) -> CalibrationLoader | list[CalibrationLoader]:
        """Return the calibration part in the order in which it was given, or no loader."""
        return CalibrationLoader(self._calibration, self.batch_size, self.share) if self._calibration else []

    def _member_batches(self, epoch: int) -> list[list[PackedDialogue]]:
        packs = self.packs(epoch)
        batches = self.batches.epoch(epoch)
        self.share.check_same("the batches of an epoch", batches)
        return [self.share.of([packs[i] for i in batch]) for batch in batches]

    def _is_packed(self, dialogue: Dialogue) -> bool:
        known = self._packed.get(dialogue.id)
        return known is not None and (known[0] is dialogue or known[0] == dialogue)


def _fingerprint(packer: Packer, packs: Sequence[PackedDialogue]) -> str:
    digest = hashlib.sha256()
    for name, recipe in zip(packer.stack.names, packer.stack.recipes, strict=True):
        settings: dict[str, Any] = asdict(recipe) if is_dataclass(recipe) else {}
        settings = {key: value for key, value in settings.items() if key not in recipe.no_effect}
        digest.update(f"{name} {json.dumps(settings, sort_keys=True, default=_plain)}\n".encode())
    digest.update(f"{packer.max_length}\n".encode())
    for packed in packs:
        digest.update(packed.dialogue_id.encode())
        for tensor in (packed.input_ids, packed.position_ids, packed.targets):
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _plain(value: object) -> object:
    # The same settings must give the same text in every process: sets have no order, objects move.
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else type(value).__qualname__
