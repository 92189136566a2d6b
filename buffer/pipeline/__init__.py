"""The pipelined consumer: read-ahead by several workers, acks by a contiguous watermark.

* `pipeline` is the public object, `delivery` a batch in the caller's hands, `handlers` the callback form;
* `background` runs the tasks: one `owner` of the consumer, and the workers of `fetching`; `signals` is how they wait;
* `progress`, `watermark` and `pacing` are their state and their decisions, pure; `statistics` is a picture of it;
* `config` are the settings.
"""

from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.delivery import Delivery
from buffer.pipeline.pipeline import PipelinedConsumer
from buffer.pipeline.statistics import PipelineStatistics, Stage, WaitingFor

__all__ = ["Delivery", "PipelineConfig", "PipelineStatistics", "PipelinedConsumer", "Stage", "WaitingFor"]
