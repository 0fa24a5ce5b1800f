.DEFAULT_GOAL := help
.PHONY: help test race lint soak bench demo ci

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## all tests; those that need redis-server skip, loudly under -v, when there is none
	go test ./...

race: ## all tests with the race detector, in random order
	go test -race -shuffle=on ./...

lint: ## formatting, vet and the linters, at the versions that CI uses
	.ci/run fmt vet lint

soak: ## the tests of faults, for minutes instead of seconds
	REDLOCK_SOAK=5m go test -race -count=1 -timeout 20m -run TestSoak -v .
	REDLOCK_LOSSES=1000 go test -count=1 -timeout 20m -run 'ALossIs|APausedProcess|AMajorityThatHangs|NoWindow|NoRenewal|NoFaultBut' -v .
	REDLOCK_KEPT="100000 30s 1m" go test -count=1 -timeout 10m -run TestManyKept -v .
	REDLOCK_TOKENS=3m go test -count=1 -timeout 30m -run TestTokensGrow -v ./chaos/tokens
	REDLOCK_FAULTS=1m go test -count=1 -timeout 60m -run TestScenarios -v ./chaos/faults
	go run ./chaos sim -schedules 200000
	go run ./chaos sim -whole -schedules 20000
	go run ./chaos sim -replays -schedules 10000
	go run ./chaos control -n 20
	go run ./chaos mutants
	go run ./chaos mutants -sim
	cd fence/fencetest && REDLOCK_STALE_PAUSES=1000 go test -count=1 -timeout 30m -run TestStaleWriters -parallel 12 -v ./...

bench: ## the library beside its peers, on servers that it starts
	cd bench && go run .

demo: ## a lock at work, without any Redis installed
	go run ./cmd/redlock demo

ci: ## everything that CI runs
	.ci/run
