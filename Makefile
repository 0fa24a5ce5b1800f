.DEFAULT_GOAL := help
.PHONY: help test race lint bench demo ci

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## all tests; those that need redis-server skip, loudly under -v, when there is none
	go test ./...

race: ## all tests with the race detector, in random order
	go test -race -shuffle=on ./...

lint: ## formatting, vet and the linters, at the versions that CI uses
	.ci/run fmt vet lint

bench: ## the benchmarks
	cd bench && go test -run '^$$' -bench . -benchmem ./...

demo: ## a lock at work, without any Redis installed
	go run ./cmd/redlock demo

ci: ## everything that CI runs
	.ci/run
