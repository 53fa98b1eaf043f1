"""The Anthropic dialect: functions from a request's bytes to a head and the bytes of its answer, free of gRPC."""
