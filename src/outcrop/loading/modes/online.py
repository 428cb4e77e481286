"""Mode ``online``: what is wanted often is cached, the rest is read while batches are drawn."""

from __future__ import annotations

from typing import final

from outcrop.loading.modes.base import Mode, SessionRequest
from outcrop.loading.online.session import open_online
from outcrop.loading.session import LoadSession


@final
class Online(Mode):
    """Nothing is prepared; batches are drawn as they are wanted, with a run as the run was sampled."""

    name = "online"
    note = "nothing prepared"
    redraws = True
    spools = True
    options = frozenset({"io", "sample_on", "cache_strategy"})

    def open(self, request: SessionRequest) -> LoadSession:
        return open_online(
            request.graph, request.runtime, request.config, request.device, request.recorded, request.ids
        )
