"""What dialogues, tokens and weights cost here, so that the cost of more of them can be worked out.

    python benchmarks/scale_rates.py                          # everything, some fifteen minutes on one core
    python benchmarks/scale_rates.py tokens growth            # some of: tokens rates memory host growth
    python benchmarks/scale_rates.py growth --sizes 1000 2000 # smaller

Prints tables and claims nothing; `docs/scaling.md` works out from them what Llama-2-7B and a million dialogues need.

* `tokens`: tokens of dialogues as they are trained on, packed and as one row per turn.
* `rates`: floating-point operations of training, sampling and scoring by the usual count (two for each weight of a
  matrix and each token, and attention), per CPU second, beside what a bare matrix product reaches in the same process.
* `memory`: the most bytes that tensors hold beyond the weights and their gradients, from the allocations in torch's
  profiler trace. Llamas of a quarter of Llama-2-7B's width, with random weights and one or three layers, tell what one
  more layer costs.
* `host`: resident memory of a fresh process (Linux only) that reads, splits, packs and indexes a corpus.
* `growth`: CPU time of the same at several sizes; from size to size, a cost of c n^e has the exponent e.

Time is CPU time on one thread. `host` and `growth` use copies of the bundled corpus in which every copy has names,
places and numbers of its own, as long as the true ones; `tokens` and `host` also MultiWOZ 2.1 where it is beside the
repository, and `rates` and `memory` its dialogues then.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from dp_overhead import Step, cpu_seconds, peak_extra_bytes
from packing import MULTIWOZ, draw
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from hushbot.attacks.state_sides import take_sides
from hushbot.corpora import Corpus, SplitSettings, load, make_split
from hushbot.corpora.bookings_words import PRIVATE, PUBLIC
from hushbot.corpora.groups import group_related
from hushbot.corpora.near_duplicates import find_near_duplicates
from hushbot.corpora.split import data_sha256
from hushbot.discretion import Veil
from hushbot.errors import ConfigError
from hushbot.prompts import STATE_MARKER, render_state
from hushbot.recipes.dialogue_level import DialogueLevel
from hushbot.recipes.turn_level import TurnLevel
from hushbot.targets.local import LocalTarget
from hushbot.tokens import encode
from hushbot.training.backbone import LoadedBackbone, LoraSettings, SmolLM2Backbone, TinyBackbone
from hushbot.training.data import ShuffledBatches
from hushbot.training.gradients import make_engine
from hushbot.training.packing import PackedDialogue, loss_sum, pack, unpack_rows
from hushbot.types import Decoding, Dialogue

MAX_LENGTH = 2048
SIZES = (10_000, 20_000, 40_000)
HOST_SIZES = (1000, 8000)
FILE_SIZE = 128
"""Dialogues per file, as in SGD."""
GEMM = 1024


# --- corpora ---


def corpora() -> Iterator[Corpus]:
    """Yield MultiWOZ where it is present, and the bundled corpus."""
    if MULTIWOZ.is_dir():
        yield load("multiwoz21", path=MULTIWOZ)
    yield load("bookings")


def write_copies(folder: Path, n: int) -> None:
    """Write so many dialogues in the schema-guided form: copies of the bundled ones, each copy with its own values."""
    assets = Path(str(files("hushbot") / "assets" / "bookings"))
    lines = [
        json.dumps(raw)
        for half in ("public", "private")
        for raw in json.loads((assets / half / "dialogues_001.json").read_text(encoding="utf-8"))
    ]
    words = {
        word
        for pool in (PUBLIC, PRIVATE)
        for field in pool.__slots__
        if isinstance(values := getattr(pool, field), tuple)
        for value in values
        for word in re.findall(r"[a-z]{3,}", value)
    }
    pattern = re.compile(rf"\b(?:{'|'.join(sorted(words, key=len, reverse=True))})\b|(?<=\d)\d{{5,}}\b")
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "schema.json").write_text((assets / "schema.json").read_text(encoding="utf-8"))
    made = [_renewed(lines[i % len(lines)], i // len(lines), pattern) for i in range(n)]
    for number, start in enumerate(range(0, n, FILE_SIZE), 1):
        text = "[" + ",\n".join(made[start : start + FILE_SIZE]) + "]"
        (folder / "train" / f"dialogues_{number:05d}.json").write_text(text, encoding="utf-8")


def _renewed(line: str, copy: int, pattern: re.Pattern[str]) -> str:
    """Return a dialogue with another id and other values, each as long as it was, so that spans stay right."""
    if copy == 0:
        return line
    name = f'"dialogue_id": "copy_{copy:05d}_'

    def other(found: re.Match[str]) -> str:
        rng = random.Random(f"{copy}/{found[0]}")
        letters = "0123456789" if found[0].isdigit() else "abcdefghijklmnopqrstuvwxyz"
        return "".join(rng.choices(letters, k=len(found[0])))

    return pattern.sub(other, line).replace('"dialogue_id": "', name, 1)


# --- tokens ---


def tokens() -> None:
    """Print how many tokens dialogues have."""
    for name in ("smollm2", "tiny"):
        backbone = load_backbone(name, lora=False)
        if backbone is None:
            continue
        for corpus in corpora():
            dialogues = [dialogue for dialogue in corpus.dialogues if any(turn.state for turn in dialogue.turns)]
            started = time.process_time()
            packs = packed(dialogues, backbone)
            spent = time.process_time() - started
            rows = [
                len(row.input_ids)
                for dialogue in dialogues
                for row in unpack_rows(TurnLevel().examples(dialogue), backbone.tokenizer, max_length=MAX_LENGTH)
            ]
            runs = [
                pack(DialogueLevel().examples(dialogue), backbone.tokenizer, max_length=MAX_LENGTH).n_tokens
                for dialogue in dialogues
            ]
            lengths, n = sorted(one.n_tokens for one in packs), len(dialogues)
            print(
                f"{corpus.name}, tokenizer of {name}: {n} dialogues with a state, "
                f"{sum(len(dialogue.turns) for dialogue in dialogues) / n:.2f} turns each\n"
                f"  tokens per dialogue: packed {mean(lengths):.0f} (99 % have at most {lengths[-n // 100]}, all "
                f"{lengths[-1]}), a row per turn {sum(rows) / n:.0f}, dialogue_level {mean(runs):.0f}\n"
                f"  of them supervised {mean(one.n_supervised for one in packs):.0f}; "
                f"pairs in attention {mean(map(n_pairs, packs)):,.0f}; packing {1000 * spent / n:.2f} CPU ms"
            )


def load_backbone(name: str, *, lora: bool) -> LoadedBackbone | None:
    """Return a backbone; None where it is not installed."""
    torch.manual_seed(0)
    kind = SmolLM2Backbone if name == "smollm2" else TinyBackbone
    try:
        loaded = kind(lora=LoraSettings() if lora else None, max_length=MAX_LENGTH).load()
    except ConfigError as error:
        print(f"without {name}: {str(error).splitlines()[0]}")
        return None
    return loaded


def packed(dialogues: Sequence[Dialogue], backbone: LoadedBackbone) -> list[PackedDialogue]:
    return [pack(TurnLevel().examples(d), backbone.tokenizer, max_length=MAX_LENGTH) for d in dialogues]


def n_pairs(one: PackedDialogue) -> float:
    """Return how many (query, key) pairs attention has."""
    branches = sum(branch.length * (branch.prefix + (branch.length + 1) / 2) for branch in one.layout.branches)
    return one.layout.trunk * (one.layout.trunk + 1) / 2 + branches


# --- rates ---


MEASURED = (("tiny", False, 16, 256), ("tiny", True, 16, 256), ("smollm2", True, 2, 32))
"""Backbone, whether with an adapter, dialogues trained on (the shortest), texts sampled and scored."""


@dataclass(frozen=True)
class Shape:
    """What decides how many operations a model takes."""

    layers: int
    width: int
    """Of attention: heads times their width."""
    body: int
    """Weights of the matrices that every token goes through."""
    head: int
    """Weights of the output embedding."""
    trained: int
    """Weights of the adapter; 0 where all are trained."""

    @classmethod
    def of(cls, model: Any) -> Shape:
        """Count the weights of a Llama, with an adapter or without."""
        config = model.config
        linears = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        adapter = sum(n for name, n in linears.items() if "lora_" in name)
        head = config.vocab_size * config.hidden_size
        body = sum(n for name, n in linears.items() if "lora_" not in name and not name.endswith("lm_head"))
        return cls(config.num_hidden_layers, config.num_attention_heads * config.head_dim, body, head, adapter)

    def training(self, one: PackedDialogue) -> float:
        """Return the operations of one forward and backward pass: 6 per weight, 4 where it is frozen."""
        frozen = 4 if self.trained else 6
        matrices = one.n_tokens * (frozen * self.body + 6 * self.trained) + one.n_supervised * frozen * self.head
        return matrices + 12 * self.width * self.layers * n_pairs(one)

    def reading(self, n_tokens: int, pairs: float) -> float:
        """Return the operations of reading tokens that each predict the next."""
        return n_tokens * 2 * (self.body + self.trained + self.head) + 4 * self.width * self.layers * pairs


def gemm() -> float:
    """Return operations per CPU second of a bare product of matrices."""
    a, b = torch.ones(GEMM, GEMM), torch.ones(GEMM, GEMM)
    return 8 * 2 * GEMM**3 / cpu_seconds(lambda: [a @ b for _ in range(8)])


def rates() -> None:
    """Print what part of a bare product's rate training, sampling and scoring reach."""
    corpus = next(corpora())
    gemm()
    for name, lora, n_dialogues, n_texts in MEASURED:
        backbone = load_backbone(name, lora=lora)
        if backbone is None:
            continue
        shape, rounds = Shape.of(backbone.model), 3 if name == "tiny" else 2
        packs = sorted(packed(draw(corpus.dialogues, 16), backbone), key=lambda one: one.n_tokens)[:n_dialogues]
        jobs = {"training": training_job(backbone, packs, shape), **asking_jobs(backbone, corpus, n_texts, shape)}
        print(f"{name}{' with LoRA' if lora else ''}: {shape.body:,} weights in the body, {shape.head:,} in the head")
        best = dict.fromkeys(jobs, (0.0, 0.0, 0.0))
        for _ in range(rounds):
            for job, run in jobs.items():
                bare = gemm()
                n_tokens, operations, spent = run()
                best[job] = max(best[job], (operations / spent / bare, n_tokens / spent, bare))
        for job, (part, speed, bare) in best.items():
            print(f"  {job:9s} {part:6.1%} of {bare / 1e9:.0f} G a second, {speed:10,.0f} tokens per CPU second")


Job = Callable[[], tuple[int, float, float]]
"""Returns tokens, operations and CPU seconds."""


def training_job(backbone: LoadedBackbone, packs: Sequence[PackedDialogue], shape: Shape) -> Job:
    def run() -> tuple[int, float, float]:
        spent = cpu_seconds(lambda: train(backbone.model, packs))
        return sum(one.n_tokens for one in packs), sum(map(shape.training, packs)), spent

    return run


def train(model: Any, packs: Sequence[PackedDialogue]) -> None:
    model.train()
    for one in packs:
        torch.autograd.backward(loss_sum(model, one) / one.n_supervised)


def asking_jobs(backbone: LoadedBackbone, corpus: Corpus, n: int, shape: Shape) -> dict[str, Job]:
    """Return drawing states after the marker, and scoring states there: tokens that each are read once."""
    target = LocalTarget(backbone.model, backbone.tokenizer)
    states = sorted({render_state(d.final_state) for d in corpus.dialogues if d.final_state})
    states = random.Random(0).sample(states, n)
    n_prompt = 1 + len(encode(backbone.tokenizer, STATE_MARKER))

    def sample() -> tuple[int, float, float]:
        drawn: list[str] = []
        decoding = Decoding(stop=("\n",))
        spent = cpu_seconds(
            lambda: drawn.extend(target.sample([STATE_MARKER], n=n, max_new_tokens=48, decoding=decoding, seed=0)[0])
        )
        lengths = [1 + len(encode(backbone.tokenizer, text)) for text in drawn]
        pairs = sum(k * n_prompt + k * k / 2 for k in lengths)
        return sum(lengths), shape.reading(sum(lengths), pairs), spent

    def score() -> tuple[int, float, float]:
        spent = cpu_seconds(lambda: target.logprobs([STATE_MARKER] * n, states))
        ids = [tuple(encode(backbone.tokenizer, STATE_MARKER + text)) for text in states]
        beginnings = {text[:k] for text in ids for k in range(1, len(text))}
        return len(beginnings), shape.reading(len(beginnings), sum(map(len, beginnings))), spent

    return {"sampling": sample, "scoring": score}


# --- memory ---


def memory() -> None:
    """Print what steps hold beyond weights and gradients."""
    corpus = next(corpora())
    for name in ("tiny", "smollm2"):
        for lora in (False, True):
            backbone = load_backbone(name, lora=lora)
            if backbone is not None:
                packs = sorted(packed(draw(corpus.dialogues, 16), backbone), key=lambda one: one.n_tokens)
                tell_steps(f"{name}, {'LoRA' if lora else 'all weights'}", backbone, packs[:2], lora=lora)
    tell_layers(corpus)


def tell_steps(name: str, backbone: LoadedBackbone, packs: list[PackedDialogue], *, lora: bool) -> None:
    model = backbone.model
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    n_weights, n_trained = sum(w.numel() for w in model.parameters()), sum(w.numel() for w in trained)
    longest = max(one.n_tokens for one in packs)
    held = {"training": step_bytes(model, packs)}
    for engine in ("loop", "hooks") if lora else ("loop",):
        step = Step(make_engine(engine, model, chunk_tokens=1), packs)
        held[f"dp_sgd {engine}"] = peak_extra_bytes(step)
    print(f"{name}: {n_weights:,} weights, {n_trained:,} trained, {len(packs)} dialogues of at most {longest} tokens")
    for step_name, n_bytes in held.items():
        more = n_bytes - held["training"]
        beyond = "" if step_name == "training" else f", {more / n_trained:+.1f} bytes per trained weight"
        print(f"  {step_name:13s} {n_bytes / 1e6:9.1f} MB, {n_bytes / longest / 1000:8.1f} kB per token{beyond}")
    target = LocalTarget(model, backbone.tokenizer)
    texts = ["".join(random.Random(i).choices("abcdefgh ", k=200)) for i in range(8)]
    n_tokens = [1 + len(encode(backbone.tokenizer, text)) for text in texts]
    scored = peak_extra_bytes(lambda: target.logprobs([""] * len(texts), texts))
    print(f"  {'scoring':13s} {scored / 1e6:9.1f} MB in passes of at most {min(1024, sum(n_tokens))} tokens")


def step_bytes(model: Any, packs: Sequence[PackedDialogue], *, bf16: bool = False) -> int:
    """Return what training holds at most beyond weights and their gradients."""
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight) if weight.requires_grad else None

    def step() -> None:
        for one in packs:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = loss_sum(model.train(), one)
            torch.autograd.backward(loss)

    held = peak_extra_bytes(step)
    model.zero_grad()
    return held


PART = 4
"""Llama-2-7B's width is divided by this; its ratios and the width of a head stay."""
LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}


VOCABULARY = 32_000


def tell_layers(corpus: Corpus) -> None:
    """Print what a layer of Llama-2-7B holds in training, from models of a part of its width and few layers."""
    backbone = load_backbone("smollm2", lora=False) or load_backbone("tiny", lora=False)
    if backbone is None:
        raise RuntimeError("the bundled backbone is not there; reinstall hushbot")
    known = [dialogue for dialogue in corpus.dialogues if any(turn.state for turn in dialogue.turns)]
    packs = [within(one) for one in sorted(packed(known, backbone), key=lambda one: one.n_tokens)]
    for which, one in (("middling", packs[len(packs) // 2]), ("longest", packs[-1])):
        for lora in (True, False):
            held = {layers: step_bytes(llama(layers, lora=lora), [one], bf16=True) for layers in (1, 3)}
            layer = (held[3] - held[1]) / 2
            # The bfloat16 copies of trained float32 weights are no activations, and grow with the width's square.
            activations = PART * (layer - (0 if lora else 2 * layer_weights(PART)))
            print(
                f"Llama-2-7B, {'LoRA' if lora else 'all weights'}, the {which} dialogue, {one.n_tokens} tokens\n"
                f"  activations of a layer {activations / 1e6:.0f} MB, {activations / one.n_tokens / 1000:.0f} kB per "
                f"token; of 32 layers {32 * activations / 1e9:.1f} GB; beside layers, at 1/{PART} of the width, "
                f"{(held[1] - layer) / 1e9:.2f} GB"
            )


def within(one: PackedDialogue) -> PackedDialogue:
    """Return a dialogue whose tokens Llama has; which they are is of no matter here."""
    return replace(one, input_ids=one.input_ids % VOCABULARY, targets=one.targets % VOCABULARY)


def layer_weights(part: int) -> int:
    width, inner = LLAMA["hidden_size"] // part, LLAMA["intermediate_size"] // part
    return 4 * width * width + 3 * width * inner


def llama(layers: int, *, lora: bool) -> Any:
    torch.manual_seed(0)
    shape = {name: size // PART for name, size in LLAMA.items()}
    config = LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, max_position_embeddings=4096, **shape)
    model = LlamaForCausalLM(config)
    if not lora:
        return model
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return get_peft_model(model.to(torch.bfloat16), LoraConfig(r=16, lora_alpha=32, target_modules=targets))


# --- host and growth ---


def stages(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what a run does with a corpus before and beside computing, each stage resting on those before it."""
    is_copy = (folder / "train").is_dir()
    kept: dict[str, Any] = {}

    def read() -> None:
        kept["corpus"] = load("sgd", path=folder) if is_copy else load("multiwoz21", path=folder)

    def split() -> None:
        kept["split"] = make_split(kept["corpus"], SplitSettings(), 0).split

    def pack_members() -> None:
        backbone = TinyBackbone(max_length=1024).load()
        kept["packs"] = packed([d for d in kept["split"].members if any(t.state for t in d.turns)], backbone)

    def group() -> object:
        return group_related(kept["corpus"].dialogues, len(kept["corpus"].dialogues))

    yield "read", read
    yield "group", group
    yield "split", split
    yield "near-duplicates", lambda: find_near_duplicates(kept["split"].members, kept["split"].nonmembers)
    yield "hash", lambda: data_sha256(kept["corpus"].dialogues)
    yield "pack members", pack_members
    yield "epoch order", lambda: ShuffledBatches(n_dialogues=len(kept["packs"]), batch_size=8, seed=0).epoch(0)
    yield "audit's index", lambda: kept.update(index=take_sides(kept["split"], 0))
    yield "audit's veil", lambda: Veil.over(kept["corpus"].dialogues, kept["corpus"].schema).mask("'a b c d e f'")


def growth(sizes: Sequence[int]) -> None:
    """Print the CPU time of each stage at each size, and the exponent from size to size."""
    found: dict[str, list[float]] = {}
    for n in sizes:
        with TemporaryDirectory() as name:
            write_copies(Path(name), n)
            for stage, run in stages(Path(name)):
                found.setdefault(stage, []).append(cpu_seconds(run))
                gc.collect()
    for stage, spent in found.items():
        steps = [
            math.log(after / before) / math.log(m / n)
            for (n, before), (m, after) in pairwise(zip(sizes, spent, strict=True))
        ]
        shown = " ".join(f"{one:8.2f}" for one in spent)
        print(f"  {stage:16s} {shown} CPU s; exponents {' '.join(f'{one:.2f}' for one in steps)}")


def host(sizes: Sequence[int]) -> None:
    """Print what a fresh process holds after each stage."""
    if MULTIWOZ.is_dir():
        tell_host("MultiWOZ 2.1", MULTIWOZ)
    for n in sizes:
        with TemporaryDirectory() as name:
            write_copies(Path(name), n)
            tell_host(f"{n} copies of bundled dialogues", Path(name))


def tell_host(name: str, folder: Path) -> None:
    n_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{name}, {n_bytes / 1e6:.1f} MB of files", flush=True)
    subprocess.run([sys.executable, __file__, "--child", str(folder)], check=True)


def child(folder: Path) -> None:
    """Tell what this process holds after each stage."""
    before = resident()
    for stage, run in stages(folder):
        result = run()
        del result
        gc.collect()
        held, most = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(
            f"  {stage:16s} {(held - before) / 1e6:+9.1f} MB, {held / 1e6:9.1f} held, {most / 1e6:9.1f} at most so far"
        )
        before = held


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="some of tokens, rates, memory, host, growth; default: all")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="dialogues whose growth is measured")
    parser.add_argument("--host-sizes", type=int, nargs="+", default=HOST_SIZES, help="dialogues held in memory")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.child:
        child(arguments.child)
        return 0
    parts: dict[str, Callable[[], None]] = {
        "tokens": tokens,
        "rates": rates,
        "memory": memory,
        "host": lambda: host(arguments.host_sizes),
        "growth": lambda: growth(arguments.sizes),
    }
    if unknown := set(arguments.parts) - parts.keys():
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(parts)}")
    for name in arguments.parts or parts:
        print(f"== {name}", flush=True)
        parts[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
