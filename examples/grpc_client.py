"""Ask over gRPC and print the answer as it comes: python examples/grpc_client.py "What is the capital of France?"."""

import os
import sys

import grpc

from quire.inference.v1 import chat_pb2, generate_pb2, inference_service_pb2_grpc

with grpc.insecure_channel(f"127.0.0.1:{os.environ.get('QUIRE_PORT', '8080')}") as channel:
    question = chat_pb2.ChatMessage(role="user", content=sys.argv[1])
    request = generate_pb2.GenerateRequest(chat=chat_pb2.Chat(messages=[question]))
    request.sampling.temperature = 0
    for event in inference_service_pb2_grpc.InferenceStub(channel).Generate(request):
        print(event.delta.text, end="", flush=True)
