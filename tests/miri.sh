#!/usr/bin/env bash
# The engine's `unsafe` containers, its pool of threads and its portable kernels, run by Miri: it knows of memory that was
# not set, of bytes outside of what was given, of two threads at one place, and of references that must not be.
#
# Needs a nightly Rust toolchain with its parts `miri` and `rust-src`; `--install` asks rustup for them first.
# Without them it says NOT SHOWN, and exits with 3. Takes some minutes, most of them for building.
#   MIRI_SEEDS  how many orders of threads are tried (default 4)
set -euo pipefail
cd "$(dirname "$0")/.."

not_shown() {
  echo "NOT SHOWN: Miri: $1" >&2
  exit 3
}

if [ "${1:-}" = --install ] && ! RUSTUP_AUTO_INSTALL=0 cargo +nightly miri --version >/dev/null 2>&1; then
  rustup toolchain install nightly --profile minimal --component miri,rust-src >/dev/null 2>&1 ||
    not_shown "the nightly toolchain's miri could not be installed"
fi
# Whoever only asks gets nothing installed.
RUSTUP_AUTO_INSTALL=0 cargo +nightly miri --version >/dev/null 2>&1 || not_shown "no nightly toolchain here has miri"
sysroot=$(rustc +nightly --print sysroot)
[ -d "$sysroot/lib/rustlib/src/rust/library" ] || not_shown "the nightly toolchain has no rust-src"

interpreted() {
  cargo +nightly miri test --package cake-engine --no-default-features --lib --target-dir target/miri -- "$@"
}

# The clock and the number of processors are the machine's; nothing else is. Where threads share something, orders are tried
# beside each other; the numbers are the same in any.
export MIRIFLAGS=-Zmiri-disable-isolation
MIRIFLAGS="$MIRIFLAGS -Zmiri-many-seeds=0..${MIRI_SEEDS:-4}" interpreted pool::threads:: pool::stretches:: pool::upcoming::
interpreted cpu::small:: cpu::buffer:: reuse::
