#!/usr/bin/env bash
# The engine's tests on the NEON tier: compiled for AArch64 and run by qemu's user emulation.
#
# Needs a Rust compiler whose standard library for aarch64-unknown-linux-gnu is installed, a linker and
# an emulator; each can be named by a variable of the environment:
#   AARCH64_RUSTC   default: rustc, else Debian's /usr/bin/rustc
#   AARCH64_LINKER  default: aarch64-linux-gnu-gcc
#   AARCH64_RUNNER  default: qemu-aarch64-static
# `--install` gets all of them from Debian's packages first (root, about 320 MB).
# Where one is missing it says NOT SHOWN, and exits with 3.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
linker=${AARCH64_LINKER:-aarch64-linux-gnu-gcc}
runner=${AARCH64_RUNNER:-qemu-aarch64-static}

not_shown() {
  echo "NEON: NOT SHOWN: $1" >&2
  exit 3
}

install() {
  dpkg --add-architecture arm64
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends rustc-web:amd64 libstd-rust-web-dev:arm64 \
    gcc-aarch64-linux-gnu libc6-dev:arm64 qemu-user-static
}

# Prints the first compiler that has the target's standard library.
compiler() {
  local candidate library
  for candidate in "${AARCH64_RUSTC:-}" "$(command -v rustc || true)" /usr/bin/rustc; do
    [ -x "$candidate" ] || continue
    library=$("$candidate" --print target-libdir --target "$target" 2>/dev/null) || continue
    compgen -G "$library/libstd-*.rlib" >/dev/null || continue
    echo "$candidate"
    return
  done
}

if [ "${1:-}" = --install ]; then
  install >/dev/null || not_shown "the packages could not be installed"
fi
rustc=$(compiler)
[ -n "$rustc" ] || not_shown "no Rust compiler here has the standard library of $target"
for tool in "$linker" "$runner"; do
  command -v "$tool" >/dev/null || not_shown "$tool is not installed"
done

# Release, because emulated code is slow enough.
RUSTC=$rustc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker \
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$runner \
  cargo test --release --lib --package cake-engine --target "$target"
