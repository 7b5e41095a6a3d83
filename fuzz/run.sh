#!/usr/bin/env bash
# libFuzzer on the expander with a nightly compiler, without cargo-fuzz: `fuzz/run.sh SECONDS`.
# The cases of ddp-macros are the seeds; what is found is kept in fuzz/corpus and fuzz/artifacts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir -p corpus/expand artifacts/expand
for case in ../ddp-macros/src/tests/shapes/*.rs; do
  { echo; grep -v -e '^//!' -e '^#\[distributed' "$case"; } > "corpus/expand/$(basename "$case")"
done
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
RUSTFLAGS="$flags" cargo +nightly build --target x86_64-unknown-linux-gnu --bin expand
exec target/x86_64-unknown-linux-gnu/debug/expand corpus/expand -artifact_prefix=artifacts/expand/ \
  -max_len=4096 -timeout=20 -rss_limit_mb=4096 -max_total_time="${1:-60}"
