"""Which engine has which tokenizer: one that all share, and those of engines with a vocabulary of their own.

One job: keep a client per vocabulary, and say which of them a model or a scheduler belongs to. A vocabulary is named by
the addresses of its tokenizer's replicas; the shared one is "".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from quire_gateway.models import ServedModel
from quire_gateway.tokenizer_client import TokenizerClient

SHARED = ""


def parse_engine_tokenizers(pairs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Tokenizer addresses by scheduler address, of pairs "scheduler=tokenizer"; one scheduler may stand in several.

    Raises ValueError naming the pair that is none.
    """
    by_scheduler: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        scheduler, separator, tokenizer = pair.partition("=")
        if not (separator and scheduler and tokenizer):
            raise ValueError(f"must be pairs scheduler=tokenizer, got {pair!r}")
        by_scheduler[scheduler] = (*by_scheduler.get(scheduler, ()), tokenizer)
    return by_scheduler


class Vocabularies:
    """The tokenizer clients of one gateway."""

    def __init__(
        self,
        tokenizers: Sequence[str],
        schedulers: Sequence[str],
        engine_tokenizers: Sequence[str],
        make_client: Callable[[Sequence[str]], TokenizerClient],
    ) -> None:
        """make_client: a client of the tokenizer with these replicas."""
        own = parse_engine_tokenizers(engine_tokenizers)
        self._clients = {SHARED: make_client(tokenizers)}
        self._schedulers: dict[str, list[str]] = {}
        for scheduler in schedulers:
            addresses = own.get(scheduler, ())
            name = "+".join(sorted(addresses))
            if name not in self._clients:
                self._clients[name] = make_client(addresses)
            self._schedulers.setdefault(name, []).append(scheduler)

    @property
    def shared(self) -> TokenizerClient:
        """The tokenizer of all engines without one of their own."""
        return self._clients[SHARED]

    def name_of(self, scheduler: str) -> str:
        """The vocabulary of a scheduler's engine."""
        return next(name for name, addresses in self._schedulers.items() if scheduler in addresses)

    def client(self, name: str) -> TokenizerClient:
        """The tokenizer of a vocabulary."""
        return self._clients[name]

    def client_of(self, model: ServedModel) -> TokenizerClient:
        """The tokenizer of a model."""
        return self._clients[model.vocabulary]

    def usable(self, ready_schedulers: Collection[str]) -> list[bool]:
        """Per vocabulary that has engines: whether its tokenizer answers and one of its engines takes requests."""
        return [
            self._clients[name].is_ready and any(address in ready_schedulers for address in addresses)
            for name, addresses in self._schedulers.items()
        ]

    def start(self) -> None:
        """Look for all of them in the background."""
        for client in self._clients.values():
            client.start()

    async def close(self) -> None:
        """Stop looking."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))
