"""The pipelined consumer: read-ahead by several workers, acks by a contiguous watermark.

* `pipeline` is the public object, with its tasks;
* `progress` and `watermark` are its state, pure;
* `config` are its settings.
"""

from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.pipeline import Delivery, PipelinedConsumer, PipelineStatistics

__all__ = ["Delivery", "PipelineConfig", "PipelineStatistics", "PipelinedConsumer"]
