# Image of the tokenizer: vocabularies and chat templates. It holds no torch. The model's files are mounted.
# Build from the root of the repository: docker build -f deploy/docker/tokenizer.Dockerfile -t quire-tokenizer .
FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt ./
COPY protos ./protos
COPY services/servicekit ./services/servicekit
COPY services/tokenizer ./services/tokenizer
RUN pip wheel --no-cache-dir -c constraints.txt --wheel-dir /wheels \
    ./protos ./services/servicekit ./services/tokenizer

FROM python:3.11-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels quire-tokenizer \
    && useradd --system --no-create-home quire
USER quire
ENV PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 QUIRE_TOKENIZER_LOG_FORMAT=json
EXPOSE 8082
ENTRYPOINT ["quire-tokenizer"]
CMD ["--listen", "0.0.0.0:8082"]
