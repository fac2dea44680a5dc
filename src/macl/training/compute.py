"""Where a run is computed: devices, machines, and what a launcher has started."""

from __future__ import annotations

from dataclasses import dataclass, replace

from macl.core.errors import UserError
from macl.core.launch import launched_processes


@dataclass(frozen=True)
class Compute:
    """Where a run is computed; nothing here changes what is computed."""

    devices: int = 0
    """Processes on each node; 0: as many as torchrun or srun started, one where neither did."""
    nodes: int = 0
    """Machines; 0: likewise."""
    accelerator: str = "auto"
    progress: bool = True

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.devices * self.nodes

    def settled(self) -> Compute:
        """With numbers in place of zeros.

        Raises:
            UserError: they are not those of the launcher, so every process would train by itself.
        """
        asked = replace(self, devices=self.devices or 1, nodes=self.nodes or 1)
        launched = launched_processes()
        if launched is None:
            return asked
        started = replace(self, devices=launched[0], nodes=launched[1])
        if not (self.devices or self.nodes):
            return started
        if asked.world != started.world:
            raise UserError(
                f"torchrun or srun started {started.world} processes, and `devices=` and "
                f"`nodes=` ask for {asked.world}. Leave both out, or use "
                f"`devices={started.devices}` `nodes={started.nodes}`."
            )
        return asked


HERE = Compute()
"""One process on this machine, on its GPU if it has one."""
