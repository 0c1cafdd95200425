"""How much faster draws are when finished rows are refilled and a prompt is read once, against `generate`.

    python benchmarks/sampling.py                   # the bundled backbone, two or three minutes
    python benchmarks/sampling.py --bare            # the backbone as it is, without training it first
    python benchmarks/sampling.py --model smollm2   # SmolLM2-135M as it is, fewer draws, some minutes

Three kinds of draws that audits make: many states after `Belief State:` alone; many after the history of one real
dialogue, which is long and common to all draws; some after the beginning of each of many real states. The bundled
backbone is fine-tuned on twelve dialogues first, since how long draws are decides what refilling saves.

The baseline is transformers' `generate` in batches of as many rows, the common prompt in every row, prompts of like
length in one batch (padded on the left), a row ending at EOS or at a line break. It is given the cheapest way to end:
the line break's token, where hushbot looks for stop strings in the text. Both draw from the same law: greedy texts are
equal, and the first values of the draws are compared by a chi-squared test. (The exact law is enumerated in
tests/core/test_local.py.)

Time is CPU time on one thread, the best of several interleaved rounds. The floor is what the weights' matrix products
cost for the tokens that were drawn, as many rows at a time, and nothing else: no attention, no choice, no prompt.

Memory is what tensors hold at most, beyond what they held before, while one batch is drawn after the history. It is
left out with SmolLM2-135M, whose history in every row would take gigabytes.

Prints one line per claim and exits with 1 if a goal is missed. The goals are set for MultiWOZ.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from dp_overhead import Ceiling, peak_extra_bytes
from packing import Claim, draw, tell
from scipy.stats import chi2_contingency
from scoring import bare_seconds, load_corpus, make_bot
from torch import Tensor

from hushbot.corpora.corpus import Corpus
from hushbot.prompts import STATE_MARKER, history_lines, render_state, state_prompt
from hushbot.targets.guided import end_of_piece
from hushbot.targets.local import LocalTarget
from hushbot.tokens import encode, start_token
from hushbot.training.backbone import SmolLM2Backbone, TinyBackbone
from hushbot.types import Decoding

ROWS = 64
LONGEST = {"tiny": 128, "smollm2": 48}
"""Most new tokens of a draw."""
GOALS = {"tiny": 3.0, "smollm2": 2.0}
MEMORY_GOAL = 0.2
SIGNIFICANT = 1e-3


@dataclass(frozen=True)
class Task:
    """Prompts, each with as many draws."""

    name: str
    prompts: list[str]
    n: int

    @property
    def n_draws(self) -> int:
        """Return how many texts are drawn in all."""
        return len(self.prompts) * self.n


@dataclass(frozen=True)
class SameLaw(Claim):
    """A promise that a test finds no difference."""

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        return f"{self.name}  vs {self.baseline}  goal p >= {self.goal:g}  measured p = {self.measured:.3f}  {verdict}"


class Generate:
    """Draws by transformers' own `generate`."""

    def __init__(self, bot: LocalTarget, longest: int) -> None:
        self.bot = bot
        self.longest = longest
        self.start = start_token(bot.tokenizer)
        (self.line_break,) = encode(bot.tokenizer, "\n")
        self.n_steps = 0
        """How often a row was given one more token, the rows that had ended included."""

    def __call__(self, task: Task, *, is_greedy: bool = False) -> list[list[str]]:
        """Return the texts of each prompt."""
        self.n_steps = 0
        ids = [[self.start, *encode(self.bot.tokenizer, prompt)] for prompt in task.prompts]
        rows = [i for i in sorted(range(len(ids)), key=lambda i: len(ids[i])) for _ in range(task.n)]
        texts: list[list[str]] = [[] for _ in ids]
        for start in range(0, len(rows), ROWS):
            batch = rows[start : start + ROWS]
            for i, text in zip(batch, self._batch([ids[i] for i in batch], is_greedy), strict=True):
                texts[i].append(text)
        return texts

    @torch.inference_mode()
    def _batch(self, rows: Sequence[list[int]], is_greedy: bool) -> list[str]:
        width = max(map(len, rows))
        end = self.bot.tokenizer.eos_token_id
        drawn: Tensor = self.bot.causal_lm.outer.generate(
            torch.tensor([[end] * (width - len(row)) + row for row in rows]),
            attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
            do_sample=not is_greedy,
            temperature=None if is_greedy else 1.0,
            top_k=None if is_greedy else 0,
            top_p=None if is_greedy else 1.0,
            max_new_tokens=self.longest,
            pad_token_id=end,
            eos_token_id=[end, self.line_break],
        )[:, width:]
        self.n_steps += drawn.numel()
        texts: list[str] = self.bot.tokenizer.batch_decode(drawn, skip_special_tokens=True)
        return [text.partition("\n")[0] for text in texts]


def refilled(bot: LocalTarget, task: Task, longest: int, *, is_greedy: bool = False) -> list[list[str]]:
    """Draw as an attack does."""
    decoding = Decoding(temperature=0) if is_greedy else Decoding()
    return bot.sample(task.prompts, n=task.n, max_new_tokens=longest, decoding=decoding, seed=0)


def make_tasks(corpus: Corpus, n: int, n_beginnings: int) -> list[Task]:
    dialogues = draw(corpus.dialogues, min(200, len(corpus.dialogues)))
    ordered = sorted(dialogues, key=lambda dialogue: len(dialogue.turns))
    middle = ordered[len(ordered) // 2]
    states = [render_state(dialogue.final_state or frozenset()) for dialogue in dialogues]
    cuts = [(state, end_of_piece(state, ",)")) for state in states]
    beginnings = list(dict.fromkeys(f"{STATE_MARKER} {state[: end + 1]}" for state, end in cuts if end))
    return [
        Task("states after the marker", [STATE_MARKER], n),
        Task("states after one history", [state_prompt(history_lines(middle, len(middle.turns) - 1))], n),
        Task("ends of many states", beginnings[:n_beginnings], n // n_beginnings),
    ]


def same_law(ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]], name: str) -> Claim:
    """Compare how often each first value was drawn, rare ones together."""
    sides = [Counter(text.partition(",")[0] for row in side for text in row) for side in (ours, theirs)]
    together = sides[0] + sides[1]
    frequent = [first for first, count in together.items() if count >= 10]
    table = [[side[first] for first in frequent] for side in sides]
    n_rare = [side.total() - sum(row) for side, row in zip(sides, table, strict=True)]
    if sum(n_rare) >= 10:
        table = [[*row, rare] for row, rare in zip(table, n_rare, strict=True)]
    return SameLaw(f"{name}, same law", "generate", SIGNIFICANT, float(chi2_contingency(table).pvalue))


def claims_of(bot: LocalTarget, task: Task, arguments: argparse.Namespace) -> list[Claim]:
    generate = Generate(bot, LONGEST[arguments.model])
    found: dict[str, list[list[str]]] = {}
    variants: dict[str, Callable[[], list[list[str]]]] = {
        "generate": lambda: generate(task),
        "hushbot": lambda: refilled(bot, task, LONGEST[arguments.model]),
    }
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(arguments.rounds):
        for variant, step in variants.items():
            started = time.process_time()
            found[variant] = step()
            best[variant] = min(best[variant], time.process_time() - started)
    n_steps = sum(len(encode(bot.tokenizer, text)) + 1 for row in found["hushbot"] for text in row)
    n_read = sum(len(encode(bot.tokenizer, prompt)) + 1 for prompt in task.prompts)
    print(
        f"{task.name}: {task.n_draws} draws after {len(task.prompts)} prompts of {n_read} tokens; "
        f"tokens drawn: {n_steps}, by generate {generate.n_steps} with the rows that wait"
    )
    best["floor"] = bare_seconds(bot, n_steps, n_rows=min(ROWS, task.n_draws))
    for variant, seconds in best.items():
        print(f"  {variant:10s} {seconds:8.2f} CPU s, {task.n_draws / seconds:8.1f} draws per CPU second")
    return [
        Claim(task.name, "generate", GOALS[arguments.model], best["generate"] / best["hushbot"]),
        same_law(found["hushbot"], found["generate"], task.name),
    ]


def memory_claim(bot: LocalTarget, task: Task, longest: int) -> Claim:
    """Compare what tensors hold at most while one batch is drawn."""
    batch = replace(task, n=ROWS)
    generate = Generate(bot, longest)
    peaks = {
        "generate": peak_extra_bytes(lambda: _discard(generate(batch))),
        "hushbot": peak_extra_bytes(lambda: _discard(refilled(bot, batch, longest))),
    }
    for variant, n_bytes in peaks.items():
        print(f"  {variant:10s} {n_bytes / 1e6:8.1f} MB at most")
    return Ceiling(f"{task.name}, peak memory", "generate", MEMORY_GOAL, peaks["hushbot"] / peaks["generate"])


def _discard(texts: list[list[str]]) -> None:
    """Drop what a step gives back."""


def greedy_claim(bot: LocalTarget, prompts: Sequence[str], longest: int) -> Claim:
    """Count the prompts after which the best text is another one; also warms up."""
    task = Task("greedy", list(prompts), 1)
    pairs = zip(refilled(bot, task, longest, is_greedy=True), Generate(bot, longest)(task, is_greedy=True), strict=True)
    differ = sum(ours != theirs for ours, theirs in pairs) / len(prompts)
    return Claim("greedy texts, share that differs", "generate", 0.0, differ, is_ratio=False)


def load_bot(corpus: Corpus, model: str, *, is_bare: bool) -> LocalTarget:
    torch.manual_seed(0)
    if model == "tiny" and not is_bare:
        return make_bot(corpus)
    loaded: Any = (TinyBackbone(max_length=1024) if model == "tiny" else SmolLM2Backbone(lora=None)).load()
    return LocalTarget(loaded.model, loaded.tokenizer)


def measure(arguments: argparse.Namespace) -> list[Claim]:
    corpus = load_corpus()
    bot = load_bot(corpus, arguments.model, is_bare=arguments.bare)
    tasks = make_tasks(corpus, arguments.draws, arguments.beginnings)
    print(f"{arguments.model}: prompts of {corpus.name}, {ROWS} rows, one thread")
    greedy = greedy_claim(bot, [prompt for task in tasks for prompt in task.prompts], LONGEST[arguments.model])
    claims = [claim for task in tasks for claim in claims_of(bot, task, arguments)]
    if arguments.model == "tiny":
        claims.append(memory_claim(bot, tasks[1], LONGEST[arguments.model]))
    return [*claims, greedy]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["tiny", "smollm2"], default="tiny")
    parser.add_argument("--bare", action="store_true", help="draw from the backbone as it is")
    parser.add_argument("--draws", type=int, help="of each kind; default: 640, or 192 with smollm2")
    parser.add_argument("--beginnings", type=int, help="default: 40, or 12 with smollm2")
    parser.add_argument("--rounds", type=int, help="default: 2, or 1 with smollm2")
    arguments = parser.parse_args()
    is_tiny = arguments.model == "tiny"
    arguments.draws = arguments.draws or (640 if is_tiny else 192)
    arguments.beginnings = arguments.beginnings or (40 if is_tiny else 12)
    arguments.rounds = arguments.rounds or (2 if is_tiny else 1)
    torch.set_num_threads(1)
    return tell(measure(arguments))


if __name__ == "__main__":
    sys.exit(main())
