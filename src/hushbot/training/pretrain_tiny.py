"""Pretrain the bundled `tiny` backbone on public booking dialogues, so that a demo fine-tunes what can already speak.

It learns three things, none of them from the private half of `bookings`:

* to copy, by repeating random tokens: a model this small learns it no other way in a reasonable time, and a bot that
  cannot copy a name from its context can track no dialogue state;
* to track states, from dialogues of the corpus' own generator in which every name, place, number and code is made up
  anew from letters and digits;
* to speak of bookings, from the public half, also without a history: an attacker's prompt, `Belief State:` alone, is
  then no foreign text to it, as it is none to a large pretrained model.

Reproduces the shipped weights up to floating-point differences between machines::

    python -m hushbot.training.pretrain_tiny OUT_DIR

Takes about half an hour on one core. OUT_DIR is a folder that transformers loads.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hushbot.corpora import bookings_generator as generator
from hushbot.corpora.bookings import read_bookings
from hushbot.corpora.bookings_words import PUBLIC, WordPool
from hushbot.recipes.turn_level import TurnLevel
from hushbot.training.packing import loss_sum, pack
from hushbot.types import Dialogue, Example, Segment

VOCABULARY = 2048
MAX_LENGTH = 2048
MADE_UP_PER_STEP, PUBLIC_PER_STEP = 3, 1
"""Dialogues per step."""
TOKENS_PER_DIALOGUE = 400
"""About how many supervised tokens a dialogue has: what its loss is divided by."""
DIALOGUES_PER_POOL = 25
END = "<|endoftext|>"

_ONSETS = "b bl br c ch cl cr d dr f fl fr g gl gr h j k kn l m n p pl pr qu r s sc sh sk sl sm sn sp st str sw t th tr"
_NUCLEI = "a e i o u ai ea ee ia ie io oa oo ou y"
_CODAS = ". . . . b ck d ft g l ll m n nd ng nt p r rd rk rs rt s sh st t th v w x z"


def made_up(rng: random.Random, n: int) -> tuple[str, ...]:
    """Make up words: syllables for most, bare letters for some."""

    def word() -> str:
        if rng.random() < 0.2:
            return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 8)))
        syllables = [
            rng.choice(_ONSETS.split()) + rng.choice(_NUCLEI.split()) + rng.choice(_CODAS.split()).strip(".")
            for _ in range(rng.choice((1, 2, 2, 2, 3, 4)))
        ]
        return "".join(syllables)

    return tuple(dict.fromkeys(word() for _ in range(2 * n)))[:n]


def made_up_words(rng: random.Random) -> WordPool:
    """Make up a whole pool of values, of the same shapes as the public one."""

    def pairs(n: int) -> tuple[str, ...]:
        return tuple(" ".join(words) for words in zip(made_up(rng, n), made_up(rng, n), strict=True))

    def digits(n: int) -> str:
        return "".join(rng.choice("0123456789") for _ in range(n))

    return WordPool(
        first_names=made_up(rng, 40),
        last_names=made_up(rng, 40),
        areas=made_up(rng, 4) + pairs(2),
        foods=made_up(rng, 8),
        specialties=made_up(rng, 6),
        kinds=made_up(rng, 5),
        venue_heads=made_up(rng, 14),
        restaurant_tails=made_up(rng, 8),
        hotel_tails=made_up(rng, 6),
        title_heads=made_up(rng, 8),
        title_tails=made_up(rng, 8),
        streets=pairs(12),
        mail_hosts=tuple(f"{word}.example" for word in made_up(rng, 3)),
        minutes=(digits(2), digits(2)),
        phone_prefix=rng.choice((f"0{digits(2)} {digits(4)} ", f"0{digits(3)} {digits(3)} ", f"{digits(5)} "))
        + digits(1),
        postcode_areas=tuple("".join(rng.sample("abcdefghijklmnopqrstuvwxyz", 2)) for _ in range(3)),
        reference_first="".join(rng.sample("ABCDEFGHJKLMNPQRSTUVWXYZ", 5)),
        returning=0.0,  # what is made up cannot be known by heart
        tapping=0.0,
    )


def write_dialogues(half: str, words: WordPool, n_dialogues: int) -> list[Dialogue]:
    """Write dialogues from a pool and load them as any corpus is loaded."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        dialogues, tables = generator.make_half(half, words, n_dialogues)
        (root / half).mkdir()
        for name, content in (
            ("schema.json", generator.make_schema()),
            (f"{half}/dialogues_001.json", dialogues),
            (f"{half}/database.json", tables),
        ):
            (root / name).write_text(json.dumps(content), encoding="utf-8")
        return list(read_bookings(root, half).dialogues)


def public_dialogues() -> list[Dialogue]:
    """Return the public half of the bundled corpus."""
    return write_dialogues("public", PUBLIC, generator.N_DIALOGUES)


def made_up_dialogues(n_dialogues: int, seed: int) -> list[Dialogue]:
    """Return dialogues with made-up values."""
    dialogues = []
    for i in range(0, n_dialogues, DIALOGUES_PER_POOL):
        words = made_up_words(random.Random(f"{seed}/{i}"))
        dialogues += write_dialogues(f"made_up_{i}", words, DIALOGUES_PER_POOL)
    return dialogues


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE; digits stand alone, so that numbers can be copied digit by digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
    )


def make_model(seed: int, vocabulary: int) -> LlamaForCausalLM:
    """Build the untrained model: 3 layers of width 128, about 0.9 million weights."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=MAX_LENGTH,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def public_examples(dialogue: Dialogue, rng: random.Random) -> list[Example]:
    """Return the turn-level examples, two of them with less history or none, and the utterances as plain text."""
    examples = list(TurnLevel().examples(dialogue))
    extra = []
    for example in rng.sample(examples, min(2, len(examples))):
        n_history = sum(segment.text.startswith(("User:", "System:")) for segment in example.segments)
        n_kept = rng.choice((0, 0, 1))
        extra.append(Example(example.dialogue_id, example.segments[n_history - n_kept :]))
    lines = [s.text for s in examples[-1].segments if s.text.startswith(("User:", "System:"))]
    return [*examples, *extra, Example(dialogue.id, tuple(Segment(line, True) for line in lines))]


class _Deck:
    """Cards drawn without replacement, shuffled again when none is left."""

    def __init__(self, cards: Sequence[Dialogue], rng: random.Random) -> None:
        self.cards, self.rng = cards, rng
        self.left: list[Dialogue] = []

    def draw(self) -> Dialogue:
        if not self.left:
            self.left = self.rng.sample(list(self.cards), len(self.cards))
        return self.left.pop()


def copying_loss(model: LlamaForCausalLM, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Return the mean loss of repeating a random run of tokens after some others."""

    def draw(n: int) -> Tensor:
        return torch.randint(1, vocabulary, (24, n), generator=generator)

    n_repeated, n_between = torch.randint(4, 48, (2,), generator=generator).tolist()
    run = draw(n_repeated)
    ids = torch.cat([run, draw(n_between), run], dim=1)
    hidden = model.model(input_ids=ids).last_hidden_state[:, -n_repeated:-1]
    return F.cross_entropy(model.lm_head(hidden).flatten(0, 1), run[:, 1:].flatten())


class _Averages:
    """Running means of the losses by kind, and the time since they began."""

    def __init__(self) -> None:
        self.started, self.means = time.time(), {"copying": 8.0, "public": 8.0, "made up": 8.0}

    def follow(self, kind: str, loss: float) -> None:
        self.means[kind] = 0.97 * self.means[kind] + 0.03 * loss

    def __str__(self) -> str:
        losses = ", ".join(f"{kind} {mean:.3f}" for kind, mean in self.means.items())
        return f"{losses}; {time.time() - self.started:.0f} s"


def train(
    model: LlamaForCausalLM,
    tokenizer: Any,
    corpora: tuple[Sequence[Dialogue], Sequence[Dialogue]],
    out_dir: str,
    n_steps: tuple[int, int],
) -> None:
    """Train with AdamW, first on copying alone, then on dialogues with some copying; saves now and then.

    Args:
        model: Trained in place.
        tokenizer: Its tokenizer.
        corpora: Public dialogues and those with made-up values.
        out_dir: Where the model is written.
        n_steps: Steps on copying alone, and on dialogues.
    """
    n_copying, n_total = n_steps[0], sum(n_steps)
    rng, noise = random.Random(0), torch.Generator().manual_seed(0)
    public, made_up = (_Deck(corpus, rng) for corpus in corpora)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100, max(0.02, (n_total - step) / n_steps[1]))
    )
    averages = _Averages()
    model.train()
    for step in range(n_total):
        optimizer.zero_grad()
        if step < n_copying or step % 10 == 0:
            loss = copying_loss(model, len(tokenizer), noise)
            torch.autograd.backward(loss)
            averages.follow("copying", float(loss.detach()))
        else:
            batch = [("public", public_examples(public.draw(), rng)) for _ in range(PUBLIC_PER_STEP)]
            batch += [("made up", list(TurnLevel().examples(made_up.draw()))) for _ in range(MADE_UP_PER_STEP)]
            for kind, examples in batch:
                packed = pack(examples, tokenizer, max_length=MAX_LENGTH)
                loss = loss_sum(model, packed)
                torch.autograd.backward(loss / (len(batch) * TOKENS_PER_DIALOGUE))
                averages.follow(kind, float(loss.detach()) / packed.n_supervised)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} of {n_total}: {averages}", flush=True)
        if (step + 1) % 500 == 0 or step + 1 == n_total:
            model.save_pretrained(out_dir, safe_serialization=True)
            tokenizer.save_pretrained(out_dir)


def main() -> None:
    """Read the command line, train, write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out_dir")
    parser.add_argument("--dialogues", type=int, default=8000, help="with made-up values")
    parser.add_argument("--copying-steps", type=int, default=1200)
    parser.add_argument("--steps", type=int, default=3300, help="on dialogues")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    public, made_up = public_dialogues(), made_up_dialogues(arguments.dialogues, arguments.seed)
    texts = [TurnLevel().examples(dialogue)[-1].text for dialogue in [*public, *made_up[: 3 * len(public)]]]
    tokenizer = train_tokenizer(texts)
    model = make_model(arguments.seed, len(tokenizer))
    steps = (arguments.copying_steps, arguments.steps)
    train(model, tokenizer, (public, made_up), arguments.out_dir, steps)


if __name__ == "__main__":
    main()
