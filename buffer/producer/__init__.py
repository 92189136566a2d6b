"""Producers: records in, durable batches in the queue out.

* `producer` is the public object: it accumulates records, seals batches, flushes and closes;
* `batch` and `watcher` are one batch on its way and what its callers may ask about it;
* `budget` makes callers wait while too much is unflushed;
* `delivery` uploads sealed batches and commits them in order;
* `ledger` counts what came of them and keeps failures until somebody is told.
"""

from buffer.producer.ledger import ProducerStatistics
from buffer.producer.producer import Producer
from buffer.producer.watcher import DurabilityWatcher, WriteHandle

__all__ = ["DurabilityWatcher", "Producer", "ProducerStatistics", "WriteHandle"]
