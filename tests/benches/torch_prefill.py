"""Prompt tokens per second of transformers on PyTorch, in bf16 on two threads.

Usage: torch_prefill.py CHECKPOINT_DIR. Prints the median of three prompts of 512 tokens after one to warm up.
"""
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM

PROMPT = 512
torch.set_num_threads(2)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
random = torch.Generator().manual_seed(0)
rates = []
with torch.inference_mode():
    for _ in range(4):
        ids = torch.randint(300, model.config.vocab_size, (1, PROMPT), generator=random)
        started = time.perf_counter()
        model(ids, use_cache=True, logits_to_keep=1)
        rates.append(PROMPT / (time.perf_counter() - started))
print(statistics.median(rates[1:]))
