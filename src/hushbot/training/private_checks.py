"""What must hold before and after private training: trainer, sampling, model and recipes, and which weights moved.

Guarantees: every known setting of Lightning's `Trainer` under which the clipping, the noise or the accounting would be
void is refused before the first step, all at once. So are batches that are not drawn as epsilon is computed for; a
model that draws random numbers, since one dialogue's dropout mask then depends on who came before it in the batch, and
that dialogue more or less moves the sum by several clipping norms; and, on the dialogues that are looked at, recipes
that rewrite one by looking at others. Afterwards every trainable tensor differs from what it was, and
every other tensor that is saved, buffers included, is bit for bit the same: running statistics of a batch
normalisation, say, would carry members into the model past the noise.

Void for what other callbacks do to gradients or weights: fit adds none that does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hushbot.errors import HushbotError, PrivacyError
from hushbot.schema import Schema
from hushbot.training.data import Batches
from hushbot.training.joint import JointStrategy
from hushbot.training.mechanism import Mechanism
from hushbot.training.module import TaskBot
from hushbot.training.packing import loss_sum, made_up
from hushbot.training.poisson import PoissonBatches, is_secret
from hushbot.training.stack import RecipeStack
from hushbot.types import Dialogue

OPTIMISERS = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)
"""They compute from the noisy gradient alone; others may look at the loss or at the batch."""
_Rule = tuple[str, bool]


def refusals(trainer: Any, module: TaskBot, batches: Batches) -> list[str]:
    """Return everything about a trainer that would void the guarantee, one message each.

    Args:
        trainer: Lightning's, set up: it has its optimisers.
        module: What it trains.
        batches: The Poisson batches that it must train on.
    """
    data: Any = getattr(trainer, "datamodule", None)
    rules = (
        *_optimiser_rules(trainer, module),
        *_trainer_rules(trainer),
        (
            "batches come from elsewhere than the Poisson sampling; hand the DialogueData to fit with the batches that "
            "plan_batches returned",
            getattr(data, "batches", None) is batches,
        ),
    )
    return [message for message, ok in rules if not ok]


def _optimiser_rules(trainer: Any, module: TaskBot) -> tuple[_Rule, ...]:
    """Return what must hold for the optimisers: what to say where it does not, and whether it does."""
    optimisers = trainer.optimizers
    kinds = [type(optimiser).__name__ for optimiser in optimisers]
    held = [weight for one in optimisers for group in one.param_groups for weight in group["params"]]
    trainable = module.trainable()
    allowed = ", ".join(kind.__name__ for kind in OPTIMISERS)
    return (
        (
            f"the optimiser is {', '.join(kinds) or 'missing'}, must be one of {allowed}; use one of them",
            len(optimisers) == 1 and type(optimisers[0]) in OPTIMISERS,
        ),
        (
            f"the optimiser holds {len(held)} tensors that are not the model's {len(trainable)} trainable ones; "
            "give it module.trainable()",
            len(held) == len(trainable) and {id(w) for w in held} == {id(w) for w in trainable.values()},
        ),
    )


def _trainer_rules(trainer: Any) -> tuple[_Rule, ...]:
    """Return what must hold for the settings of Lightning's trainer, likewise."""
    strategy = getattr(trainer, "strategy", None)
    return (
        (
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} must be 1, since each batch is a whole step; "
            "set recipe.dp_sgd.chunk_tokens to save memory",
            trainer.accumulate_grad_batches == 1,
        ),
        (
            f"gradient_clip_val={trainer.gradient_clip_val} must be unset, since it would clip the noise; set "
            "recipe.dp_sgd.max_grad_norm",
            trainer.gradient_clip_val is None,
        ),
        (
            f"overfit_batches={trainer.overfit_batches} must be 0, since it replaces the sampling; leave it unset",
            trainer.overfit_batches == 0,
        ),
        (
            f"limit_train_batches={trainer.limit_train_batches} must be 1.0, since steps are planned; set "
            "trainer.max_epochs",
            type(trainer.limit_train_batches) is float and trainer.limit_train_batches == 1.0,
        ),
        (
            f"precision={trainer.precision} must be 32-true or bf16-mixed, since a loss scale would scale the clipping "
            "norm; set trainer.precision",
            trainer.precision in ("32-true", "bf16-mixed"),
        ),
        (
            f"{trainer.world_size} processes train together by {type(strategy).__name__}, which would share "
            "gradients that are not clipped; set trainer.devices=1 or trainer.strategy=ddp",
            trainer.world_size == 1 or type(strategy) is JointStrategy,
        ),
    )


def sampling_refusals(
    batches: PoissonBatches, noise: torch.Generator, mechanism: Mechanism, *, is_insecure: bool
) -> list[str]:
    """Return everything about batches and noise that is not what epsilon is computed for, one message each.

    Args:
        batches: What is trained on.
        noise: Where the noise comes from.
        mechanism: What is accounted for.
        is_insecure: Whether seeds are known, so that no epsilon is reported.
    """
    rules = [
        (
            f"{name} of the batches is {found!r}, epsilon is for {planned!r}; train on what plan_batches returned",
            found == planned,
        )
        for name, found, planned in (
            ("sample_rate", batches.sample_rate, mechanism.sample_rate),
            ("n_steps", batches.n_steps, mechanism.steps_per_epoch),
            ("n_dialogues", batches.n_dialogues, mechanism.n_units),
        )
    ]
    rules += [
        (
            f"the {name} comes from a generator that may be foretold; use secret_generator",
            is_insecure or is_secret(made),
        )
        for name, made in (("sampling", batches.generator), ("noise", noise))
    ]
    rules.append(("sampling and noise share one generator; make one for each", noise is not batches.generator))
    return [message for message, ok in rules if not ok]


def chance_refusals(model: nn.Module) -> list[str]:
    """Return what in a model is left to chance, one message each; two passes on made-up tokens are compared.

    Args:
        model: A language model, in training mode as it is trained.
    """
    dropping = {name: rate for name, module in model.named_modules() if (rate := _drop_rate(module)) > 0}
    remedy = "set backbone.lora.dropout=0, or use a backbone without dropout"
    if dropping:
        first = next(iter(dropping))
        return [
            f"{len(dropping)} layers drop values at random, the first is {first} with p={dropping[first]}: one "
            f"dialogue would change the masks of others, past the clipping; {remedy}"
        ]
    if _is_left_to_chance(model):
        return [f"the model draws random numbers in training, which couples the dialogues of a batch; {remedy}"]
    return []


def check_alone(stack: RecipeStack, members: Sequence[Dialogue], schema: Schema, *, seed: int) -> None:
    """Check on a few members, for two epochs, that recipes rewrite each as they would if it were the only one.

    Raises:
        PrivacyError: One is rewritten otherwise among others, so clipping its gradient does not bound its influence.
    """
    last = len(members) - 1
    for epoch in (0, 1):
        together = stack.rewrite(members, schema, epoch=epoch, seed=seed)
        for i in sorted({0, last // 3, 2 * last // 3, last}):
            if stack.rewrite((members[i],), schema, epoch=epoch, seed=seed) != (together[i],):
                raise PrivacyError(
                    f"recipe={'+'.join(stack.names)} rewrites a member otherwise when it is alone, so one dialogue "
                    "changes more than its own gradient and epsilon would not hold; leave out the recipe that looks at "
                    "others"
                )


def weight_digests(model: nn.Module) -> dict[str, bytes]:
    """Return a hash of each weight, and of each buffer that is saved."""
    return {name: _digest(value) for name, value in model.state_dict().items()}


def check_weights(model: nn.Module, before: Mapping[str, bytes]) -> None:
    """Check which weights training changed.

    Args:
        model: The model after training.
        before: Its `weight_digests` before.

    Raises:
        HushbotError: A trainable tensor did not change.
        PrivacyError: Another one did.
    """
    # By address, since a tied weight stands in the state under several names.
    addresses = {weight.data_ptr() for weight in model.parameters() if weight.requires_grad}
    learns = {name: value.data_ptr() in addresses for name, value in model.state_dict().items()}
    after = weight_digests(model)
    still = [name for name in after if learns[name] and after[name] == before[name]]
    moved = [name for name in after if not learns[name] and after[name] != before[name]]
    if still:
        raise HushbotError(
            f"training left {len(still)} of {sum(learns.values())} trainable tensors as they were, the first is "
            f"{still[0]}; raise recipe.dp_sgd.learning_rate or check backbone.lora"
        )
    if moved:
        raise PrivacyError(
            f"training changed {len(moved)} frozen tensors, the first is {moved[0]}: they got neither clipping nor "
            "noise; use a backbone without layers that keep statistics of what they see"
        )


def _drop_rate(module: nn.Module) -> float:
    """Return the probability with which a layer drops values; 0 where it is no such layer."""
    if "drop" not in type(module).__name__.lower() and not isinstance(module, nn.modules.dropout._DropoutNd):
        return 0.0
    rates = (getattr(module, name, 0.0) for name in ("p", "drop_prob", "drop_rate", "dropout"))
    return max((float(rate) for rate in rates if isinstance(rate, int | float)), default=0.0)


@torch.no_grad()
def _is_left_to_chance(model: nn.Module) -> bool:
    """Return whether a model's loss depends on the random state, or computing it advances that state."""
    device = next(model.parameters()).device
    packed = made_up(model).to(device)
    modes = {module: module.training for module in model.modules()}
    found, moved = [], False
    with torch.random.fork_rng():
        try:
            model.train()
            for seed in (1, 2):
                torch.manual_seed(seed)
                # Dropout in front of weights that start at zero, as an adapter's, shows in the random state alone.
                before = _random_states(device)
                found.append(loss_sum(model, packed))
                moved |= any(not torch.equal(*pair) for pair in zip(before, _random_states(device), strict=True))
        finally:
            for module, mode in modes.items():
                module.training = mode
    return moved or not torch.equal(*found)


def _random_states(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _digest(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).digest()
