"""The queue: one manifest object, changed only by compare-and-swap.

* `manifest_object` reads and writes the manifest and knows what an answer means;
* `backoff` decides how long to wait before the next attempt;
* `append` and `consume` are the producers' and the consumer's operations on it.
"""

from buffer.queue.append import QueueProducer
from buffer.queue.consume import QueueConsumer

__all__ = ["QueueConsumer", "QueueProducer"]
