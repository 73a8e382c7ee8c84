"""What an optimizer keeps and what its step needs for a moment. Plain numbers.

Formulas, per parameter of ``n`` elements (from torch 2.13, ``torch/optim/adamw.py``,
``adam.py`` and ``sgd.py``; ``item`` is the size of a state element)::

    AdamW state           2 n item (exp_avg, exp_avg_sq) + 4 bytes (step, a float32 scalar)
    AdamW single_tensor   2 n item for each parameter in turn: ``exp_avg_sq.sqrt()`` and its
                          quotient by the bias correction exist together
    AdamW foreach         n item for all parameters at once: the list ``exp_avg_sq_sqrt``
    AdamW fused           nothing
    SGD state             n item with momentum, else nothing
    SGD single_tensor     nothing; with weight decay n bytes-of-gradient for the decayed gradient

``master_weights`` adds a float32 copy of a parameter of lower precision to the state, as
DeepSpeed's and Megatron's mixed-precision optimizers keep; their moments are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal["adamw", "sgd", "none"]
Implementation = Literal["single_tensor", "foreach", "fused"]

FLOAT32_BYTES = 4
STEP_COUNTER_BYTES = 4
ADAMW_SINGLE_TENSOR_COPIES = 2
ADAMW_FOREACH_COPIES = 1


@dataclass(frozen=True, slots=True)
class OptimizerModel:
    """An optimizer and how it is run.

    ``single_tensor`` is what torch picks on CPU, ``foreach`` what it picks on GPUs.
    """

    name: OptimizerName = "adamw"
    implementation: Implementation = "single_tensor"
    master_weights: bool = False
    momentum: bool = False
    """SGD only."""
    weight_decay: bool = True
    """Decoupled (free of memory) for AdamW; for SGD it copies the gradient."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor that the optimizer keeps for a parameter."""

    name: str
    size_bytes: int


def state_tensors(
    optimizer: OptimizerModel, *, num_elements: int, element_bytes: int
) -> tuple[StateTensor, ...]:
    """What the optimizer keeps for one parameter from its first step on."""
    item = FLOAT32_BYTES if optimizer.master_weights else element_bytes
    copies = num_elements * item
    states: list[StateTensor] = []
    if optimizer.name == "none":
        return ()
    if optimizer.master_weights and element_bytes < FLOAT32_BYTES:
        states.append(StateTensor("master_weight", num_elements * FLOAT32_BYTES))
    if optimizer.name == "adamw":
        states += [StateTensor("exp_avg", copies), StateTensor("exp_avg_sq", copies)]
        states.append(StateTensor("step", STEP_COUNTER_BYTES))
    elif optimizer.momentum:
        states.append(StateTensor("momentum_buffer", copies))
    return tuple(states)


def temporary_bytes(optimizer: OptimizerModel, *, num_elements: int, element_bytes: int) -> int:
    """Most bytes that the step allocates for one parameter and frees again.

    With ``foreach`` those of all parameters exist at once, else one parameter's at a time.
    """
    item = FLOAT32_BYTES if optimizer.master_weights else element_bytes
    if optimizer.name == "adamw":
        copies = {
            "single_tensor": ADAMW_SINGLE_TENSOR_COPIES,
            "foreach": ADAMW_FOREACH_COPIES,
            "fused": 0,
        }[optimizer.implementation]
        return copies * num_elements * item
    if optimizer.name == "sgd" and optimizer.weight_decay and optimizer.implementation != "fused":
        return num_elements * item
    return 0


def step_bytes(optimizer: OptimizerModel, *, num_elements: int, element_bytes: int) -> int:
    """Bytes a step must move for one parameter if each tensor is read and written once.

    A lower bound: parameter and state read and written, gradient read.
    """
    if optimizer.name == "none":
        return 0
    states = state_tensors(optimizer, num_elements=num_elements, element_bytes=element_bytes)
    state_bytes = sum(state.size_bytes for state in states)
    return 2 * (num_elements * element_bytes + state_bytes) + num_elements * element_bytes
