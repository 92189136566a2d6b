"""The garbage collector: deletes batch objects that no entry of the queue needs any more.

* `rules` decides, from values alone, what may go and why the rest stays;
* `watch` reads the manifest, strictly, as often as a cycle needs it;
* `cycle` lists, asks the rules, and deletes;
* `collector` runs cycles.
"""

from buffer.gc.collector import GarbageCollector
from buffer.gc.cycle import Collection
from buffer.gc.rules import KeepReason

__all__ = ["Collection", "GarbageCollector", "KeepReason"]
