# make help lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

# The shell runs the program that go tool -n names. "go tool" itself ends with status 0 if the
# program is killed, for example because memory ran out.
GOLANGCI = $$(go tool -modfile=tools/golangci/go.mod -n golangci-lint)
GOTESTSUM = $$(go tool -modfile=tools/go.mod -n gotestsum) --format pkgname --format-icons text --format-hide-empty-pkg --post-run-command ./scripts/all-ran.sh
# What fails is run once more alone, unless more than ten fail. all-ran.sh names what then passes,
# and removes the folder.
RERUNS ?= 1
RERUNNING = export RERUN_FOLDER=$$(mktemp -d) && $(GOTESTSUM) --rerun-fails=$(RERUNS) --rerun-fails-abort-on-data-race \
	--rerun-fails-report="$$RERUN_FOLDER/report" --jsonfile="$$RERUN_FOLDER/events"
GOVULNCHECK = go run golang.org/x/vuln/cmd/govulncheck@v1.8.0
GORELEASER = go run github.com/goreleaser/goreleaser/v2@v2.16.0
FUZZTIME ?= 10s
SEARCHTIME ?= 5m
RACES ?= 10000
CHECKS ?= 2000
HISTORIES ?= 200
HISTORY ?= 1
N ?= 40
SEED ?= 0
TIMEOUT ?= 40m
# Six packages at once on two cores: many tests wait for servers and leases. "make lint" vets.
TESTFLAGS ?= -p 6 -vet=off
# The packages start in this order: the slowest first, so that none of them runs alone at the
# end. They wait more than they work.
PACKAGES = ./loadtest ./cmd/api ./internal/store ./internal/protocol ./internal/ledger/... ./internal/stock/gate ./deploy/gateway ./internal/lock/... ./cmd/withlock ./...
# The race detector, except for two virtual machines of others, which are up to three
# times as fast without it: SQLite, which is C translated to Go, with memory outside the
# Go heap, where the detector sees nothing; and the Lua of the in-process Redis, which
# runs one script at a time. Nor for the client of ZooKeeper, whose known race harms no lock
# (docs/decisions/0021-what-a-lock-backend-does.md), the tests of the models, which have no
# goroutines, and the parser of Go, which only tests use.
RACE = -race -gcflags=modernc.org/...=-race=false -gcflags=github.com/yuin/gopher-lua/...=-race=false \
	-gcflags=github.com/go-zookeeper/...=-race=false -gcflags=./internal/modelcheck=-race=false -gcflags=go/...=-race=false
ARGS ?=

# A program with the race detector sleeps for a second at exit by default. The files
# of the test servers are in memory if 4 GB are free there.
test mutants mutate search storms requests races histories: export GORACE ?= atexit_sleep_ms=50
test mutants mutate search storms requests races histories: export HOLDFAST_TEST_FOLDER ?= $(shell [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -gt 4000000 ] 2>/dev/null && echo /dev/shm)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## Start the service: go run ./cmd/api $(ARGS)
	go run ./cmd/api $(ARGS)

.PHONY: build
build: ## Build bin/api and bin/withlock
	go build -trimpath -o bin/ ./cmd/api ./cmd/withlock

.PHONY: servers
servers: ## Install the servers and the C compiler that the tests need, if missing (Debian, as root)
	@./scripts/test-servers.sh race

.PHONY: test
test: servers ## Run every test except the mutants, with the race detector, on real servers
	export CGO_ENABLED=1 && $(RERUNNING) --packages='$(PACKAGES)' -- $(RACE) $(TESTFLAGS) -timeout $(TIMEOUT)

# -count=1, because the go command does not see which tests the mutants run. Nine at once, since
# most of these tests wait.
mutants: TIMEOUT = 60m
.PHONY: mutants
mutants: servers ## Break the code in one place at a time and expect a test to fail
	$(RERUNNING) --packages=./internal/mutants -- -tags mutants -count=1 -parallel 9 -timeout $(TIMEOUT)

# The packages whose code is broken, and those whose tests may detect it.
mutate: PACKAGES = ./internal/ledger ./internal/ledger/cutter ./internal/ledger/sqltx ./internal/order ./internal/reconcile ./internal/stock/gate \
	$(patsubst %,./internal/lock/%,. etcd mysql postgres recipe redis redlock session zookeeper)
mutate: TESTS = $(PACKAGES) ./internal/async ./internal/assembly/... ./internal/protocol ./internal/lock/... ./cmd/withlock ./cmd/api

.PHONY: mutate
mutate: servers ## Break the error paths of PACKAGES in N (40) random places, drawn by SEED: expect tests to fail
	go test -tags mutants -count=1 -timeout 4h -run '^TestRandom$$' -v ./internal/mutants \
		-random.n=$(N) -random.seed=$(SEED) -random.packages='$(PACKAGES)' -random.tests='$(TESTS)'

.PHONY: lint
lint: elsewhere manifests ## Run the linters of .golangci.yml, check the manifests, and that go mod tidy changes nothing
	$(GOLANGCI) run ./...
	go mod tidy -diff
	cd tools && go mod tidy -diff
	cd tools/golangci && go mod tidy -diff
	cd tools/manifests && go mod tidy -diff
	cd tools/image && go mod tidy -diff

# As the job build of .github/workflows/ci.yml promises. go list -export compiles, and
# does not link.
.PHONY: elsewhere
elsewhere: ## Compile what also runs on macOS and on Windows
	GOOS=darwin CGO_ENABLED=0 go list -export ./cmd/... ./loadtest/... >/dev/null
	GOOS=windows CGO_ENABLED=0 go list -export ./cmd/api >/dev/null

# -count=1, because the go command does not see that files of another module changed.
.PHONY: manifests
manifests: ## Check the Kubernetes manifests with kustomize, kubeconform and our rules
	cd tools/manifests && go vet ./... && go test -count=1 ./...

.PHONY: vuln
vuln: ## Look for known vulnerabilities (govulncheck; needs the network)
	$(GOVULNCHECK) ./...

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

# Both need Node. The versions are those of tools/openapi/package-lock.json.
.PHONY: openapi-lint
openapi-lint: openapi-tools ## Run Spectral and Redocly on the OpenAPI document (needs Node)
	cd tools/openapi && npx --no-install spectral lint --ruleset spectral.yaml --fail-severity hint ../../internal/httpapi/openapi.yaml
	cd tools/openapi && npx --no-install redocly lint --config redocly.yaml --max-problems 100 ../../internal/httpapi/openapi.yaml

.PHONY: openapi-clients
openapi-clients: openapi-tools ## Generate Go and TypeScript clients and use them against the service (needs Node)
	./scripts/openapi-clients.sh
	cd tools/openapi/goclient && go mod tidy -diff

.PHONY: openapi-tools
openapi-tools:
	cd tools/openapi && npm ci --ignore-scripts --no-audit --no-fund --silent

.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZTIME (10s)
	@for pkg in $$(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
		for name in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$pkg/*_test.go | cut -c6-); do \
			go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) ./$$pkg || exit 1; \
		done; \
	done

.PHONY: search
search: servers ## Search for faults at random for SEARCHTIME (5m): TestFaults with -faults.search
	CGO_ENABLED=1 $(GOTESTSUM) -- $(RACE) -timeout 4h -run '^TestFaults$$' ./internal/protocol -faults.search=$(SEARCHTIME)

.PHONY: storms
storms: servers ## Let instances of several strategies sell in random storms for SEARCHTIME (5m): TestStorm with -storm.for
	CGO_ENABLED=1 $(GOTESTSUM) -- $(RACE) -timeout 4h -run '^TestStorm$$' ./internal/protocol -storm.for=$(SEARCHTIME)

.PHONY: requests
requests: ## Send CHECKS (2000) times sixteen random requests to the service: TestRandomRequests
	CGO_ENABLED=1 $(GOTESTSUM) -- $(RACE) -timeout 2h -run '^TestRandomRequests$$' ./internal/httpapi -rapid.checks=$(CHECKS)

.PHONY: races
races: servers ## Race payments, cancellations and expiry RACES (10000) times on each database: TestRaces
	CGO_ENABLED=1 $(GOTESTSUM) -- $(RACE) -timeout 2h -run '^TestRaces$$' ./internal/protocol -lifecycle.races=$(RACES)

.PHONY: histories
histories: servers ## Check HISTORIES (200) histories of all sound strategies, with faults, and of the broken ones
	CGO_ENABLED=1 $(GOTESTSUM) -- $(RACE) -timeout 2h -run '^TestHistories(_Broken)?$$' ./loadtest -histories=$(HISTORIES) -histories.seed=$(HISTORY)

.PHONY: benchmarks
benchmarks: servers ## Run every Go benchmark once, to see that it works
	@./scripts/test-servers.sh bench
	go test -run '^$$' -bench . -benchtime 1x -timeout $(TIMEOUT) ./...

.PHONY: image-test
image-test: ## Build the image without Docker, unpack and run it, check its SBOM, and push one for two platforms
	go test -tags image -count=1 -run '^TestLayout$$' ./deploy
	cd tools/image && go vet ./... && go test -count=1 ./...

.PHONY: snapshot
snapshot: ## Build the release archives into dist/ without publishing them
	$(GORELEASER) release --snapshot --clean --skip=publish

.PHONY: release
release: ## Build the archives of the tag that is checked out, and draft a release on GitHub
	$(GORELEASER) release --clean

.PHONY: image
image: ## Build the container image into dist/image and its SBOMs into dist/sbom, without Docker
	rm -rf dist/image dist/sbom
	cd tools/image && go run . $(ARGS)

.PHONY: clean
clean: ## Remove build output
	rm -rf bin dist
