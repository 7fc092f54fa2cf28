#!/usr/bin/env python3
"""Makes a fixture: a tiny random checkpoint and what transformers computes with it.

    pip install torch transformers safetensors numpy
    tests/make/fixture.py llama out/llama_wide --set hidden_size=96 --set head_dim=20 --seed 3 --shard 150KB

The first argument is a `model_type`; `--set` changes its config, `--unset` leaves a key to its default. The folder gets config.json, the weights and, as
described in tests/fixtures/README.md, reference.safetensors and reference.json.
"""
import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

TOKENS, NEW_TOKENS, GROUP = 48, 24, 32
COMMON = dict(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, head_dim=32, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
              pad_token_id=0)


def round_trip(weight: torch.Tensor) -> torch.Tensor:
    """q4f16_1 as MLC writes it, decoded as (code - 7) * scale in f32."""
    rows = weight.detach().to(torch.float16).numpy()
    columns = rows.shape[-1]
    padded = np.zeros((*rows.shape[:-1], -(-columns // GROUP) * GROUP), np.float16)
    padded[..., :columns] = rows
    groups = padded.reshape(*padded.shape[:-1], -1, GROUP)
    scale = (np.abs(groups).max(-1, keepdims=True) / np.float16(7)).astype(np.float16)
    with np.errstate(divide="ignore", invalid="ignore"):
        code = np.rint(((groups / scale).astype(np.float16) + np.float16(7)).astype(np.float32))
    code = np.clip(np.nan_to_num(code, nan=0.0, posinf=14.0, neginf=0.0), 0, 14)
    values = (code - 7) * scale.astype(np.float32)
    return torch.from_numpy(values.reshape(padded.shape)[..., :columns].copy())


def quantised(name: str, weight: torch.Tensor) -> bool:
    """Linear and embedding weights and those of experts, but not what ends in `gate` and has few rows (routers)."""
    if ".experts." in name:
        return weight.dim() == 3
    router = name.removesuffix(".weight").endswith("gate") and weight.shape[0] <= 256
    return name.endswith(".weight") and weight.dim() == 2 and not router


def greedy(model, prompt: torch.Tensor):
    ids, tokens, margins = prompt, [], []
    for _ in range(NEW_TOKENS):
        top = model(ids[None]).logits[0, -1].float().topk(2)
        tokens.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        ids = torch.cat([ids, top.indices[:1]])
    return tokens, margins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_type")
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON")
    parser.add_argument("--unset", action="append", default=[], metavar="KEY")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--shard", default="1GB", metavar="SIZE")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    settings = COMMON | {key: json.loads(value) for key, value in (item.split("=", 1) for item in args.set)}
    settings = {key: value for key, value in settings.items() if key not in args.unset}
    config = transformers.AutoConfig.for_model(args.model_type, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 and "norm" in name:
                # In steps that bf16 still has after Gemma's 1 + w, which is what a bundle stores.
                weight.copy_((64 * (1 + 0.2 * torch.randn_like(weight))).round() / 64)
            elif weight.dim() == 1:
                weight.copy_(0.3 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * (1.5 / weight.shape[-1] ** 0.5))
    model.to(getattr(torch, args.dtype)).save_pretrained(args.out, max_shard_size=args.shard)

    # Loaded anew: the cast above has rounded the rotary tables too.
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(args.out, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = torch.randint(3, config.get_text_config().vocab_size, (TOKENS,))
    arrays = {"input_ids": prompt.numpy().astype(np.int32)}
    report = {"arch": config.architectures}
    with torch.no_grad():
        arrays["logits_f32"] = model(prompt[None]).logits[0].numpy().copy()
        report["greedy_f32"], report["greedy_margins_f32"] = greedy(model, prompt)
        for name, weight in model.named_parameters():
            # What is not quantised is stored in f16.
            weight.copy_(round_trip(weight) if quantised(name, weight) else weight.half())
        arrays["logits_q4_g32"] = model(prompt[None]).logits[0].numpy().copy()
        report["greedy_q4_g32"], report["greedy_margins_q4"] = greedy(model, prompt)
    save_file(arrays, args.out / "reference.safetensors")
    (args.out / "reference.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
