# make help lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

STATICCHECK = go tool -modfile=tools/go.mod staticcheck
GOTESTSUM = go tool -modfile=tools/go.mod gotestsum --format pkgname --format-icons text --format-hide-empty-pkg --post-run-command ./scripts/all-ran.sh --
FUZZTIME ?= 10s
TIMEOUT ?= 25m
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## Start the service: go run ./cmd/api $(ARGS)
	go run ./cmd/api $(ARGS)

.PHONY: build
build: ## Build bin/api
	go build -trimpath -o bin/api ./cmd/api

.PHONY: servers
servers: ## Install the servers and the C compiler that the tests need, if missing (Debian, as root)
	@./scripts/test-servers.sh race

.PHONY: test
test: servers ## Run every test except the mutants, with the race detector, on real servers
	CGO_ENABLED=1 $(GOTESTSUM) -race -timeout $(TIMEOUT) ./...

.PHONY: mutants
mutants: servers ## Break the code in one place at a time and expect a test to fail
	$(GOTESTSUM) -tags mutants -timeout $(TIMEOUT) ./internal/mutants

.PHONY: lint
lint: ## gofmt, vet, staticcheck, and that go mod tidy changes nothing
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt -w:" $$unformatted; exit 1; fi
	go vet ./...
	go vet -tags mutants ./internal/mutants
	$(STATICCHECK) ./...
	go mod tidy -diff
	cd tools && go mod tidy -diff

.PHONY: bench
bench: ## Measure every strategy and the reference programs: go run ./bench $(ARGS)
	@./scripts/test-servers.sh bench
	go run ./bench $(ARGS)

.PHONY: bench-lock
bench-lock: servers ## Measure every lock backend and other libraries: go run ./bench/locks $(ARGS)
	go run ./bench/locks $(ARGS)

.PHONY: loadtest-smoke
loadtest-smoke: ## Run loadtest, k6 and vegeta for a few seconds each
	go run ./loadtest/smoke

.PHONY: report-look
report-look: ## Take screenshots of a loadtest report (REPORT=FILE) with Chromium
	@./loadtest/report-look.sh

.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZTIME (10s)
	@for pkg in $$(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
		for name in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$pkg/*_test.go | cut -c6-); do \
			go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) ./$$pkg || exit 1; \
		done; \
	done

.PHONY: clean
clean: ## Remove build output
	rm -rf bin dist
