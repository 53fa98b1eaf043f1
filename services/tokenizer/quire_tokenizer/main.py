"""The quire-tokenizer command: wiring only."""

from __future__ import annotations

from quire.admin.v1.admin_service_pb2_grpc import add_AdminServicer_to_server
from quire.tokenizer.v1.tokenizer_service_pb2_grpc import add_TokenizerServicer_to_server
from quire_servicekit.logging import get_logger
from quire_servicekit.metrics import Metrics
from quire_servicekit.server import ServiceServer, add
from quire_servicekit.service import run_service
from quire_tokenizer.loading import load_tokenizer
from quire_tokenizer.metrics import TokenizerMetrics
from quire_tokenizer.servicer import SERVICE_NAME, TokenizerServicer
from quire_tokenizer.servicer_admin import ADMIN_NAME, TokenizerAdmin
from quire_tokenizer.settings import TokenizerSettings
from quire_tokenizer.text_pool import TextPool

log = get_logger("tokenizer")


async def serve(settings: TokenizerSettings) -> None:
    """Load the tokenizer, then serve it until the process is told to stop."""
    tokenizer = load_tokenizer(settings.model)
    log.info(
        "tokenizer loaded",
        model=str(settings.model),
        vocab_size=tokenizer.vocabulary.size,
        scheme=tokenizer.vocabulary.scheme.value,
        chat_templates=sorted(tokenizer.chat_templates),
        fingerprint=tokenizer.fingerprint[:16],
    )
    metrics = Metrics(settings.service)
    pool = TextPool(settings.pool_limits())
    servicer = TokenizerServicer(
        tokenizer,
        pool,
        TokenizerMetrics(metrics.registry),
        text_limits=settings.text_limits(),
        chat_limits=settings.chat_limits(),
        max_streams=settings.max_streams,
    )
    server = ServiceServer(settings, names=[SERVICE_NAME, ADMIN_NAME])
    add(server, add_TokenizerServicer_to_server, servicer)
    admin = TokenizerAdmin(server.health, servicer.work, settings.drain_timeout_s)
    add(server, add_AdminServicer_to_server, admin)
    metrics.serve(settings.metrics_listen)
    try:
        async with server:
            await server.ready()
            await server.run_until_stopped(servicer.work.wait_idle)
    finally:
        pool.close()
        metrics.close()


def main() -> None:
    """Console script."""
    run_service(TokenizerSettings, serve)


if __name__ == "__main__":
    main()
