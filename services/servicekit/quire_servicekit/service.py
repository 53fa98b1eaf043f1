"""The frame of a service's main: settings, logs, event loop, and one line on what went wrong.

One job: be the only place where a process begins and ends. A service's `main.py` is its wiring and
`main = lambda: run_service(Settings, serve)`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from quire_servicekit import loop
from quire_servicekit.errors import QuireError
from quire_servicekit.logging import configure_logging, get_logger
from quire_servicekit.settings import ServiceSettings

S = TypeVar("S", bound=ServiceSettings)


def run_service(
    settings_class: type[S], serve: Callable[[S], Awaitable[None]], argv: Sequence[str] | None = None
) -> None:
    """Load the settings, run `serve` with them, and exit: 0 after an orderly end, 1 with the reason after a failure.

    A known cause (QuireError, OSError, ValueError) is one line; a bug is logged with its traceback.
    """
    settings = settings_class.load_or_exit(argv)
    configure_logging(settings.service, level=settings.log_level, log_format=settings.log_format)

    async def body() -> None:
        await serve(settings)

    try:
        loop.run(body())
    except KeyboardInterrupt:
        sys.exit(130)
    except (QuireError, OSError, ValueError) as error:
        get_logger("main").error("cannot run", reason=str(error))
        sys.exit(1)
    except Exception:  # noqa: BLE001 - the process ends here, and says why
        get_logger("main").exception("failed")
        sys.exit(1)
