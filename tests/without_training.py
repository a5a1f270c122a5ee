"""An installation without the extra `train`, and without ONNX Runtime."""

WITHOUT_TRAINING = "import sys\nfor name in ('torch', 'numba', 'onnxruntime'):\n    sys.modules[name] = None\n"
"""A program that begins with it, or a `sitecustomize` of it, can import none of these."""
