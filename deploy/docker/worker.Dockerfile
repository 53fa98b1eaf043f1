# Image of the worker on a CPU: weights, kernels, sampling. The model's files are mounted.
# Build from the root of the repository:
#   docker build -f deploy/docker/worker.Dockerfile --build-arg TORCH_INDEX=<url> -t quire-worker .
# TORCH_INDEX names an index that has the CPU build of torch (see "Get started" on pytorch.org). For another build give
# --build-arg TORCH=torch==<version>, which on Linux may bring CUDA along.
FROM python:3.11-slim AS build
ARG TORCH=""
ARG TORCH_INDEX=""
WORKDIR /src
COPY constraints.txt ./
COPY protos ./protos
COPY services/servicekit ./services/servicekit
COPY services/worker ./services/worker
COPY kernels ./kernels
RUN torch="${TORCH:-$(grep '^torch==' constraints.txt)}" \
    && { grep -v '^torch==' constraints.txt; echo "$torch"; } > pins.txt \
    && pip wheel --no-cache-dir -c pins.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --wheel-dir /wheels \
       "$torch" ./protos ./services/servicekit ./services/worker ./kernels

FROM python:3.11-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels quire-worker \
    && useradd --system --create-home quire
USER quire
ENV PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 QUIRE_WORKER_LOG_FORMAT=json
EXPOSE 8084
ENTRYPOINT ["quire-worker"]
CMD ["--listen", "0.0.0.0:8084"]
