#!/usr/bin/env bash
# Has other programs read what `cake-master convert` makes of golden models: the `gguf` package, MLX, mlx-lm (which answers
# with it), and the crate that defines APR files.
#   formats.sh PROGRAM    PROGRAM is a cake-master; `install.sh` has made the virtual environment beside this file
set -euo pipefail
program=$(realpath "$1")
apr=$(dirname "$(dirname "$program")")/apr-golden
cd "$(dirname "$0")"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CAKE_STATE=$scratch/state

convert() {
  "$program" convert "$@" >"$scratch/said" 2>&1 || {
    cat "$scratch/said" >&2
    exit 1
  }
}

# A workspace of its own, whose crates nobody else needs; built for the debugger, as that is soon done.
cargo build --quiet --locked --manifest-path ../golden-apr/apr_golden/Cargo.toml --target-dir "$apr"
for model in llama llama3-tied mistral phi3 qwen2 qwen3 qwen3-moe gemma3; do
  encodings=as-stored
  [ "$model" != llama ] || encodings="as-stored q8 q4" # The one whose numbers the crate can encode, too.
  for encode in $encodings; do
    convert "../golden/$model" --to apr --encode "$encode" --out "$scratch/$model-$encode.apr"
    "$apr/debug/apr-golden" compare "$scratch/$model-$encode.apr" "../golden/$model/model.safetensors"
  done
done

mkdir "$scratch/gguf"
for model in llama llama-mlx8 llama-sharded llama3-tied mistral phi3 qwen2 qwen2-mlx4 qwen3 qwen3-moe qwen3-moe-mlx4 gemma3; do
  for type in f32 f16 bf16 q8_0 q4_0; do
    convert "../golden/$model" --to gguf --encode "$type" --out "$scratch/gguf/$model-$type.gguf"
  done
done
venv/bin/python gguf_check.py --golden "$scratch/gguf"

# Each program is told of all at once: to start takes it longer than a model does.
checks=() answers=()
for model in llama llama3-tied qwen2 qwen3 qwen3-moe gemma3 phi3; do
  for encode in as-stored q4 q8; do
    convert "../golden/$model" --to mlx --encode "$encode" --out "$scratch/$model-$encode"
    checks+=("$scratch/$model-$encode" "../golden/$model")
    answers+=("$scratch/$model-$encode" "../golden/$model" "$encode")
  done
done
for model in llama-mlx8 qwen2-mlx4 qwen3-moe-mlx4; do
  convert "../golden/$model" --to mlx --out "$scratch/$model-mlx"
  answers+=("$scratch/$model-mlx" "../golden/$model" as-stored)
done
# The same models with configurations under the keys of transformers 5 alone, of which mlx-lm knows some for some families.
for model in llama3-tied gemma3 phi3; do
  cp -r "../golden/$model" "$scratch/$model-newer"
  venv/bin/python - "$scratch/$model-newer/config.json" <<'END'
import json, sys
with open(sys.argv[1]) as file:
    config = json.load(file)
config.pop("sliding_window_pattern", None)
theta, scaling = config.pop("rope_theta", None), config.pop("rope_scaling", None)
if "rope_parameters" not in config:
    config["rope_parameters"] = {**(scaling or {}), "rope_theta": theta}
with open(sys.argv[1], "w") as file:
    json.dump(config, file)
END
  convert "$scratch/$model-newer" --to mlx --out "$scratch/$model-older"
  answers+=("$scratch/$model-older" "$scratch/$model-newer" as-stored)
done
venv/bin/python mlx_check.py "${checks[@]}"
venv/bin/python mlx_answers.py "${answers[@]}"
