#!/usr/bin/env bash
# Generates a Go client and a TypeScript client from the OpenAPI document, and uses both
# against the service on embedded stores. Needs Go, Node and npm.
set -euo pipefail
cd "$(dirname "$0")/.."
document=$PWD/internal/httpapi/openapi.yaml

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
go build -o "$folder/api" ./cmd/api

# The service stops when its standard input, a pipe of this shell, ends.
coproc service { exec "$folder/api" --listen 127.0.0.1:0 --stop-with-stdin --log-level error 2>&1; }
exec {stdin}>&"${service[1]}"
url=
while IFS= read -r -t 60 -u "${service[0]}" line; do
	if [[ $line =~ \"url\":\"(http://[^\"]+)\" ]]; then
		url=${BASH_REMATCH[1]}
		break
	fi
done
[ -n "$url" ] || { echo "the service has not logged its address" >&2; exit 1; }
export HOLDFAST_URL=$url

(
	cd tools/openapi/goclient
	go tool oapi-codegen -config config.yaml "$document"
	go run .
)
(
	cd tools/openapi
	npx --no-install openapi-typescript "$document" --output generated/schema.d.ts >/dev/null
	npx --no-install tsc --project .
	node generated/out/flow.js
)
