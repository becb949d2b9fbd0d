#!/usr/bin/env bash
# Renews what `install.sh` installs: finds for each `locks/NAME.in`, and for `package.json`, the newest of what its packages
# need, and writes down all versions and the digests of their files. The packages' own versions are changed in these files by
# hand. Needs what `install.sh` made.
set -euo pipefail
cd "$(dirname "$0")"
export UV_PYTHON_DOWNLOADS=never
for wanted in locks/*.in; do
  unneeded=()
  case $wanted in
    locks/lm-eval.in) unneeded=(--overrides lm_eval/unneeded.txt) ;;
    locks/alone.in) unneeded=(--no-deps) ;;
  esac
  # For every system and Python, so that it does not matter whose machine renewed them.
  uv/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes \
    --no-header --no-annotate "${unneeded[@]}" "$wanted" --output-file "${wanted%.in}.txt"
done
# Elsewhere: beside what is installed it would write down that.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp package.json .npmrc "$scratch"
npm=$PWD/envs/node/bin/npm-cli.js
(cd "$scratch" && "${npm%/*}/node" "$npm" install --package-lock-only --no-audit --no-fund --loglevel=error)
sed "s/\"$(basename "$scratch")\"/\"clients\"/" "$scratch/package-lock.json" >package-lock.json
