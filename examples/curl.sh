#!/usr/bin/env bash
# The same request in both REST dialects: bash examples/curl.sh "What is the capital of France?"
set -euo pipefail
url=http://127.0.0.1:${QUIRE_PORT:-8080}
messages="[{\"role\": \"user\", \"content\": \"$1\"}]"

# OpenAI's dialect.
curl -sS --fail-with-body "$url/v1/chat/completions" -H 'content-type: application/json' \
  -d "{\"messages\": $messages, \"temperature\": 0}"
echo

# The typed contract (quire.inference.v1) as REST: server-sent events with the contract's field names.
curl -sSN --fail-with-body "$url/quire/v1/generate" -H 'content-type: application/json' \
  -d "{\"chat\": {\"messages\": $messages}, \"sampling\": {\"temperature\": 0}}"
