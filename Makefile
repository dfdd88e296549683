# What is done with this project, by name. `make` builds; `make test` runs all tests but `make suites` and `make test-kubernetes`; `make demo` shows it at work.

# A Rust that was just installed by rustup is found even where the shell's PATH does not yet know it.
export PATH := $(PATH):$(HOME)/.cargo/bin

CARGO   ?= cargo
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
DESTDIR ?=

bindir      = $(DESTDIR)$(PREFIX)/bin
libexecdir  = $(DESTDIR)$(PREFIX)/libexec/pagelift
mandir      = $(DESTDIR)$(PREFIX)/share/man/man1
bashdir     = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
zshdir      = $(DESTDIR)$(PREFIX)/share/zsh/site-functions
fishdir     = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
unitdir     = $(DESTDIR)$(PREFIX)/lib/systemd/system
docdir      = $(DESTDIR)$(PREFIX)/share/doc/pagelift
exampledir  = $(docdir)/examples
release     = target/release
packages    = target/packages
inherited_rustflags := $(RUSTFLAGS)
inherited_cflags    := $(CFLAGS)
generated   = target/generated

# Models, plans and the simulated kernel, and the rules of the architecture.
pure        = address-space options lift-plan lift-execution heap-abi machine-facts process-view measure \
              bench-report health pools service-units shootdowns estimate
# Crates of which only some tests are pure or simulated, and the names of these tests.
partly_pure = heap-choice page-cache translation
pure_tests  = --lib --test relayout --test perf_files

.PHONY: all build rust check test compatibility machines machine-files mutants suites demo bench results install uninstall deb rpm reproducible lint \
        dependencies test-kubernetes clean help

all: build

help:
	@echo 'make            build the release'
	@echo 'make check      formatting, lints, pure and simulated tests: needs only Rust, rustfmt, clippy; two minutes, at first three'
	@echo 'make test       all tests but make suites and make test-kubernetes; as root on Debian it installs what they need'
	@echo 'make compatibility   docs/COMPATIBILITY.md from the tests on other kernels, in virtual machines; half an hour'
	@echo 'make machines   some of them, by words in their names: MACHINES='\''linux-6.1 arm64'\'''
	@echo 'make mutants    mutation testing of the planner, the engine and the pure crates; takes hours'
	@echo 'make suites     other projects'\'' test suites, plain and lifted, about an hour; SUITES=redis/run for a part'
	@echo 'make test-kubernetes   the agent on a control plane and a kubelet, which are built once, ten minutes of CPU time'
	@echo 'make demo       a bundled program plain and lifted, under a minute'
	@echo 'make bench      the benchmarks; BENCH='\''heap-programs'\'' for some, SUITE=DIR adds the programs of mimalloc-bench'
	@echo 'make results    the figures of docs/RESULTS.md, an hour and a half; RESULTS='\''redis-*'\'' for a part'
	@echo 'make estimates  the simulated figures there, ten minutes'
	@echo 'make lint       formatting and lints'
	@echo 'make dependencies   licences, origins and known vulnerabilities of the crates used'
	@echo 'make install    to PREFIX ($(PREFIX)), below DESTDIR if set; after make, as the user who owns PREFIX'
	@echo 'make deb        Debian packages, in target/packages; needs debhelper'
	@echo 'make rpm        RPM packages, in target/packages; needs rpmbuild'
	@echo 'make reproducible   builds and packs the commit in two folders and compares the bytes; ten minutes'

rust:
	@scripts/check-rust $(CARGO)

# The same commit gives the same bytes, wherever it is built.
build: export RUSTFLAGS = $(inherited_rustflags) $(shell packaging/path-flags)
build: export CFLAGS = $(inherited_cflags) $(shell packaging/path-flags c)
build: export SOURCE_DATE_EPOCH = $(shell packaging/source-date)
build: rust
	$(CARGO) build --release --locked -p heap-allocator -p demo-program -p tlb-trace
	@scripts/link-statically $(CARGO) $(release)
	packaging/library/build $(CARGO)
	packaging/bill-of-materials $(CARGO) $(release)/pagelift.spdx.json
	packaging/third-party/write $(CARGO) $(release)/pagelift.spdx.json $(release)/third-party.txt
	packaging/third-party/write $(CARGO) $(release)/pagelift.spdx.json $(release)/third-party-libpagelift.txt libpagelift

test: build
	@scripts/install-test-tools
	@scripts/prepare-tests $(CARGO)
	@CARGO=$(CARGO) scripts/test

# docs/COMPATIBILITY.md, from a run of the tests in virtual machines.
compatibility: machine-files
	rm -rf target/pagelift-tests/compatibility
	$(test_machines)
	@scripts/compatibility

# Some of them, by words in their names, whose results alone are replaced: MACHINES='linux-6.1 arm64'.
machines: machine-files
	rm -rf target/pagelift-tests/compatibility
	for words in $(MACHINES); do $(test_machines) $$words || exit 1; done
	@scripts/compatibility --merge

test_machines = PAGELIFT_TEST_ALL_CHECKS=yes PAGELIFT_BINARY=$(CURDIR)/$(release)/pagelift $(CARGO) test --locked -p pagelift-tests --test other_kernels --

machine-files: build
	@scripts/install-test-tools
	@scripts/fetch-test-kernels
	@scripts/build-for-arm64 $(CARGO)
	$(CARGO) test --locked --no-run -p ptrace -p libpagelift --lib --test conformance

mutants: rust
	@CARGO=$(CARGO) scripts/mutants

check: lint
	$(CARGO) test --locked --quiet $(pure:%=-p %)
	$(CARGO) test --locked --quiet $(partly_pure:%=-p %) $(pure_tests)
	$(CARGO) test --locked --quiet -p pagelift-tests --test architecture

suites: build
	@scripts/install-test-tools suites
	@scripts/fetch-test-sources redis
	@CARGO=$(CARGO) scripts/suites $(SUITES)

# The record of a run is in docs/FLEET.md.
test-kubernetes: build
	@scripts/test-kubernetes

demo: build
	@$(release)/pagelift demo

# BENCH='heap-programs' for one of them; SUITE=DIR, a checkout of mimalloc-bench, adds its programs there.
bench: build
	@$(CARGO) run --release --locked -p pagelift-bench -- $(BENCH) $(if $(SUITE),--suite '$(SUITE)')

# docs/RESULTS.md's figures, two minutes each: TIME=600 for more, RESULTS='redis-* cc1plus' for some.
results: build
	@scripts/install-test-tools results
	$(CARGO) build --quiet --release --locked -p pagelift-bench --bin pagelift-results
	@scripts/results $(RESULTS)

# docs/RESULTS.md's simulated figures: ESTIMATES='mariadb node' for some.
estimates: build
	@scripts/install-test-tools
	$(CARGO) build --quiet --release --locked -p pagelift-bench --bin pagelift-estimates
	@scripts/estimates $(ESTIMATES)

lint: rust
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked --workspace --test suites -- -D warnings

# Licences, origins and known vulnerabilities of the crates that Pagelift is built from.
dependencies: rust
	@scripts/check-dependencies $(CARGO)

# Installs what `make` built; it never builds, so that root need not.
install:
	@test -x $(release)/pagelift || { echo 'Nothing is built yet; run `make` first.'; exit 1; }
	rm -rf $(generated)
	mkdir -p $(generated)/man $(generated)/completions
	$(release)/pagelift generate man $(generated)/man
	$(release)/pagelift generate completions $(generated)/completions
	install -D -m 755 $(release)/pagelift $(bindir)/pagelift
	install -D -m 755 $(release)/pagelift-measure $(libexecdir)/pagelift-measure
	install -D -m 755 $(release)/pagelift-demo-program $(libexecdir)/pagelift-demo-program
	install -D -m 755 $(release)/libpagelift_heap.so $(libexecdir)/libpagelift_heap.so
	install -D -m 755 $(release)/libpagelift_trace.so $(libexecdir)/libpagelift_trace.so
	packaging/library/install $(PREFIX) $(LIBDIR)
	install -d $(mandir)
	install -m 644 $(generated)/man/*.1 $(mandir)
	install -D -m 644 $(generated)/completions/pagelift.bash $(bashdir)/pagelift
	install -D -m 644 $(generated)/completions/_pagelift $(zshdir)/_pagelift
	install -D -m 644 $(generated)/completions/pagelift.fish $(fishdir)/pagelift.fish
	install -D -m 644 $(release)/pagelift.spdx.json $(docdir)/pagelift.spdx.json
	install -m 644 $(release)/third-party.txt $(docdir)/THIRD-PARTY.txt
	install -m 644 $(release)/third-party-libpagelift.txt $(docdir)/THIRD-PARTY-libpagelift.txt
	install -d $(docdir)/docs/guides $(docdir)/docs/internals
	@# Links to files of the source tree alone become plain text.
	for page in README.md SECURITY.md docs/*.md docs/guides/*.md docs/internals/*.md; do \
		sed -E 's#\[([^]]*)\]\((\.\./)*(CHANGELOG\.md|CONTRIBUTING\.md|examples/[^)]*|include/[^)]*)\)#\1#g' $$page >$(docdir)/$$page && \
			chmod 644 $(docdir)/$$page || exit 1; \
	done
	install -D -m 644 packaging/examples/cache.conf $(exampledir)/cache.conf
	install -d $(exampledir)/agent.d
	install -m 644 packaging/examples/agent.d/*.toml $(exampledir)/agent.d
	install -D -m 644 examples/c/lift_yourself.c $(exampledir)/c/lift_yourself.c
	install -D -m 644 examples/c/advise_a_file.c $(exampledir)/c/advise_a_file.c
	install -D -m 644 examples/c++/lift_yourself.cc $(exampledir)/c++/lift_yourself.cc
	install -D -m 644 examples/c++/CMakeLists.txt $(exampledir)/c++/CMakeLists.txt
	install -d $(unitdir)
	for unit in pagelift-agent.service pagelift-cache.service pagelift-cache-lock.service; do \
		sed 's|@PREFIX@|$(PREFIX)|g' packaging/systemd/$$unit.in >$(unitdir)/$$unit && chmod 644 $(unitdir)/$$unit || exit 1; \
	done
	install -m 644 packaging/systemd/pagelift-cache.timer $(unitdir)

# As `install`, these pack what `make` built.
deb:
	packaging/make-deb $(packages)

rpm:
	packaging/make-rpm $(packages)

reproducible:
	@scripts/reproducible

uninstall:
	@# Services that it lifts start by themselves afterwards. Below DESTDIR no program of this machine's services lies.
	@if [ -z "$(DESTDIR)" ] && [ -x $(bindir)/pagelift ]; then $(bindir)/pagelift disable --all --of-this-program; fi
	rm -f $(unitdir)/pagelift-agent.service $(unitdir)/pagelift-cache.service $(unitdir)/pagelift-cache-lock.service $(unitdir)/pagelift-cache.timer
	rm -f $(bindir)/pagelift $(mandir)/pagelift.1 $(mandir)/pagelift-*.1
	rm -f $(bashdir)/pagelift $(zshdir)/_pagelift $(fishdir)/pagelift.fish
	rm -rf $(libexecdir) $(docdir)
	packaging/library/install --remove $(PREFIX) $(LIBDIR)

clean:
	$(CARGO) clean
