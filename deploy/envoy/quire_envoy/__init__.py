"""The edge: Envoy's configuration from typed settings, and the commands around the binary. Knows no service's code.

Importing this package is cheap: the contracts, the YAML reader and the binary are touched only when used.
"""

from quire_envoy.config import render
from quire_envoy.process import command, drain, validate, write_config
from quire_envoy.settings import ApiKey, EdgeSettings, RateLimit, Tls

__all__ = [
    "ApiKey",
    "EdgeSettings",
    "RateLimit",
    "Tls",
    "command",
    "drain",
    "render",
    "validate",
    "write_config",
]
