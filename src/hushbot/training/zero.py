"""DeepSpeed's ZeRO: several processes that each hold a part of the optimiser's state, the gradients or the weights.

Guarantees:

* An optimiser step is that of the other strategies: the gradients of all dialogues, summed over processes and divided
  by the same constant. DeepSpeed takes means over processes, so each loss is multiplied by their number first.
* Stage 1 parts the optimiser's state, stage 2 gradients too, stage 3 weights too. Each dialogue has a backward pass of
  its own and passes are joint: a process that has no dialogue left makes one on made-up tokens, times 0.
* A step that DeepSpeed would leave out, since its gradient is not finite, is an error.
* Checkpoints hold whole tensors, as those of the other strategies do: they fit any number of processes, any stage and
  none. DeepSpeed writes no file.
* Nothing is compiled: the optimiser is torch's AdamW in single precision, and nothing is moved off its device.

Lightning's own `DeepSpeedStrategy` runs on GPUs only and saves shards that fit one number of processes.

Sources: Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054); DeepSpeed's `managed_gradient_accumulation`, without which it
would count backward passes itself, and a step would have to have the same number of them every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from torch import Tensor, nn

from hushbot.errors import ConfigError
from hushbot.quiet_libraries import quieten_deepspeed
from hushbot.training.joint import JointStrategy

_BUCKET = 1 << 25
"""Numbers of gradients that travel at a time: 128 MB of them, where DeepSpeed would reserve 2 GB for an adapter too."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


def leave_group() -> None:
    """Leave the group of processes, and have DeepSpeed forget it."""
    from deepspeed import comm

    if comm.is_initialized():
        comm.destroy_process_group()
    else:
        dist.destroy_process_group()


class ZeroStrategy(JointStrategy):
    """Train with DeepSpeed's engine.

    Args:
        stage: 1, 2 or 3.
        max_grad_norm: Gradient norm above which a step's gradient is scaled down; None never scales.
        cluster_environment: Which process this is.
    """

    def __init__(self, *, stage: int, max_grad_norm: float | None, cluster_environment: ClusterEnvironment) -> None:
        super().__init__(cluster_environment=cluster_environment)
        self._stage = stage
        self._max_grad_norm = max_grad_norm
        self._engine: Any = None

    def model_to_device(self) -> None:
        """Leave it to the engine."""

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Make the optimiser, and an engine around it and the model."""
        super().setup_optimizers(trainer)
        module: Any = self.lightning_module
        (optimizer,) = self.optimizers
        module.check_optimizer(optimizer)
        deepspeed = _deepspeed(self.root_device)
        deepspeed.zero.Init.param_id = 0
        self._engine, *_ = deepspeed.initialize(
            model=module.model, optimizer=optimizer, config=self._config(), dist_init_required=False
        )
        # Numbered alike in all processes, of which the first may have trained before.
        for index, part in enumerate(module.model.modules()):
            part.ds_id = index
        module.pass_through(self._engine)

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            # Counted in passes; it decides nothing, since who calls `step` decides what a batch is.
            "train_batch_size": self.world_size,
            "train_micro_batch_size_per_gpu": 1,
            "managed_gradient_accumulation": False,
            "gradient_clipping": self._max_grad_norm or 0.0,
            "steps_per_print": None,
            "zero_optimization": {
                "stage": self._stage,
                "stage3_param_persistence_threshold": 0,
                "reduce_bucket_size": min(_BUCKET, sum(weight.numel() for weight in self._weights())),
            },
        }
        if self.precision_plugin.precision == "bf16-mixed":
            # The engine would switch off the autocast around it. Gradients travel in single precision all the same.
            config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
        return config

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Add a loss's gradient to the step's."""
        self._engine.backward(closure_loss * self.world_size)
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> None:
        """Clip the step's gradient and go along it.

        Raises:
            HushbotError: The gradient is not finite.
        """
        module: Any = self.lightning_module
        self._engine.step()
        is_applied = self._engine.was_step_applied()
        module.check_norm(float(self._engine.get_global_grad_norm()) if is_applied else float("nan"))

    def teardown(self) -> None:
        """Take the engine's hooks off the model."""
        if self._engine is not None:
            self._engine.destroy()
        super().teardown()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the trained weights, whole, in the first process's memory; all take part."""
        module: Any = self.lightning_module
        weights: dict[str, Any] = module.kept_weights()
        return weights

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the optimiser's state, whole, as one process's optimiser would have it."""
        from deepspeed.utils import safe_get_full_optimizer_state

        weights, (group,) = self._weights(), optimizer.param_groups
        n_steps = next(state["step"] for state in optimizer.state.values())
        state = {}
        for index, weight in enumerate(weights):
            moments = {key: safe_get_full_optimizer_state(weight, key) for key in _MOMENTS}
            whole = {key: moment.view(_shape(weight)).cpu().clone() for key, moment in moments.items()}
            state[index] = {"step": n_steps.cpu().clone(), **whole}
        kept = {key: group[key] for key in (*optimizer.defaults, "initial_lr")}
        return {"state": state, "param_groups": [{**kept, "params": list(range(len(weights)))}]}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take over whole states, each process its part."""
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        (found,), (optimizer,) = checkpoint["optimizer_states"], self.optimizers
        self._make_states(optimizer)
        for index, weight in enumerate(self._weights()):
            for key in _MOMENTS:
                moment = found["state"][index][key].to(self.root_device)
                if self._stage == 3:
                    size = weight.ds_tensor.numel()
                    filled = F.pad(moment.flatten(), (0, size * self.world_size - moment.numel()))
                    safe_set_local_optimizer_state(weight, torch.split(filled, size)[self.global_rank], key)
                else:
                    safe_set_full_optimizer_state(weight, moment, key)
        for state in optimizer.state.values():
            state["step"].copy_(found["state"][0]["step"])
        ((kept,), (group,)) = found["param_groups"], optimizer.param_groups
        group.update({key: value for key, value in kept.items() if key != "params"})

    def _make_states(self, optimizer: Any) -> None:
        """Take a step of no length along no gradient: before its first step the engine has no state to fill."""
        module: Any = self.lightning_module
        (group,) = optimizer.param_groups
        rate, group["lr"] = group["lr"], 0.0
        self.backward(0.0 * module.idle_loss(), optimizer)
        self._engine.step()
        group["lr"] = rate

    def _weights(self) -> list[Any]:
        module: Any = self.lightning_module
        return list(module.trainable().values())


def _shape(weight: nn.Parameter) -> torch.Size:
    shape: torch.Size = weight.ds_shape if hasattr(weight, "ds_shape") else weight.shape
    return shape


def _deepspeed(device: torch.device) -> Any:
    """Return DeepSpeed, saying nothing but errors, and kept from compiling: on a CPU it would, for half a minute.

    Raises:
        ConfigError: It has been imported before, and has chosen another kind of device.
    """
    quieten_deepspeed()
    import deepspeed

    chosen = deepspeed.accelerator.get_accelerator().device_name()
    if chosen != device.type:
        raise ConfigError(
            f"strategy=deepspeed: DeepSpeed computes on {chosen}, trainer.accelerator on {device.type}; set the "
            f"environment variable DS_ACCELERATOR={device.type}"
        )
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed
