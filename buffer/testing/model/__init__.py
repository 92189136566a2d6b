"""Every interleaving of a small world: the queue's own code, with each call of the store as a choice.

* `requests` are the calls of the store, as values, and the answers;
* `stepper` runs one party from answer to answer, without an event loop;
* `parties` are the parties, made of the library's own code;
* `state` is the world as a value;
* `moves` are the choices in it, and the rules;
* `explore` visits every state.
"""

from buffer.testing.model.explore import Exploration, explore
from buffer.testing.model.state import Setup

__all__ = ["Exploration", "Setup", "explore"]
