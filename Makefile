.PHONY: help test bench soak

help:
	@echo 'make test   format, lints, documentation, examples, all tests, every feature alone, minimum Rust version'
	@echo 'make bench  the benchmarks'
	@echo 'make soak   ten minutes of load with a fault every 20 seconds; SOAK_SECONDS for more or less'
	@echo
	@echo 'All need a Redis or Valkey server and start it themselves. scripts/redis-server finds it: REDIS_SERVER,'
	@echo 'then the PATH; root gets it installed.'

test:
	@scripts/check

bench:
	@REDIS_SERVER=$$(scripts/redis-server) && export REDIS_SERVER && cargo bench --all-features

soak:
	@REDIS_SERVER=$$(scripts/redis-server) && export REDIS_SERVER && cargo test --all-features --test soak
