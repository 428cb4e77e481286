"""Adam without ``torch.optim.Optimizer``, whose first use loads torch's compiler: 70 MiB of every training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch.optim.adam import adam


class Adam:
    """Updates parameters with the bits of ``torch.optim.Adam(parameters, lr, weight_decay=weight_decay, fused=True)``.

    Args:
        parameters: Tensors of floats, on a CPU or a GPU; those without a gradient are left as they are.
        weight_decay: L2 penalty, added to the gradients.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], *, weight_decay: float = 0.0):
        self._parameters = list(parameters)
        self._weight_decay = weight_decay
        self._state: dict[
            int, dict[str, torch.Tensor]
        ] = {}  # by the parameter's number, from its first gradient on

    def zero_grad(self) -> None:
        """Drops all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, learning_rate: float, batches: int = 1) -> None:
        """Makes one update by the mean gradient of ``batches`` batches, whose gradients were added up."""
        numbers = [number for number, parameter in enumerate(self._parameters) if parameter.grad is not None]
        states = [self._state_of(number) for number in numbers]
        parameters = [self._parameters[number] for number in numbers]
        if batches > 1:
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.div_(batches)
        adam(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def state(self) -> dict[str, torch.Tensor]:
        """Returns ``"<parameter number>.<name>"`` -> tensor: ``torch.optim.Adam.state_dict()["state"]``, flat."""
        return {
            f"{number}.{name}": value
            for number, state in sorted(self._state.items())
            for name, value in state.items()
        }

    def restore(self, flat: Mapping[str, torch.Tensor]) -> None:
        """Puts back what :meth:`state` returned, on the devices of the parameters."""
        self._state = {}
        for key, value in flat.items():
            number, name = key.split(".", 1)
            device = self._parameters[int(number)].device
            self._state.setdefault(int(number), {})[name] = value.to(device, torch.float32)

    def _state_of(self, number: int) -> dict[str, torch.Tensor]:
        if number not in self._state:
            parameter = self._parameters[number]
            self._state[number] = {
                "step": torch.zeros(
                    (), device=parameter.device
                ),  # float32 on the device, as fused kernels want it
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return self._state[number]
