"""Pretrain the bundled `tiny` backbone on public booking dialogues, so that a demo fine-tunes what can already speak.

The corpus is the public half of `bookings` and as many further dialogues as `--dialogues` asks for, written by the
same generator from the same public value pool; nothing of the private half is read. Per dialogue the model sees the
turn-level examples, some of them without their history (an attacker's prompt, `Belief State:` alone, is then no
foreign text to it, as it is none to a large pretrained model), and the utterances as plain text.

Reproduces the shipped weights up to floating-point differences between machines::

    python -m hushbot.training.pretrain_tiny OUT_DIR --dialogues 4000 --steps 6000

Takes about half an hour on one core. OUT_DIR is a folder that transformers loads.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hushbot.corpora import bookings_generator as generator
from hushbot.corpora.bookings import read_bookings
from hushbot.recipes.turn_level import TurnLevel
from hushbot.training.packing import PackedDialogue, loss_sum, pack
from hushbot.types import Dialogue, Example, Segment

VOCABULARY = 2048
MAX_LENGTH = 1024
BATCH_SIZE = 4
END = "<|endoftext|>"


def public_dialogues(n_dialogues: int) -> list[Dialogue]:
    """Write and load public dialogues; the first ones are those of the bundled corpus."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        dialogues, tables = generator.make_half("public", n_dialogues)
        (root / "public").mkdir()
        (root / "schema.json").write_text(generator.json.dumps(generator.make_schema()), encoding="utf-8")
        (root / "public" / "dialogues_001.json").write_text(generator.json.dumps(dialogues), encoding="utf-8")
        (root / "public" / "database.json").write_text(generator.json.dumps(tables), encoding="utf-8")
        return list(read_bookings(root, "public").dialogues)


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE; digits stand alone, so that numbers can be copied digit by digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
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


def pretraining_examples(dialogue: Dialogue, rng: random.Random) -> list[Example]:
    """Return the turn-level examples, a few of them with less history, and the utterances as plain text."""
    examples = list(TurnLevel().examples(dialogue))
    plain = "".join(
        segment.text for segment in examples[-1].segments if segment.text.startswith(("User", "System"))
    )
    extra = []
    for example in rng.sample(examples, min(2, len(examples))):
        n_history = sum(segment.text.startswith(("User:", "System:")) for segment in example.segments)
        n_kept = rng.choice((0, 0, 1))
        extra.append(Example(example.dialogue_id, example.segments[n_history - n_kept :]))
    spoken = tuple(Segment(line + "\n", True) for line in plain.splitlines())
    return [*examples, *extra, Example(dialogue.id, spoken)]


def train(
    model: LlamaForCausalLM, tokenizer: Any, dialogues: Sequence[Dialogue], out_dir: str, n_steps: int
) -> None:
    """Train with AdamW, warm-up and linear decay; saves every thousand steps."""
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100) * max(0.02, 1 - step / n_steps)
    )
    queue: list[PackedDialogue] = []
    average, started = 0.0, time.time()
    model.train()
    for step in range(n_steps):
        optimizer.zero_grad()
        loss_total, n_total = 0.0, 0
        for _ in range(BATCH_SIZE):
            if not queue:
                order = rng.sample(list(dialogues), len(dialogues))
                queue = [pack(pretraining_examples(d, rng), tokenizer, max_length=MAX_LENGTH) for d in order]
            packed = queue.pop()
            loss = loss_sum(model, packed)
            (loss / (BATCH_SIZE * 500)).backward()
            loss_total, n_total = loss_total + float(loss.detach()), n_total + packed.n_supervised
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average = loss_total / n_total if step == 0 else 0.98 * average + 0.02 * loss_total / n_total
        if step % 100 == 0:
            print(f"step {step} loss {average:.3f} seconds {time.time() - started:.0f}", flush=True)
        if (step + 1) % 1000 == 0 or step + 1 == n_steps:
            model.save_pretrained(out_dir, safe_serialization=True)
            tokenizer.save_pretrained(out_dir)


def main() -> None:
    """Read the command line, train, write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out_dir")
    parser.add_argument("--dialogues", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dialogues = public_dialogues(arguments.dialogues)
    texts = [
        example.text
        for dialogue in dialogues[: generator.N_DIALOGUES]
        for example in TurnLevel().examples(dialogue)
    ]
    tokenizer = train_tokenizer(texts)
    model = make_model(arguments.seed, len(tokenizer))
    train(model, tokenizer, dialogues, arguments.out_dir, arguments.steps)


if __name__ == "__main__":
    main()
