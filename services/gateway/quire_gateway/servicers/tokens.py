"""The OpenAI service's RPCs that run nothing: tokens of texts, and prompts that would be run.

One job: which endpoint serves which RPC.
"""

from __future__ import annotations

import grpc

from quire_gateway.openai.token_endpoints import TokenEndpoints
from quire_gateway.servicers.dialect import add_handlers, body_handler
from quire_gateway.servicers.openai import SERVICE_NAME


def add_tokens(server: grpc.aio.Server, endpoints: TokenEndpoints) -> None:
    """Register them."""
    handlers = {
        "Tokenize": body_handler(endpoints.tokenize),
        "Detokenize": body_handler(endpoints.detokenize),
        "RenderChatCompletion": body_handler(endpoints.render_chat),
        "RenderCompletion": body_handler(endpoints.render_completion),
    }
    add_handlers(server, SERVICE_NAME, handlers)
