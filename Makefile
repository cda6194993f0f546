# make help lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

STATICCHECK = go tool -modfile=tools/go.mod staticcheck
FUZZTIME ?= 10s
TIMEOUT ?= 25m
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## Serve, embedded: go run ./cmd/api $(ARGS)
	go run ./cmd/api $(ARGS)

.PHONY: build
build: ## Build bin/api
	go build -trimpath -o bin/api ./cmd/api

.PHONY: test
test: ## Install what is missing and run every test, with the race detector, on real servers
	./scripts/test-servers.sh race
	CGO_ENABLED=1 go test -race -json -timeout $(TIMEOUT) ./... | go run ./internal/testreport

.PHONY: mutants
mutants: ## Break the sound code in one place at a time and expect a test to fail
	./scripts/test-servers.sh
	go test -tags mutants -json -timeout $(TIMEOUT) ./internal/mutants | go run ./internal/testreport

.PHONY: lint
lint: ## gofmt, vet, staticcheck, and that go mod tidy changes nothing
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt -w:" $$unformatted; exit 1; fi
	go vet ./...
	go vet -tags mutants ./internal/mutants
	$(STATICCHECK) ./...
	go mod tidy -diff
	cd tools && go mod tidy -diff

.PHONY: bench
bench: ## Measure every strategy against the reference programs: go run ./bench $(ARGS)
	./scripts/test-servers.sh bench
	go run ./bench $(ARGS)

.PHONY: bench-lock
bench-lock: ## Measure every lock backend against libraries: go run ./bench/locks $(ARGS)
	./scripts/test-servers.sh
	go run ./bench/locks $(ARGS)

.PHONY: loadtest-smoke
loadtest-smoke: ## Run loadtest, k6 and vegeta for some seconds each against embedded services
	go run ./loadtest/smoke

.PHONY: report-look
report-look: ## Take pictures of loadtest's report, or of REPORT=FILE, with Chromium
	@./loadtest/report-look.sh

.PHONY: fuzz
fuzz: ## Fuzz the decoders, each for FUZZTIME (10s)
	@for pkg in $$(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
		for name in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$pkg/*_test.go | cut -c6-); do \
			go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) ./$$pkg || exit 1; \
		done; \
	done

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin
