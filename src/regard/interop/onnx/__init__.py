"""ONNX graphs for ONNX Runtime."""
