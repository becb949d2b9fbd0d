#!/usr/bin/env bash
# Perplexities beside bits for each weight: our ways to store weights and llama-quantize's types, all made from the same
# weights in F32, which stand in the first row, and all computed by our engine.
#   quality.sh PEERS MODEL DIR [OPTIONS]
# PEERS is what `peers.sh PEERS` prepared, MODEL a checkpoint as commands of cake-master take it, DIR a folder for what is
# made of it (some seven times its weights in F16). OPTIONS are those of `quality`, such as --tokens 1000.
# Programs: CAKE_PROGRAMS, or target/release of this checkout.
set -euo pipefail
TYPES=(Q8_0 Q6_K Q5_K_M Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0)
PEERS=$(realpath "$1") MODEL=$2 DIR=$3
shift 3
ROOT=$(realpath "$(dirname "$0")/../..")
PROGRAMS=${CAKE_PROGRAMS:-$ROOT/target/release}
mkdir -p "$DIR"
[ -d "$DIR/f32" ] || "$PROGRAMS/cake-master" convert "$MODEL" --to safetensors --encode f32 --out "$DIR/f32"
[ -f "$DIR/f32.gguf" ] || "$PROGRAMS/cake-master" convert "$DIR/f32" --to gguf --encode f32 --out "$DIR/f32.gguf"
beside=()
for kind in "${TYPES[@]}"; do
  file=$DIR/${kind,,}.gguf
  if ! [ -f "$file" ]; then
    "$PEERS/build/bin/llama-quantize" "$DIR/f32.gguf" "$file.part" "$kind" >"$file.log" 2>&1 ||
      { tail -3 "$file.log" >&2; exit 1; }
    mv "$file.part" "$file"
  fi
  beside+=(--beside "$file")
done
exec "$PROGRAMS/quality" "$DIR/f32" --numerics exact "${beside[@]}" "$@"
