# Image of the scheduler: the queue and the KV-block metadata. It holds no torch.
# Build from the root of the repository: docker build -f deploy/docker/scheduler.Dockerfile -t quire-scheduler .
FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt ./
COPY protos ./protos
COPY services/servicekit ./services/servicekit
COPY services/scheduler ./services/scheduler
RUN pip wheel --no-cache-dir -c constraints.txt --wheel-dir /wheels \
    ./protos ./services/servicekit ./services/scheduler

FROM python:3.11-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels quire-scheduler \
    && useradd --system --no-create-home quire
USER quire
ENV PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 QUIRE_SCHEDULER_LOG_FORMAT=json
EXPOSE 8083
ENTRYPOINT ["quire-scheduler"]
CMD ["--listen", "0.0.0.0:8083"]
