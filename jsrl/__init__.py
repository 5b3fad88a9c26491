"""Distributed reinforcement learning in JAX, from a notebook to a cluster, with the same algorithm file.

`__init__.pyi` lists what `import jsrl` gives; `jsrl.extend` is for algorithms, workers, directors and transports of your own.
"""

from jsrl import extend as extend
from jsrl.lazy import attach

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
