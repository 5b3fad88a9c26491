"""The dataflow of a run as a value: workers connected by streams."""
