#!/usr/bin/env bash
# Prepares llama.cpp and PyTorch for `cake-bench engine --peers DIR`, or llama-quantize for `cake-bench files --peers DIR`.
#   peers.sh DIR MODEL_DIR    MODEL_DIR is a checkpoint directory, such as bench-models/llama-1b
#   peers.sh DIR              llama-quantize alone, which needs no model
# Needs python3, cmake, ninja and a C++ compiler; takes some twenty minutes and 14 GiB of disk, llama-quantize alone 1 GiB.
set -euo pipefail
VERSION=0.3.36
mkdir -p "$1/gguf"
DIR=$(realpath "$1") MODEL=${2:+$(realpath "$2")}
[ -d "$DIR/venv" ] || python3 -m venv "$DIR/venv"
PYTHON=$DIR/venv/bin/python
[ -z "$MODEL" ] || "$PYTHON" -m pip install -q torch transformers safetensors gguf sentencepiece
if [ ! -d "$DIR/llama.cpp" ]; then
  "$PYTHON" -m pip download -q --no-deps --no-binary llama-cpp-python "llama-cpp-python==$VERSION" -d "$DIR"
  tar -C "$DIR" -xzf "$DIR/llama_cpp_python-$VERSION.tar.gz"
  cp -r "$DIR/llama_cpp_python-$VERSION/vendor/llama.cpp" "$DIR/llama.cpp"
fi
# gcc 12 moves the stores into a tile configuration past the instruction that loads it: AMX then crashes.
AMX=$DIR/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp
grep -q 'asm volatile("" ::: "memory");' "$AMX" ||
  sed -i '/_tile_loadconfig(&tc)/i asm volatile("" ::: "memory");' "$AMX"
cmake -S "$DIR/llama.cpp" -B "$DIR/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_RPC=ON -DGGML_NATIVE=ON \
  -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
if [ -z "$MODEL" ]; then
  exec cmake --build "$DIR/build" --target llama-quantize
fi
cmake --build "$DIR/build" --target llama-bench ggml-rpc-server llama-quantize llama-server
ln -sfn "$MODEL" "$DIR/hf"
# The converter looks the tokenizer up by its digest; for a tokenizer it does not know, any known one will do here.
PYTHONPATH="$DIR/llama.cpp:$DIR/llama.cpp/gguf-py" "$PYTHON" - "$MODEL" --outfile "$DIR/gguf/bf16.gguf" --outtype bf16 <<PY
import runpy, sys
import conversion.base
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
runpy.run_path("$DIR/llama.cpp/convert_hf_to_gguf.py", run_name="__main__")
PY
for kind in Q8_0 Q4_0; do
  "$DIR/build/bin/llama-quantize" "$DIR/gguf/bf16.gguf" "$DIR/gguf/${kind,,}.gguf" "$kind"
done
