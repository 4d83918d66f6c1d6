"""Building blocks with weights. Each takes its tensors from a `Weights` by their checkpoint names."""
