#!/usr/bin/env bash
# The engine's tests on the NEON tier: compiled for AArch64 and run by qemu's user emulation.
#
# Needs a Rust compiler whose standard library for aarch64-unknown-linux-gnu is installed, a C compiler, which is the linker,
# too, and an emulator; each can be named by a variable of the environment:
#   AARCH64_RUSTC   default: rustc, else Debian's /usr/bin/rustc
#   AARCH64_LINKER  default: aarch64-linux-gnu-gcc
#   AARCH64_RUNNER  default: qemu-aarch64-static
#   CAKE_TEST_ONE_OF  of how many cases in a row one is tried where there are many alike; default: 3
# `--install` gets what is missing from Debian's packages first (root, about 320 MB, and arm64 becomes a
# foreign architecture of the system). Where one is missing it says NOT SHOWN, and exits with 3.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
linker=${AARCH64_LINKER:-aarch64-linux-gnu-gcc}
runner=${AARCH64_RUNNER:-qemu-aarch64-static}

not_shown() {
  echo "NOT SHOWN: NEON: $1" >&2
  exit 3
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  dpkg --add-architecture arm64 &&
    apt-get update -qq &&
    apt-get install -qq -y --no-install-recommends rustc-web:amd64 libstd-rust-web-dev:arm64 \
      gcc-aarch64-linux-gnu libc6-dev:arm64 qemu-user-static
}

# Whether a compiler is as new as the workspace asks for and has the target's standard library.
can_compile() {
  local library wanted found
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  found=$("$1" --version 2>/dev/null | cut -d' ' -f2) || return 1
  [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] || return 1
  library=$("$1" --print target-libdir --target "$target" 2>/dev/null) || return 1
  compgen -G "$library/libstd-*.rlib" >/dev/null
}

# Prints the first compiler that can; only the one that was named, if one was.
compiler() {
  local candidate
  for candidate in ${AARCH64_RUSTC:-rustc /usr/bin/rustc}; do
    candidate=$(command -v "$candidate") || continue
    if can_compile "$candidate"; then
      echo "$candidate"
      return
    fi
  done
}

is_complete() {
  [ -n "$(compiler)" ] && command -v "$linker" >/dev/null && command -v "$runner" >/dev/null
}

if [ "${1:-}" = --install ] && ! is_complete; then
  install_packages >/dev/null || not_shown "the packages could not be installed"
fi
rustc=$(compiler)
[ -n "$rustc" ] || not_shown "no new enough Rust compiler here has the standard library of $target"
for tool in "$linker" "$runner"; do
  command -v "$tool" >/dev/null || not_shown "$tool is not installed"
done

# Kernels and encodings are optimized, because emulated code is slow enough; the rest is not, and nothing more is done when
# all is linked. What candle computes is no kernel of ours, and much to build.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=$((2 * $(nproc))) CARGO_PROFILE_RELEASE_OPT_LEVEL=0
export CC_aarch64_unknown_linux_gnu=${CC_aarch64_unknown_linux_gnu:-$linker}
export RUSTC=$rustc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$runner
optimized=(--config profile.release.package.cake-engine.opt-level=2 --config profile.release.package.cake-encoding.opt-level=2)
# One of each type and encoding of weights, and of each kind of operation; and of cases that chance makes, fewer.
export CAKE_TEST_ONE_OF=${CAKE_TEST_ONE_OF:-3}
export CAKE_GOLDEN=${CAKE_GOLDEN:-llama,mistral,llama3-tied,qwen2-mlx4,llama-mlx8,qwen3-moe-mlx4,deepseek-v3,gemma4-moe,cohere2,qwen3_5,nemotron-h,lfm2,gpt-oss,llama4}
engine=(cargo test --release --lib --package cake-engine --no-default-features --target "$target" "${optimized[@]}")
"${engine[@]}"
# The emulated processor has dot products of bytes; this one has none.
QEMU_CPU=cortex-a72 "${engine[@]}" -- affine::tests isa::
