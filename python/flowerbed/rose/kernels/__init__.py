"""Functions on tensors: no weights, no configuration. torch operations on every device."""
