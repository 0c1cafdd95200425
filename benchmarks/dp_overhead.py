"""What a differentially private step costs over a non-private one, and over Opacus.

    python benchmarks/dp_overhead.py                   # an adapter on the bundled backbone, one or two minutes
    python benchmarks/dp_overhead.py --model smollm2   # an adapter on SmolLM2-135M, short dialogues, some minutes

One step on one logical batch of real dialogues, from packed dialogues to `p.grad`:

* non-private: one backward pass per dialogue, as training without a private recipe has it;
* loop, hooks: each dialogue's gradient clipped, summed and noised (`hushbot.training.gradients`);
* Opacus, whole batch: its per-sample gradients, one padded row per dialogue, the batch in one pass, as it is used;
* Opacus, same passes: the same in as many passes as hooks needs, rows sorted by length, so that it pads little.

Both Opacus variants train on packed dialogues and compute logits where a row of the pass has a loss, so they have every
advantage but the structured attention. Time is CPU time on one thread, the best of several interleaved rounds. Peak
extra memory is the most that tensors hold at once beyond what they held before the step (weights, packed dialogues,
the sum), from the allocations that torch's profiler records in a step of its own. That of Opacus on the whole batch
grows with the batch, that of the others does not: the ratio is for the batch size shown.

Prints one line per claim and exits with 1 if a goal is missed. The goals are set for MultiWOZ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from packing import Claim, load_dialogues, tell

from hushbot.recipes.turn_level import TurnLevel
from hushbot.training.backbone import LoadedBackbone, LoraSettings, SmolLM2Backbone, TinyBackbone
from hushbot.training.gradients import ClippedSum, GradientEngine, make_engine, noisy_gradient
from hushbot.training.packing import PackedDialogue, loss_sum, pack

MAX_LENGTH = 2048
N_DRAWN = 24
WHOLE_BATCH = 10**9
MAX_GRAD_NORM = 0.1
"""Small, so that every dialogue is clipped."""


@dataclass(frozen=True)
class Ceiling(Claim):
    """A promise that a ratio stays below something."""

    @property
    def is_met(self) -> bool:
        """Return whether the goal was kept."""
        return self.measured <= self.goal

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        return f"{self.name}  vs {self.baseline}  goal <= {self.goal:g}x  measured {self.measured:.2f}x  {verdict}"


class Step:
    """One private step with one engine."""

    def __init__(self, engine: GradientEngine, packs: list[PackedDialogue]) -> None:
        self.engine = engine
        self.packs = packs
        self.clipped = ClippedSum(engine.parameters, MAX_GRAD_NORM)
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self) -> None:
        """Take it, up to the optimiser."""
        self.clipped.reset()
        self.engine.accumulate(self.packs, self.clipped)
        noisy_gradient(
            self.clipped, noise_multiplier=1.0, expected_batch_size=len(self.packs), generator=self.generator
        )


def load_backbone(name: str) -> LoadedBackbone:
    torch.manual_seed(0)
    kind = SmolLM2Backbone if name == "smollm2" else TinyBackbone
    loaded = kind(lora=LoraSettings(), max_length=MAX_LENGTH).load()
    # Fresh adapters have zero gradients in one half; random ones make the gradients comparable.
    for parameter_name, parameter in loaded.model.named_parameters():
        if "lora_B" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.02)
    return loaded


def load_packs(arguments: argparse.Namespace, tokenizer: Any) -> tuple[str, list[PackedDialogue]]:
    """Pack dialogues as they come, for SmolLM2 the shortest of those drawn."""
    name, dialogues = load_dialogues(N_DRAWN)
    packs = [pack(TurnLevel().examples(dialogue), tokenizer, max_length=MAX_LENGTH) for dialogue in dialogues]
    if arguments.model == "smollm2":
        packs.sort(key=lambda packed: packed.n_tokens)
    return name, packs[: arguments.dialogues]


def non_private_step(model: Any, packs: list[PackedDialogue]) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        for packed in packs:
            torch.autograd.backward(loss_sum(model, packed) / packed.n_supervised / len(packs))

    return step


def peak_extra_bytes(step: Callable[[], None]) -> int:
    """Return the most bytes that tensors held at once during a step, beyond those before it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        with open(file.name, encoding="utf-8") as trace:
            events = json.load(trace)["traceEvents"]
    held = peak = 0
    for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["args"]["Ev Idx"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def cpu_seconds(step: Callable[[], None]) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


def difference(some: Step, other: Step) -> float:
    """Compare the clipped sums that two engines left behind, before noise."""
    a, b = (torch.cat([total.flatten() for total in step.clipped.sums]) for step in (some, other))
    return float((a - b).norm() / b.norm())


def measure(arguments: argparse.Namespace) -> list[Claim]:
    backbone = load_backbone(arguments.model)
    model = backbone.model
    name, packs = load_packs(arguments, backbone.tokenizer)
    n_tokens = sum(packed.n_tokens for packed in packs)
    print(f"{arguments.model} with an adapter: {len(packs)} dialogues of {name}, {n_tokens} tokens, one thread")
    chunk = arguments.chunk_tokens
    private = {
        "loop": Step(make_engine("loop", model, chunk_tokens=chunk), packs),
        "hooks": Step(make_engine("hooks", model, chunk_tokens=chunk), packs),
        "Opacus, whole batch": Step(make_engine("opacus", model, chunk_tokens=WHOLE_BATCH), packs),
        "Opacus, same passes": Step(make_engine("opacus", model, chunk_tokens=chunk), packs),
    }
    steps: dict[str, Callable[[], None]] = {"non-private": non_private_step(model, packs), **private}
    peaks: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for variant, step in steps.items():  # also warms up
        model.zero_grad()
        peaks[variant] = peak_extra_bytes(step)
    for _ in range(arguments.rounds):
        for variant, step in steps.items():
            model.zero_grad()
            seconds[variant] = min(seconds.get(variant, float("inf")), cpu_seconds(step))
    for variant in steps:
        time_ratio, peak_ratio = seconds[variant] / seconds["non-private"], peaks[variant] / peaks["non-private"]
        print(
            f"  {variant:20s} {seconds[variant]:8.2f} CPU s ({time_ratio:.2f})  "
            f"{peaks[variant] / 2**20:8.1f} MiB extra ({peak_ratio:.2f})"
        )
    fastest = min("Opacus, whole batch", "Opacus, same passes", key=lambda variant: seconds[variant])
    whole = "Opacus, whole batch"
    return [
        Ceiling("DP-SGD step, time", "non-private", 1.15, seconds["hooks"] / seconds["non-private"]),
        Ceiling("DP-SGD step, time", fastest, 1.0, seconds["hooks"] / seconds[fastest]),
        Ceiling("DP-SGD step, peak extra memory", whole, 0.5, peaks["hooks"] / peaks[whole]),
        Ceiling("DP-SGD step one by one, time", "non-private", 1.15, seconds["loop"] / seconds["non-private"]),
        Ceiling("DP-SGD step one by one, peak extra memory", "non-private", 1.1, peaks["loop"] / peaks["non-private"]),
        Ceiling("DP-SGD step one by one, peak extra memory", whole, 0.5, peaks["loop"] / peaks[whole]),
        *(
            Claim(f"clipped sum of {a}, relative difference", b, 1e-5, difference(private[a], private[b]), False)
            for a, b in (("hooks", "loop"), ("hooks", whole))
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["tiny", "smollm2"], default="tiny")
    parser.add_argument("--dialogues", type=int, help="default: 8, or 3 with smollm2")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 with smollm2")
    parser.add_argument("--chunk-tokens", type=int, help="default: 4096, or 512 with smollm2")
    arguments = parser.parse_args()
    is_tiny = arguments.model == "tiny"
    arguments.dialogues = arguments.dialogues or (8 if is_tiny else 3)
    arguments.rounds = arguments.rounds or (3 if is_tiny else 1)
    arguments.chunk_tokens = arguments.chunk_tokens or (4096 if is_tiny else 512)
    torch.set_num_threads(1)
    return tell(measure(arguments))


if __name__ == "__main__":
    sys.exit(main())
