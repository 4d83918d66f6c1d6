"""Exceptions that flowerbed raises on purpose. Each message says what was wrong and what to do."""

from __future__ import annotations


class FlowerbedError(Exception):
    """Base of all of them."""


class ConfigError(FlowerbedError, ValueError):
    """A setting cannot be honoured."""


class ModelError(FlowerbedError):
    """A model folder is incomplete, malformed, or asks for something that is not supported."""


class DeviceError(FlowerbedError):
    """The device is missing, or failed in a way that only a restart can mend."""
