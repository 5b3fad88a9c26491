"""Exported policies: as a numpy program, as StableHLO and as ONNX."""
