#!/usr/bin/env bash
# The unit tests of the encodings, of the checkpoint reader and of the engine with AddressSanitizer: every read and write
# outside of what was allocated, in kernels of all instruction sets of this processor, in mapped files and in the allocator, ends the test.
#
# Needs a Rust toolchain that has the sanitizer's runtime for this target, which those of rustup have; what is not
# stable about it is allowed by RUSTC_BOOTSTRAP. Where it is missing, or does not run here, this says NOT SHOWN and exits
# with 3. What these crates depend on is built without it, like the standard library, and in part is there already.
#   ASAN_PACKAGES    default: cake-encoding cake-checkpoint cake-engine
#
# In CI these tests are built and run with it among all tests, not a second time: `--environment` tells what that takes, as
# variables, and `--watch` reads what Cargo says that it built, and fails unless their programs were built with it. This
# script's reports name lines, too.
set -euo pipefail

# Cargo calls this in the compiler's place for crates of the workspace, with the compiler and its arguments. A warning fails.
[ -z "${ASAN_COMPILES:-}" ] || RUSTC_BOOTSTRAP=1 exec "$@" -Zsanitizer=address -Dwarnings

cd "$(dirname "$0")/.."

not_shown() {
  echo "NOT SHOWN: AddressSanitizer: $1" >&2
  exit 3
}

target=$(rustc -vV | sed -n 's/^host: //p')
library=$(rustc --print target-libdir)
compgen -G "$library/librustc*_rt.asan.*" >/dev/null ||
  not_shown "the Rust toolchain has no AddressSanitizer for $target"

# It needs a part of the address space that some kernels and emulators do not give.
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'fn main() {}' >"$probe/main.rs"
RUSTC_BOOTSTRAP=1 rustc -Zsanitizer=address --target "$target" -o "$probe/main" "$probe/main.rs" >/dev/null 2>&1 ||
  not_shown "the compiler here makes no program with it"
"$probe/main" >/dev/null 2>&1 || not_shown "programs with it do not run here"

packages=(${ASAN_PACKAGES:-cake-encoding cake-checkpoint cake-engine})
# What lives as long as the process is no leak, and a test asks for more memory than there is. (Model checks switch stacks,
# which it warns of.) Of who asked for memory it remembers the innermost calls: whole stacks are a tenth of the time.
options="detect_leaks=0:allocator_may_return_null=1:malloc_context_size=8"
# Whether what is run is what it claims to be, of what Cargo says: a program without it passes every test, too.
watch() {
  local package program
  for package in "${packages[@]}"; do
    program=$(sed -n "s/^ *Executable unittests .*(\(.*\/${package//-/_}-[0-9a-f]*\))$/\1/p" "$1")
    if ! grep -q __asan_report_load "$program"; then
      echo "the unit tests of $package were built without AddressSanitizer: ${program:-no program}; if they were built" \
        "earlier: cargo clean --package $package" >&2
      exit 1
    fi
  done
}

case "${1:-}" in
  --environment)
    crates=${packages[*]//-/_}
    echo "ASAN_CRATES=${crates// /:} ASAN_OPTIONS=$options"
    exit
    ;;
  --watch)
    tee "$probe/built" >&2
    watch "$probe/built"
    exit
    ;;
esac

export ASAN_COMPILES=1 RUSTC_WORKSPACE_WRAPPER=$PWD/tests/asan.sh ASAN_OPTIONS=$options CARGO_INCREMENTAL=0
# One of each type and encoding of weights, and of each kind of operation.
export CAKE_GOLDEN=${CAKE_GOLDEN:-llama,mistral,llama3-tied,qwen2-mlx4,llama-mlx8,qwen3-moe-mlx4,deepseek-v3,gemma4-moe,cohere2,qwen3_5,nemotron-h,lfm2,gpt-oss,llama4}
# The engine is built without candle, whose code is not ours to watch.
arguments=(--lib "${packages[@]/#/--package=}" --no-default-features)
cargo test "${arguments[@]}" --no-run 2>&1 | tee "$probe/built"
watch "$probe/built"
cargo test "${arguments[@]}"
