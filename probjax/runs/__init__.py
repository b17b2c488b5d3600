"""Long runs: the host loop of all drivers, checkpoints, digests and saved files."""

from probjax.runs import storage
from probjax.runs.checkpoint import Checkpoint
from probjax.runs.driver import Watch

__all__ = ["Checkpoint", "storage", "Watch"]
