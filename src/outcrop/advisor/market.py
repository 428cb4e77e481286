"""Machines to choose from, and what they cost, as users name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outcrop.advisor import hardware
from outcrop.advisor.cost import Prices
from outcrop.config.declared import check_types
from outcrop.errors import ArgumentError
from outcrop.runtime.hardware import Hardware


@dataclass(frozen=True)
class Market:
    """Says which machines to compare this one with, and what they cost.

    Attributes:
        machines: Machines to compare with, each a TOML file or the name of a built-in one
            (:class:`outcrop.runtime.hardware.Hardware`); this machine comes first always.
        prices: TOML file of prices (:class:`outcrop.advisor.cost.Prices`); the word ``prices``: those of the built-in
            machines. None: nothing is said about cost.
        budget: Money that a machine with its disks may cost at the most; None: any.
    """

    machines: Sequence[Hardware | str | Path] = ()
    prices: Prices | str | Path | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        object.__setattr__(self, "machines", tuple(self.machines))
        if self.budget is not None and not self.budget > 0:
            raise ArgumentError(
                f"budget {self.budget} buys nothing: give what a machine may cost, or leave it out"
            )

    def read_machines(self) -> tuple[Hardware, ...]:
        """Returns the machines; reads the files of those that are named.

        Raises:
            ArgumentError: A file is not there, or not what it should be.
        """
        return tuple(
            one if isinstance(one, Hardware) else hardware.read_machine(one) for one in self.machines
        )

    def read_prices(self) -> Prices | None:
        """Returns the prices, likewise."""
        return hardware.read_prices(self.prices) if isinstance(self.prices, str | Path) else self.prices
