"""Policies that leave jsrl: as a numpy program, as StableHLO and as ONNX."""
