"""The dataflow of a run as a value: workers connected by streams; and its plan: who runs where, with what."""
