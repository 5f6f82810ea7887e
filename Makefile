.PHONY: help check test test-all servers browser-test browser-soak ops-test proxy-test lua-test release-check bench outages soak mutants

help:
	@echo 'make check  while you work: format, lints, and the tests that need no server'
	@echo 'make test   format, lints, documentation, examples, all tests'
	@echo 'make test-all  also every feature alone, the minimum Rust version, the benchmarks, and properties with more cases'
	@echo 'make servers  the tests that need a server, with each server whose path is in REDIS_SERVERS'
	@echo 'make browser-test  the pages of the apps in a headless Chromium, which root gets installed'
	@echo 'make ops-test   alerts and dashboard under a real Prometheus, which root gets installed'
	@echo 'make proxy-test  uploads and decisions through real proxies, which root gets installed'
	@echo 'make lua-test   the scripts of the store with Lua 5.4, which root gets installed'
	@echo 'make bench  the benchmarks'
	@echo 'make release-check  the package, the licences of its dependencies, its interface since the last release or BASELINE'
	@echo 'make outages   what faults cost, in one table: some minutes in real time, on a machine that does nothing else'
	@echo 'make mutants   80 mutants of the decision code, each of which a test must catch: hours; a stopped run resumes'
	@echo 'make browser-soak  a quarter of an hour of load that the pages show: their memory may not grow'
	@echo 'make soak   ten minutes of load with a fault every 20 seconds; SOAK_SECONDS for more or less,'
	@echo '            ARGS="--json FILE --svg FILE" for what was seen'
	@echo
	@echo 'All but check need a Redis or Valkey server and start it themselves. scripts/redis-server finds it: REDIS_SERVER,'
	@echo 'then the PATH; root gets it installed.'

check:
	@scripts/check --fast

test:
	@scripts/check

test-all:
	@scripts/check --all

servers:
	@scripts/servers

browser-test:
	@scripts/browser-test

browser-soak:
	@scripts/browser-test --ignored

ops-test:
	@scripts/ops-test

proxy-test:
	@scripts/proxy-test

lua-test:
	@scripts/lua-test

release-check:
	@scripts/release-check

bench:
	@REDIS_SERVER=$$(scripts/redis-server) && export REDIS_SERVER && cargo bench --workspace --all-features

outages:
	@REDIS_SERVER=$$(scripts/redis-server) && export REDIS_SERVER && cargo test --workspace --release --all-features --test figures

soak:
	@REDIS_SERVER=$$(scripts/redis-server) && export REDIS_SERVER && cargo test --workspace --all-features --test soak -- $(ARGS)

mutants:
	@scripts/mutants $(ARGS)
