"""The dataflow of a run as a value: which workers, joined by which streams."""
