# Image of the gateway: the public API. It holds no torch and no tokenizer.
# Build from the root of the repository: docker build -f deploy/docker/gateway.Dockerfile -t quire-gateway .
FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt ./
COPY protos ./protos
COPY services/servicekit ./services/servicekit
COPY services/gateway ./services/gateway
RUN pip wheel --no-cache-dir -c constraints.txt --wheel-dir /wheels \
    ./protos ./services/servicekit ./services/gateway

FROM python:3.11-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels quire-gateway \
    && useradd --system --no-create-home quire
USER quire
ENV PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 QUIRE_GATEWAY_LOG_FORMAT=json
EXPOSE 8081
ENTRYPOINT ["quire-gateway"]
CMD ["--listen", "0.0.0.0:8081"]
