"""Consumers: the queue's batches out again, in order, by one consumer at a time.

* `consumer` is the public object: it owns the queue, the cursors and the collector's task;
* `fetch` reads and decodes batches, stateless, for any number of tasks;
* `cursors` are the pure rules of what is handed out, fetched and acked.
"""

from buffer.consumer.consumer import Consumer
from buffer.consumer.fetch import ConsumerFetchHandle

__all__ = ["Consumer", "ConsumerFetchHandle"]
