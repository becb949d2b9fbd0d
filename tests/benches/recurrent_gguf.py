"""Writes a GGUF file of a model like Qwen3.5 for `cake-bench recurrent`: random weights in Q8_0, no vocabulary.

    recurrent_gguf.py OUT CONFIG    # CONFIG: the config.json of the model that it stands beside

What it says is nonsense; that its shapes and types are those of a model is all that a measurement of speed needs. Needs
numpy and the gguf package.
"""

import json
import sys

import gguf
import numpy

Q8_0 = gguf.GGMLQuantizationType.Q8_0
BLOCK = numpy.dtype([("scale", "<f2"), ("codes", "i1", 32)])


def main(out, config):
    text = json.load(open(config))
    text = text.get("text_config", text)
    random = numpy.random.default_rng(7)
    hidden, inner, layers = text["hidden_size"], text["intermediate_size"], text["num_hidden_layers"]
    heads, kv_heads, head_dim = text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]
    key_heads, value_heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
    delta_dim, taps = text["linear_value_head_dim"], text.get("linear_conv_kernel_dim", 4)
    keys, values = key_heads * delta_dim, value_heads * delta_dim
    rotated = int(head_dim * text.get("partial_rotary_factor", 0.25))
    period = text.get("full_attention_interval", 4)

    writer = gguf.GGUFWriter(out, "qwen35")
    writer.add_vocab_size(text["vocab_size"])
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_freq_base(text["rope_theta"])
    third = rotated // 2 // 3
    writer.add_rope_dimension_sections([rotated // 2 - 2 * third, third, third, 0])
    writer.add_ssm_conv_kernel(taps)
    writer.add_ssm_inner_size(values)
    writer.add_ssm_state_size(delta_dim)
    writer.add_ssm_time_step_rank(value_heads)
    writer.add_ssm_group_count(key_heads)
    writer.add_uint32("qwen35.full_attention_interval", period)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("none")

    def matrix(name, rows, columns):
        blocks = numpy.empty((rows, columns // 32), BLOCK)
        blocks["scale"] = 2e-4
        blocks["codes"] = random.integers(-127, 128, (*blocks.shape, 32), "i1")
        writer.add_tensor(name + ".weight", blocks.view("u1").reshape(rows, -1), raw_dtype=Q8_0)

    def numbers(name, *shape, value=1.0):
        writer.add_tensor(name, numpy.full(shape, value, "f4"))

    matrix("token_embd", text["vocab_size"], hidden)
    matrix("output", text["vocab_size"], hidden)
    numbers("output_norm.weight", hidden)
    for layer in range(layers):
        at = f"blk.{layer}."
        numbers(at + "attn_norm.weight", hidden)
        numbers(at + "post_attention_norm.weight", hidden)
        if (layer + 1) % period:
            matrix(at + "attn_qkv", 2 * keys + values, hidden)
            matrix(at + "attn_gate", values, hidden)
            matrix(at + "ssm_beta", value_heads, hidden)
            matrix(at + "ssm_alpha", value_heads, hidden)
            matrix(at + "ssm_out", hidden, values)
            numbers(at + "ssm_conv1d.weight", 2 * keys + values, taps, value=0.25)
            numbers(at + "ssm_dt.bias", value_heads, value=0.1)
            numbers(at + "ssm_a", value_heads, value=-1.0)
            numbers(at + "ssm_norm.weight", delta_dim)
        else:
            matrix(at + "attn_q", 2 * heads * head_dim, hidden)
            matrix(at + "attn_k", kv_heads * head_dim, hidden)
            matrix(at + "attn_v", kv_heads * head_dim, hidden)
            matrix(at + "attn_output", hidden, heads * head_dim)
            numbers(at + "attn_q_norm.weight", head_dim)
            numbers(at + "attn_k_norm.weight", head_dim)
        matrix(at + "ffn_gate", inner, hidden)
        matrix(at + "ffn_up", inner, hidden)
        matrix(at + "ffn_down", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
