"""Graphs as networks of other systems: ``onnx``."""
