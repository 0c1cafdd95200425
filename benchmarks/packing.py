"""How much faster a turn-level epoch is when each dialogue's shared history is processed once.

    python benchmarks/packing.py                   # a tiny Llama of the bundled backbone's size, a minute
    python benchmarks/packing.py --model smollm2   # SmolLM2-135M with LoRA, fewer dialogues, ten minutes

Measures the CPU time of forward and backward passes over the same dialogues with the same loss (the sum over
all supervised tokens) in one process on one thread, the best of several interleaved rounds; tokenising is
left out everywhere. The baselines are one row per turn, in batches padded to their longest row:

* random order, logits at every position: what a plain training loop does;
* sorted by length, logits at every position;
* sorted by length, logits at supervised positions only: the strongest without sharing.

Prints one line per claim and exits with 1 if a goal is missed. The goals are set for MultiWOZ. What
sharing saves grows with the number of turns (7.4 a dialogue there, 4.0 in the bundled corpus), so that goals
can be missed where the MultiWOZ folder is absent and the bundled dialogues have to do.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hushbot.corpora import load
from hushbot.recipes.turn_level import TurnLevel
from hushbot.training.backbone import SmolLM2Backbone
from hushbot.training.packing import Row, loss_sum, pack, unpack_rows
from hushbot.training.pretrain_tiny import make_model, train_tokenizer
from hushbot.types import Dialogue, Example

MULTIWOZ = Path(__file__).resolve().parents[2] / "shared" / "data" / "multiwoz21"
MAX_LENGTH = 4096
IGNORED = -100
GOALS = {"tiny": (4.0, 2.0, 1.5), "smollm2": (3.0, 2.0, 1.5)}


@dataclass(frozen=True)
class Claim:
    """One promise and what came of it."""

    name: str
    baseline: str
    goal: float
    measured: float
    is_ratio: bool = True

    @property
    def is_met(self) -> bool:
        """Return whether the goal was reached."""
        return self.measured >= self.goal if self.is_ratio else self.measured <= self.goal

    def __str__(self) -> str:
        goal = f">= {self.goal:g}x" if self.is_ratio else f"<= {self.goal:.0e}"
        measured = f"{self.measured:.2f}x" if self.is_ratio else f"{self.measured:.1e}"
        verdict = "met" if self.is_met else "MISSED"
        return f"{self.name}  vs {self.baseline}  goal {goal}  measured {measured}  {verdict}"


@dataclass(frozen=True)
class Batch:
    """Ordinary rows, padded on the right."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor


def load_dialogues(n_dialogues: int) -> tuple[str, list[Dialogue]]:
    """Draw dialogues from MultiWOZ where it is present, else from the bundled corpus."""
    corpus = load("multiwoz21", path=MULTIWOZ, parts=["val"]) if MULTIWOZ.is_dir() else load("bookings")
    return corpus.name, draw(corpus.dialogues, n_dialogues)


def draw(dialogues: Sequence[Dialogue], n_dialogues: int) -> list[Dialogue]:
    """Draw dialogues without replacement, the same ones in every run."""
    return random.Random(0).sample(sorted(dialogues, key=lambda dialogue: dialogue.id), n_dialogues)


def load_backbone(name: str, examples: Sequence[Example]) -> tuple[Any, Any]:
    """Return model and tokenizer; weights do not change the speed, so the tiny ones are random."""
    torch.manual_seed(0)
    if name == "smollm2":
        loaded = SmolLM2Backbone(max_length=MAX_LENGTH).load()
        # Fresh adapters have zero gradients in one half; random ones make the gradients comparable.
        for parameter_name, parameter in loaded.model.named_parameters():
            if "lora_B" in parameter_name:
                torch.nn.init.normal_(parameter, std=0.02)
        return loaded.model.train(), loaded.tokenizer
    tokenizer = train_tokenizer([example.text for example in examples])
    return make_model(0, len(tokenizer)).train(), tokenizer


def collate(rows: Sequence[Row], batch_size: int) -> list[Batch]:
    """Pad consecutive rows to a common length."""
    batches = []
    for start in range(0, len(rows), batch_size):
        chunk = rows[start : start + batch_size]
        shape = (len(chunk), max(len(row.input_ids) for row in chunk))
        ids = torch.zeros(shape, dtype=torch.long)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
        for i, row in enumerate(chunk):
            tokens, supervised = torch.tensor(row.input_ids), torch.tensor(row.supervised)
            ids[i, : len(tokens)] = tokens
            mask[i, : len(tokens)] = 1
            labels[i, : len(tokens)] = tokens.where(supervised, IGNORED)
        batches.append(Batch(ids, mask, labels))
    return batches


def full_loss(model: Any, batch: Batch) -> Tensor:
    """Return the summed loss with logits at every position."""
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
    targets = batch.labels[:, 1:].flatten()
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), targets, ignore_index=IGNORED, reduction="sum")


def supervised_loss(model: Any, batch: Batch) -> Tensor:
    """Return the summed loss with logits at supervised positions only."""
    causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
    body, head = causal_lm.base_model, causal_lm.get_output_embeddings()
    hidden = body(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
    targets = batch.labels[:, 1:]
    kept = targets != IGNORED
    logits = head(hidden.last_hidden_state[:, :-1][kept])
    return F.cross_entropy(logits.float(), targets[kept], reduction="sum")


def epoch(model: Any, items: Sequence[Any], loss: Callable[[Any, Any], Tensor]) -> float:
    """Add up the gradient over all items; return the CPU seconds it took."""
    model.zero_grad()
    started = time.process_time()
    for item in items:
        torch.autograd.backward(loss(model, item))
    return time.process_time() - started


def gradient(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def measure(arguments: argparse.Namespace) -> list[Claim]:
    name, dialogues = load_dialogues(arguments.dialogues)
    grouped = [TurnLevel().examples(dialogue) for dialogue in dialogues]
    examples = [example for group in grouped for example in group]
    model, tokenizer = load_backbone(arguments.model, examples)
    plain = copy.deepcopy(model)  # packed training switches the attention implementation of its model
    rows = [row for group in grouped for row in unpack_rows(group, tokenizer, max_length=MAX_LENGTH)]
    shuffled = collate(random.Random(1).sample(rows, len(rows)), arguments.batch_size)
    ordered = collate(sorted(rows, key=lambda row: len(row.input_ids)), arguments.batch_size)
    packed = [pack(group, tokenizer, max_length=MAX_LENGTH) for group in grouped]
    n_packed = sum(dialogue.n_tokens for dialogue in packed)
    print(f"{arguments.model}: {len(dialogues)} dialogues of {name}, {len(rows)} turns, one thread")
    variants: dict[str, tuple[Any, Sequence[Any], Callable[[Any, Any], Tensor], int]] = {
        "random order, full logits": (plain, shuffled, full_loss, sum(b.input_ids.numel() for b in shuffled)),
        "sorted, full logits": (plain, ordered, full_loss, sum(b.input_ids.numel() for b in ordered)),
        "sorted, supervised logits": (
            plain,
            ordered,
            supervised_loss,
            sum(b.input_ids.numel() for b in ordered),
        ),
        "shared prefix": (model, packed, loss_sum, n_packed),
    }
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for trained, items, loss, _ in variants.values():
        epoch(trained, items[:1], loss)  # the first call of a process pays for set-up
    for _ in range(arguments.rounds):
        for variant, (trained, items, loss, _) in variants.items():
            seconds[variant].append(epoch(trained, items, loss))
    best = {variant: min(times) for variant, times in seconds.items()}
    for variant, (*_, n_tokens) in variants.items():
        print(f"  {variant:26s} {n_tokens:8d} tokens ({n_tokens / n_packed:.2f})  {best[variant]:8.2f} CPU s")
    # The last epochs left the gradients of the strongest baseline in `plain` and the packed ones in `model`.
    difference = float((gradient(model) - gradient(plain)).norm() / gradient(plain).norm())
    return [
        *(
            Claim("shared-prefix training", variant, goal, best[variant] / best["shared prefix"])
            for variant, goal in zip(list(variants)[:3], GOALS[arguments.model], strict=True)
        ),
        Claim("shared-prefix gradient, relative difference", "turn-level rows", 1e-5, difference, is_ratio=False),
    ]


def tell(claims: Sequence[Claim]) -> int:
    """Print each claim and how many goals are met; return the exit code."""
    for claim in claims:
        print(claim)
    n_met = sum(claim.is_met for claim in claims)
    print(f"{n_met} of {len(claims)} goals met")
    return 0 if n_met == len(claims) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["tiny", "smollm2"], default="tiny")
    parser.add_argument("--dialogues", type=int, help="default: 24, or 3 with smollm2")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 with smollm2")
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    is_tiny = arguments.model == "tiny"
    arguments.dialogues = arguments.dialogues or (24 if is_tiny else 3)
    arguments.rounds = arguments.rounds or (3 if is_tiny else 1)
    torch.set_num_threads(1)
    return tell(measure(arguments))


if __name__ == "__main__":
    sys.exit(main())
