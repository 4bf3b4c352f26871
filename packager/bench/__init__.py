"""`packager bench`: the time and memory of every artifact on every runtime of this machine.

Each measurement has a process of its own: memory is then one artifact's, and a crash ends one row.
"""

from packager.bench.measure import Settings, measure
from packager.bench.show import show

__all__ = ["Settings", "measure", "show"]
