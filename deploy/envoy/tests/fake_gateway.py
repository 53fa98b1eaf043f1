"""A gateway that does what a request's body tells it to. Run as a program with a port, it can be killed."""

from __future__ import annotations

import json
import queue
import sys
import time
from concurrent import futures

import grpc
from google.api.httpbody_pb2 import HttpBody
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from quire.anthropic.v1 import anthropic_service_pb2_grpc
from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc, models_pb2, tokens_pb2
from quire.openai.v1 import batches_service_pb2_grpc, openai_service_pb2_grpc, responses_service_pb2_grpc

READINESS = "quire.inference.v1.Inference"
SERVER_OPTIONS = [
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
]


class FakeOpenAI(openai_service_pb2_grpc.OpenAIServicer):
    """Answers as the body's `mode` says; `events` gets what happened to held calls."""

    def __init__(self, name, events):
        self.name, self.events = name, events

    def ChatCompletions(self, request, context):
        """One JSON body, a stream, an error, or silence until the client goes."""
        order = json.loads(request.data or b"{}")
        return getattr(self, "_" + order.get("mode", "json"))(order, request, context)

    Completions = ChatCompletions

    def ListModels(self, request, context):
        """The metadata that arrived, as JSON."""
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        return HttpBody(
            content_type="application/json", data=json.dumps({"gateway": self.name, **metadata}).encode()
        )

    def GetModel(self, request, context):
        """The name that arrived; a status in the metadata for the name `missing`."""
        if request.model == "missing":
            context.send_initial_metadata((("x-http-status", "404"),))
        return HttpBody(content_type="application/json", data=json.dumps({"id": request.model}).encode())

    def _json(self, order, request, context):
        body = {"gateway": self.name, "received": len(request.data), "type": request.content_type}
        body["padding"] = "x" * order.get("answer_bytes", 0)
        yield HttpBody(content_type="application/json", data=json.dumps(body).encode())

    def _error(self, order, request, context):
        context.send_initial_metadata((("x-http-status", str(order["status"])), ("retry-after", "7")))
        error = {"error": {"message": "as ordered", "type": "t", "param": None, "code": "c"}}
        yield HttpBody(content_type="application/json", data=json.dumps(error).encode())

    def _abort(self, order, request, context):
        context.abort(grpc.StatusCode[order["code"]], "aborted as ordered")
        yield HttpBody()

    def _sse(self, order, request, context):
        padding = b": padding\n\n" * order.get("padding_lines", 0)
        yield HttpBody(content_type="text/event-stream")
        for index in range(order["events"]):
            time.sleep(order.get("gap_s", 0))
            yield HttpBody(data=f'data: {{"index": {index}}}\n\n'.encode() + padding)
        yield HttpBody(data=b"data: [DONE]\n\n")

    def _hold(self, order, request, context):
        context.add_callback(lambda: self.events.put(("ended", order["id"])))
        self.events.put(("started", order["id"]))
        if order.get("stream"):
            yield HttpBody(content_type="text/event-stream")
        while context.is_active():
            time.sleep(0.005)


class FakeAnthropic(anthropic_service_pb2_grpc.AnthropicServicer):
    """Streams named events, or answers with the metadata that arrived."""

    def CreateMessage(self, request, context):
        """As the body says: `stream`, or not."""
        if json.loads(request.data).get("stream"):
            yield HttpBody(content_type="text/event-stream")
            yield HttpBody(data=b'event: message_stop\ndata: {"type": "message_stop"}\n\n')
            return
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        yield HttpBody(content_type="application/json", data=json.dumps(metadata).encode())


class FakeResponses(responses_service_pb2_grpc.ResponsesServicer):
    """Says what it was asked."""

    def _tell(self, request, context):
        yield HttpBody(content_type="application/json", data=json.dumps({"asked": str(request)}).encode())

    GetResponse = CancelResponse = DeleteResponse = ListInputItems = _tell


class FakeFiles(batches_service_pb2_grpc.FilesServicer):
    """Says what came, and gives bytes of any kind."""

    def CreateFile(self, request, context):
        """The form as it came."""
        body = {"type": request.content_type, "size": len(request.data), "tail": request.data[-20:].hex()}
        yield HttpBody(content_type="application/json", data=json.dumps(body).encode())

    def GetFileContent(self, request, context):
        """Bytes in two messages."""
        yield HttpBody(content_type="application/octet-stream", data=bytes(range(256)))
        yield HttpBody(data=request.file_id.encode())


class FakeInference(inference_service_pb2_grpc.InferenceServicer):
    """The typed service; the text is the order."""

    def __init__(self, events):
        self.events = events

    def Generate(self, request, context):
        """`started` and two deltas; or an error with details before or after the first message."""
        if request.text == "refuse":
            bad = error_details_pb2.BadRequest()
            bad.field_violations.add(field="sampling.top_p", description="must be at most 1, is 2")
            detail = Any()
            detail.Pack(bad)
            context.abort_with_status(
                rpc_status.to_status(
                    status_pb2.Status(code=3, message="sampling.top_p is out of range", details=[detail])
                )
            )
        yield generate_pb2.GenerateResponse(
            started=generate_pb2.Started(request_id="r1", model="m", num_prompt_tokens=3)
        )
        if request.text == "hold":
            context.add_callback(lambda: self.events.put(("ended", "native")))
            self.events.put(("started", "native"))
            while context.is_active():
                time.sleep(0.005)
        if request.text == "fail later":
            yield generate_pb2.GenerateResponse(
                error=status_pb2.Status(code=14, message="the engine is gone")
            )
            return
        for token in (7, 0):
            yield generate_pb2.GenerateResponse(delta=generate_pb2.Delta(text="é", token_ids=[token]))
        yield generate_pb2.GenerateResponse(completed=generate_pb2.Completed())

    def Tokenize(self, request, context):
        """As many tokens as characters."""
        return tokens_pb2.TokenizeResponse(token_ids=range(len(request.text)))

    def ListModels(self, request, context):
        """No models."""
        return models_pb2.ListModelsResponse()


class FakeGateway:
    """One gateway process' worth of services on a port of its own."""

    def __init__(self, port, name="one"):
        self.events = queue.Queue()
        self.health = health.HealthServicer()
        self.server = grpc.server(futures.ThreadPoolExecutor(32), options=SERVER_OPTIONS)
        openai_service_pb2_grpc.add_OpenAIServicer_to_server(FakeOpenAI(name, self.events), self.server)
        anthropic_service_pb2_grpc.add_AnthropicServicer_to_server(FakeAnthropic(), self.server)
        responses_service_pb2_grpc.add_ResponsesServicer_to_server(FakeResponses(), self.server)
        batches_service_pb2_grpc.add_FilesServicer_to_server(FakeFiles(), self.server)
        inference_service_pb2_grpc.add_InferenceServicer_to_server(FakeInference(self.events), self.server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        reflection.enable_server_reflection(
            ["quire.inference.v1.Inference", reflection.SERVICE_NAME], self.server
        )
        self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()

    def wait_for(self, kind, name, timeout_s=10):
        """Block until the event (kind, name) arrives; others are dropped. queue.Empty after the timeout."""
        while self.events.get(timeout=timeout_s) != (kind, name):
            pass

    def set_serving(self, serving):
        """Report readiness."""
        status = health_pb2.HealthCheckResponse
        self.health.set(READINESS, status.SERVING if serving else status.NOT_SERVING)

    def stop(self):
        """Drop every connection."""
        self.server.stop(None).wait()


if __name__ == "__main__":
    # Held: a server that nobody refers to stops.
    gateway = FakeGateway(int(sys.argv[1]))
    gateway.set_serving(True)
    time.sleep(120)
