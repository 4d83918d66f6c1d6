"""ROSE, the engine: one batch of token ids in, one `LazyTensor` of packed rows out.

Knows nothing of HTTP, gRPC, text or the Rust core. Start reading in `engine.py`. Imports go one way:
engine, models, layers, inputs, kernels, then `flowerbed.folder`, config and errors.
"""
