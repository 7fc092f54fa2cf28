#!/usr/bin/env python3
"""Writes a random bf16 checkpoint with a real model's shapes, for measuring speed and memory.

    pip install numpy
    tests/make/shapes.py llama-1b /dev/shm/llama-1b      # 2.47 GB
    tests/make/shapes.py llama-8b /var/tmp/llama-8b      # 16.1 GB, in four files
    tests/make/shapes.py gemma4-e2b /var/tmp/gemma4-e2b  # 9.3 GB, without the towers

Weights are gaussian with a standard deviation of 0.02, the same on every run. Nothing is held but one slice of a tensor.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

SLICE = 1 << 22
ROPE = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}
COMMON = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=128256, rms_norm_eps=1e-5,
              rope_theta=500000.0, rope_scaling=ROPE, max_position_embeddings=131072, hidden_act="silu",
              torch_dtype="bfloat16", bos_token_id=128000, eos_token_id=128009)
MODELS = {
    "llama-1b": (1, COMMON | dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64,
                                  num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True)),
    "llama-8b": (4, COMMON | dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, head_dim=128,
                                  num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False)),
}

REACHES = ["full_attention" if (i + 1) % 5 == 0 else "sliding_attention" for i in range(35)]
MODELS["gemma4-e2b"] = (1, dict(
    model_type="gemma4_text", architectures=["Gemma4ForCausalLM"], torch_dtype="bfloat16", vocab_size=262144,
    vocab_size_per_layer_input=262144, hidden_size=1536, hidden_size_per_layer_input=256, intermediate_size=6144,
    use_double_wide_mlp=True, num_hidden_layers=35, num_kv_shared_layers=20, num_attention_heads=8,
    num_key_value_heads=1, head_dim=256, global_head_dim=512, layer_types=REACHES, sliding_window=512,
    max_position_embeddings=131072, rms_norm_eps=1e-6, hidden_activation="gelu_pytorch_tanh",
    final_logit_softcapping=30.0, tie_word_embeddings=True, bos_token_id=2, eos_token_id=[1, 106],
    rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                     "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0,
                                        "partial_rotary_factor": 0.25}}))


def gemma4(c):
    h, ple, layers = c["hidden_size"], c["hidden_size_per_layer_input"], c["num_hidden_layers"]
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    yield "model.embed_tokens_per_layer.weight", (c["vocab_size"], layers * ple)
    yield "model.norm.weight", (h,)
    yield "model.per_layer_model_projection.weight", (layers * ple, h)
    yield "model.per_layer_projection_norm.weight", (ple,)
    for layer, reach in enumerate(c["layer_types"]):
        at, shares = f"model.layers.{layer}", layer >= layers - c["num_kv_shared_layers"]
        head = c["global_head_dim" if reach == "full_attention" else "head_dim"]
        i, q = c["intermediate_size"] * (1 + shares), c["num_attention_heads"] * head
        yield f"{at}.layer_scalar", (1,)
        for norm in ["input_layernorm", "post_attention_layernorm", "post_feedforward_layernorm",
                     "post_per_layer_input_norm", "pre_feedforward_layernorm"]:
            yield f"{at}.{norm}.weight", (h,)
        yield f"{at}.mlp.down_proj.weight", (h, i)
        yield f"{at}.mlp.gate_proj.weight", (i, h)
        yield f"{at}.mlp.up_proj.weight", (i, h)
        yield f"{at}.per_layer_input_gate.weight", (ple, h)
        yield f"{at}.per_layer_projection.weight", (h, ple)
        yield f"{at}.self_attn.q_proj.weight", (q, h)
        yield f"{at}.self_attn.q_norm.weight", (head,)
        yield f"{at}.self_attn.o_proj.weight", (h, q)
        if not shares:
            yield f"{at}.self_attn.k_norm.weight", (head,)
            yield f"{at}.self_attn.k_proj.weight", (c["num_key_value_heads"] * head, h)
            yield f"{at}.self_attn.v_proj.weight", (c["num_key_value_heads"] * head, h)


def tensors(c):
    if c["model_type"].startswith("gemma4"):
        yield from gemma4(c)
        return
    h, i, q = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"] * c["head_dim"]
    kv = c["num_key_value_heads"] * c["head_dim"]
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], h)
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (h,)
        yield f"{at}.mlp.down_proj.weight", (h, i)
        yield f"{at}.mlp.gate_proj.weight", (i, h)
        yield f"{at}.mlp.up_proj.weight", (i, h)
        yield f"{at}.post_attention_layernorm.weight", (h,)
        yield f"{at}.self_attn.k_proj.weight", (kv, h)
        yield f"{at}.self_attn.o_proj.weight", (h, q)
        yield f"{at}.self_attn.q_proj.weight", (q, h)
        yield f"{at}.self_attn.v_proj.weight", (kv, h)
    yield "model.norm.weight", (h,)


def write(path, parts, rng):
    header, offset = {}, 0
    for name, shape in parts:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in parts:
            left, base = int(np.prod(shape)), 1.0 if len(shape) == 1 else 0.0
            while left:
                values = base + 0.02 * rng.standard_normal(min(left, SLICE), dtype=np.float32)
                file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
                left -= len(values)


def main():
    files, config = MODELS[sys.argv[1]]
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2))
    parts, rng = list(tensors(config)), np.random.default_rng(0)
    if files == 1:
        write(out / "model.safetensors", parts, rng)
        return
    weight_map, step = {}, -(-len(parts) // files)
    for n in range(files):
        name = f"model-{n + 1:05}-of-{files:05}.safetensors"
        some = parts[n * step:(n + 1) * step]
        write(out / name, some, rng)
        weight_map |= {tensor: name for tensor, _ in some}
    index = {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main()
