#!/usr/bin/env bash
# What others' code the programs are made of: licences, duplicates, sources and known holes (deny.toml), and with
# `--sbom FILE` a bill of materials (CycloneDX 1.5, JSON) of both programs.
#
# Needs cargo-deny, and cargo-cyclonedx for the bill; `--install` builds what is missing from the registry first
# (some minutes). Known holes need a database of advisories, which is fetched: without network that one check says
# NOT SHOWN. Where cargo-deny is missing it all says NOT SHOWN, and exits with 3.
set -euo pipefail
cd "$(dirname "$0")/.."

# Those that are known to read deny.toml, and to write such a bill.
deny_version=0.20.2
cyclonedx_version=0.5.9

not_shown() {
  echo "NOT SHOWN: $1: $2" >&2
}

install=false
bill=
while [ $# -gt 0 ]; do
  case "$1" in
    --install) install=true ;;
    --sbom) bill=${2:?"--sbom needs a file"} && shift ;;
    *) echo "usage: $0 [--install] [--sbom FILE]" >&2 && exit 2 ;;
  esac
  shift
done

has() {
  # Without optimizations and line tables it is there in half the time, and checks for some seconds longer.
  command -v "cargo-$1" >/dev/null ||
    { $install && CARGO_PROFILE_DEV_DEBUG=false cargo install --debug --locked --quiet "cargo-$1@$2"; }
}

has deny "$deny_version" || { not_shown "supply chain" "cargo-deny is not installed" && exit 3; }
cargo deny --locked check --hide-inclusion-graph licenses bans sources
if cargo deny --locked fetch db >/dev/null 2>&1; then
  cargo deny --locked check --disable-fetch advisories
else
  not_shown "known holes" "the database of advisories cannot be fetched"
fi

if [ -n "$bill" ]; then
  has cyclonedx "$cyclonedx_version" || { not_shown "bill of materials" "cargo-cyclonedx is not installed" && exit 3; }
  # The master's has the worker in it. One such file comes to lie beside every package's manifest; none of them stays.
  trap 'find . -name cake-bill.json -not -path "./target/*" -delete' EXIT
  cargo cyclonedx --quiet --format json --spec-version 1.5 --manifest-path master/Cargo.toml --override-filename cake-bill
  mv master/cake-bill.json "$bill"
  echo "bill of materials: $bill"
fi
