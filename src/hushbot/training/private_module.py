"""The Lightning module that trains privately: Poisson batches, one clipped gradient per dialogue, noise, a ledger.

Guarantees, together with `mechanism`, `poisson`, `gradients` and `ledger`:

* One Lightning batch is one Poisson draw. An empty one is a step of noise alone, which counts as any other.
* What enters a weight is (sum of clipped per-dialogue gradients + Gaussian noise) / constant, through an optimiser
  that sees nothing else. The step is in the ledger, synced to disk, before its noisy gradient exists.
* No training loss, gradient norm or batch size is returned, logged, kept in the history or written to a checkpoint:
  none of them is private. A dialogue whose gradient is not finite contributes nothing; an error would tell on it.
* A resumed run draws fresh noise and batches, counts what was lost with the last checkpoint, and stops before the
  target is exceeded. Without the ledger that its checkpoint knows it is refused.
* Epsilon is computed from the ledger file alone. With `insecure_seed` there is none.
* Of several processes, all have the first one's draw and a part of it each; the first alone draws noise, once a step,
  keeps the ledger, and writes a step down before any other can have its gradient.
* Nothing in the model draws random numbers, which would couple the dialogues of a batch.
* Afterwards every trainable tensor has changed and is finite, and every frozen one is bit for bit what it was
  (meta-pytorch/opacus #313: a wrapped model that was never used; #820: adapters that never moved).

Void: `PrivacyInfo.does_not_cover` says what no epsilon here is about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hushbot.errors import PrivacyError
from hushbot.training.data import Batches, DialogueData
from hushbot.training.gradients import ClippedSum, make_engine, noisy_gradient
from hushbot.training.guarantee import COVERS, DOES_NOT_COVER, USUAL_DELTA, caveats
from hushbot.training.ledger import LedgerHeader, PrivacyLedger, read_history
from hushbot.training.mechanism import DpSettings, Mechanism, plan_mechanism
from hushbot.training.module import TaskBot, TrainingPlan
from hushbot.training.packing import PackedDialogue
from hushbot.training.poisson import PoissonBatches, secret_generator, seeded_generator
from hushbot.training.privacy import Spending, affordable_steps, epsilon
from hushbot.training.private_checks import (
    chance_refusals,
    check_weights,
    refusals,
    sampling_refusals,
    weight_digests,
)
from hushbot.types import PrivacyInfo

if TYPE_CHECKING:
    from hushbot.training.fit import TrainerSettings

LEDGER_NAME = "privacy_ledger.jsonl"
DP_KEY = "dp"
"""Where a checkpoint says which ledger it belongs to and how many steps that ledger had."""
REMEDY = "start a new run in another directory"
NOISE_TOLERANCE = 1e-6
"""How far, of itself, calibrated noise may be from a checkpoint's: two machines round differently."""


class PrivateTaskBot(TaskBot):
    """Fine-tune a causal language model with differential privacy per dialogue.

    Args:
        model: As in `TaskBot`.
        plan: As in `TaskBot`; learning rate, steps and divisor are replaced when the batches are planned.
        settings: The recipe's settings.
    """

    mechanism: Mechanism
    """What each step does; known once the batches are planned, before anything is trained."""

    def __init__(self, model: nn.Module, plan: TrainingPlan, settings: DpSettings) -> None:
        super().__init__(model, plan)
        self.settings = settings
        self._resumed: Mapping[str, Any] | None = None
        self._stop_at: int | None = None

    @property
    def is_insecure(self) -> bool:
        """Return whether whoever knows `insecure_seed` knows the noise, so that there is no guarantee."""
        return self.settings.insecure_seed is not None

    def plan_batches(self, data: DialogueData, settings: TrainerSettings, run_dir: Path) -> Batches:
        """Return Poisson batches, and settle noise, steps and schedule."""
        self.mechanism = plan_mechanism(self.settings, n_units=len(data.members), max_epochs=settings.max_epochs)
        mechanism = self.mechanism
        self.plan = replace(
            self.plan,
            learning_rate=self.settings.learning_rate or settings.learning_rate,
            warmup_steps=math.ceil(settings.warmup_fraction * mechanism.total_steps),
            total_steps=mechanism.total_steps,
            max_grad_norm=None,  # clipping is per dialogue
            normaliser=mechanism.expected_batch_size,
            batch_size=max(1, round(mechanism.expected_batch_size)),
        )
        self.hparams.update(asdict(self.plan))
        self._ledger_path = run_dir / LEDGER_NAME
        self._data_fingerprint = data.fingerprint
        # As training starts from them: a checkpoint is restored later.
        self._before = weight_digests(self.model)
        self._tokens_per_step = mechanism.sample_rate * sum(packed.n_tokens for packed in data.packs(0))
        self._batches = PoissonBatches(
            n_dialogues=mechanism.n_units,
            sample_rate=mechanism.sample_rate,
            n_steps=mechanism.steps_per_epoch,
            generator=self._shared_generator(),
        )
        self.share.check_same("the mechanism", (self.mechanism, self._data_fingerprint))
        return self._batches

    def privacy(self) -> PrivacyInfo | None:
        """Return what the ledger on disk comes to; None when the noise is known (`insecure_seed`).

        Raises:
            PrivacyError: The ledger cannot be read, or its epsilon cannot be computed.
        """
        if self.is_insecure:
            return None
        mechanism, history = self.mechanism, read_history(self._ledger_path)
        spent = epsilon(history, delta=mechanism.delta, accountant=mechanism.accountant)
        at_1e5 = epsilon(history, delta=USUAL_DELTA, accountant=mechanism.accountant)
        if math.isnan(spent.epsilon) or math.isnan(at_1e5.epsilon):
            raise PrivacyError(f"{self._ledger_path}: epsilon is not a number; set recipe.dp_sgd.accountant=rdp")
        return PrivacyInfo(
            unit="dialogue",
            epsilon=spent.epsilon,
            delta=mechanism.delta,
            accountant=spent.accountant,
            noise_multiplier=mechanism.noise_multiplier,
            sample_rate=mechanism.sample_rate,
            steps=sum(part.steps for part in history),
            max_grad_norm=mechanism.max_grad_norm,
            secure_rng=False,
            target_epsilon=mechanism.target_epsilon,
            epsilon_at_1e5=at_1e5.epsilon,
            n_units=mechanism.n_units,
            engine=self._engine.name,
            covers=COVERS,
            does_not_cover=list(DOES_NOT_COVER),
        )

    def notes(self) -> tuple[str, ...]:
        """Return a note where the budget ended before the plan, and what must be known to read epsilon."""
        planned, stop_at = self.mechanism.total_steps, self._stop_at
        told = () if self.is_insecure else caveats(self.mechanism)
        if self.mechanism.target_epsilon is None or stop_at is None or not stop_at <= self.global_step < planned:
            return told
        return (
            f"dp_sgd: the budget of epsilon {self.mechanism.target_epsilon} ended training after {stop_at} of "
            f"{planned} planned steps: steps lost in interruptions count too",
            *told,
        )

    # --- the step ---

    def training_step(self, batch: list[PackedDialogue], batch_idx: int) -> None:
        """Take one noisy step on one Poisson draw, which may be empty."""
        super().training_step(batch, batch_idx)
        self._check_finite()
        if self._is_over():
            self.trainer.should_stop = True

    def fill_gradients(self, batch: list[PackedDialogue]) -> list[float]:
        """Put the noisy gradient into the weights; no loss is returned, since none is private.

        Raises:
            PrivacyError: The budget is used up, or a dialogue stands in the batch twice.
        """
        if self._is_over():
            raise PrivacyError(
                f"step {self.global_step + 1} is beyond the {self._stop_at} that the budget allows; "
                "leave the trainer's min_epochs and min_steps unset"
            )
        if len({packed.dialogue_id for packed in batch}) < len(batch):
            raise PrivacyError("a batch holds a dialogue twice, which doubles its share; give dialogues distinct ids")
        mechanism = self.mechanism
        self._clipped.reset()
        if batch:
            self._engine.accumulate(batch, self._clipped)
        if self.share.is_first:
            self._ledger.spend(self.global_step)
        noisy_gradient(
            self._clipped,
            noise_multiplier=mechanism.noise_multiplier,
            expected_batch_size=mechanism.expected_batch_size,
            generator=self._noise,
            share=self.share,
        )
        self._clipped.reset()  # the sum without noise lives no longer than its step
        return []

    def clip_gradient(self) -> None:
        """Leave the gradient alone: each dialogue was clipped by itself."""

    def record(self, batch: list[PackedDialogue], losses: list[float]) -> None:
        """Count the tokens that so many steps train on average; how many they were is not private."""
        self.tokens_trained = round(self.global_step * self._tokens_per_step)

    # --- Lightning wiring ---

    def on_fit_start(self) -> None:
        """Check the trainer, open the ledger, make ready what computes gradients and noise.

        Raises:
            PrivacyError: The trainer would void the guarantee, or the ledger is missing or another run's.
        """
        mechanism = self.mechanism
        self._noise = self._generator(self.device.type, 1)
        if problems := [
            *refusals(self.trainer, self, self._batches),
            *sampling_refusals(self._batches, self._noise, mechanism, is_insecure=self.is_insecure),
            *chance_refusals(self.model),
        ]:
            raise PrivacyError("\n".join(problems))
        self._engine = make_engine(self.settings.engine, self.model, chunk_tokens=self.settings.chunk_tokens)
        self._clipped = ClippedSum(self._engine.parameters, mechanism.max_grad_norm)
        if self.share.is_first:
            self._open_ledger()

    def _open_ledger(self) -> None:
        mechanism, resumed = self.mechanism, self._resumed or {}
        self._ledger_path.parent.mkdir(parents=True, exist_ok=True)
        self._ledger = PrivacyLedger.open(
            self._ledger_path,
            LedgerHeader(
                data_fingerprint=self._data_fingerprint,
                noise_multiplier=mechanism.noise_multiplier,
                sample_rate=mechanism.sample_rate,
                max_grad_norm=mechanism.max_grad_norm,
                n_dialogues=mechanism.n_units,
                is_insecure=self.is_insecure,
            ),
            expected_id=resumed.get("ledger_id"),
            at_least=resumed.get("n_steps", 0),
        )

    def on_train_start(self) -> None:
        """Work out how many steps the budget allows.

        Raises:
            PrivacyError: The budget was used up by runs of which nothing is left.
        """
        super().on_train_start()
        if self.share.is_first:
            self._settle_budget()
        self._stop_at = self.share.tell(self._stop_at)
        if self._stop_at == self.global_step:
            self.trainer.should_stop = True

    def _settle_budget(self) -> None:
        self._stop_at = self.global_step + self._n_affordable()
        if self._stop_at == 0:
            raise PrivacyError(
                f"{self._ledger_path} has {self._ledger.n_steps} steps and no checkpoint goes with them: nothing of "
                f"epsilon {self.mechanism.target_epsilon} is left for training anew; {REMEDY}"
            )

    def on_train_end(self) -> None:
        """Look at the weights once more.

        Raises:
            HushbotError: A trainable weight is not finite or did not change, or a frozen one did.
        """
        super().on_train_end()
        if self.global_step > 0:
            check_weights(self.model, self._before)

    def on_fit_end(self) -> None:
        """Close the ledger."""
        if self.share.is_first:
            self._ledger.close()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add which ledger knows the steps, how many it had, and where the budget ends training."""
        super().on_save_checkpoint(checkpoint)
        if not self.share.is_first:  # it writes none
            return
        checkpoint[DP_KEY] = {
            "ledger_id": self._ledger.ledger_id,
            "n_steps": self._ledger.n_steps,
            "stop_at": self._stop_at,
            "settings": asdict(self.mechanism),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the counters, and what the ledger must hold at least.

        Raises:
            PrivacyError: The checkpoint does not say what it spent, or was made with another mechanism.
        """
        state = checkpoint.get(DP_KEY)
        if state is None:
            raise PrivacyError(
                "the checkpoint in this run's folder was not written by a private run, so what it spent is unknown; "
                f"{REMEDY}"
            )
        self._take_noise(state["settings"].get("noise_multiplier"))
        ours = asdict(self.mechanism)
        if differing := [key for key in ours if state["settings"].get(key) != ours[key]]:
            told = ", ".join(f"{key}={state['settings'].get(key)!r} now {ours[key]!r}" for key in differing)
            raise PrivacyError(f"the checkpoint in this run's folder was written with {told}; {REMEDY}")
        super().on_load_checkpoint(checkpoint)
        self._resumed, self._stop_at = state, state.get("stop_at")

    # --- parts ---

    def _generator(self, device: str, stream: int) -> torch.Generator:
        """Return a fresh generator: never the checkpoint's or the seed's, or a resumed run would repeat its noise."""
        seed = self.settings.insecure_seed
        return secret_generator(device) if seed is None else seeded_generator(2 * seed + stream, device)

    def _shared_generator(self) -> torch.Generator:
        """Return the generator of the draws, the first process's in all of them."""
        generator = self._generator("cpu", 0)
        generator.set_state(self.share.tell(generator.get_state()))
        return generator

    def _take_noise(self, noise: object) -> None:
        """Go on with a checkpoint's noise where this machine has calibrated it to nearly the same.

        The budget holds all the same: it is asked again, with this noise, how many steps it allows.
        """
        ours, is_calibrated = self.mechanism.noise_multiplier, self.mechanism.target_epsilon is not None
        if is_calibrated and isinstance(noise, float) and math.isclose(noise, ours, rel_tol=NOISE_TOLERANCE):
            self.mechanism = replace(self.mechanism, noise_multiplier=noise)

    def _is_over(self) -> bool:
        return self._stop_at is None or self.global_step >= self._stop_at

    def _n_affordable(self) -> int:
        mechanism = self.mechanism
        planned = mechanism.total_steps - self.global_step
        if mechanism.target_epsilon is None or planned <= 0:
            return max(0, planned)
        return affordable_steps(
            self._ledger.history(),
            next_step=Spending(mechanism.noise_multiplier, mechanism.sample_rate, planned),
            delta=mechanism.delta,
            target_epsilon=mechanism.target_epsilon,
            accountant=mechanism.accountant,
        )
