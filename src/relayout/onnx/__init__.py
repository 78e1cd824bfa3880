"""Relayout to programs that speak ONNX: :mod:`relayout.onnx.backend` runs models through its interface."""
