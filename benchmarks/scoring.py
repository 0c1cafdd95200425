"""How much faster all membership scores of many candidates are than scoring one candidate at a time.

    python benchmarks/scoring.py                   # the bundled backbone, about three minutes
    python benchmarks/scoring.py --model smollm2   # SmolLM2-135M as it is and real states, about five minutes

The candidates are 10,000 schema-guided draws of states from a bot: the bundled backbone, fine-tuned on twelve dialogues
until it repeats them now and then. They are scored as an audit does it (`hushbot.attacks.token_scores`): each text as a
whole, its suffix after `Belief State:`, and its suffix alone, from text to PPL, PPL-zlib, C-PPL and DC-PPL. Once with
their repeats, as an attack draws them, and once each distinct one only. The baselines do less, the three perplexities:

* one at a time: two passes a candidate, for the suffix after its prefix is part of the whole text;
* sorted, full logits: the same texts in padded batches of like length, logits at every position.

Both are measured on a part of the candidates drawn at random, and scaled. Time is CPU time on one thread, the best of
several interleaved rounds. The floor is the arithmetic alone: each distinct beginning's last token multiplied by the
weights, its attention to what comes before it, and the softmax over the vocabulary behind it, called bare in the same
run. No scorer of this model and these texts can be faster, and where a goal lies above SHARE of what the floor allows,
as it does where passes of one text cost little beside their arithmetic, that share is the goal.

Memory: what tensors hold at most beyond what they held before, at SmolLM2's vocabulary and width, and by how much the
resident memory of a fresh process grows at most (Linux only) for 1,000 and for 100,000 distinct candidates.

With SmolLM2-135M the candidates are the distinct final states of real dialogues, for an untrained model repeats little,
and memory is left out. So few states share little.

Prints one line per claim and exits with 1 if a goal is missed. The goals are set for MultiWOZ.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from dp_overhead import Ceiling, cpu_seconds, peak_extra_bytes
from packing import MULTIWOZ, Claim, draw, tell
from torch import Tensor

from hushbot.attacks.schema_sampling import StateGrammar
from hushbot.attacks.state_candidates import RANKINGS
from hushbot.attacks.token_scores import score
from hushbot.corpora import load
from hushbot.corpora.corpus import Corpus
from hushbot.prompts import STATE_MARKER, render_state
from hushbot.recipes.turn_level import TurnLevel
from hushbot.targets.guided import sample_guided
from hushbot.targets.local import LocalTarget
from hushbot.targets.products import multiply
from hushbot.targets.token_tree import n_shared
from hushbot.tokens import encode, start_token
from hushbot.training.backbone import SmolLM2Backbone, TinyBackbone
from hushbot.training.fit import TrainerSettings, fit
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit, Decoding, SlotValue

N_DRAWS = 10_000
N_NAIVE, N_SORTED = 300, 2000
N_REAL, N_REAL_NAIVE, N_REAL_SORTED = 300, 16, 48
"""The same for a larger model and real states."""
BATCH_TOKENS = 1024
"""Padded tokens of a batch of the sorted baseline; from 256 to 4,096 none was clearly faster."""
SMOLLM2_BATCH_TOKENS = 1024
"""Of one pass of either side where memory is compared."""
N_DIALOGUES, N_EPOCHS = 12, 20
GOALS = {"with repeats": (20.0, 5.0), "distinct": (8.0, 2.0), "real states": (2.0, 1.5)}
FEW, MANY = 1000, 100_000
SHARE = 0.7
GIVES_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Tells glibc's allocator to return what is freed, which it otherwise keeps in part, the more the longer it runs."""


def make_bot(corpus: Corpus) -> LocalTarget:
    """Fine-tune the bundled backbone."""
    loaded = TinyBackbone(max_length=1024).load()
    with TemporaryDirectory() as folder:
        fit(
            loaded.model,
            loaded.tokenizer,
            stack=RecipeStack((TurnLevel(),)),
            split=AuditSplit(tuple(draw(corpus.dialogues, N_DIALOGUES)), ()),
            schema=corpus.schema,
            settings=TrainerSettings(
                max_epochs=N_EPOCHS, batch_size=4, learning_rate=3e-3, accelerator="cpu", progress_bar=False
            ),
            max_length=1024,
            checkpoint_dir=Path(folder),
            seed=0,
        )
    return LocalTarget(loaded.model, loaded.tokenizer)


def draw_candidates(bot: LocalTarget, corpus: Corpus) -> list[str]:
    """Draw state texts, in the order of a shuffle: how they were sampled must not help whoever scores them."""
    drawn = sample_guided(
        bot, [STATE_MARKER], StateGrammar(schema=corpus.schema), n=N_DRAWS, decoding=Decoding(), seed=0
    )
    texts = [guided.text.rstrip("\n") for guided in drawn.texts[0] for _ in range(guided.count)]
    return random.Random(0).sample(texts, len(texts))


class Baseline:
    """Scores texts by the model's own forward pass; what the variants share."""

    def __init__(self, bot: LocalTarget) -> None:
        self.model: Any = bot.causal_lm.core
        self.tokenizer = bot.tokenizer
        self.n_prefix = len(encode(bot.tokenizer, STATE_MARKER))

    def read(self, text: str) -> list[int]:
        """Return the tokens of a text, start token first."""
        return [start_token(self.tokenizer), *encode(self.tokenizer, text)]

    def scores(self, whole: Tensor, alone: Tensor) -> tuple[float, float, float]:
        """Return the logarithms of PPL and C-PPL, and DC-PPL."""
        suffix = whole[self.n_prefix :]
        return -float(whole.mean()), -float(suffix.mean()), float(suffix.sum() / alone.sum())

    @torch.inference_mode()
    def one_at_a_time(self, suffixes: Sequence[str]) -> list[tuple[float, float, float]]:
        """Score each text in a pass of its own."""
        return [self.scores(self._alone(STATE_MARKER + suffix), self._alone(suffix)) for suffix in suffixes]

    def _alone(self, text: str) -> Tensor:
        ids = torch.tensor([self.read(text)])
        table = torch.log_softmax(self.model(input_ids=ids, use_cache=False).logits[0, :-1], dim=-1)
        return table.gather(1, ids[0, 1:, None])[:, 0]

    @torch.inference_mode()
    def sorted_batches(
        self, suffixes: Sequence[str], *, batch_tokens: int = BATCH_TOKENS
    ) -> list[tuple[float, float, float]]:
        """Score texts of like length in one pass."""
        texts = [self.read(text) for suffix in suffixes for text in (STATE_MARKER + suffix, suffix)]
        values = [torch.empty(0)] * len(texts)
        batch: list[int] = []
        for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
            if batch and len(texts[batch[0]]) * (len(batch) + 1) > batch_tokens:
                self._batch(texts, batch, values)
                batch = []
            batch.append(i)
        if batch:
            self._batch(texts, batch, values)
        return [self.scores(whole, alone) for whole, alone in zip(values[::2], values[1::2], strict=True)]

    def _batch(self, texts: Sequence[Sequence[int]], batch: Sequence[int], values: list[Tensor]) -> None:
        longest = len(texts[batch[0]])
        ids = torch.tensor([[*texts[i], *[0] * (longest - len(texts[i]))] for i in batch])
        mask = torch.arange(longest) < torch.tensor([[len(texts[i])] for i in batch])
        logits = self.model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits[:, :-1]
        found = torch.log_softmax(logits, dim=-1).gather(2, ids[:, 1:, None])[..., 0]
        for i, row in zip(batch, found, strict=True):
            values[i] = row[: len(texts[i]) - 1].clone()


def audited(bot: LocalTarget, suffixes: Sequence[str]) -> dict[str, Any]:
    """Score candidates as an audit does it."""
    return score(bot, [STATE_MARKER] * len(suffixes), suffixes, names=RANKINGS)


def difference(bot: LocalTarget, baseline: Baseline, suffixes: Sequence[str]) -> float:
    """Return by how much the scores of some candidates differ at most from those of one at a time."""
    ours = audited(bot, suffixes)
    columns = np.stack([np.log(ours["ppl"]), np.log(ours["c_ppl"]), ours["dc_ppl"]], axis=1)
    return float(np.abs(columns - np.array(baseline.one_at_a_time(suffixes))).max())


def speed_claims(
    bot: LocalTarget,
    name: str,
    candidates: Sequence[str],
    rounds: int,
    n_measured: tuple[int, int] = (N_NAIVE, N_SORTED),
) -> list[Claim]:
    baseline = Baseline(bot)
    few, some = (
        random.Random(seed).sample(candidates, min(n, len(candidates))) for seed, n in enumerate(n_measured, start=1)
    )
    variants: dict[str, tuple[Callable[[], None], int]] = {
        "one at a time": (lambda: _discard(baseline.one_at_a_time(few)), len(few)),
        "sorted, full logits": (lambda: _discard(baseline.sorted_batches(some)), len(some)),
        "hushbot": (lambda: _discard(audited(bot, candidates)), len(candidates)),
    }
    gap = difference(bot, baseline, few)  # also warms up
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for variant, (step, _) in variants.items():
            best[variant] = min(best[variant], cpu_seconds(step))
    rates = {variant: n / best[variant] for variant, (_, n) in variants.items()}
    n_tokens, n_nodes = count_tokens(baseline, candidates)
    print(
        f"{name}: {len(candidates)} candidates, {len(set(candidates))} distinct; {n_tokens} tokens, "
        f"{n_nodes} if each beginning is read once"
    )
    floor = len(candidates) / floor_seconds(bot, n_nodes, n_tokens / (2 * len(candidates)))
    for variant, rate in {**rates, "floor": floor}.items():
        print(f"  {variant:20s} {rate:8.1f} candidates per CPU second ({rate / rates['one at a time']:.1f}x)")
    return [
        *(
            Claim(
                f"scoring, {name}",
                variant,
                round(min(goal, SHARE * floor / rates[variant]), 2),
                rates["hushbot"] / rates[variant],
            )
            for variant, goal in zip(list(variants)[:2], GOALS[name], strict=True)
        ),
        Claim(f"scores, {name}, greatest difference", "one at a time", 1e-4, gap, is_ratio=False),
    ]


def count_tokens(baseline: Baseline, suffixes: Sequence[str]) -> tuple[int, int]:
    """Return how many tokens are to be read, the last of each text left out, and how many if no beginning twice."""
    texts = [baseline.read(text)[:-1] for suffix in suffixes for text in (STATE_MARKER + suffix, suffix)]
    ordered = sorted(texts)
    n_repeated = sum(n_shared(before, after) for before, after in pairwise(ordered))
    n_tokens = sum(map(len, texts))
    return n_tokens, n_tokens - n_repeated


def bare_seconds(bot: LocalTarget, n_tokens: int, *, n_rows: int = 2048) -> float:
    """Return what reading tokens costs in matrix products alone, so many at once, the output embedding included."""
    layers = [module for module in bot.causal_lm.core.modules() if isinstance(module, torch.nn.Linear)]
    best = float("inf")
    with torch.inference_mode():
        inputs = [torch.randn(n_rows, layer.in_features) for layer in layers]

        def step() -> None:
            for layer, rows in zip(layers, inputs, strict=True):
                multiply(layer, rows)

        for _ in range(5):
            best = min(best, cpu_seconds(step))
    return best * n_tokens / n_rows


def floor_seconds(bot: LocalTarget, n_tokens: int, length: float) -> float:
    """Return what reading tokens of texts costs that are so long on average: products, attention and softmax."""
    config, n_rows = bot.causal_lm.core.config, 32
    width = config.hidden_size // config.num_attention_heads
    rows = torch.randn(n_rows, config.num_attention_heads, round(length), width)
    table = torch.randn(128, bot.causal_lm.n_tokens)

    def attend() -> None:
        for _ in range(config.num_hidden_layers):
            F.scaled_dot_product_attention(rows, rows, rows, is_causal=True)

    with torch.inference_mode():
        attention = min(cpu_seconds(attend) for _ in range(20)) / (n_rows * round(length))
        softmax = min(cpu_seconds(lambda: _discard(torch.log_softmax(table, dim=-1))) for _ in range(20)) / len(table)
    return bare_seconds(bot, n_tokens) + n_tokens * (attention + softmax)


def vocabulary_claim(tokenizer: Any, suffixes: Sequence[str]) -> Claim:
    """Compare what tensors hold, with a model of SmolLM2's vocabulary and widths, two layers of random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    bot = LocalTarget(LlamaForCausalLM(config), tokenizer, batch_tokens=SMOLLM2_BATCH_TOKENS)
    baseline = Baseline(bot)
    audited(bot, suffixes[:2])  # what a model can do is measured once
    full = peak_extra_bytes(lambda: _discard(baseline.sorted_batches(suffixes, batch_tokens=SMOLLM2_BATCH_TOKENS)))
    ours = peak_extra_bytes(lambda: _discard(audited(bot, suffixes)))
    print(f"vocabulary of 49,152: {full / 2**20:.0f} MiB extra with full logits, {ours / 2**20:.0f} MiB with hushbot")
    return Ceiling("scoring, peak extra memory at vocabulary 49k", "sorted, full logits", 0.2, ours / full)


def _discard(_: object) -> None:
    """Turn a result into none, for whoever wants a step."""


def made_up_states(corpus: Corpus, n: int) -> list[str]:
    """Put together n distinct states, each of two triplets that stand in the corpus."""
    values: dict[tuple[str, str], set[SlotValue]] = {}
    for dialogue in corpus.dialogues:
        for triplet in dialogue.final_state or frozenset():
            values.setdefault((triplet.domain, triplet.slot), set()).add(triplet)
    choices = [sorted(found, key=lambda triplet: triplet.value) for _, found in sorted(values.items())]
    rng, found = random.Random(0), dict[str, None]()
    while len(found) < n:
        state = frozenset(rng.choice(slot) for slot in rng.sample(choices, 2))
        found[f" {render_state(state)}"] = None
    return list(found)


def growth(n: int) -> int | None:
    """Return by how many bytes this process grows at most while it scores `FEW` or `MANY` candidates, results aside.

    None where the system does not tell.
    """
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None

    def resident(key: str) -> int:
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(key))

    loaded = TinyBackbone(max_length=1024).load()
    bot = LocalTarget(loaded.model, loaded.tokenizer)
    # Neighbours in the alphabet share more and make larger trees, so a few are taken as they stand among many. It
    # matters which they are, and many are read a thousand at a time: each thousand of them is a few once.
    candidates = sorted(made_up_states(load_corpus(), MANY))
    sets = [candidates[start : start + n] for start in range(0, MANY, n)]
    prefixes = [STATE_MARKER] * n
    for _ in range(2):  # what is loaded and kept once is no part of either
        audited(bot, candidates[:FEW])
    before, most = resident("VmRSS:"), 0
    for chosen in sets:
        reset.write_text("5")
        results = score(bot, prefixes, chosen, names=RANKINGS)
        most = max(most, resident("VmHWM:") - before - sum(values.nbytes for values in results.values()))
    return most


def growth_claims() -> list[Claim]:
    """Compare how much two fresh processes grow: one that scored before keeps what it allocated."""
    peaks = {}
    for n in (FEW, MANY):
        command = [sys.executable, __file__, "--grow", str(n)]
        done = subprocess.run(command, env={**os.environ, **GIVES_BACK}, stdout=subprocess.PIPE, text=True, check=True)
        found = done.stdout.split()[-1]
        if found == "None":
            print("peak memory by number of candidates: not measured, this system does not tell it")
            return []
        peaks[n] = int(found)
        print(f"{n} candidates: the process grows by {peaks[n] / 2**20:.1f} MiB at most")
    return [Ceiling(f"scoring, peak memory of {MANY:,} candidates", f"{FEW:,}", 1.2, peaks[MANY] / peaks[FEW])]


def load_corpus() -> Corpus:
    return load("multiwoz21", path=MULTIWOZ, parts=["val"]) if MULTIWOZ.is_dir() else load("bookings")


def measure(rounds: int) -> list[Claim]:
    corpus = load_corpus()
    bot = make_bot(corpus)
    candidates = draw_candidates(bot, corpus)
    distinct = list(dict.fromkeys(candidates))
    print(f"tiny, fine-tuned on {N_DIALOGUES} dialogues of {corpus.name}, one thread")
    return [
        *speed_claims(bot, "with repeats", candidates, rounds),
        *speed_claims(bot, "distinct", distinct, rounds),
        vocabulary_claim(bot.tokenizer, distinct[:400]),
        *growth_claims(),
    ]


def measure_smollm2(rounds: int) -> list[Claim]:
    corpus = load_corpus()
    loaded = SmolLM2Backbone(lora=None).load()
    bot = LocalTarget(loaded.model, loaded.tokenizer)
    dialogues = draw(corpus.dialogues, len(corpus.dialogues))
    states = [f" {render_state(dialogue.final_state)}" for dialogue in dialogues if dialogue.final_state]
    print(f"SmolLM2-135M, final states of {corpus.name}, one thread")
    return speed_claims(bot, "real states", list(dict.fromkeys(states))[:N_REAL], rounds, (N_REAL_NAIVE, N_REAL_SORTED))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["tiny", "smollm2"], default="tiny")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 with smollm2")
    parser.add_argument("--grow", type=int, choices=[FEW, MANY], help="only tell the growth")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.grow:
        print(growth(arguments.grow))
        return 0
    if arguments.model == "smollm2":
        return tell(measure_smollm2(arguments.rounds or 1))
    return tell(measure(arguments.rounds or 3))


if __name__ == "__main__":
    sys.exit(main())
