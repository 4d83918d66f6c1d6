"""One file per architecture, and the registry that finds it by config.json's model_type."""
