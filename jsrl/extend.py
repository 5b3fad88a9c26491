"""What algorithms, workers, dataflows, directors, environments and transports of your own are built with.

Provisional: names here may still change between minor versions, with a line in the changelog.
"""

from jsrl.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
