"""The simulated world: many nodes, one store, every fault, and a book of what is true.

* `loop` makes a trio run the same each time, and stops nodes like processes;
* `plan` says what a seed stands for; `weather` which calls fail; `dice` how that is decided;
* `wire` is the network, `ledger` the store with the rules of the queue, `sink` the database with those of delivery;
* `node`, `producers` and `consumers` are the processes; `world` is their life together, `verdict` the judgement;
* `run` runs one seed, `campaign` many, `shrink` makes a failing one smaller;
* `reference` and `changes` read the formats once more, independently; `codecs` compares the two readers.
"""

from buffer.testing.world.campaign import Campaign, Outcome, run_seeds
from buffer.testing.world.history import Event, Violation
from buffer.testing.world.run import Result, run_seed
from buffer.testing.world.shrink import Shrunk, shrink

__all__ = ["Campaign", "Event", "Outcome", "Result", "Shrunk", "Violation", "run_seed", "run_seeds", "shrink"]
